// Episodes: a filtered list, and the chosen one turn by turn, every sampled token shaded by how unsure the policy was.
const VIEWER_ROWS = 250;

function episodeSection(data, go) {
  const {episodes, unit} = data;
  const byId = new Map(episodes.map((episode) => [episode.id, episode]));
  const tasksBySource = new Map();
  for (const task of data.tasks) if (task.source_episode) tasksBySource.set(task.source_episode, [...(tasksBySource.get(task.source_episode) || []), task]);
  const listing = h("ul", {class: "list"}), shown = h("p", {class: "small faint", css: {padding: "8px 12px"}});
  const detail = h("div", {class: "card"}, h("p", {class: "empty"}, "Choose an episode."));
  const choice = (label, options) => h("select", {"aria-label": label, onchange: () => list()}, h("option", {value: ""}, label), options.map((option) => h("option", {value: option}, option)));
  const distinct = (values) => [...new Set(values)];
  const step = choice(`every ${unit}`, distinct(episodes.map((one) => one.step)));
  const outcome = choice("every outcome", distinct(episodes.map((one) => one.outcome)).sort());
  const signal = choice("every signal", [...KINDS.filter((kind) => episodes.some((one) => one.signals.some(([name]) => name === kind))), "none"]);
  const success = choice("solved or not", ["solved", "not solved"]);
  const search = h("input", {type: "search", placeholder: "search query, task or episode id", "aria-label": "search episodes", oninput: () => list()});
  let chosen = null;

  function matches(one, wanted) {
    return (!step.value || String(one.step) === step.value) && (!outcome.value || one.outcome === outcome.value)
      && (!signal.value || (signal.value === "none" ? !one.signals.length : one.signals.some(([name]) => name === signal.value)))
      && (!success.value || (one.reward >= 1) === (success.value === "solved"))
      && `${one.id} ${one.task} ${one.query}`.toLowerCase().includes(wanted);
  }
  function list() {
    const found = episodes.filter((one) => matches(one, search.value.trim().toLowerCase()));
    replace(listing, found.slice(0, VIEWER_ROWS).map((one) => pickable(h("li", {class: one.id === chosen ? "chosen" : null, "data-id": one.id},
      h("div", {class: "small faint"}, `${unit} ${one.step} · ${one.turns.length} turns · `, h("span", {class: one.reward >= 1 ? "yes" : "no"}, `reward ${short(one.reward)}`), one.outcome === "finished" ? "" : ` · ${one.outcome.replace("_", " ")}`),
      h("div", {}, one.query), one.agent && badge("second agent"), one.signals.map(([kind]) => badge(kind))), () => go("episode", one.id))));
    shown.textContent = `${whole(found.length)} found${found.length > VIEWER_ROWS ? `, the first ${VIEWER_ROWS} listed` : ""}`;
  }
  function show(id) {
    const one = byId.get(id);
    if (!one) return false;
    chosen = id;
    for (const row of listing.children) row.classList.toggle("chosen", row.dataset.id === id);
    replace(detail, transcript(one, data, tasksBySource.get(id) || [], go));
    return true;
  }
  list();
  const node = section("episodes", "Episodes", episodeNote(data), episodes.length
    ? [h("div", {class: "controls"}, step, outcome, signal, success, search), h("div", {class: "viewer"}, h("div", {class: "card", css: {padding: "0"}}, shown, h("div", {class: "scroll", css: {"max-height": "760px"}}, listing)), detail)]
    : h("p", {class: "empty"}, "No episode is stored."));
  return {node, show, first: (tasksBySource.size ? [...tasksBySource.keys()].find((id) => byId.has(id)) : null) || (episodes[0] && episodes[0].id)};
}

// How many of the stored episodes the page holds.
function episodeNote({episodes, counts, pages}) {
  if (pages) return `${whole(episodes.length)} of ${whole(counts.episodes)} episodes${pages.length > 1 ? "; the others are on the other pages" : ""}. Whole texts are in episodes.jsonl.`;
  const left = counts.sources[1] - counts.sources[0];
  return `The page holds ${whole(episodes.length)} of ${whole(counts.episodes)} stored episodes: ${left ? `${whole(counts.sources[0])} of the ${whole(counts.sources[1])}` : `all ${whole(counts.sources[1])}`} that led to a synthesized task, and others evenly over the steps. The rest is in episodes/.`;
}

function transcript(one, data, children, go) {
  const link = (kind, id, text) => h("a", {href: `#${kind}=${encodeURIComponent(id)}`, onclick: (event) => { event.preventDefault(); go(kind, id); }}, text);
  const inTable = data.tasks.some((task) => task.id === one.task);
  return [h("div", {}, badge(one.origin), h("span", {class: "mono faint"}, one.id)), h("p", {class: "query"}, one.query),
    h("dl", {class: "facts"},
      h("dt", {}, "reward"), h("dd", {class: one.reward >= 1 ? "yes" : "no"}, `${short(one.reward)}, ${one.outcome.replace("_", " ")}`),
      h("dt", {}, "task"), h("dd", {class: "mono"}, inTable ? link("task", one.task, one.task) : one.task),
      one.checks.length > 0 && [h("dt", {}, "checks"), h("dd", {}, one.checks.map(([name, passed]) => h("div", {class: passed ? "yes" : "no"}, `${passed ? "✓" : "✗"} ${name}`)))],
      one.signals.length > 0 && [h("dt", {}, "signals"), h("dd", {}, one.signals.map(([kind, evidence]) => h("div", {}, badge(kind), evidence)))],
      one.error && [h("dt", {}, "error"), h("dd", {class: "no"}, one.error)],
      children.length > 0 && [h("dt", {}, "led to"), h("dd", {}, children.slice(0, 8).map((task) => h("div", {}, link("task", task.id, task.query))), children.length > 8 && `and ${children.length - 8} more`)]),
    h("div", {class: "turn"}, one.opening.map(([role, content]) => messageNode(role, content))),
    one.turns.map(turnNode),
    one.turns.some((turn) => turn.logprobs.length) && h("p", {class: "small faint", css: {"margin-top": "14px"}}, "token shading: certain", h("span", {class: "scale"}), "probability 0.1 or less")];
}

const messageNode = (role, content, failed) => h("div", {class: failed ? "say failed" : "say"}, h("span", {class: "who"}, failed ? `${role}, error` : role), content);

function turnNode(turn, index) {
  const mean = turn.logprobs.length ? sum(turn.logprobs) / turn.logprobs.length : null;
  const facts = [`turn ${index + 1}`, turn.tokens ? `${turn.tokens} tokens sampled, ${turn.prompt} new in the prompt` : null, known(mean) ? `mean log-prob ${mean.toFixed(2)}` : null, turn.weights >= 0 ? `weights ${turn.weights}` : null];
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
