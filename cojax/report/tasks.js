// Synthesized tasks: a table, and for the chosen one why it exists and whether it helped.
function taskSection(data, go) {
  const {tasks, counts, drafts} = data;
  const byId = new Map(tasks.map((task) => [task.id, task]));
  const stored = new Set(data.episodes.map((episode) => episode.id));
  const detail = h("div", {class: "card"}, h("p", {class: "empty"}, "Choose a task to see why it exists."));
  const body = h("tbody"), shown = h("span", {class: "small faint"});
  const search = h("input", {type: "search", placeholder: "search query, id, tool", "aria-label": "search tasks", oninput: () => list()});
  const origins = everyOrigin().filter((origin) => tasks.some((task) => task.origin === origin));
  let origin = "", chosen = null;
  const chips = ["", ...origins].map((name) => h("button", {type: "button", "aria-pressed": String(name === origin), onclick: () => {
    origin = name;
    chips.forEach((chip, index) => chip.setAttribute("aria-pressed", String(["", ...origins][index] === name)));
    list();
  }}, name || "all"));

  function list() {
    const wanted = search.value.trim().toLowerCase();
    const found = tasks.filter((task) => (!origin || task.origin === origin) && `${task.id} ${task.query} ${task.solution.join(" ")}`.toLowerCase().includes(wanted));
    replace(body, found.slice(0, 300).map((task) => pickable(h("tr", {class: task.id === chosen ? "pick chosen" : "pick", "data-id": task.id},
      h("td", {class: "number"}, task.step), h("td", {}, badge(task.origin)), h("td", {}, task.query), h("td", {class: "number"}, task.solution.length), h("td", {}, spark(task.visits))), () => go("task", task.id))));
    shown.textContent = `${whole(Math.min(300, found.length))} of ${whole(found.length)} found` + (tasks.length < counts.tasks ? `; the page holds ${whole(tasks.length)} of ${whole(counts.tasks)} tasks, evenly spaced` : "");
  }
  function show(id) {
    const task = byId.get(id);
    if (!task) return false;
    chosen = id;
    for (const row of body.children) row.classList.toggle("chosen", row.dataset.id === id);
    replace(detail, story(task, byId, stored, go, data));
    return true;
  }
  list();
  const room = h("div", {class: "two"},
    h("div", {class: "card"}, h("div", {class: "scroll"}, h("table", {},
      h("thead", {}, h("tr", {}, h("th", {class: "number"}, "step"), h("th", {}, "origin"), h("th", {}, "query"), h("th", {class: "number"}, "actions"), h("th", {}, "visits"))), body))), detail);
  const node = section("tasks", "Synthesized tasks", "Every task knows its parent, the signal and the episode that led to it, and what validation found. A dot of the last column is a visit: green when at least half its episodes succeeded.",
    tasks.length ? [h("div", {class: "controls"}, h("span", {class: "chips"}, chips), search, shown), room] : h("p", {class: "empty"}, "No task has been synthesized yet."),
    drafts.length > 0 && h("details", {}, h("summary", {}, `Drafts that were not accepted (${whole(drafts.length)} of ${whole(counts.drafts)} shown)`), h("p", {class: "small faint"}, "python -m experiments.report WORKDIR --draft=STEP/NUMBER prints one with all that was sent and received."), h("div", {class: "card scroll"}, rejected(drafts))));
  return {node, show};
}

function story(task, byId, stored, go, data) {
  const link = (kind, id, exists) => (exists ? h("a", {href: `#${kind}=${encodeURIComponent(id)}`, class: "mono", onclick: (event) => { event.preventDefault(); go(kind, id); }}, id) : h("span", {class: "mono soft"}, id));
  const lines = (items) => items.length > 0 && h("ul", {class: "lines"}, items.map((item) => h("li", {}, item)));
  const chain = [...task.parents].reverse().map(([id, origin, query]) =>
    h("li", {tone: tone(origin)}, h("span", {class: "small faint"}, origin ? `${origin} task ` : "task ", link("task", id, byId.has(id))), h("div", {}, query || "no longer in the pool")));
  if (task.source_episode)
    chain.push(h("li", {tone: tone(task.signal)}, h("span", {class: "small faint"}, "episode ", link("episode", task.source_episode, stored.has(task.source_episode)), stored.has(task.source_episode) ? "" : " (not kept in this page)"),
      h("div", {}, task.signal ? badge(task.signal) : null, task.signal_evidence || (task.signal ? "" : "chosen without a signal"))));
  if (task.explorer || task.runs.length)
    chain.push(h("li", {}, h("span", {class: "small faint"}, "exploration"), h("div", {}, task.explorer || "explorer", task.runs.length ? `, run ${task.runs.join(", ")}` : ""),
      data.expeditions[task.expedition] && expeditionLines(data.expeditions[task.expedition])));
  if (task.verdict)
    chain.push(h("li", {tone: tone(task.verdict)}, h("span", {class: "small faint"}, "validation "), badge(task.verdict), lines(task.verdict_evidence),
      known(task.difficulty) && h("div", {class: "small soft"}, `difficulty ${percent(task.difficulty)}: the share of attempts on the query alone that failed`)));
  chain.push(h("li", {tone: tone(task.origin)}, h("span", {class: "small faint"}, `joined the pool at step ${task.step}`), h("div", {}, h("strong", {}, task.query))));
  return [h("div", {}, badge(task.origin), h("span", {class: "mono faint"}, task.id)), h("p", {class: "query"}, task.query),
    h("details", {}, h("summary", {}, `Solution, ${task.solution.length} actions`), h("ul", {class: "lines mono"}, task.solution.map((action) => h("li", {}, action)))),
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

function rejected(drafts) {
  return h("table", {}, h("thead", {}, h("tr", {}, ["draft", "origin", "verdict", "query", "evidence"].map((name) => h("th", {}, name)))),
    h("tbody", {}, drafts.map((draft) => h("tr", {}, h("td", {class: "mono"}, draft.name), h("td", {}, badge(draft.origin)), h("td", {}, badge(draft.status)), h("td", {}, draft.query),
      h("td", {class: "soft"}, draft.evidence.join("; "))))));
}
