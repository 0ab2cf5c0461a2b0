// Elements from names, attributes and children. Text always becomes a text node: nothing in the data is ever parsed.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "tone") node.style.setProperty("--tone", value);
    else if (name === "css") for (const [property, setting] of Object.entries(value)) node.style.setProperty(property, setting);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}
const h = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const s = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

// Only names that the style sheet knows become colours.
const NAMED = new Set(["forgetting", "boundary", "rare", "trajectory", "uniform", "unguided", "seed", "accepted", "retained", "discarded"]);
// Kinds of signal from outside bring a colour, which Python has looked at.
const COLOURS = new Map();
const tone = (name) => (NAMED.has(name) ? `var(--${name})` : COLOURS.get(name) || "var(--faint)");
const KINDS = ["forgetting", "boundary", "rare"];
const learnKinds = (kinds) => {
  for (const [name, colour] of Object.entries(kinds || {})) {
    if (!KINDS.includes(name)) KINDS.push(name);
    if (colour) COLOURS.set(name, colour);
  }
};
const badge = (name) => h("span", {class: "badge", tone: tone(name)}, name || "none");

const replace = (node, ...children) => { node.replaceChildren(); return fill(node, {}, children); };

const known = (value) => value !== null && value !== undefined;
const percent = (share, digits = 0) => (known(share) ? `${(100 * share).toFixed(digits)} %` : "–");
const whole = (number) => (known(number) ? Math.round(number).toLocaleString("en") : "–");
const short = (number) => {
  if (!known(number)) return "–";
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 1000) return whole(number);
  return size < 0.001 ? number.toExponential(1).replace(".0e", "e") : String(Number(number.toPrecision(3)));
};
function duration(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  return hours ? `${hours} h ${minutes % 60} min` : `${minutes} min ${Math.floor(seconds % 60)} s`;
}
const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);

function section(id, title, lead, ...children) {
  return h("section", {id}, h("h2", {}, title), lead && h("p", {class: "lead"}, lead), children);
}
const card = (title, note, ...children) =>
  h("div", {class: "card"}, title && h("h3", {}, title), note && h("p", {class: "small faint"}, note), children);

// A row or item that works like a button, by mouse and by keyboard.
function pickable(node, pick) {
  node.tabIndex = 0;
  node.addEventListener("click", pick);
  node.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); }
  });
  return node;
}
