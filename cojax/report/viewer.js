// Episodes: a filtered list of all, and the chosen one turn by turn, every sampled token shaded by how unsure the policy was.
const VIEWER_ROWS = 250;
const ORDERS = {oldest: null, newest: (a, b) => b.step - a.step, "lowest reward": (a, b) => a.reward - b.reward, "highest reward": (a, b) => b.reward - a.reward, "most turns": (a, b) => b.turns - a.turns};

function episodeSection(data, go) {
  const {unit, pieces} = data;
  const groups = episodeGroups(data), rows = groups.flatMap((group) => group.rows);
  // What a live page has loaded stays while it is drawn anew.
  const texts = data.live ? remembered("texts", new Map()) : new Map(data.episodes.map((episode) => [episode.id, episode]));
  const learned = groups.some((group) => (group.v || []).some((value) => value));
  const find = finder(groups), whenLoaded = loader(texts, pieces, () => chosen);
  const tasksBySource = new Map();
  for (const task of data.tasks) if (task.source_episode) tasksBySource.set(task.source_episode, [...(tasksBySource.get(task.source_episode) || []), task]);
  const kept = remembered("episodes", {from: 0});
  const listing = h("ul", {class: "list"}), shown = h("p", {class: "small faint status"});
  const detail = h("div", {class: "card detail"}, h("p", {class: "empty"}, "Choose an episode."));
  let chosen = null;

  const found = () => filtered(rows, kept);
  function list() {
    const some = found();
    const from = kept.from < some.length ? kept.from : 0, to = Math.min(some.length, from + VIEWER_ROWS);
    const turn = (text, start) => h("button", {type: "button", class: "head turnpage", disabled: start === from || start >= some.length, onclick: () => { kept.from = start; list(); }}, text);
    replace(listing, some.slice(from, to).map((row) => pickable(h("li", {class: row.id === chosen ? "chosen" : null, "data-id": row.id},
      h("div", {class: "small faint"}, `${unit} ${row.step} · ${counted(row.turns, "turn")} · `, h("span", {class: row.reward >= 1 ? "yes" : "no"}, `reward ${short(row.reward)}`), row.outcome === "finished" ? "" : ` · ${OUTCOME(row.outcome)}`),
      h("div", {}, row.query), row.agent && badge("second agent"), row.signals.map((kind) => badge(kind))), () => go("episode", row.id))),
      !some.length && h("li", {class: "nothing"}, nothing(kept, "episode")));
    const listed = some.length > VIEWER_ROWS ? `, ${whole(from + 1)} to ${whole(to)} listed` : "";
    replace(shown, h("span", {}, `${counted(some.length, "episode")} found${listed}`), listed && [h("span", {class: "turns"}, turn("← before", Math.max(0, from - VIEWER_ROWS)), turn("next →", from + VIEWER_ROWS))]);
    listing.parentNode?.scrollTo?.(0, 0);
  }
  const changed = () => { kept.from = 0; list(); };
  const controls = episodeControls(data, groups, kept, changed, () => saveCsv("episodes", CSV_OF_EPISODES, found()));
  function choose(id) {
    const row = find(id);
    if (!row) return null;
    chosen = id;
    // One chosen by its address may be far from those listed.
    const listed = [...listing.children].some((item) => item.dataset.id === id), place = listed ? -1 : found().findIndex((one) => one.group === row.group && one.place === row.place);
    if (place >= 0) { kept.from = Math.max(0, place - 2); list(); }
    for (const item of listing.children) item.classList.toggle("chosen", item.dataset.id === id);
    return row;
  }
  function show(id) {
    const row = choose(id), group = row && row.group.rows;
    if (!row) return false;
    whenLoaded(row, [id], (missing) => replace(detail, transcript(row, texts.get(id), missing, data, tasksBySource.get(id) || [], groupStrip(row, group, go, learned), go)));
    return true;
  }
  function showGroup(id) {
    const row = choose(id), group = row && row.group.rows;
    if (!row) return false;
    whenLoaded(row, group.map((one) => one.id), (missing) => replace(detail, sideBySide(row, group, texts, go, learned), missing && h("p", {class: "small missing"}, missing)));
    return true;
  }
  list();
  const node = section("episodes", "Episodes", episodeNote(data, rows.length), rows.length
    ? [h("div", {class: "controls"}, controls), h("div", {class: "viewer"}, h("div", {class: "card listing"}, shown, h("div", {class: "scroll tall"}, listing)), detail)]
    : h("p", {class: "empty"}, "No episode is stored."));
  const first = [...tasksBySource.keys()].find((id) => texts.has(id)) || data.episodes[0]?.id || (pieces && rows[0]?.id);
  return {node, show, showGroup, detail, has: (id) => Boolean(find(id)), first};
}

