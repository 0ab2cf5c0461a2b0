// As much of a browser as the report's script asks for, to run it without one: prints the page's text, all opened.
const fs = require("fs"), vm = require("vm");

class Node {
  constructor(name) { Object.assign(this, {name, children: [], attributes: {}, listeners: {}, dataset: {}, style: {setProperty() {}}}); }
  append(...items) { for (const item of items) this.children.push(item instanceof Node ? item : new Text(item)); }
  replaceChildren(...items) { this.children = []; this.append(...items); }
  setAttribute(name, value) { this.attributes[name] = String(value); if (name.startsWith("data-")) this.dataset[name.slice(5)] = String(value); }
  addEventListener(name, act) { this.listeners[name] = act; }
  get firstChild() { return this.children[0]; }
  get classList() { return {toggle() {}}; }
  get value() { return this.attributes.value || ""; }
  set textContent(text) { this.children = [new Text(text)]; }
  get textContent() { return this.children.map((child) => child.textContent).join(" "); }
  getBoundingClientRect() { return {top: 0, bottom: 0, left: 0, width: 1}; }
  scrollIntoView() {}
}
class Text extends Node {
  constructor(text) { super("#text"); this.text = String(text); }
  get textContent() { return this.text; }
}

const [page, data] = process.argv.slice(2).map((path) => fs.readFileSync(path, "utf-8"));
const named = {data: new Text(data)};
const document = {
  documentElement: new Node("html"),
  createElement: (name) => new Node(name),
  createElementNS: (space, name) => new Node(name),
  getElementById: (id) => (named[id] ??= new Node(id)),
};
vm.runInNewContext(page, {Node, document, location: {hash: ""}, history: {replaceState() {}}, matchMedia: () => ({matches: false}), addEventListener() {}, innerHeight: 800});

function opened(node) {
  if (node.listeners.toggle) { node.open = true; node.listeners.toggle(); }
  node.children.forEach(opened);
}
opened(named.main);
process.stdout.write(`${named.top.textContent} ${named.main.textContent}`);
