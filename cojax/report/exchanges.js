// The exact texts that went to a model and came back. Messages that an exchange shares with the one before are not shown twice.
function exchangeList(rows, texts) {
  return h("div", {}, rows.map((row, index) => {
    const body = h("div");
    const item = h("details", {class: "exchange"}, h("summary", {}, h("span", {class: "mono"}, row.place), h("span", {class: "faint"}, known(row.text) ? ` → ${oneLine(texts[row.text])}` : " → nothing came back")), body);
    // Drawn when it is opened: a task may have a hundred of them.
    item.addEventListener("toggle", () => { if (item.open && !body.firstChild) fill(body, {}, exchange(row, index, texts)); });
    return item;
  }));
}

function exchange(row, index, texts) {
  return [h("p", {class: "small faint"}, row.about),
    row.shared > 0 && h("p", {class: "small faint"}, `sent: the ${row.shared} messages of the exchange before, then`),
    row.messages.map(([role, text]) => h("div", {class: "say"}, h("span", {class: "who"}, `sent, ${role}`), texts[text])),
    h("div", {class: "say assistant"}, h("span", {class: "who"}, "received"), known(row.text) ? texts[row.text] : "nothing")];
}

const oneLine = (text) => { const line = text.split(/\s+/).join(" ").trim(); return line.length > 90 ? `${line.slice(0, 90)} …` : line || "(empty)"; };

// What the page holds of a task's exchanges: those of its expedition, then those of its validation.
function exchangesOf(task, {exchanges}) {
  const {texts, expeditions, tasks} = exchanges;
  if (!texts.length) return null;
  const command = `python -m experiments.report WORKDIR --task=${task.id} prints them in full.`;
  if (!(task.id in tasks)) return h("p", {class: "small faint"}, `The page holds the texts of ${whole(Object.keys(tasks).length)} tasks, evenly spaced, and not of this one; ${command}`);
  const part = (title, rows) => rows && rows.length > 0 && h("details", {}, h("summary", {}, `${title}: ${whole(rows.length)} call${rows.length === 1 ? "" : "s"} to a model`), exchangeList(rows, texts));
  const found = [part("Exploration", expeditions[task.expedition]), part("Validation", tasks[task.id])].filter(Boolean);
  return [found.length ? found : h("p", {class: "small faint"}, "No call to a model is noted for it."), h("p", {class: "small faint", css: {"margin-top": "8px"}}, `Long texts are cut here; ${command}`)];
}

function expeditionLines(one) {
  const context = one.context || {};
  const facts = [["summary", "summary"], ["failure_cause", "why it failed"], ["instability_pattern", "what is unstable"], ["focus_patterns", "focus"], ["objectives", "objectives"], ["do_not_repeat", "not to repeat"]]
    .filter(([name]) => context[name] && context[name].length)
    .map(([name, title]) => [h("dt", {}, title), h("dd", {}, Array.isArray(context[name]) ? h("ul", {class: "lines"}, context[name].map((line) => h("li", {}, line))) : context[name])]);
  const runs = one.runs.map((run) => `run ${run.run}: ${run.ok} of ${run.actions} actions worked`).join("; ");
  return [facts.length > 0 && h("details", {}, h("summary", {}, "What the explorer was told"), h("dl", {class: "facts"}, facts)),
    runs && h("div", {class: "small soft"}, runs), one.failures.map((line) => h("div", {class: "small no"}, line)), one.error && h("div", {class: "small no"}, one.error)];
}
