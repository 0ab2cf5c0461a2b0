// Charts in plain SVG. A chart is {x, series: [{name, color, values, kind}], y, marks}; kinds: line, faint, dots, area, bar, group.
const WIDTH = 560, PAD = {left: 44, right: 12, top: 10, bottom: 24};

function niceTicks(low, high, count, integers = false) {
  const rough = Math.max(integers ? 1 : 0, (high - low) / Math.max(1, count) || 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough * 0.999);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step) ticks.push(Number(tick.toPrecision(12)));
  return ticks;
}

function smooth(values, window) {
  return values.map((value, index) => {
    const near = values.slice(Math.max(0, index - window + 1), index + 1).filter(known);
    return near.length && known(value) ? sum(near) / near.length : null;
  });
}

// Areas and bars stand on each other, in the order of the series.
function stacked(series, length) {
  const floor = new Array(length).fill(0);
  return series.map((one) => {
    if (one.kind !== "area" && one.kind !== "bar") return {...one, top: one.values};
    const base = [...floor];
    one.values.forEach((value, index) => { floor[index] += value || 0; });
    return {...one, base, top: [...floor]};
  });
}

// Text in a chart has the size of other text: it is drawn as wide as its place, and anew when that changes.
function chart(given) {
  const box = h("div", {class: "chart"});
  const width = typeof innerWidth === "number" ? Math.max(260, Math.min(given.width || WIDTH, innerWidth - 70)) : WIDTH;
  let drawn = 0;
  const drawAt = (wide) => { drawn = wide; replace(box, drawChart({...given, width: wide}, box)); };
  drawAt(width);
  if (globalThis.ResizeObserver) new ResizeObserver(([entry]) => { const wide = Math.round(entry.contentRect.width); if (wide > 120 && Math.abs(wide - drawn) > 8) requestAnimationFrame(() => drawAt(wide)); }).observe(box);
  return box;
}

function drawChart({x, series, height = 230, width = WIDTH, format = short, low = 0, high = null, marks = [], log = false, unit = "step", whole: integers = format === whole}, box) {
  const present = series.filter((one) => one.values.some(known));
  if (!x.length || !present.length) return h("p", {class: "empty"}, "nothing recorded yet");
  const layers = stacked(present, x.length);
  const numbers = layers.flatMap((one) => one.top).filter((value) => known(value) && (!log || value > 0));
  let bottom = log ? Math.min(...numbers) : known(low) ? low : Math.min(...numbers);
  let top = known(high) ? high : Math.max(...numbers);
  if (log) { bottom = 10 ** Math.floor(Math.log10(bottom)); top = 10 ** Math.ceil(Math.log10(top)); }
  if (!known(low) && !log) { const room = (top - bottom) * 0.06; bottom -= room; top += room; }
  if (!(top > bottom)) { top = bottom + (Math.abs(bottom) || 1); if (log) top = bottom * 10; }
  const ticks = log ? powers(bottom, top) : niceTicks(bottom, top, Math.max(3, Math.round(height / 46)), integers);
  if (!log && !known(high) && known(low) && top > ticks[ticks.length - 1] * 1.03) ticks.push(Number((2 * ticks[ticks.length - 1] - ticks[ticks.length - 2]).toPrecision(12)));
  if (!log && known(low)) top = Math.max(top, ticks[ticks.length - 1]);

  const bars = layers.some((one) => one.kind === "bar" || one.kind === "group");
  const grouped = layers.filter((one) => one.kind === "group");
  const first = x[0], last = x[x.length - 1];
  const inner = width - PAD.left - PAD.right, slot = inner / x.length;
  // What stands in the pool after the last step needs a width too.
  const end = bars || !layers.some((one) => one.kind === "area") ? last : last + Math.max(1, Math.round((last - first) / 40));
  const across = bars
    ? (value, index) => PAD.left + slot * (index + 0.5)
    : (value) => PAD.left + (end === first ? inner / 2 : ((value - first) / (end - first)) * inner);
  const scale = log ? (v) => Math.log(v / bottom) / Math.log(top / bottom) : (v) => (v - bottom) / (top - bottom);
  const up = (value) => height - PAD.bottom - Math.min(1, Math.max(0, scale(value))) * (height - PAD.top - PAD.bottom);

  const svg = s("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": present.map((one) => one.name).join(", ")});
  for (const tick of ticks) {
    svg.append(s("line", {class: "gridline", x1: PAD.left, x2: width - PAD.right, y1: up(tick), y2: up(tick)}),
      s("text", {x: PAD.left - 7, y: up(tick) + 4, "text-anchor": "end"}, tickText(tick, ticks, format)));
  }
  for (const mark of marks.filter((mark) => !bars && mark >= first && mark <= last))
    svg.append(s("line", {class: "mark", x1: across(mark), x2: across(mark), y1: height - PAD.bottom - 5, y2: height - PAD.bottom}));
  svg.append(s("line", {class: "axis", x1: PAD.left, x2: width - PAD.right, y1: height - PAD.bottom, y2: height - PAD.bottom}));
  const every = Math.ceil(x.length / Math.floor(inner / 34));
  grouped.forEach((layer, place) => { layer.place = place; layer.places = grouped.length; });
  const below = bars ? x.map((value, index) => [value, index]).filter(([, index]) => index % every === 0)
    : niceTicks(first, last, Math.max(2, Math.min(7, Math.floor(inner / 70))), true).map((value) => [value, 0]);
  for (const [value, index] of below)
    svg.append(s("text", {x: across(value, index), y: height - 7, "text-anchor": "middle"}, bars ? value : whole(value)));
  for (const layer of layers) svg.append(...drawLayer(layer, x, across, up, slot, log, end));

  const tip = hover(svg, {x, layers, across, format, height, width, unit});
  return [svg, tip, (present.length > 1 || present[0].legend) && h("div", {class: "legend"}, present.filter((one) => one.name).map((one) =>
    h("span", {}, h("i", {class: "swatch", css: {background: one.color}}), one.name)))];
}

