// Data, numbers, elements and axes: what every drawing needs.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const column = (number) => {
  const { numbers, values, index } = data.columns[number];
  if (numbers) return numbers;
  return data.number.map((_, i) => values[index ? index[i] : 0]);
};
for (const metric of data.metrics) metric.values = column(metric.column);
const metricNamed = (name) => data.metrics.find((metric) => metric.name === name);
const isPruned = column(data.pruned);
const isFeasible = column(data.feasible);
const onFront = new Set(data.front);

const shown = { design: data.chosen };
const listeners = [];
function choose(design) {
  shown.design = design;
  for (const listener of listeners) listener(design);
}

// numbers

const absent = "–";
function number(value, decimals) {
  if (value === null || value === undefined) return absent;
  const [whole, ...rest] = Math.abs(value).toFixed(decimals).split(".");
  return (value < 0 ? "−" : "") + [whole.replace(/\B(?=(\d{3})+$)/g, ","), ...rest].join(".");
}
function plain(value) {
  if (value === null || value === undefined) return absent;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
const prefixes = [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e4, " k", 1e3]];
function tickText(value, step) {
  const [, unit, by] = prefixes.map(([from, mark, size]) => [from, mark, size ?? from])
    .find(([from]) => Math.abs(value) >= from) ?? [0, "", 1];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / by) + 1e-9));
  return (value < 0 ? "−" : "") + Math.abs(value / by).toFixed(Math.min(decimals, 9)) + unit;
}

// elements

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function tableOf(caption, head, rows, className = "") {
  const cell = (content, i) => content instanceof Element && /^T[DH]$/.test(content.tagName)
    ? content : element(i ? "td" : "th", i ? {} : { scope: "row" }, content);
  const body = rows.map((row) => element("tr", {}, ...row.map(cell)));
  const made = element("table", className ? { class: className } : {},
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...head.map((text) =>
      text instanceof Element ? text : element("th", { scope: "col" }, text)))),
    element("tbody", {}, ...body));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, made);
}
const right = (text) => element("td", { class: "n" }, text);
const rightHead = (text) => element("th", { class: "n", scope: "col" }, text);
function folded(summary, ...children) {
  return element("details", {}, element("summary", {}, summary), ...children);
}
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// a canvas of device pixels under an SVG of the same size
function stage(box, height) {
  const width = Math.max(box.clientWidth, 200);
  const ratio = window.devicePixelRatio || 1;
  const canvas = element("canvas", { width: width * ratio, height: height * ratio, "aria-hidden": "true" });
  canvas.style.width = `${width}px`;
  canvas.style.height = box.style.height = `${height}px`;
  const svg = drawn("svg", { width, height });
  box.replaceChildren(canvas, svg);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return { width, height, pen, svg };
}

// axes

// `guest` is seen too, unless it lies so far off that nothing else could be told apart.
function axis(values, from, to, guest = null) {
  let [low, high] = extent(values);
  const reach = (high - low || Math.abs(high) || 1) * 0.5;
  if (guest !== null && guest >= low - reach && guest <= high + reach) [low, high] = extent([low, high, guest]);
  const room = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
  low -= room;
  high += room;
  const place = (value) => from + ((value - low) / (high - low)) * (to - from);
  return { place, low, high, sees: (value) => value !== null && value >= low && value <= high };
}
function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || value === undefined) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [0, 1] : [low, high];
}
function ticks({ low, high }, wanted, whole = false) {
  const raw = (high - low) / wanted;
  const size = 10 ** Math.floor(Math.log10(raw));
  const off = (step) => Math.abs(Math.log(step / raw));
  let step = [1, 2, 5, 10].map((m) => m * size).reduce((a, b) => (off(b) < off(a) ? b : a));
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found.map((value) => ({ value, text: tickText(value, step) }));
}
function axes(svg, x, y, area, names, whole = {}) {
  for (const { value, text } of ticks(y, Math.max(4, (area.bottom - area.top) / 55), whole.y)) {
    const at = y.place(value);
    svg.append(drawn("line", { class: "grid", x1: area.left, x2: area.right, y1: at, y2: at }));
    svg.append(drawn("text", { x: area.left - 8, y: at + 4, "text-anchor": "end" }, text));
  }
  for (const { value, text } of ticks(x, Math.max(3, (area.right - area.left) / 90), whole.x)) {
    const at = x.place(value);
    svg.append(drawn("line", { class: "axis", x1: at, x2: at, y1: area.bottom, y2: area.bottom + 5 }));
    svg.append(drawn("text", { x: at, y: area.bottom + 19, "text-anchor": "middle" }, text));
  }
  svg.append(drawn("line", { class: "axis", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom }));
  svg.append(drawn("text", { class: "label", x: area.right, y: area.bottom + 38, "text-anchor": "end" }, names.x));
  svg.append(drawn("text", { class: "label", x: 0, y: area.top - 12 }, names.y));
}
function haloed(attributes, text) {
  return drawn("text", { ...attributes, stroke: "var(--paper)", "stroke-width": 4, "paint-order": "stroke" }, text);
}
const arrow = { maximize: " ↑ higher is better", minimize: " ↓ lower is better" };
const titled = (metric) => metric.name + (arrow[metric.direction] ?? "");

