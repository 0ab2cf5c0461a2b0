// Puts the page together. The address names what is chosen: #task=ID, #episode=ID.
const data = JSON.parse(document.getElementById("data").textContent);
learnKinds(data.kinds);
const tasks = taskSection(data, go), episodes = episodeSection(data, go);
const rooms = {task: tasks, episode: episodes};

function go(kind, id) {
  if (!rooms[kind].show(id)) return;
  history.replaceState(null, "", `#${kind}=${encodeURIComponent(id)}`);
  const node = rooms[kind].node, bounds = node.getBoundingClientRect();
  if (bounds.top > innerHeight * 0.7 || bounds.bottom < 160) node.scrollIntoView();
}
function follow() {
  const [kind, id] = decodeURIComponent(location.hash.slice(1)).split("=");
  if (rooms[kind] && id && rooms[kind].show(id)) rooms[kind].node.scrollIntoView();
}

fill(document.getElementById("top"), {}, top(data));
fill(document.getElementById("main"), {}, [hero(data), curves(data), agents(data), evolution(data), taskSet(data), tasks.node, pairSection(data), episodes.node,
  section("settings", "Settings", "As in config.json, so that this page alone says what was run.", h("details", {}, h("summary", {}, "config.json"), h("pre", {}, JSON.stringify(data.config, null, 1))))]);
fill(document.getElementById("nav"), {}, [h("div", {}, [["learning", "Learning"], ...(data.agents.step ? [["agents", "Agents"]] : []), ["evolution", "Co-evolution"], ["taskset", "Task set"], ["tasks", "Synthesized tasks"], ["pairs", "Before and after"], ["episodes", "Episodes"], ["settings", "Settings"]].map(([id, title]) => h("a", {href: `#${id}`}, title)))]);
document.getElementById("foot").textContent = "Made from the run directory alone; this file asks nothing of any server.";
const exchanges = (task) => Number(task.id in data.exchanges.tasks);
const eventful = [...data.tasks].sort((a, b) => exchanges(b) - exchanges(a) || b.visits.length - a.visits.length)[0];
if (eventful) tasks.show(eventful.id);
if (episodes.first) episodes.show(episodes.first);
addEventListener("hashchange", follow);
follow();
