// Runs side by side. Every difference is to the first run, on the held-out tasks that both played.
const data = JSON.parse(document.getElementById("data").textContent);
const {runs, pairs} = data;
// The end of a long path tells runs apart.
for (const run of runs) { run.full = run.name; if (run.name.length > 40) run.name = `…${run.name.slice(-39)}`; }
const PALETTE = ["var(--boundary)", "var(--forgetting)", "var(--accepted)", "var(--rare)", "var(--violet)", "var(--teal)", "var(--pink)", "var(--ink)", "var(--unguided)", "var(--bad)", "var(--good)", "var(--accent)"];
const named = (place) => h("span", {class: "line", title: runs[place].full}, h("i", {class: "swatch", css: {background: PALETTE[place]}}), runs[place].name);
const spent = ({seconds}) => seconds.total ?? sum(Object.values(seconds));
const span = ({low, high}) => `${signed(100 * low)} to ${signed(100 * high)}`;
const verdictOf = (pair) => (pair.low > 0 ? h("span", {class: "yes"}, "better") : pair.high < 0 ? h("span", {class: "no"}, "worse") : h("span", {class: "soft"}, "not distinguishable"));

function results() {
  const rows = runs.map((run, place) => ({run, place, pair: pairs[place]}));
  const of = (read) => (row) => read(row) ?? null;
  const columns = [
    {title: "run", value: (row) => row.run.name, cell: (row) => named(row.place)},
    {title: "held-out success", number: true, value: of((row) => row.run.headline.final), cell: (row) => percent(row.run.headline.final, 1)},
    {title: "before training", number: true, value: of((row) => row.run.headline.zero_shot), cell: (row) => percent(row.run.headline.zero_shot, 1)},
    {title: "difference, points", number: true, value: of((row) => row.pair?.mean), cell: (row) => (row.pair ? signed(100 * row.pair.mean) : "–")},
    {title: "95 % interval", value: (row) => (row.pair ? span(row.pair) : ""), cell: (row) => (row.pair ? span(row.pair) : row.place ? "no two shared tasks" : "baseline")},
    {title: "verdict", value: (row) => (row.pair ? (row.pair.low > 0 ? "better" : row.pair.high < 0 ? "worse" : "not distinguishable") : ""), cell: (row) => row.pair && verdictOf(row.pair)},
    {title: "tasks better / worse / same", value: (row) => (row.pair ? row.pair.better - row.pair.worse : null), cell: (row) => (row.pair ? `${row.pair.better} / ${row.pair.worse} / ${row.pair.count - row.pair.better - row.pair.worse}` : "–")},
    {title: "steps", number: true, value: of((row) => row.run.headline.step), cell: (row) => (row.run.headline.finished ? whole(row.run.headline.step) : `${whole(row.run.headline.step)}, unfinished`)},
    {title: "tasks at the end", number: true, value: of((row) => row.run.headline.tasks_final), cell: (row) => whole(row.run.headline.tasks_final)},
    {title: "wall time", number: true, value: (row) => spent(row.run), cell: (row) => duration(spent(row.run))}];
  const table = sortable({name: "comparison", columns, rows});
  return section("results", "Results", "Success on the held-out tasks after training. A difference is the mean over the tasks that a run shares with the first one, with Student's 95 % interval of these paired differences. It is over tasks: it says nothing of other seeds.",
    data.forks.length ? h("p", {}, data.forks.join(" ")) : null, h("div", {class: "controls"}, csvButton(table.save)), h("div", {class: "card scroll"}, table.node));
}

function forest() {
  const rows = runs.map((run, place) => ({place, pair: pairs[place]})).filter((row) => row.pair);
  if (!rows.length) return null;
  const width = Math.max(280, Math.min(900, innerWidth - 70)), line = 34, left = Math.min(220, width * 0.36), right = 20;
  const reach = Math.max(0.02, ...rows.flatMap(({pair}) => [Math.abs(pair.low), Math.abs(pair.high)])) * 1.1;
  const at = (share) => left + ((share + reach) / (2 * reach)) * (width - left - right);
  const tall = rows.length * line + 26, ticks = niceTicks(-100 * reach, 100 * reach, width < 500 ? 3 : 6);
  const svg = s("svg", {viewBox: `0 0 ${width} ${tall}`, role: "img", "aria-label": "paired differences with their intervals"});
  for (const tick of ticks) svg.append(s("line", {class: tick === 0 ? "guide shown" : "gridline", x1: at(tick / 100), x2: at(tick / 100), y1: 2, y2: tall - 22}),
    s("text", {x: at(tick / 100), y: tall - 6, "text-anchor": "middle"}, tick === 0 ? "0" : `${tick < 0 ? "−" : "+"}${Math.abs(tick)}`));
  rows.forEach(({place, pair}, index) => {
    const y = index * line + line / 2, color = PALETTE[place], name = runs[place].name, room = Math.floor(left / 8.5);
    svg.append(s("text", {x: left - 14, y: y + 4, "text-anchor": "end"}, s("title", {}, name), name.length > room ? `…${name.slice(1 - room)}` : name),
      s("line", {x1: at(pair.low), x2: at(pair.high), y1: y, y2: y, css: {stroke: color, "stroke-width": 3, "stroke-linecap": "round", "stroke-opacity": 0.5}}),
      s("circle", {cx: at(pair.mean), cy: y, r: 5.5, css: {fill: color}}, s("title", {}, `${signed(100 * pair.mean)} points, ${span(pair)}`)));
  });
  return h("div", {class: "card", css: {"margin-top": "16px"}}, h("h3", {}, `Difference to ${runs[0].name}, in points`), h("p", {class: "small faint"}, "mean and 95 % interval over the shared held-out tasks"), h("div", {class: "chart", css: {"max-width": "900px"}}, svg));
}

