// The task set: how diverse it is, how near it comes to the evaluation tasks, and what feedback brings and costs.
const SETS = {initial: {name: "initial tasks", color: "var(--unguided)"}, synthesized: {name: "synthesized tasks", color: "var(--accent)"}, pool: {name: "pool", color: "var(--ink)"}};

function taskSet({quality, lengths, conversion, feedback, totals, worth, gains}) {
  const cards = [...(quality.step ? qualityCards(quality) : []), lengthCard(lengths), conversionCard(conversion), feedbackCard(feedback, totals.seconds)].filter(Boolean);
  const missing = !quality.step && "Diversity and nearness to the evaluation tasks were not measured in this run, or not yet.";
  return section("taskset", "Task set", ["Is the pool diverse, does it stay near what is evaluated without copying it, and what does feedback bring for its time? ", missing],
    h("div", {class: "grid"}, cards), conversion.funnel.length > 0 && funnel(conversion.funnel), worth.rows.length > 0 && worthCard(worth), gains.rows.length > 0 && gainCard(gains));
}

function qualityCards(quality) {
  const by = `embedding: ${quality.embedding === "local" ? "hashed n-grams of words and characters" : quality.embedding || "unknown"}`;
  const sampled = known(quality.compared) && known(quality.tasks) && quality.compared < quality.tasks ? `; a sample of ${whole(quality.compared)} of ${whole(quality.tasks)} tasks` : "";
  const series = (name) => ["pool", "synthesized"].map((set) => ({...SETS[set], values: quality[set][name], kind: "dots", legend: true}));
  const curve = (title, note, name, low, format) => card(title, note, chart({x: quality.step, unit: "step", low, format, series: series(name).map((one) => ({...one, format: format === percent ? (value) => percent(value, 1) : format}))}));
  const bins = quality.histogram.initial || quality.histogram.synthesized;
  const shares = (counts) => { const all = sum(counts || []); return (counts || []).map((count) => (all ? count / all : null)); };
  const greatest = ["initial", "synthesized"].filter((set) => known(quality.greatest[set])).map((set) => `${SETS[set].name} ${quality.greatest[set].toFixed(2)}`).join(", ");
  return [
    curve(`Diversity: SR@${quality.k ?? "k"}`, `mean cosine of a query to its ${quality.k ?? "k"} nearest; lower is more diverse, and a larger set is denser (${by}${sampled})`, "sr_at_k", 0, short),
    curve("Distance to the evaluation tasks: ED_rel", "energy distance between the queries and those evaluated, of the latter's mean pairwise distance; lower is closer", "ed_rel", null, percent),
    curve("Similarity to the nearest evaluation task", "mean over the tasks", "similarity", 0, short),
    bins ? card("Similarity to the nearest evaluation task, now", `share of the tasks by cosine; greatest: ${greatest}`, chart({x: bins.map((_, index) => (index / bins.length).toFixed(2)), unit: "cosine from", format: percent,
      series: ["initial", "synthesized"].filter((set) => quality.histogram[set]).map((set) => ({...SETS[set], kind: "group", legend: true, values: shares(quality.histogram[set])}))})) : null];
}

function lengthCard({actions, counts, mean}) {
  const means = Object.entries(mean).filter(([, value]) => known(value)).map(([set, value]) => `${SETS[set].name} ${value.toFixed(1)}`).join(", ");
  const shares = (values) => { const all = sum(values); return values.map((value) => (all ? value / all : null)); };
  return card("Interaction length", `share of the tasks by actions of their solution; mean: ${means || "–"}`, chart({x: actions, unit: "actions", format: percent,
    series: Object.entries(counts).filter(([, values]) => sum(values) > 0).map(([set, values]) => ({...SETS[set], kind: "group", legend: true, values: shares(values)}))}));
}

function conversionCard({step, pass_rate, fruitful}) {
  return card("From signal to task", "of each evolution", chart({x: step, unit: "evolution at step", high: 1, format: percent, series: [
    {name: "pass rate: drafts that became tasks", color: "var(--accepted)", kind: "dots", values: pass_rate},
    {name: "expeditions that brought a task", color: "var(--violet)", kind: "dots", values: fruitful}]}));
}

function feedbackCard({step, share}, seconds) {
  const whole = seconds.total > 0 ? (seconds.feedback || 0) / seconds.total : null;
  return card("Time spent on feedback", known(whole) ? `${percent(whole, 1)} of the wall time (${duration(seconds.feedback || 0)} of ${duration(seconds.total)}): signals, exploration, validation, probes` : "share of the wall time so far",
    chart({x: step, format: percent, series: [{name: "share of the wall time so far", format: (value) => percent(value, 1), color: "var(--forgetting)", values: share, legend: true}]}));
}

function funnel(rows) {
  const of = (part, all) => (all ? ` (${percent(part / all)})` : "");
  const count = (title, value, cell) => ({title, number: true, value, cell: cell || ((row) => whole(value(row)))});
  const columns = [{title: "origin", value: (row) => row.origin, cell: (row) => badge(row.origin)}, count("signals raised", (row) => row.signals),
    count("expeditions (of signals)", (row) => row.expeditions, (row) => `${whole(row.expeditions)}${of(row.expeditions, row.signals)}`),
    count("brought a task (of expeditions)", (row) => row.fruitful, (row) => `${whole(row.fruitful)}${of(row.fruitful, row.expeditions)}`),
    count("drafts", (row) => row.drafts), count("tasks (of drafts)", (row) => row.tasks, (row) => `${whole(row.tasks)}${of(row.tasks, row.drafts)}`)];
  const table = sortable({name: "signals-to-tasks", columns, rows});
  return h("div", {class: "card", css: {"margin-top": "16px"}}, h("div", {class: "controls between"}, h("h3", {}, "From signals to tasks, by origin"), csvButton(table.save)),
    h("p", {class: "small faint"}, "of the evolutions; the drafts of the initial tasks are not among them"), h("div", {class: "scroll"}, table.node));
}
