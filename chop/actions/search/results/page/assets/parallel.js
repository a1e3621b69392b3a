// Parallel coordinates, one row a choice or metric, so that long names and narrow screens fit.

const parallel = { box: byId("parallel"), lines: [], rows: [], mostChoices: 10, mostLines: 2000, row: 48 };

// All rows, the choices first; `scale.share` gives the place of a value between 0 and 1.
const allRows = [
  ...varying.map(choiceRow),
  ...data.metrics.filter(({ direction, values }) => direction && values.some((v) => v !== null)).map(metricRow),
];
const rowNamed = (key) => allRows.find((row) => row.key === key);

function parallelRows() {
  const weight = (name) => data.importance[name] ?? 0;
  const ranked = [...varying].sort((a, b) => weight(b.name) - weight(a.name));
  const all = byId("parallel-all").checked;
  const kept = new Set((all ? ranked : ranked.slice(0, parallel.mostChoices)).map(({ name }) => name));
  return allRows.filter(({ key, isMetric }) => isMetric || kept.has(key));
}

function choiceRow({ name, values }) {
  const distinct = [...new Set(values)].filter((value) => value !== null);
  const numeric = distinct.every((value) => typeof value === "number");
  const row = { key: name, name: shortKey(name), values, isMetric: false };
  if (numeric && distinct.length > 12) return { ...row, scale: spread(values) };
  const ordered = distinct.sort(numeric ? (a, b) => a - b : undefined);
  const step = 1 / Math.max(1, ordered.length - 1);
  const place = new Map(ordered.map((value, k) => [plain(value), ordered.length === 1 ? 0.5 : k * step]));
  const labels = ordered.map((value) => ({ share: place.get(plain(value)), text: plain(value), value }));
  return { ...row, scale: { share: (value) => place.get(plain(value)), labels, choices: labels, room: Math.min(0.05, step * 0.3) } };
}
// Designs with the same value lie beside each other, so that one can point at each.
const luck = (i, k) => ((i * 0.618034 + k * 0.414214) % 1) - 0.5;
function metricRow(metric) {
  const scale = spread(metric.values, metric.decimals);
  return { key: metric.name, name: titled(metric) + beyond(scale.offset), values: metric.values, isMetric: true, scale };
}
function spread(values, decimals = null) {
  const [low, high] = extent(values);
  const share = (value) => (high === low ? 0.5 : (value - low) / (high - low));
  const end = high === low ? low + 1 : high;
  const { marks, offset } = ticks({ low, high: end, log: false, length: 400, place: (value) => 400 * share(value) });
  const labels = marks.map(({ value, text }) => ({ share: share(value), text })).filter((label) => label.share <= 1);
  return { share, labels, offset, low, high, decimals: decimals ?? (Number.isInteger(low) && Number.isInteger(high) ? 0 : 4) };
}

function drawParallel() {
  const rows = parallel.rows = parallelRows();
  byId("parallel-all").parentElement.hidden = varying.length <= parallel.mostChoices;
  const { box } = parallel;
  const row = parallel.row = box.clientWidth > 640 ? 48 : 58;
  for (const each of document.querySelectorAll(".of-parallel")) each.hidden = rows.length < 2;
  if (rows.length < 2 || !data.number.length) {
    box.replaceChildren(element("p", {}, "There is no choice that differs between completed trials."));
    return;
  }
  const { width, pen, svg } = stage(box, rows.length * row + 14);
  const beside = width > 640; // where names have room of their own
  const [left, right] = [beside ? Math.min(310, 40 + 7 * Math.max(...rows.map(({ name }) => name.length))) : 24, width - 28];
  const heights = rows.map((_, k) => 30 + k * row);
  Object.assign(parallel, { left, right, heights });
  parallel.pointsOf = (i) => rows.map(({ values, scale }, k) => values[i] === null ? null
    : [left + (scale.share(values[i]) + (scale.room ?? 0) * luck(i, k)) * (right - left), heights[k]]);
  parallel.lines = drawnDesigns().map((i) => ({ i, points: parallel.pointsOf(i) }));
  for (const { i, points } of parallel.lines.filter((line) => !matches(line.i))) {
    pen.mark(pathOf(points), [0, 0], { stroke: colour("grid"), alpha: onFront.has(i) ? 0.8 : 0.4 });
  }
  for (const kind of ["pruned", "infeasible", "dominated", "front"]) strokeKind(pen, kind);
  rows.forEach((each, k) => drawRow(svg, each, heights[k], beside, width));
  svg.append(drawn("path", { class: "line", id: "parallel-hover" }), drawn("path", { class: "chosen-mark", id: "parallel-chosen" }));
  const hidden = data.number.length - parallel.lines.length;
  box.setAttribute("aria-label", `Parallel coordinates of ${rows.length} rows and ${parallel.lines.length} designs` +
    (hidden ? `; ${hidden} more are left out` : ""));
  highlight(byId("parallel-chosen"), shown.design);
}

