// The episodes of a page as rows, and the group of an episode: its samples, their rewards and advantages.
const OUTCOME = (name) => name.replaceAll("_", " ");

// Rows from the index of all stored episodes, or, in the page of an evaluation, from its episodes.
function episodeRows({episodes, index}) {
  if (!index) return episodes.map((one) => ({id: one.id, step: one.step, task: one.task, query: one.query, origin: one.origin, outcome: one.outcome, reward: one.reward,
    turns: one.turns.length, signals: one.signals.map(([kind]) => kind), agent: one.agent, group: `${one.step} ${one.task} ${one.agent}`}));
  const none = [], rows = [];
  for (const [step, groups] of index.steps)
    for (const group of groups) {
      const [task, query, origin] = index.tasks[group.t], key = `${step} ${task} ${group.a || ""}`;
      group.r.forEach((reward, place) => {
        const name = group.n ? group.n[place] : place;
        rows.push({id: typeof name === "number" ? `${step}-${task}-${name}` : name, step, task, query, origin, outcome: group.o ? group.o[place] : "finished", reward,
          turns: group.k[place], signals: group.s ? group.s[place] : none, agent: group.a || "", group: key, advantage: group.v ? group.v[place] : 0});
      });
    }
  return rows;
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
