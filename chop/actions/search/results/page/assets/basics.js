// Data, numbers and elements: what every drawing needs.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const column = (number, length = data.number.length) => {
  const { numbers, values, index } = data.columns[number];
  if (numbers) return numbers;
  return Array.from({ length }, (_, i) => values[index ? index[i] : 0]);
};
const namedColumns = (table, length) =>
  Object.entries(table).map(([name, number]) => ({ name, values: column(number, length) }));
for (const metric of data.metrics) metric.values = column(metric.column);
const metricNamed = (name) => data.metrics.find((metric) => metric.name === name);
const isPruned = column(data.pruned);
const isFeasible = column(data.feasible);
const onFront = new Set(data.front);
// of a page that compares searches: which one a trial is of
const series = data.series === undefined ? null : column(data.series);
const seriesOf = (i) => (series ? series[i] : 0);
const searchNames = data.searches ?? [""];

const shown = { design: data.chosen, byUser: false };
const listeners = [];
function choose(design) {
  shown.design = design;
  shown.byUser = true;
  for (const listener of listeners) listener(design);
}

// Which designs the filters let through; null: all.
const filter = { passes: null, listeners: [] };
const matches = (i) => filter.passes === null || filter.passes[i];

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
// The binomial standard error of a share of samples; null for any other metric.
function standardError(metric, value, search = 0) {
  const samples = metric.samples?.[search];
  if (!samples || value === null || value < 0 || value > 1) return null;
  return Math.sqrt((value * (1 - value)) / samples);
}
function measured(metric, value, search = 0) {
  const error = standardError(metric, value, search);
  const text = number(value, metric.decimals);
  return error === null ? text : `${text} ± ${number(error, metric.decimals)}`;
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
function button(text, action, attributes = {}) {
  const made = element("button", { type: "button", class: "copy", ...attributes }, text);
  made.addEventListener("click", action);
  return made;
}
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const isDark = () => window.matchMedia("(prefers-color-scheme: dark)").matches;

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
const trialText = (i) => (series ? `${searchNames[seriesOf(i)]}, trial ` : "Trial ") + data.number[i];

const differs = ({ values }) => new Set(values.map(plain)).size > 1;
const varying = namedColumns(data.params).filter(differs);
const config = namedColumns(data.config);
// What distinguishes designs: the choices that were searched or, if none are known, their configs.
const distinguishing = varying.length ? varying : config.filter(differs);
function ownChoices(i) {
  return distinguishing.map(({ name, values }) => [name, values[i]])
    .filter(([, value]) => value !== null && value !== undefined);
}

// tooltips

const tooltip = byId("tooltip");
const mostLines = 8;
const mostOwn = 12;
function describe(i) {
  const lines = data.metrics.slice(0, mostLines).map((m) => [m.name, measured(m, m.values[i], seriesOf(i))]);
  const own = ownChoices(i);
  const choices = own.slice(0, mostOwn).map(([name, value]) => [shortKey(name), plain(value)]);
  return { title: trialText(i), kind: kindText[kindOf(i)], lines, choices, rest: own.length - choices.length };
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