function drawRow(svg, { key, name, scale }, top, beside, width) {
  const { left, right } = parallel;
  const range = filters.get(key);
  if (range) {
    const [from, to] = range.map((share) => left + share * (right - left));
    svg.append(drawn("rect", { class: "brush", x: from - 2, width: Math.max(4, to - from + 4), y: top - 9, height: 18 }));
  }
  svg.append(drawn("line", { class: "axis", x1: left, x2: right, y1: top, y2: top }));
  const place = beside ? { x: left - 30, y: top + 4, "text-anchor": "end" } : { x: left, y: top - 12 };
  svg.append(haloed({ class: "label", ...place }, beside && name.length > 40 ? `…${name.slice(-39)}` : name));
  const most = Math.max(4, Math.floor(width / 60));
  const placed = scale.labels.map(({ share, text }) => rowLabel(share, text.length > most ? `${text.slice(0, most)}…` : text));
  const collide = (a, b) => b.from < a.to + 8;
  for (const { at } of placed) svg.append(drawn("line", { class: "axis", x1: at, x2: at, y1: top - 3, y2: top + 3 }));
  for (const { x, anchor, text } of withoutCollisions(placed, collide)) svg.append(haloed({ class: "tick-row", x, y: top + 15, "text-anchor": anchor }, text));
}
function rowLabel(share, text) {
  const at = parallel.left + share * (parallel.right - parallel.left);
  const anchor = share < 0.02 ? "start" : share > 0.98 ? "end" : "middle";
  const x = anchor === "start" ? at - 4 : anchor === "end" ? at + 4 : at;
  const from = x - { start: 0, middle: 0.5, end: 1 }[anchor] * textWidth(text);
  return { at, x, anchor, text, from, to: from + textWidth(text) };
}

// Of very many designs every n-th, so that ten thousand stay quick; those that the filters let through,
// and the front, are thinned by themselves.
function drawnDesigns() {
  const every = data.number.map((_, i) => i);
  const groups = [(i) => !onFront.has(i) && !matches(i), (i) => !onFront.has(i) && matches(i), (i) => onFront.has(i)];
  return groups.flatMap((isIn, k) => thinned(every.filter(isIn), k ? parallel.mostLines : parallel.mostLines / 4));
}
function thinned(designs, most) {
  const every = Math.ceil(designs.length / most);
  return designs.filter((_, k) => k % every === 0);
}

function strokeKind(pen, kind) {
  const members = parallel.lines.filter(({ i }) => kindOf(i) === kind && matches(i));
  const alpha = kind === "front" ? 0.9 : Math.max(0.06, Math.min(0.45, 40 / members.length));
  const paint = { stroke: colour(kind), width: kind === "front" ? 1.5 : 1, alpha, dash: { infeasible: [2, 4], pruned: [6, 4] }[kind] };
  for (const { points } of members) pen.mark(pathOf(points), [0, 0], paint);
}
function pathOf(points) {
  let pen = "M";
  return points.map((point) => {
    const text = point ? `${pen}${point[0].toFixed(1)},${point[1]}` : "";
    pen = point ? "L" : "M";
    return text;
  }).join("");
}

function nearestLine(event) {
  const box = parallel.box.getBoundingClientRect();
  const [left, top] = [event.clientX - box.left, event.clientY - box.top];
  let found = null;
  let least = 10;
  for (const { i, points } of parallel.lines) {
    if (!matches(i)) continue;
    const k = Math.max(0, Math.min(points.length - 2, Math.floor((top - 30) / parallel.row)));
    const [a, b] = [points[k], points[k + 1]];
    if (!a || !b) continue;
    const share = Math.max(0, Math.min(1, (top - a[1]) / (b[1] - a[1])));
    const away = Math.abs(a[0] + share * (b[0] - a[0]) - left) - (onFront.has(i) ? 2 : 0);
    if (away < least) [found, least] = [i, away];
  }
  return found;
}
function highlight(path, i) {
  path?.setAttribute("d", i === null ? "" : pathOf(parallel.pointsOf(i)));
}

function parallelTable() {
  if (!data.front.length) return;
  const metrics = data.metrics.filter(({ direction }) => direction);
  const rows = data.front.slice(0, 100).map((i) => [String(data.number[i]),
    ...varying.map(({ values }) => right(plain(values[i]))), ...metrics.map((m) => right(number(m.values[i], m.decimals)))]);
  const head = ["trial", ...varying.map(({ name }) => rightHead(shortKey(name))), ...metrics.map(({ name }) => rightHead(name))];
  const table = tableOf("Choices and results of the front", head, rows);
  table.classList.add("long");
  byId("parallel-table").replaceChildren(folded("The front as a table", table));
}

function startParallel() {
  const { box } = parallel;
  box.addEventListener("pointermove", (event) => {
    if (brushing.row) return;
    const i = nearestLine(event);
    highlight(byId("parallel-hover"), i);
    box.style.cursor = rowAt(event) ? "ew-resize" : i === null ? "default" : "pointer";
    if (i === null) hideTooltip();
    else showTooltip(i, event.clientX, event.clientY);
  });
  box.addEventListener("pointerleave", () => {
    hideTooltip();
    highlight(byId("parallel-hover"), null);
  });
  box.addEventListener("click", (event) => {
    const i = brushing.moved ? null : nearestLine(event);
    if (i !== null) choose(i);
  });
  listeners.push((i) => highlight(byId("parallel-chosen"), i));
  const again = keepDrawn(box, drawParallel);
  byId("parallel-all").addEventListener("change", again);
  byId("parallel-svg").addEventListener("click", () => saveSvg(box, "choices"));
  filter.listeners.push(again);
  startFilters();
  parallelTable();
}
