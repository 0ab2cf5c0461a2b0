// Synthesized tasks: a table, and for the chosen one why it exists and whether it helped.
function taskSection(data, episodes, go) {
  const {tasks, counts, pieces, drafts} = data;
  const byId = new Map(tasks.map((task) => [task.id, task])), kept = remembered("tasks", {origin: ""});
  const detail = h("div", {class: "card detail"}, h("p", {class: "empty"}, "Choose a task to see why it exists."));
  const status = h("span", {class: "small faint"});
  const origins = inOrder(tasks.map((task) => task.origin));
  const chips = ["", ...origins].map((name) => h("button", {type: "button", "aria-pressed": String(name === kept.origin), onclick: () => {
    kept.origin = name;
    chips.forEach((chip, index) => chip.setAttribute("aria-pressed", String(["", ...origins][index] === name)));
    table.set(found());
  }}, name || "all"));
  const actions = (task) => (task.solution ? task.solution.length : task.actions);
  const rate = (visit) => (visit ? visit[2] / visit[1] : null);
  const columns = [{title: "step", number: true, value: (task) => task.step}, {title: "origin", value: (task) => task.origin, cell: (task) => badge(task.origin)}, {title: "query", value: (task) => task.query},
    {title: "actions", number: true, value: actions}, {title: "visits", value: (task) => rate(task.visits.at(-1)), cell: (task) => spark(task.visits)}];
  const saved = [{title: "id", value: (task) => task.id}, ...columns.slice(0, 4), {title: "visits", value: (task) => task.visits.length},
    {title: "success at the first visit", value: (task) => rate(task.visits[0])}, {title: "success at the last visit", value: (task) => rate(task.visits.at(-1))}];

  function found() {
    const wanted = (kept.search || "").trim().toLowerCase();
    const some = tasks.filter((task) => (!kept.origin || task.origin === kept.origin) && (!wanted || `${task.id} ${task.query} ${(task.solution || []).join(" ")}`.toLowerCase().includes(wanted)));
    table.empty = nothing(kept, "task");
    return some;
  }
  const table = sortable({name: "tasks", columns, rows: [], pick: (task) => go("task", task.id), chosen: (task) => task.id === kept.id, shown: (some, all) => {
    status.textContent = (some < all ? `${whole(some)} of ${whole(all)} found` : `${whole(all)} found`) + (tasks.length < counts.tasks ? `; the list has ${whole(tasks.length)} of ${whole(counts.tasks)} tasks, evenly spread` : "");
  }});
  table.set(found());
  function show(id) {
    const task = byId.get(id);
    if (!task) return false;
    kept.id = id;
    for (const row of table.body.children) row.classList.toggle("chosen", row.dataset.id === id);
    const tell = (whole) => replace(detail, story(whole, byId, episodes, go, data));
    const bare = (text) => replace(detail, h("div", {}, badge(task.origin), h("span", {class: "mono faint"}, task.id)), h("p", {class: "query"}, task.query), h("p", {class: "empty missing"}, text));
    if (task.solution) tell(task);
    else if (!pieces) bare("Its history is not in this page; python -m experiments.report WORKDIR --task=ID prints it.");
    else {
      bare("loading …");
      loadPiece(pieces, tasksPiece(pieces, task.number)).then((all) => { if (kept.id === id) tell(all.find((one) => one.id === id)); }).catch((error) => { if (kept.id === id) bare(error.message); });
    }
    return true;
  }
  const room = h("div", {class: "two"}, h("div", {class: "card"}, h("div", {class: "scroll"}, table.node)), detail);
  const save = csvButton(() => saveCsv("tasks", saved, found()));
  const node = section("tasks", "Synthesized tasks", "Every task knows its parent, the signal and the episode that led to it, and what validation found. A dot of the last column is a visit: green when at least half its episodes succeeded.",
    tasks.length ? [h("div", {class: "controls"}, h("span", {class: "chips"}, chips), searchField(kept, "search query, id, tool", () => table.set(found())), save, status), room] : h("p", {class: "empty"}, "No task has been synthesized yet."),
    drafts.length > 0 && rejected(drafts, counts.drafts));
  return {node, show, detail, chosen: () => (byId.has(kept.id) ? kept.id : null)};
}