// designs

const kindOf = (i) => {
  if (isPruned[i]) return "pruned";
  if (!isFeasible[i]) return "infeasible";
  return onFront.has(i) ? "front" : "dominated";
};
const kindText = { front: data.goals > 1 ? "on the front" : "best", dominated: "dominated", infeasible: "infeasible", pruned: "pruned" };
const shortKey = (key) => key.replace("/config/", " ").replaceAll("/", " ");

const params = Object.entries(data.params).map(([name, number]) => ({ name, values: column(number) }));
const varying = params.filter(({ values }) => new Set(values.map(plain)).size > 1);
const config = Object.entries(data.config).map(([name, number]) => ({ name, values: column(number) }));
const configNamed = new Map(config.map((entry) => [entry.name, entry.values]));

// What a design has of its own: what was searched first, then what its "default" does not say.
function ownChoices(i) {
  const searched = varying.map(({ name, values }) => [name, values[i]]);
  const names = new Set(searched.map(([name]) => name));
  const others = config.filter(({ name }) => !names.has(name)).map(({ name, values }) => [name, values[i]]);
  const own = ([name, value]) => {
    const parts = name.split("/");
    if (value === null || parts[0] === "default" || parts.length < 2) return false;
    const node = configNamed.get(`${parts[0]}/config/name`);
    if (node && node[i] === null && names.size && !names.has(name)) return false;
    const usual = configNamed.get(["default", ...parts.slice(1)].join("/"));
    return !usual || plain(usual[i]) !== plain(value);
  };
  return [...searched.filter(own), ...others.filter(own)];
}

// tooltips

const tooltip = byId("tooltip");
const mostLines = 8;
function describe(i) {
  const lines = data.metrics.slice(0, mostLines).map((m) => [m.name, number(m.values[i], m.decimals)]);
  const own = ownChoices(i);
  const choices = own.slice(0, mostLines).map(([name, value]) => [shortKey(name), plain(value)]);
  const rest = own.length - choices.length;
  return { title: `Trial ${data.number[i]}`, kind: kindText[kindOf(i)], lines, choices, rest };
}
function showTooltip(i, left, top) {
  const { title, kind, lines, choices, rest } = describe(i);
  const row = (first) => ([name, value], k) =>
    element("tr", k || !first ? {} : { class: "first" }, element("th", {}, name), element("td", {}, value));
  tooltip.replaceChildren(element("strong", {}, `${title}, ${kind}`),
    element("table", {}, ...lines.map(row(false)), ...choices.map(row(true))));
  if (rest > 0) tooltip.append(`… ${rest} more`);
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const x = left + 14 + width > window.innerWidth - 8 ? left - 14 - width : left + 14;
  const y = Math.min(top + 14, window.innerHeight - height - 8);
  tooltip.style.left = `${Math.max(8, Math.min(x, window.innerWidth - width - 8))}px`;
  tooltip.style.top = `${Math.max(8, y)}px`;
}
function hideTooltip() {
  tooltip.hidden = true;
}
function say(text) {
  byId("spoken").textContent = text;
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTooltip();
});

// Once now, and whenever the width, the theme or the pixels change.
function keepDrawn(box, draw) {
  let width = -1;
  let waiting = false;
  const again = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  };
  new ResizeObserver(() => {
    if (box.clientWidth === width) return;
    width = box.clientWidth;
    again();
  }).observe(box);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  return again;
}