// Draws at once what the page holds, and the rest when its piece has come and the same episode is still chosen.
const loader = (texts, pieces, chosen) => (row, ids, draw) => {
  const {id, step} = row, complete = () => ids.every((one) => texts.has(one));
  if (complete()) return draw("");
  if (!pieces) return draw("The texts of this episode are not in this page; they are in episodes/ of the run.");
  draw("loading …");
  loadPiece(pieces, episodesPiece(step)).then((all) => {
    for (const one of all) texts.set(one.id, one);
    if (chosen() === id) draw(complete() ? "" : `No episode ${id} is in ${pieces.folder}/${episodesPiece(step)}.js.`);
  }, (error) => { if (chosen() === id) draw(error.message); });
};

// The id of most names the step, of which there are few groups.
function finder(groups) {
  const byStep = new Map();
  for (const group of groups) byStep.has(String(group.step)) ? byStep.get(String(group.step)).push(group) : byStep.set(String(group.step), [group]);
  const among = (some, id) => some.flatMap((group) => group.rows).find((row) => row.id === id);
  return (id) => among(byStep.get(id.split("-")[0]) || [], id) || among(groups.filter((group) => group.n), id);
}

function filtered(rows, kept) {
  const wanted = (kept.search || "").trim().toLowerCase();
  const some = rows.filter((row) => (!kept.step || String(row.step) === kept.step) && (!kept.outcome || row.outcome === kept.outcome)
    && (!kept.signal || (kept.signal === "none" ? !row.signals.length : row.signals.includes(kept.signal)))
    && (!kept.success || (row.reward >= 1) === (kept.success === "solved"))
    && (!wanted || `${row.id} ${row.task} ${row.query}`.toLowerCase().includes(wanted)));
  return ORDERS[kept.order] ? some.sort(ORDERS[kept.order]) : some;
}

function episodeControls(data, groups, kept, changed, save) {
  const distinct = (values) => [...new Set(values)];
  const kinds = new Set(groups.flatMap((group) => (group.s || []).flat()));
  return [
    chooser(kept, "step", `every ${data.unit}`, distinct(groups.map((group) => group.step)), changed),
    chooser(kept, "outcome", "every outcome", distinct(groups.flatMap((group) => group.o || ["finished"])).sort().map((name) => [name, OUTCOME(name)]), changed),
    chooser(kept, "signal", "every signal", [...KINDS.filter((kind) => kinds.has(kind)), "none"], changed),
    chooser(kept, "success", "solved or not", ["solved", "not solved"], changed),
    searchField(kept, "search query, task or episode id", changed),
    chooser(kept, "order", "in order", Object.keys(ORDERS).slice(1), changed),
    csvButton(save)];
}

const CSV_OF_EPISODES = ["id", "step", "task", "query", "origin", "outcome", "reward", "turns"].map((name) => ({title: name, value: (row) => row[name]}))
  .concat([{title: "signals", value: (row) => row.signals.join(" ")}, {title: "agent", value: (row) => row.agent}, {title: "advantage", value: (row) => advantageNumber(row.advantage)}]);

const nothing = (kept, what) => (kept.search?.trim() ? `No ${what} has “${kept.search.trim()}” in it.` : `No ${what} is like this.`) + " Change the search or the filters.";

// How many of the stored episodes the page holds, and where the others are.
function episodeNote({episodes, counts, pages, pieces}, listed) {
  if (pages) return `${whole(episodes.length)} of ${whole(counts.episodes)} episodes${pages.length > 1 ? "; the others are on the other pages" : ""}. Whole texts are in episodes.jsonl.`;
  const list = listed < counts.episodes ? `The list has ${whole(listed)} of the ${counted(counts.episodes, "stored episode")}, of steps evenly spread.` : `The list has all ${counted(counts.episodes, "stored episode")}.`;
  if (episodes.length >= counts.episodes) return `${list} Long texts are cut; whole ones are in episodes/ of the run.`;
  const inside = episodes.length ? `The texts of ${whole(episodes.length)} are in this page: ${counts.sources[0] < counts.sources[1] ? `${whole(counts.sources[0])} of the ${whole(counts.sources[1])}` : `all ${whole(counts.sources[1])}`} that led to a synthesized task, and others evenly over the steps.` : "";
  return `${list} ${inside} ${pieces ? `The others are loaded from ${pieces.folder}/, which must lie beside this page.` : "The others are in episodes/ of the run."}`;
}