// Runs may have other steps: every curve is drawn over the steps of all.
function together(name) {
  const steps = [...new Set(runs.flatMap((run) => run.curves.step))].sort((a, b) => a - b);
  const over = (run, values) => { const known = new Map(run.curves.step.map((step, place) => [step, values[place]])); return steps.map((step) => known.get(step) ?? null); };
  const series = runs.map((run, place) => {
    const shared = {name: run.name, color: PALETTE[place], legend: true, width: 1.8};
    if (name === "dev") { const dev = new Map(run.curves.dev); return {...shared, kind: "dots", values: steps.map((step) => dev.get(step) ?? null)}; }
    const column = run.curves[name];
    return {...shared, values: over(run, name === "tasks" ? column : smooth(column, Math.max(3, Math.round(column.length / 16))))};
  });
  return {x: steps, series};
}

const learning = () => section("learning", "Learning", "Means of neighbouring steps. The tasks of a training batch change as a pool evolves, so that only the development split compares runs on the same tasks.",
  h("div", {class: "grid"},
    card("Success on the development split", "share of episodes with full reward", chart({...together("dev"), high: 1, format: percent})),
    card("Success on the training batch", "share of episodes with full reward", chart({...together("success"), high: 1, format: percent})),
    card("Live groups", "share of groups whose episodes differ in reward", chart({...together("live_groups"), high: 1, format: percent})),
    card("Pool", "tasks", chart({...together("tasks"), format: whole}))));

function tasks() {
  const kept = remembered("tasks", {}), status = h("span", {class: "small faint"});
  const rows = data.tasks.rows.map(([id, query, scores]) => ({id, query, scores}));
  const gap = (row, place) => (known(row.scores[place]) && known(row.scores[0]) ? row.scores[place] - row.scores[0] : null);
  const columns = [{title: "task", value: (row) => row.id, cell: (row) => h("span", {class: "mono"}, row.id)}, {title: "query", value: (row) => row.query, cell: (row) => row.query || h("span", {class: "faint"}, "not stored")},
    ...runs.map((run, place) => ({title: run.name, number: true, value: (row) => row.scores[place], cell: (row) => (known(row.scores[place]) ? short(row.scores[place]) : "–")})),
    ...runs.slice(1).map((run, place) => ({title: `${run.name} − ${runs[0].name}`, number: true, value: (row) => gap(row, place + 1),
      cell: (row) => { const value = gap(row, place + 1); return h("span", {class: value > 0 ? "yes" : value < 0 ? "no" : "faint"}, known(value) ? (value ? signed(value, 2) : "0") : "–"); }}))];
  const found = () => {
    const wanted = (kept.search || "").trim().toLowerCase();
    table.empty = wanted ? `No task has “${kept.search.trim()}” in its id or query. Change the search or the filter.` : "No held-out task is like this.";
    return rows.filter((row) => (!wanted || `${row.id} ${row.query}`.toLowerCase().includes(wanted)) && (!kept.only || runs.some((run, place) => gap(row, place))));
  };
  const table = sortable({name: "held-out-tasks", columns, rows: [], shown: (some, all) => { status.textContent = some < all ? `${whole(some)} of ${whole(all)} found` : `${whole(all)} found`; }});
  table.set(found());
  return section("tasks", "Held-out tasks", `Score of each held-out task after training${data.tasks.total > rows.length ? `; ${whole(rows.length)} of ${whole(data.tasks.total)} tasks` : ""}. A run stores the queries of those tasks alone whose episodes it keeps.`,
    rows.length ? [h("div", {class: "controls"}, searchField(kept, "search query or id", () => table.set(found())), chooser(kept, "only", "every task", ["tasks that differ"], () => table.set(found())), csvButton(table.save), status), h("div", {class: "card scroll"}, table.node)]
      : h("p", {class: "empty"}, "No run has been evaluated on held-out tasks yet."));
}

function settings() {
  const rows = data.differing.map((name) => ({name}));
  const columns = [{title: "setting", value: (row) => row.name, cell: (row) => h("span", {class: "mono"}, row.name)}, ...runs.map((run) => ({title: run.name, value: (row) => run.settings[row.name] ?? "–"}))];
  const commits = new Set(runs.map((run) => run.commit));
  return section("settings", "Settings that differ", commits.size > 1 ? `The code differs too: ${runs.map((run) => `${run.name} at ${run.commit || "an unknown commit"}`).join(", ")}.` : null,
    rows.length ? h("div", {class: "card scroll"}, sortable({name: "settings", columns, rows}).node) : h("p", {class: "empty"}, "The runs have the same settings."));
}

fill(document.getElementById("top"), {}, [h("div", {}, h("h1", {}, "cojax · comparison"), h("p", {class: "soft"}, runs.map((run, place) => [place ? " · " : "", h("span", {title: run.full}, h("i", {class: "swatch", css: {background: PALETTE[place]}}), run.name)])))]);
fill(document.getElementById("main"), {}, [results(), forest(), learning(), tasks(), settings()]);
fill(document.getElementById("nav"), {}, [h("div", {}, [["results", "Results"], ["learning", "Learning"], ["tasks", "Held-out tasks"], ["settings", "Settings"]].map(([id, title]) => h("a", {href: `#${id}`}, title)))]);
document.getElementById("foot").textContent = "Made from the run directories alone; this file asks nothing of any server.";
