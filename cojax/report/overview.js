// The page from its top down to the charts: what happened, in figures.
// Origins of tasks in a fixed order, and then those of evolutions from outside.
const inOrder = (origins) => {
  const found = new Set(origins), ours = ["seed", "unguided", "uniform", "trajectory", "posterior", "frontier", ...KINDS];
  return [...ours.filter((name) => found.has(name)), ...[...found].filter((name) => !ours.includes(name)).sort()];
};
const STATUSES = ["accepted", "retained", "discarded", "not admitted"];
const PART_COLORS = {generation: "var(--boundary)", environment: "var(--teal)", update: "var(--violet)", sync: "var(--pink)", feedback: "var(--forgetting)",
  evaluation: "var(--rare)", checkpoint: "var(--unguided)", "everything else": "var(--discarded)"};
const OUTCOME_COLORS = {finished: "var(--accepted)", truncated: "var(--rare)", timeout: "var(--forgetting)", environment_error: "var(--bad)", engine_error: "var(--violet)"};

function top(data) {
  const {config, headline} = data;
  const settings = config.config || {}, hardware = config.hardware;
  const facts = [settings.environment?.name ?? settings.environment, known(settings.evolve) && `evolve = ${settings.evolve}`, known(config.seed ?? settings.seed) && `seed ${config.seed ?? settings.seed}`,
    data.fork, headline.policy, config.commit && `commit ${String(config.commit).slice(0, 10)}`,
    headline.finished ? `${headline.step} steps` : `unfinished: step ${headline.step}${known(headline.steps) ? ` of ${headline.steps}` : ""}`];
  const theme = h("button", {type: "button", title: "light or dark", onclick: () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  }}, "light / dark");
  return [h("div", {}, h("h1", {}, `cojax · ${data.name}`, data.live && h("span", {id: "live", class: "live"}, "live")), h("p", {class: "soft"}, facts.filter(Boolean).join(" · ")),
    hardware && h("p", {class: "small faint"}, machine(hardware))), theme];
}

// The machine in a line; all that the run noted of it is among the settings.
function machine(hardware) {
  if (typeof hardware === "string") return hardware;
  const {processor, machine: kind, cores, devices} = hardware;
  const count = new Map();
  for (const name of Array.isArray(devices) ? devices : []) count.set(name, (count.get(name) || 0) + 1);
  return [processor || kind, known(cores) && counted(cores, "core"), ...[...count].map(([name, number]) => (number > 1 ? `${number} × ${name}` : name))].filter(Boolean).join(" · ");
}

const settingsSection = (data) => section("settings", "Settings", "As in config.json, so that this page alone says what was run, on which machine, with which versions.",
  h("details", {}, h("summary", {}, "config.json"), h("pre", {}, JSON.stringify(data.config, null, 1))));

// A figure keeps to one line: the longer it is, the smaller.
const figure = (...parts) => h("div", {class: "figure", css: {"--characters": sum(parts.map((part) => (part instanceof Node ? 2 : String(part).length)))}}, parts);
const arrow = () => h("span", {class: "arrow"}, "→");

function hero({headline, totals, counts}) {
  // While a run goes, the development split says more than a figure from before it.
  const heldOut = known(headline.final) || (known(headline.zero_shot) && !headline.dev);
  const pair = heldOut ? [headline.zero_shot, headline.final] : headline.dev || [null, null];
  const verdicts = sum(Object.values(totals.verdicts)), seconds = totals.seconds;
  const spent = seconds.total ?? sum(Object.values(seconds));
  const tile = (label, note, ...parts) => h("div", {class: "card tile"}, h("div", {class: "label"}, label), figure(...parts), h("div", {class: "small faint"}, note));
  const both = known(pair[0]) && known(pair[1]);
  const title = heldOut ? (known(pair[1]) ? "held-out success, zero-shot → after training" : "held-out success before training") : both ? "success on the development split, first → latest" : "success on the development split";
  return h("div", {class: "hero"},
    h("div", {class: "card tile wide"}, h("div", {class: "label"}, title),
      h("div", {class: "big"}, both ? figure(percent(pair[0], 1), arrow(), percent(pair[1], 1)) : figure(percent(pair[0], 1)), both && gain(pair, heldOut ? headline.gain : null)),
      h("div", {class: "gauge", title: "before, and what was added or lost"},
        h("i", {css: {width: `${100 * (pair[1] || 0)}%`, background: "var(--accent)"}}),
        h("i", {css: {width: `${100 * (pair[0] || 0)}%`, background: "var(--unguided)", opacity: both && pair[1] < pair[0] ? 0.45 : 1}}))),
    tile("tasks, start → end", `${whole(counts.tasks)} synthesized`, whole(headline.tasks_initial), arrow(), whole(headline.tasks_final)),
    tile("drafts accepted", verdicts ? `of ${whole(verdicts)} examined in evolutions` : "no evolution yet", verdicts ? percent((totals.verdicts.accepted || 0) / verdicts) : "–"),
    tile("wall time", known(seconds.warm_start) && seconds.warm_start > 0 ? `after a warm start of ${duration(seconds.warm_start)}` : counted(headline.step, "step"), duration(spent)),
    tile("spent on feedback", "of the wall time", percent(spent > 0 ? (seconds.feedback || 0) / spent : null, 1)));
}

