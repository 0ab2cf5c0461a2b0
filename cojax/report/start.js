// Puts the page together. The address names what is chosen: #task=ID, #episode=ID, #group=ID (the group of an episode).
let rooms = {};

function go(kind, id, always = false) {
  const room = rooms[kind];
  if (!room || !id || !room.show(id)) return false;
  history.replaceState(null, "", `#${kind}=${encodeURIComponent(id)}`);
  reveal(room.detail, always);
  return true;
}
const follow = () => go(...chosenByAddress(), true);

function draw(data) {
  learnKinds(data.kinds);
  learnOrigins([...Object.keys(data.pool.origins), ...[...data.tasks, ...data.drafts].map((one) => one.origin)]);
  const episodes = episodeSection(data, go), tasks = taskSection(data, episodes, go);
  rooms = {task: tasks, episode: episodes, group: {show: episodes.showGroup, detail: episodes.detail}};
  const parts = [["learning", "Learning", curves(data)], ["agents", "Agents", agents(data)], ["evolution", "Co-evolution", evolution(data)], ["taskset", "Task set", taskSet(data)],
    ["tasks", "Synthesized tasks", tasks.node], ["pairs", "Before and after", pairSection(data)], ["episodes", "Episodes", episodes.node], ["settings", "Settings", settingsSection(data)]].filter(([, , node]) => node);
  replace(document.getElementById("top"), top(data));
  replace(document.getElementById("main"), hero(data), parts.map(([, , node]) => node));
  replace(document.getElementById("nav"), h("div", {}, parts.map(([id, title]) => h("a", {href: `#${id}`}, title))));
  document.getElementById("foot").textContent = data.live ? "Drawn from the run directory as it is now." : "Made from the run directory alone; this file asks nothing of any server.";
  const exchanges = (task) => Number(task.id in data.exchanges.tasks);
  const eventful = [...data.tasks].filter((task) => task.verdict_evidence).sort((a, b) => exchanges(b) - exchanges(a) || b.visits.length - a.visits.length)[0] || data.tasks[0];
  if (eventful) tasks.show(tasks.chosen() || eventful.id);
  if (episodes.first) episodes.show(episodes.first);
}

const data = JSON.parse(document.getElementById("data").textContent);
draw(data);
addEventListener("hashchange", follow);
follow();
if (data.live) watch(data.live);
