// The page of an evaluation: its figures, then the episodes behind them. The address names what is chosen: #episode=ID, #group=ID.
const data = JSON.parse(document.getElementById("data").textContent);
const {result, config} = data;
const episodes = episodeSection(data, go);

function go(kind, id, always = false) {
  if (!(kind === "episode" ? episodes.show(id) : kind === "group" && episodes.showGroup(id))) return;
  history.replaceState(null, "", `#${kind}=${encodeURIComponent(id)}`);
  reveal(episodes.detail, always);
}
const follow = () => go(...chosenByAddress(), true);

const th = (text, number) => h("th", {class: number ? "number" : null}, text);
const td = (text, number) => h("td", {class: number ? "number" : null}, text);
const table = (head, rows) => h("table", {}, h("thead", {}, h("tr", {}, head.map((name, place) => th(name, place > 0)))),
  h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, place) => td(cell, place > 0))))));
// A share in [0, 1] or a figure in per cent, with its interval.
const sure = (found, scale) => (found ? `${(scale * found.value).toFixed(1)} % (${(scale * found.low).toFixed(1)} – ${(scale * found.high).toFixed(1)})` : "–");

function figures() {
  const splits = Object.entries(result.splits);
  const passes = [...new Set(splits.flatMap(([, one]) => Object.keys(one.pass_at_k)))];
  const measures = [...new Set(splits.flatMap(([, one]) => Object.keys(one.measures)))];
  const head = ["split", "tasks", `avg@${result.samples}`, ...passes.map((k) => `pass@${k}`), ...measures, "partial reward", "turns", "lost"];
  const rows = splits.map(([name, one]) => [name, whole(one.tasks), sure(one.avg_at_k, 100), ...passes.map((k) => sure(one.pass_at_k[k], 100)),
    ...measures.map((measure) => sure(one.measures[measure], 1)), percent(one.partial, 1), one.turns.toFixed(1), whole(one.lost)]);
  return section("result", "Result", result.interval, h("div", {class: "card scroll"}, table(head, rows)),
    splits.filter(([, one]) => Object.keys(one.by).length).map(([name, one]) => h("details", {open: Object.keys(one.by).length <= 30}, h("summary", {}, `${name}, by ${one.by_key}`),
      h("div", {class: "card scroll"}, table([one.by_key, "tasks", "success"], Object.entries(one.by).map(([kind, found]) => [kind, whole(found.tasks), percent(found.success, 1)]))))));
}

function header() {
  const policy = Object.entries(result.policy).filter(([, value]) => value !== "").map(([key, value]) => `${key} ${value}`);
  const facts = [result.environment, data.origin, ...policy, `${result.samples} ${result.samples === 1 ? "episode" : "episodes"} a task`, `temperature ${result.temperature}`, config.commit && `commit ${String(config.commit).slice(0, 10)}`];
  return [h("div", {}, h("h1", {}, `cojax · ${data.name}`), h("p", {class: "soft"}, facts.filter(Boolean).join(" · ")),
    data.pages.length > 1 && h("p", {class: "small"}, "Pages: ", data.pages.map((page, place) => [place ? ", " : "", page === data.page ? h("strong", {}, String(place + 1)) : h("a", {href: page}, String(place + 1))])))];
}

fill(document.getElementById("top"), {}, header());
fill(document.getElementById("main"), {}, [figures(), episodes.node,
  section("settings", "Settings", "As in config.json, so that this page alone says what was evaluated.", h("details", {}, h("summary", {}, "config.json"), h("pre", {}, JSON.stringify(config, null, 1))))]);
fill(document.getElementById("nav"), {}, [h("div", {}, [["result", "Result"], ["episodes", "Episodes"], ["settings", "Settings"]].map(([id, title]) => h("a", {href: `#${id}`}, title)))]);
document.getElementById("foot").textContent = "Made from the folder of the evaluation alone; this file asks nothing of any server.";
if (episodes.first) episodes.show(episodes.first);
addEventListener("hashchange", follow);
follow();
