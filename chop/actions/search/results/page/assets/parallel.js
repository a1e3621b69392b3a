// Parallel coordinates, one row a choice or metric, so that long names and narrow screens fit.

const parallel = { box: byId("parallel"), lines: [], hover: null, mostChoices: 10, mostLines: 2000, row: 48 };

function parallelRows() {
  const weight = (name) => data.importance[name] ?? 0;
  const ranked = [...varying].sort((a, b) => weight(b.name) - weight(a.name));
  const all = byId("parallel-all").checked;
  const kept = new Set((all ? ranked : ranked.slice(0, parallel.mostChoices)).map(({ name }) => name));
  const metrics = data.metrics.filter(({ direction, values }) => direction && values.some((v) => v !== null));
  return [...varying.filter(({ name }) => kept.has(name)).map(choiceRow), ...metrics.map(metricRow)];
}

function choiceRow({ name, values }) {
  const distinct = [...new Set(values)].filter((value) => value !== null);
  const numeric = distinct.every((value) => typeof value === "number");
  if (numeric && distinct.length > 12) return { name: shortKey(name), scale: spread(values), values };
  const ordered = distinct.sort(numeric ? (a, b) => a - b : undefined).map(plain);
  const step = 1 / Math.max(1, ordered.length - 1);
  const share = (value) => (ordered.length === 1 ? 0.5 : ordered.indexOf(plain(value)) * step);
  const labels = ordered.map((text, k) => ({ share: ordered.length === 1 ? 0.5 : k * step, text }));
  return { name: shortKey(name), scale: { share, labels, room: Math.min(0.05, step * 0.3) }, values };
}
// Designs with the same value lie beside each other, so that one can point at each.
const luck = (i, k) => ((i * 0.618034 + k * 0.414214) % 1) - 0.5;
function metricRow(metric) {
  return { name: titled(metric), scale: spread(metric.values), values: metric.values };
}
function spread(values) {
  const [low, high] = extent(values);
  const share = (value) => (high === low ? 0.5 : (value - low) / (high - low));
  const labels = ticks({ low, high: high === low ? low + 1 : high }, 4)
    .map(({ value, text }) => ({ share: share(value), text })).filter((label) => label.share <= 1);
  return { share, labels };
}

function drawParallel() {
  const rows = parallelRows();
  byId("parallel-all").parentElement.hidden = varying.length <= parallel.mostChoices;
  const { box } = parallel;
  const row = parallel.row = box.clientWidth > 640 ? 48 : 58;
  if (rows.length < 2 || !data.number.length) {
    box.replaceChildren(element("p", {}, "There is no choice that differs between completed trials."));
    return;
  }
  const { width, pen, svg } = stage(box, rows.length * row + 14);
  const beside = width > 640; // where names have room of their own
  const [left, right] = [beside ? Math.min(310, 40 + 7 * Math.max(...rows.map(({ name }) => name.length))) : 24, width - 28];
  const heights = rows.map((_, k) => 30 + k * row);
  parallel.pointsOf = (i) => rows.map(({ values, scale }, k) => values[i] === null ? null
    : [left + (scale.share(values[i]) + (scale.room ?? 0) * luck(i, k)) * (right - left), heights[k]]);
  parallel.lines = drawnDesigns().map((i) => ({ i, points: parallel.pointsOf(i) }));
  for (const kind of ["pruned", "infeasible", "dominated", "front"]) strokeKind(pen, kind);
  rows.forEach(({ name, scale }, k) => {
    svg.append(drawn("line", { class: "axis", x1: left, x2: right, y1: heights[k], y2: heights[k] }));
    const place = beside ? { x: left - 30, y: heights[k] + 4, "text-anchor": "end" } : { x: left, y: heights[k] - 8 };
    svg.append(haloed({ class: "label", ...place }, beside && name.length > 40 ? `…${name.slice(-39)}` : name));
    for (const label of scale.labels) rowTick(svg, left + label.share * (right - left), heights[k], label, width);
  });
  svg.append(drawn("path", { class: "line", id: "parallel-hover" }), drawn("path", { class: "chosen-mark", id: "parallel-chosen" }));
  const hidden = data.number.length - parallel.lines.length;
  box.setAttribute("aria-label", `Parallel coordinates of ${rows.length} rows and ${parallel.lines.length} designs` +
    (hidden ? `; ${hidden} more are left out` : ""));
  highlight(byId("parallel-chosen"), shown.design);
}

function rowTick(svg, at, top, { text, share }, width) {
  const anchor = share < 0.02 ? "start" : share > 0.98 ? "end" : "middle";
  const x = anchor === "start" ? at - 4 : anchor === "end" ? at + 4 : at;
  svg.append(drawn("line", { class: "axis", x1: at, x2: at, y1: top - 3, y2: top + 3 }));
  const most = Math.max(4, Math.floor(width / 60));
  svg.append(haloed({ x, y: top + 15, "text-anchor": anchor }, text.length > most ? `${text.slice(0, most)}…` : text));
}

// Of very many designs every n-th, so that ten thousand stay quick; the front is thinned by itself.
function drawnDesigns() {
  const others = data.number.map((_, i) => i).filter((i) => !onFront.has(i));
  return [...thinned(others), ...thinned(data.front)];
}
function thinned(designs) {
  const every = Math.ceil(designs.length / parallel.mostLines);
  return designs.filter((_, k) => k % every === 0);
}

function strokeKind(pen, kind) {
  const members = parallel.lines.filter(({ i }) => kindOf(i) === kind);
  pen.strokeStyle = colour(kind);
  pen.lineWidth = kind === "front" ? 1.5 : 1;
  pen.globalAlpha = kind === "front" ? 0.9 : Math.max(0.06, Math.min(0.45, 40 / members.length));
  pen.setLineDash({ infeasible: [2, 4], pruned: [6, 4] }[kind] ?? []);
  for (const { points } of members) pen.stroke(new Path2D(pathOf(points)));
  pen.setLineDash([]);
  pen.globalAlpha = 1;
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
    const i = nearestLine(event);
    highlight(byId("parallel-hover"), i);
    box.style.cursor = i === null ? "default" : "pointer";
    if (i === null) hideTooltip();
    else showTooltip(i, event.clientX, event.clientY);
  });
  box.addEventListener("pointerleave", () => {
    hideTooltip();
    highlight(byId("parallel-hover"), null);
  });
  box.addEventListener("click", (event) => {
    const i = nearestLine(event);
    if (i !== null) choose(i);
  });
  listeners.push((i) => highlight(byId("parallel-chosen"), i));
  const again = keepDrawn(box, drawParallel);
  byId("parallel-all").addEventListener("change", again);
  parallelTable();
}
