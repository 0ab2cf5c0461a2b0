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
const NAMED = new Set(["forgetting", "boundary", "rare", "trajectory", "posterior", "frontier", "uniform", "unguided", "seed", "accepted", "retained", "discarded"]);
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
// Origins of evolutions from outside bring none: they get these in turn, and keep them when the page is drawn anew.
const OUTSIDE = ["var(--outside)", "var(--outside-second)", "var(--outside-third)"];
let outside = 0;
const learnOrigins = (origins) => {
  for (const name of [...new Set(origins)].sort())
    if (name && !NAMED.has(name) && !COLOURS.has(name)) COLOURS.set(name, OUTSIDE[outside++ % OUTSIDE.length]);
};
const badge = (name) => h("span", {class: "badge", tone: tone(name)}, name || "none");

const replace = (node, ...children) => { node.replaceChildren(); return fill(node, {}, children); };

// What a reader has chosen (filters, order, what is open), by section: it outlives a redrawing.
const CHOSEN = {};
const remembered = (name, start) => (CHOSEN[name] ??= start);

const known = (value) => value !== null && value !== undefined;
const percent = (share, digits = 0) => (known(share) ? `${(100 * share).toFixed(digits)} %` : "–");
const whole = (number) => (known(number) ? Math.round(number).toLocaleString("en") : "–");
const counted = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;
const signed = (number, digits = 1) => {
  const text = Math.abs(number).toFixed(digits);
  return `${Number(text) === 0 ? "±" : number < 0 ? "−" : "+"}${text}`;
};
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

// Scrolls where a reader would not see what was chosen: it lies outside the window, or begins in its lowest third.
function reveal(node, always) {
  const {top, bottom} = node.getBoundingClientRect();
  if (always || top > innerHeight * 0.66 || bottom < 120 || top < 0) node.scrollIntoView();
}

const link = (kind, id, text, go) => h("a", {href: `#${kind}=${encodeURIComponent(id)}`, onclick: (event) => { event.preventDefault(); go(kind, id); }}, text);

function chosenByAddress() {
  const [kind, ...rest] = location.hash.slice(1).split("=");
  try { return [kind, decodeURIComponent(rest.join("="))]; } catch { return [kind, ""]; }
}

// A select whose choice is remembered.
function chooser(kept, name, label, options, changed) {
  const node = h("select", {"aria-label": label, onchange: () => { kept[name] = node.value; changed(); }},
    h("option", {value: ""}, label), options.map((option) => { const [value, text] = Array.isArray(option) ? option : [option, option]; return h("option", {value, selected: String(value) === kept[name]}, text); }));
  return node;
}

function searchField(kept, placeholder, changed) {
  const field = h("input", {type: "search", placeholder, "aria-label": placeholder, value: kept.search || null, oninput: () => { kept.search = field.value; changed(); }});
  return field;
}
