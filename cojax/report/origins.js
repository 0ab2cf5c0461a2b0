// What tasks were worth, by where they came from; and held-out success by tool.
const PREDICTORS = [["beliefs", "rank correlation, beliefs"], ["probe", "rank correlation, probe"]];

function worthCard({rows, ranks, notes}) {
  const count = (title, value, cell = (row) => whole(value(row))) => ({title, number: true, value, cell});
  const costs = (name) => [count(`${name}: episodes`, (row) => row[name] && row[name][0]), count(`${name}: actions`, (row) => row[name] && row[name][1])];
  const used = (name) => rows.some((row) => row[name] && row[name][0] > 0);
  const columns = [{title: "origin", value: (row) => row.origin, cell: (row) => badge(row.origin)}, count("tasks", (row) => row.tasks), count("groups", (row) => row.groups),
    count("live groups", (row) => row.live, (row) => (row.groups ? `${whole(row.live)} (${percent(row.live / row.groups)})` : whole(row.live))),
    count("tools first solved", (row) => row.solved && row.solved.length, (row) => h("span", {title: row.solved && row.solved.length ? row.solved.join(", ") : null}, whole(row.solved && row.solved.length))),
    ...costs("explored"), ...(used("probed") ? costs("probed") : []), ...(rows.some((row) => row.attempted) ? [count("attempts", (row) => row.attempted)] : []),
    ...PREDICTORS.filter(([name]) => ranks[name].pairs > 0).map(([name, title]) => count(title, (row) => row.ranks[name].rho, (row) => rank(row.ranks[name]))),
    ...(rows.some((row) => known(row.norm)) ? [count("gradient norm", (row) => row.norm, (row) => short(row.norm))] : [])];
  const table = sortable({name: "worth", columns, rows});
  const every = PREDICTORS.filter(([name]) => known(ranks[name].rho)).map(([name]) => `${name} ${signed(ranks[name].rho, 2)} over ${counted(ranks[name].pairs, "task")}`);
  return h("div", {class: "card", id: "worth", css: {"margin-top": "16px"}}, h("div", {class: "controls between"}, h("h3", {}, "What tasks were worth, by origin"), csvButton(table.save)),
    h("p", {class: "small faint"}, "initial tasks included; a rank correlation (Spearman) is that of the success predicted of a draft and the success at the task's first visit, with the number of tasks; ",
      "a gradient norm is that of whole steps, weighted by the origin's live groups in them"),
    every.length > 0 && h("p", {class: "small soft"}, `Predicted and realised success, all origins: ${every.join(", ")}.`),
    notes.map((note) => h("p", {class: "small faint"}, note)), h("div", {class: "scroll"}, table.node));
}

const rank = ({rho, pairs, why}) => h("span", {title: why || null}, known(rho) ? `${signed(rho, 2)} (${whole(pairs)})` : `– (${whole(pairs)})`);

function gainCard({of, rows}) {
  const share = (title, value) => ({title, number: true, value, cell: (row) => percent(value(row))});
  const columns = [{title: of, value: (row) => row.name}, ...(rows.some((row) => known(row.tasks)) ? [{title: "evaluation tasks", number: true, value: (row) => row.tasks}] : []),
    share("first", (row) => row.first), share("last", (row) => row.last), {title: "gain", number: true, value: (row) => row.gain, cell: (row) => `${signed(100 * row.gain)} points`},
    ...(rows.some((row) => known(row.added)) ? [{title: "tasks added", number: true, value: (row) => row.added}] : [])];
  const table = sortable({name: "gains", columns, rows, order: [columns.findIndex((column) => column.title === "gain"), true]});
  return h("div", {class: "card", id: "gains", css: {"margin-top": "16px"}}, h("div", {class: "controls between"}, h("h3", {}, `Held-out gain by ${of}`), csvButton(table.save)),
    h("p", {class: "small faint"}, of === "tool" ? "success before training and after it, on the evaluation tasks whose solution calls the tool; few tasks a tool show little" : "success at the first and at the last evaluation"),
    h("div", {class: "scroll"}, table.node));
}