// No two ticks may read alike: a percentage gets as many digits as the distance of two ticks needs.
function tickText(tick, ticks, format) {
  if (format !== percent || ticks.length < 2) return format(tick);
  const step = 100 * Math.abs(ticks[1] - ticks[0]);
  return percent(tick, step >= 0.999 ? 0 : Math.min(4, Math.ceil(-Math.log10(step) - 1e-9)));
}

function powers(bottom, top) {
  const ticks = [];
  for (let tick = bottom; tick <= top * 1.001; tick *= 10) ticks.push(tick);
  return ticks;
}

function drawLayer(layer, x, across, up, slot, log, end) {
  const {kind = "line", color, top, base} = layer;
  // Bars of a group stand side by side, on the ground.
  if (kind === "group") {
    const breadth = Math.min(slot * 0.8, 44) / layer.places;
    return top.map((value, index) => s("rect", {x: across(x[index], index) + breadth * (layer.place - layer.places / 2), width: breadth * 0.92,
      y: known(value) ? up(value) : up(0), height: known(value) ? Math.max(0, up(0) - up(value)) : 0, fill: color, css: {fill: color}}));
  }
  const points = top.map((value, index) => (known(value) && !(log && value <= 0) ? [across(x[index], index), up(value)] : null));
  if (kind === "bar")
    return top.map((value, index) => s("rect", {x: across(x[index], index) - Math.min(slot * 0.34, 22), width: Math.min(slot * 0.68, 44),
      y: up(value), height: Math.max(0, up(base[index]) - up(value)), fill: color, css: {fill: color}}));
  if (kind === "area") {
    // In steps: a pool holds its tasks from one moment on, it does not slide there.
    const edge = (values) => values.flatMap((value, index) => [[across(x[index]), up(value)], [across(index + 1 < x.length ? x[index + 1] : end), up(value)]]);
    return [s("polygon", {points: [...edge(top), ...edge(base).reverse()].join(" "), css: {fill: color, "fill-opacity": 0.85}})];
  }
  if (kind === "faint")
    return points.filter(Boolean).map(([cx, cy]) => s("circle", {cx, cy, r: 1.9, css: {fill: color, "fill-opacity": 0.35}}));
  let path = "", pen = false;
  for (const point of points) {
    if (point) path += `${pen ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    pen = kind === "dots" ? pen || Boolean(point) : Boolean(point);
  }
  const line = s("path", {d: path, fill: "none", css: {stroke: color, "stroke-width": layer.width || 2, "stroke-linejoin": "round", "stroke-dasharray": layer.dash || "none"}});
  const alone = kind === "dots" || points.filter(Boolean).length === 1;
  return [line, ...(alone ? points.filter(Boolean).map(([cx, cy]) => s("circle", {cx, cy, r: 3.6, css: {fill: "var(--card)", stroke: color, "stroke-width": 2}})) : [])];
}

function hover(svg, {x, layers, across, format, height, width, unit}) {
  const guide = s("line", {class: "guide", y1: PAD.top, y2: height - PAD.bottom});
  const tip = h("div", {class: "tip"});
  svg.append(guide);
  const hide = () => { guide.style.visibility = tip.style.visibility = "hidden"; };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const bounds = svg.getBoundingClientRect();
    const place = ((event.clientX - bounds.left) / bounds.width) * width;
    let nearest = 0;
    x.forEach((value, index) => { if (Math.abs(across(value, index) - place) < Math.abs(across(x[nearest], nearest) - place)) nearest = index; });
    const rows = layers.filter((one) => known(one.values[nearest]) && one.kind !== "faint");
    if (!rows.length) return hide();
    const at = across(x[nearest], nearest);
    guide.setAttribute("x1", at);
    guide.setAttribute("x2", at);
    tip.replaceChildren(h("b", {}, `${unit} ${x[nearest]}`), ...rows.reverse().map((one) =>
      h("div", {}, h("i", {class: "swatch", css: {background: one.color}}), `${one.name} ${(one.format || format)(one.values[nearest])}`)));
    const left = (at / width) * bounds.width;
    tip.style.left = left > bounds.width / 2 ? `${left - tip.offsetWidth - 12}px` : `${left + 12}px`;
    guide.style.visibility = tip.style.visibility = "visible";
  });
  return tip;
}

// One bar cut into shares, with a row for each.
function split(parts, format) {
  const total = sum(parts.map((part) => part.value));
  if (!(total > 0)) return h("p", {class: "empty"}, "nothing recorded yet");
  return h("div", {},
    h("div", {class: "split"}, parts.filter((part) => part.value > 0).map((part) => h("i", {title: `${part.name}: ${format(part.value)}`, css: {"flex-grow": part.value, background: part.color}}))),
    parts.map((part) => h("div", {class: "splitrow"},
      h("span", {}, h("i", {class: "swatch", css: {background: part.color}}), part.name), h("span", {class: "soft"}, format(part.value)), h("span", {}, percent(part.value / total, 1)))));
}

// Success of a task over its visits: a small line from 0 to 1.
function spark(visits) {
  if (!visits.length) return h("span", {class: "faint"}, "not visited");
  const rates = visits.map(([, episodes, successes]) => successes / episodes);
  const at = (index) => (rates.length === 1 ? 35 : 4 + (index / (rates.length - 1)) * 62);
  const points = rates.map((rate, index) => [at(index), 18 - rate * 14]);
  return s("svg", {width: 70, height: 22, role: "img", "aria-label": rates.map((rate) => percent(rate)).join(" → ")},
    s("title", {}, visits.map(([step, episodes, successes]) => `step ${step}: ${successes} of ${episodes}`).join("\n")),
    s("polyline", {points: points.join(" "), fill: "none", css: {stroke: "var(--faint)", "stroke-width": 1.5}}),
    points.map(([cx, cy], index) => s("circle", {cx, cy, r: 2.6, css: {fill: rates[index] >= 0.5 ? "var(--good)" : "var(--bad)"}})));
}