// The difference is coloured only where its interval, paired by task, leaves out zero.
function gain([before, after], interval) {
  const points = 100 * (after - before), sure = interval && (interval.low > 0 || interval.high < 0);
  const flat = interval ? !sure : Math.abs(points) < 0.05;
  return h("div", {}, h("span", {class: flat ? "gain flat" : points < 0 ? "gain down" : "gain"}, `${signed(points)} points`),
    interval && h("span", {class: "small faint interval", title: `paired over ${interval.count} tasks`}, `95 %: ${signed(100 * interval.low)} to ${signed(100 * interval.high)}${sure ? "" : ", not distinguishable from 0"}`));
}

function curves({curves: c, evolutions}) {
  const marks = evolutions.filter((one) => !one.open).map((one) => one.step);
  const devSteps = new Map(c.dev), window = Math.max(3, Math.round(c.step.length / 16));
  const both = (name, color, values) => [{name: "", color, values, kind: "faint"}, {name: `${name}, mean of ${window} steps`, color, values: smooth(values, window)}];
  const dev = {name: "development split", color: "var(--ink)", kind: "dots", width: 1.5, dash: "4 3", values: c.step.map((step) => devSteps.get(step) ?? null)};
  return section("learning", "Learning", "Success on the training batches, whose tasks change as the pool evolves, and on the fixed development split. Faint dots are single steps; ticks on the axis are evolutions.",
    h("div", {class: "grid"},
      card("Success", "share of episodes with full reward", chart({x: c.step, marks, high: 1, format: percent, series: [...both("training batch", "var(--accent)", c.success), dev]})),
      card("Reward and partial reward", "mean over the batch", chart({x: c.step, marks, high: 1, format: (v) => v.toFixed(2),
        series: [...both("reward", "var(--accent)", c.reward), ...both("partial reward", "var(--rare)", c.partial)]})),
      card("Live groups", "share of groups whose episodes differ in reward: only these carry a gradient", chart({x: c.step, marks, high: 1, format: percent, series: both("live groups", "var(--violet)", c.live_groups)})),
      card("Trainer against sampler", "|log-prob difference| on sampled tokens", chart({x: c.step, marks, log: true,
        series: [{name: "mean", color: "var(--accent)", values: c.logprob_mismatch}, {name: "largest", color: "var(--unguided)", values: c.logprob_mismatch_max, width: 1.4}]}))),
    h("details", {}, h("summary", {}, "Optimisation: loss, gradient norm, KL, clipping, turns"),
      h("div", {class: "grid three", css: {"margin-top": "12px"}}, [["loss", "Loss", null], ["grad_norm", "Gradient norm", 0], ["kl", "KL to the reference", 0], ["clip_fraction", "Clipped tokens", 0], ["turns", "Turns an episode", 0]]
        .filter(([name]) => c[name].some(known))
        .map(([name, title, low]) => card(title, null, chart({x: c.step, low, height: 190, width: 360, series: [{name: title, color: "var(--accent)", values: c[name], width: 1.6}]}))))));
}

function agents({agents: a}) {
  if (!a || !a.step) return null;
  const drawn = [["target", "target", "var(--accent)"], ["second", "second agent", "var(--forgetting)"]].filter(([key]) => a[key]);
  const lines = (name) => drawn.map(([key, title, color]) => ({name: title, color, legend: true, values: a[key][name], width: 1.6}));
  const shares = {x: a.step, high: 1, format: percent};
  return section("agents", "Agents", "What the agents of each round played. A hard negative is a failure whose partial reward reaches the threshold preference.hard.",
    h("div", {class: "grid"},
      card("Success", "share of an agent's episodes", chart({...shares, series: lines("success")})),
      card("Hard negatives", "share of an agent's episodes", chart({...shares, series: lines("hard")})),
      card("Partial reward", "mean over an agent's episodes", chart({...shares, series: lines("partial")})),
      a.second && card("Distance of the second agent", "mean log-ratio to the target on its own tokens, in nats", chart({x: a.step, series: [{name: "distance", color: "var(--violet)", values: a.distance, width: 1.6}]}))));
}

