// The episodes of a page as rows, and the group of an episode: its samples, their rewards and advantages.
const OUTCOME = (name) => name.replaceAll("_", " ");

// One sample of a group. There may be hundreds of thousands: what they share stays in the group, and is read from there.
class Row {
  constructor(group, place) { this.group = group; this.place = place; }
  get name() { return this.group.n ? this.group.n[this.place] : this.place; }
  get id() { return typeof this.name === "number" ? `${this.step}-${this.task}-${this.name}` : this.name; }
  get step() { return this.group.step; }
  get task() { return this.group.task[0]; }
  get query() { return this.group.task[1]; }
  get origin() { return this.group.task[2]; }
  get agent() { return this.group.a || ""; }
  get reward() { return this.group.r[this.place]; }
  get turns() { return this.group.k[this.place]; }
  get outcome() { return this.group.o ? this.group.o[this.place] : "finished"; }
  get signals() { return this.group.s ? this.group.s[this.place] : []; }
  get advantage() { return this.group.v ? this.group.v[this.place] : 0; }
}

// The groups of all stored episodes, or, in the page of an evaluation, of its episodes; each with its rows.
function episodeGroups({episodes, index}) {
  const groups = [];
  const add = (group) => { group.rows = group.r.map((_, place) => new Row(group, place)); groups.push(group); };
  if (index) for (const [step, some] of index.steps) for (const group of some) add(Object.assign(group, {step, task: index.tasks[group.t]}));
  else {
    const found = new Map();
    for (const one of episodes) {
      const key = `${one.step} ${one.task}`;
      found.set(key, [...(found.get(key) || []), one]);
    }
    for (const some of found.values()) add({step: some[0].step, task: [some[0].task, some[0].query, some[0].origin], n: some.map((one) => one.id), r: some.map((one) => one.reward),
      k: some.map((one) => one.turns.length), o: some.map((one) => one.outcome), s: some.map((one) => one.signals.map(([kind]) => kind))});
  }
  return groups;
}

// An advantage is a number, or one for each turn; null where the episode is not learned from.
const advantageText = (value) => (Array.isArray(value) ? value.map((one) => signed(one, 2)).join(" ") : known(value) ? signed(value, 2) : "not learned from");
const advantageNumber = (value) => (Array.isArray(value) ? (value.length ? sum(value) / value.length : null) : value);

// The samples of a group as buttons, and a button that shows them side by side.
function groupStrip(row, rows, go, learned) {
  if (rows.length < 2) return null;
  return h("div", {class: "group"}, h("div", {class: "small faint"}, `${rows.length} samples of this task${learned ? ", with reward and advantage" : ", with reward"} `, link("group", row.id, "side by side", go)),
    h("div", {class: "samples"}, rows.map((one, place) => h("button", {type: "button", class: one.reward >= 1 ? "sample yes" : "sample no", "aria-pressed": String(one.id === row.id), title: one.id, onclick: () => go("episode", one.id)},
      h("b", {}, `${place + 1}`), h("span", {}, short(one.reward)), learned && h("span", {class: "faint"}, advantageText(one.advantage))))));
}

// One column for each sample; the columns scroll within their card.
function sideBySide(row, rows, shown, go, learned) {
  return [h("div", {}, badge(row.origin), h("span", {class: "mono faint"}, `${row.step} · ${row.task}`), " ", link("episode", row.id, "one at a time", go)),
    h("p", {class: "query"}, row.query),
    h("div", {class: "columns"}, rows.map((one, place) => h("div", {class: "column"},
      h("h3", {}, `sample ${place + 1}`), h("div", {class: one.reward >= 1 ? "yes small" : "no small"}, `reward ${short(one.reward)}, ${OUTCOME(one.outcome)}`),
      learned && h("div", {class: "small soft"}, `advantage ${advantageText(one.advantage)}`),
      one.signals.map((kind) => badge(kind)),
      shown.has(one.id) ? shown.get(one.id).turns.map(turnNode) : h("p", {class: "empty"}, "Its texts are not in this page."))))];
}