function story(task, byId, episodes, go, data) {
  const named = (kind, id, exists) => h("span", {class: "mono"}, exists ? link(kind, id, id, go) : h("span", {class: "soft"}, id));
  const chain = [...task.parents].reverse().map(([id, origin, query]) =>
    h("li", {tone: tone(origin)}, h("span", {class: "small faint"}, origin ? `${origin} task ` : "task ", named("task", id, byId.has(id))), h("div", {}, query || "no longer in the pool")));
  if (task.source_episode)
    chain.push(h("li", {tone: tone(task.signal)}, h("span", {class: "small faint"}, "episode ", named("episode", task.source_episode, episodes.has(task.source_episode)), episodes.has(task.source_episode) ? "" : " (no longer stored)"),
      h("div", {}, task.signal ? badge(task.signal) : null, task.signal_evidence || (task.signal ? "" : "chosen without a signal"))));
  if (task.explorer || task.runs.length)
    chain.push(h("li", {}, h("span", {class: "small faint"}, "exploration"), h("div", {}, task.explorer || "explorer", task.runs.length ? `, run ${task.runs.join(", ")}` : ""),
      task.explored && expeditionLines(task.explored)));
  if (task.verdict)
    chain.push(h("li", {tone: tone(task.verdict)}, h("span", {class: "small faint"}, "validation "), badge(task.verdict), evidenceList(task.verdict_evidence, task.verdict),
      known(task.difficulty) && h("div", {class: "small soft"}, `difficulty ${percent(task.difficulty)}: the share of attempts on the query alone that failed`)));
  chain.push(h("li", {tone: tone(task.origin)}, h("span", {class: "small faint"}, `joined the pool at step ${task.step}`), h("div", {}, h("strong", {}, task.query))));
  return [h("div", {}, badge(task.origin), h("span", {class: "mono faint"}, task.id)), h("p", {class: "query"}, task.query),
    h("details", {}, h("summary", {}, `Solution, ${counted(task.solution.length, "action")}`), h("ul", {class: "lines mono"}, task.solution.map((action) => h("li", {}, action)))),
    h("h3", {css: {"margin-top": "18px"}}, "Why it exists"), h("ol", {class: "chain"}, chain),
    data.exchanges.texts.length > 0 && [h("h3", {css: {"margin-top": "18px"}}, "What was sent and received"), exchangesOf(task, data)],
    h("h3", {css: {"margin-top": "18px"}}, "Did it help?"), h("dl", {class: "facts"},
      h("dt", {}, "this task"), h("dd", {}, visitText(task.visits)),
      task.parents.length > 0 && [h("dt", {}, "its parent"), h("dd", {}, beforeAfter(task))])];
}

function visitText(visits) {
  if (!visits.length) return "not visited since, or its episodes are no longer stored";
  return [spark(visits), " ", visits.map(([step, episodes, successes]) => `${successes}/${episodes} at step ${step}`).join(", ")];
}

function beforeAfter(task) {
  const rate = (visits) => (visits.length ? `${percent(sum(visits.map((visit) => visit[2])) / sum(visits.map((visit) => visit[1])))} over ${visits.length} visit${visits.length > 1 ? "s" : ""}` : "no visit stored");
  const before = task.parent_visits.filter(([step]) => step <= task.step), after = task.parent_visits.filter(([step]) => step > task.step);
  return `before: ${rate(before)}; after: ${rate(after)}`;
}

// Examinations come in order, and the first that fails ends them: only the last line of a draft that was not accepted failed.
const evidenceList = (lines, status) => lines.length > 0 && h("ul", {class: "evidence"}, lines.map((line, place) => {
  const failed = status !== "accepted" && place === lines.length - 1;
  return h("li", {class: failed ? "no" : "yes"}, h("span", {}, line));
}));

function rejected(drafts, [initial, evolved]) {
  const columns = [{title: "draft", value: (draft) => draft.name, cell: (draft) => h("span", {class: "mono"}, draft.name)}, {title: "origin", value: (draft) => draft.origin, cell: (draft) => badge(draft.origin)},
    {title: "verdict", value: (draft) => draft.status, cell: (draft) => badge(draft.status)}, {title: "query", value: (draft) => draft.query},
    {title: "evidence", value: (draft) => draft.evidence.join("; "), cell: (draft) => evidenceList(draft.evidence, draft.status)}];
  const table = sortable({name: "drafts", columns, rows: drafts});
  const all = initial + evolved;
  return h("details", {}, h("summary", {}, `Drafts that were not accepted: ${whole(evolved)} of the evolutions${initial ? ` and ${whole(initial)} of the initial tasks` : ""}${drafts.length < all ? ` (${whole(drafts.length)} of these ${whole(all)} listed)` : ""}`),
    h("div", {class: "controls"}, csvButton(table.save), h("span", {class: "small faint"}, "python -m experiments.report WORKDIR --draft=STEP/NUMBER prints one with all that was sent and received.")),
    h("div", {class: "card scroll"}, table.node));
}