function transcript(row, one, missing, data, children, strip, go) {
  const inTable = data.tasks.some((task) => task.id === row.task);
  return [h("div", {}, badge(row.origin), h("span", {class: "mono faint"}, row.id)), h("p", {class: "query"}, one ? one.query : row.query),
    h("dl", {class: "facts"},
      h("dt", {}, "reward"), h("dd", {class: row.reward >= 1 ? "yes" : "no"}, `${short(row.reward)}, ${OUTCOME(row.outcome)}`),
      h("dt", {}, "task"), h("dd", {class: "mono"}, inTable ? link("task", row.task, row.task, go) : row.task),
      one && [
        one.checks.length > 0 && [h("dt", {}, "checks"), h("dd", {}, one.checks.map(([name, passed]) => h("div", {class: passed ? "yes" : "no"}, `${passed ? "✓" : "✗"} ${name}`)))],
        one.signals.length > 0 && [h("dt", {}, "signals"), h("dd", {}, one.signals.map(([kind, evidence]) => h("div", {}, badge(kind), evidence)))],
        one.error && [h("dt", {}, "error"), h("dd", {class: "no"}, one.error)]],
      children.length > 0 && [h("dt", {}, "led to"), h("dd", {}, children.slice(0, 8).map((task) => h("div", {}, link("task", task.id, task.query, go))), children.length > 8 && `and ${children.length - 8} more`)]),
    strip, one ? turns(one) : h("p", {class: "empty missing"}, missing)];
}

const turns = (one) => [h("div", {class: "turn"}, one.opening.map(([role, content]) => messageNode(role, content))),
  one.turns.map(turnNode),
  one.turns.some((turn) => turn.logprobs.length) && h("p", {class: "small faint", css: {"margin-top": "14px"}}, "token shading: certain", h("span", {class: "scale"}), "probability 0.1 or less")];

const messageNode = (role, content, failed) => h("div", {class: failed ? "say failed" : "say"}, h("span", {class: "who"}, failed ? `${role}, error` : role), content);

function turnNode(turn, index) {
  const mean = turn.logprobs.length ? sum(turn.logprobs) / turn.logprobs.length : null;
  const facts = [`turn ${index + 1}`, turn.tokens ? `${turn.tokens} tokens sampled, ${turn.prompt} new in the prompt` : null, known(mean) ? `mean log-prob ${mean.toFixed(2).replace("-0.00", "0.00").replace("-", "−")}` : null, turn.weights >= 0 ? `weights ${turn.weights}` : null];
  return h("div", {class: "turn"},
    h("div", {class: "say assistant"}, h("span", {class: "who"}, facts.filter(Boolean).join(" · ")), action(turn), turn.error && h("div", {class: "no small"}, `not parsed: ${turn.error}`)),
    turn.messages.map(([role, content]) => messageNode(role, content, !turn.ok)));
}

function action(turn) {
  const calls = turn.calls.map(([name, values]) => h("div", {class: "mono"}, h("strong", {}, name), `(${Object.entries(values).map(([key, value]) => `${key}=${JSON.stringify(value)}`).join(", ")})`));
  const plain = turn.calls.length && (turn.words.length || !turn.text) ? calls : turn.text;
  if (!turn.logprobs.length) return calls.length ? [turn.text.includes("<tool_call>") ? null : turn.text, calls] : plain;
  const shade = (logprob) => ({"--doubt": `${Math.round(90 * Math.min(1, Math.max(0, -logprob / 2.303)))}%`});
  const span = (logprob, place) => h("span", {css: shade(logprob), title: `probability ${Math.exp(logprob).toFixed(3)}, log-prob ${logprob}`}, turn.words.length ? turn.words[place] : "");
  return [turn.words.length ? null : calls.length ? calls : plain, h("div", {class: turn.words.length ? "tokens" : "tokens bare"}, turn.logprobs.map(span))];
}