function evolution({evolutions, pool, totals, helped}) {
  const steps = evolutions.map((one) => (one.open ? `${one.step}*` : one.step));
  const closed = evolutions.filter((one) => !one.open);
  const bars = (records, field, names) => names.map((name) => ({name, color: tone(name), kind: "bar", legend: true, values: records.map((one) => (one[field] || {})[name] || 0)})).filter((one) => sum(one.values) > 0);
  const origins = inOrder(Object.keys(pool.origins));
  return section("evolution", "Co-evolution", "Where the policy is weak, signals are raised; the explorer goes back there; what survives validation joins the pool.",
    h("div", {class: "grid"},
      card("Signals", `raised since the last evolution, by kind${evolutions.some((one) => one.open) ? " (* = not yet explored)" : ""}`, chart({x: steps, unit: "evolution at step", format: whole, series: bars(evolutions, "signals", KINDS)})),
      card("Pool", "tasks by origin, after each step", chart({x: pool.step, format: whole, marks: closed.map((one) => one.step), series: origins.map((name) => ({name, color: tone(name), kind: "area", legend: true, values: pool.origins[name]}))})),
      card("Verdicts", "what validation, and a probe if there is one, made of the drafts of each evolution", chart({x: closed.map((one) => one.step), unit: "evolution at step", format: whole, series: bars(closed, "verdicts", STATUSES)})),
      card("New tasks", "accepted at each evolution, by origin", chart({x: closed.map((one) => one.step), unit: "evolution at step", format: whole, series: bars(closed, "added", inOrder(closed.flatMap((one) => Object.keys(one.added || {}))))})),
      card("Where the time went", null, split(timeParts(totals.seconds), duration)),
      card("How episodes ended", "errors of the environment or the engine never count as failures of the policy", split(Object.entries(totals.outcomes).map(([name, value]) => ({name: name.replaceAll("_", " "), value, color: OUTCOME_COLORS[name] || "var(--faint)"})), whole))),
    helped.length > 0 && h("div", {class: "card", css: {"margin-top": "16px"}}, h("h3", {}, "Did the tasks get learned?"),
      h("p", {class: "small faint"}, "mean success at the first and at the last stored visit; only tasks visited at least twice, so that the same tasks are compared"), didHelp(helped)));
}

function timeParts(seconds) {
  const parts = Object.entries(seconds).filter(([name]) => name !== "total" && name !== "warm_start").map(([name, value]) => ({name, value, color: PART_COLORS[name] || "var(--faint)"}));
  const rest = (seconds.total || 0) - sum(parts.map((part) => part.value));
  if (rest > 0) parts.push({name: "everything else", value: rest, color: PART_COLORS["everything else"]});
  return parts;
}

function didHelp(helped) {
  const origins = inOrder(helped.map((one) => one.origin));
  const rows = [...helped].sort((a, b) => origins.indexOf(a.origin) - origins.indexOf(b.origin));
  const small = innerWidth < 700;
  const W = small ? 380 : 760, line = 30, left = small ? 120 : 190, right = small ? 64 : 90, at = (share) => left + share * (W - left - right);
  const svg = s("svg", {viewBox: `0 0 ${W} ${rows.length * line + 24}`, role: "img", "aria-label": "success at first and last visit by origin"});
  for (const tick of small ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1])
    svg.append(s("line", {class: "gridline", x1: at(tick), x2: at(tick), y1: 2, y2: rows.length * line}), s("text", {x: at(tick), y: rows.length * line + 17, "text-anchor": "middle"}, percent(tick)));
  rows.forEach((row, index) => {
    const y = index * line + line / 2, color = tone(row.origin), change = 100 * (row.last - row.first);
    svg.append(s("text", {x: left - 12, y: y + 4, "text-anchor": "end"}, small ? `${row.origin} (${whole(row.tasks)})` : `${row.origin} (${counted(row.tasks, "task")})`),
      s("line", {x1: at(row.first), x2: at(row.last), y1: y, y2: y, css: {stroke: color, "stroke-width": 4, "stroke-linecap": "round", "stroke-opacity": 0.45}}),
      s("circle", {cx: at(row.first), cy: y, r: 5, css: {fill: "var(--card)", stroke: color, "stroke-width": 2}}, s("title", {}, `first visit ${percent(row.first, 1)}`)),
      s("circle", {cx: at(row.last), cy: y, r: 6, css: {fill: color}}, s("title", {}, `last visit ${percent(row.last, 1)}`)),
      s("text", {x: W - right + 14, y: y + 4}, small ? signed(change) : `${signed(change)} points`));
  });
  return h("div", {class: "chart", css: {"max-width": "860px"}}, svg);
}
