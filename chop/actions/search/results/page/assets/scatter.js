// Two metrics of all designs: the front as marks one can focus, the rest on a canvas.

const mostMarks = 400; // elements; a longer front goes on the canvas
const disc = (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0z`;
const square = (r) => `M${-r},${-r}H${r}V${r}H${-r}z`;
const shapes = {
  front: disc,
  dominated: disc,
  infeasible: (r) => `M${-r},${-r}L${r},${r}M${-r},${r}L${r},${-r}`,
  pruned: (r) => `M0,${-r}L${r},${r * 0.8}L${-r},${r * 0.8}z`,
  baseline: (r) => `M0,${-r}L${r},0L0,${r}L${-r},0z`,
};
const sizes = { front: 5.5, dominated: 2.5, infeasible: 3.5, pruned: 4, baseline: 8 };
const isLined = (kind) => kind === "infeasible" || kind === "pruned";
// The second search of a comparison has squares, so that colours are not all that differs.
const shapeOf = (kind, search) => (search && !isLined(kind) && kind !== "baseline" ? square : shapes[kind]);
const colourName = (kind, search) => {
  if (!series || isLined(kind)) return kind;
  return search ? "other" : "front";
};
const scatter = { box: byId("scatter"), at: [], marks: new Map(), order: [], zoom: null };
const isChecked = (id) => byId(id).checked && !byId(id).disabled;

function selectors() {
  const usable = data.metrics.filter(({ values }) => values.some((value) => value !== null));
  const goals = usable.filter(({ objective }) => objective);
  const start = { x: goals[goals.length > 1 ? 1 : 0] ?? usable[0], y: goals[0] ?? usable[0] };
  if (start.x === start.y) start.x = usable.find((metric) => metric !== start.y) ?? start.y;
  for (const side of ["x", "y"]) {
    const select = byId(`${side}-axis`);
    select.append(...usable.map(({ name }) => element("option", { value: name }, name)));
    if (start[side]) select.value = start[side].name;
    for (const id of [`${side}-axis`, `${side}-log`]) byId(id).addEventListener("change", () => zoomTo(null));
  }
  byId("colour").append(...usable.map(({ name }) => element("option", { value: name }, name)));
  for (const id of ["colour", "error-bars"]) byId(id).addEventListener("change", drawScatter);
  byId("error-bars").parentElement.hidden = !usable.some(({ samples }) => samples);
}

// A logarithm needs positive numbers.
function offerLog(side, metric) {
  const box = byId(`${side}-log`);
  box.disabled = metric.values.some((value) => value !== null && value <= 0);
  box.parentElement.title = box.disabled ? `${metric.name} is not positive in every trial` : "logarithmic axis";
}

function drawScatter() {
  const [mx, my] = ["x-axis", "y-axis"].map((id) => metricNamed(byId(id).value));
  const { box } = scatter;
  for (const each of document.querySelectorAll(".of-scatter")) each.hidden = !mx || !my;
  if (!mx || !my) {
    box.replaceChildren(element("p", {}, "No trial has been completed, so there is nothing to draw."));
    return;
  }
  offerLog("x", mx);
  offerLog("y", my);
  const { width, height, pen, svg } = stage(box, box.clientWidth < 480 ? 320 : 480);
  const area = { left: 0, right: width - 12, top: 30, bottom: height - 46 };
  const [guestsX, guestsY] = [mx.baselines, my.baselines];
  const y = axis(my.values, area.bottom, area.top, { guests: guestsY, log: isChecked("y-log"), zoom: scatter.zoom?.y });
  area.left = labelRoom(ticks(y, { upright: true }));
  const x = axis(mx.values, area.left, area.right, { guests: guestsX, log: isChecked("x-log"), zoom: scatter.zoom?.x });
  scatter.view = { x, y, mx, my, area, svg };
  scatter.at = data.number.map((_, i) =>
    x.sees(mx.values[i]) && y.sees(my.values[i]) ? [x.place(mx.values[i]), y.place(my.values[i])] : null);
  const clip = drawn("rect", { x: area.left, y: area.top - 8, width: area.right - area.left + 8, height: area.bottom - area.top + 8 });
  svg.append(drawn("defs", {}, drawn("clipPath", { id: "scatter-clip" }, clip)));
  axes(svg, x, y, area, { x: titled(mx), y: titled(my) });
  const painter = painterOf(metricNamed(byId("colour").value));
  drawOthers(pen, painter);
  searchNames.forEach((_, search) => drawJoined(search));
  drawErrors();
  searchNames.forEach((_, search) => drawBaseline(search));
  drawMarks(pen, painter);
  box.setAttribute("aria-label", `Scatter chart of ${my.name} over ${mx.name}: ` +
    `${data.front.length} designs on the front of ${data.number.length}${scatter.zoom ? ", zoomed in" : ""}`);
  legend(painter);
  byId("zoom-reset").disabled = !scatter.zoom;
  markChosen();
}

// Colours: of the kind of a design, or of a third metric, dark for small and light for large values or
// the other way round, so that both ends stand out from the paper.
const scales = { light: ["#440154", "#3b528b", "#21808a", "#5f9a2e"], dark: ["#2f8390", "#22a884", "#7ad151", "#fde725"] };
function painterOf(metric) {
  if (!metric) return { metric: null, colourOf: (i) => colour(colourName(kindOf(i), seriesOf(i))) };
  const [low, high] = extent(metric.values);
  const stops = scales[isDark() ? "dark" : "light"].map((text) => [1, 3, 5].map((k) => parseInt(text.slice(k, k + 2), 16)));
  const mixed = (share) => {
    const k = Math.min(stops.length - 2, Math.floor(share * (stops.length - 1)));
    const part = share * (stops.length - 1) - k;
    return `rgb(${stops[k].map((from, c) => Math.round(from + part * (stops[k + 1][c] - from))).join(" ")})`;
  };
  const colourOf = (i) => metric.values[i] === null ? colour("dominated")
    : mixed(high === low ? 0.5 : (metric.values[i] - low) / (high - low));
  return { metric, colourOf, mixed, low, high };
}

function drawOthers(pen, { metric, colourOf }) {
  const colours = new Map();
  for (const kind of ["dominated", "pruned", "infeasible"]) {
    const members = data.number.map((_, i) => i).filter((i) => scatter.at[i] && kindOf(i) === kind);
    const usual = metric ? 0.9 : Math.max(0.35, Math.min(0.85, (kind === "dominated" ? 600 : 100) / members.length));
    for (const i of members) {
      const name = metric ? null : colourName(kind, seriesOf(i));
      if (name && !colours.has(name)) colours.set(name, colour(name));
      const paint = name ? colours.get(name) : colourOf(i);
      const shape = shapeOf(kind, seriesOf(i))(sizes[kind] + (metric ? 0.5 : 0));
      pen.mark(shape, scatter.at[i], { [isLined(kind) ? "stroke" : "fill"]: paint, width: 1.5, alpha: matches(i) ? usual : 0.08 });
    }
  }
}

// The designs of the front that no other beats in these two metrics, as a staircase.
function drawJoined(search) {
  const { x, y, mx, my, svg } = scatter.view;
  if (!mx.direction || !my.direction || mx === my) return;
  const sign = (metric) => (metric.direction === "maximize" ? -1 : 1);
  const isDrawn = (i) => seriesOf(i) === search && [[mx, x], [my, y]].every(([m, side]) =>
    m.values[i] !== null && (!side.log || m.values[i] > 0));
  const points = data.front.filter(isDrawn)
    .map((i) => ({ i, x: sign(mx) * mx.values[i], y: sign(my) * my.values[i] }))
    .sort((a, b) => a.x - b.x || a.y - b.y);
  let best = Infinity;
  const edge = points.filter((point) => point.y < best && ((best = point.y), true));
  const path = edge.map(({ i }, k) => {
    const [left, top] = [x.place(mx.values[i]), y.place(my.values[i])];
    return k ? `H${left}V${top}` : `M${left},${top}`;
  });
  svg.append(drawn("path", { class: search ? "line other" : "line", id: search ? "other-line" : "front-line",
    d: path.join(""), "clip-path": "url(#scatter-clip)" }));
}

// One standard error to both sides of the front's shares.
function drawErrors() {
  const { x, y, mx, my, svg } = scatter.view;
  const samples = [...new Set([mx, my].flatMap((metric) => metric.samples ?? []))].filter(Boolean);
  byId("error-note").textContent = samples.length
    ? `± one standard error of a share of ${samples.map((n) => number(n, 0)).join(" or ")} samples; training again may differ by more`
    : "";
  if (!isChecked("error-bars")) return;
  const parts = data.front.slice(0, mostMarks).filter((i) => scatter.at[i] && matches(i)).flatMap((i) =>
    [errorBar(i, my, y, true), errorBar(i, mx, x, false)]);
  const path = parts.filter(Boolean).join("");
  if (path) svg.append(drawn("path", { class: "error", id: "errors", d: path, "clip-path": "url(#scatter-clip)" }));
}
function errorBar(i, metric, side, upright) {
  const error = standardError(metric, metric.values[i], seriesOf(i));
  if (!error) return "";
  const ends = [metric.values[i] - error, metric.values[i] + error]
    .map((value) => side.place(side.log ? Math.max(value, 10 ** side.low) : value));
  const [left, top] = scatter.at[i];
  return ends.map((end) => (upright ? `M${left - 3},${end}h6` : `M${end},${top - 3}v6`)).join("") +
    (upright ? `M${left},${ends[0]}V${ends[1]}` : `M${ends[0]},${top}H${ends[1]}`);
}

// A baseline beyond the axes stands at the edge, with the values that it really has.
function drawBaseline(search) {
  const { x, y, mx, my, area, svg } = scatter.view;
  const [bx, by] = [mx.baselines[search], my.baselines[search]];
  if (bx === null || by === null) return;
  const inside = (value, low, high) => (Number.isNaN(value) ? low : Math.max(low, Math.min(high, value)));
  const left = inside(x.place(bx), area.left + 8, area.right - 8);
  const top = inside(y.place(by), area.top + 8, area.bottom - 8);
  const name = searchNames[search] ? `Baseline of ${searchNames[search]}` : "Baseline";
  const text = `${name}: ${mx.name} ${measured(mx, bx, search)}, ${my.name} ${measured(my, by, search)}`;
  svg.append(drawn("path", { class: search ? "baseline-mark other" : "baseline-mark", id: search ? "other-baseline" : "baseline-mark",
    d: shapes.baseline(sizes.baseline), transform: `translate(${left} ${top})` }, drawn("title", {}, text)));
}

function baselineText(search) {
  const { x, y, mx, my } = scatter.view;
  const off = [[mx, x], [my, y]].filter(([metric, side]) => !side.sees(metric.baselines[search]))
    .map(([metric]) => `${metric.name} ${number(metric.baselines[search], metric.decimals)}`);
  const name = searchNames[search] ? `baseline of ${searchNames[search]}` : "baseline";
  return off.length ? `${name}, beyond the edge: ${off.join(", ")}` : name;
}

function drawMarks(pen, painter) {
  const { mx, svg } = scatter.view;
  const placed = data.front.filter((i) => scatter.at[i]).sort((a, b) => mx.values[a] - mx.values[b]);
  const [live, faint] = [placed.filter(matches), placed.filter((i) => !matches(i))];
  scatter.marks = new Map();
  scatter.order = live.slice(0, mostMarks);
  for (const i of [...faint, ...live.slice(mostMarks)]) {
    const shape = shapeOf("front", seriesOf(i))(sizes.front - 1);
    pen.mark(shape, scatter.at[i], { fill: painter.colourOf(i), alpha: matches(i) ? 1 : 0.12 });
  }
  for (const i of scatter.order) svg.append(markOf(i, painter));
  const first = scatter.marks.get(shown.design) ?? scatter.marks.get(scatter.order[0]);
  first?.setAttribute("tabindex", 0);
}

function markOf(i, painter) {
  const { title, kind, lines, choices } = describe(i);
  const label = [`${title}, ${kind}`, ...[...lines, ...choices].map((pair) => pair.join(" "))].join("; ");
  const shape = drawn("path", { class: "shape", d: shapeOf("front", seriesOf(i))(sizes.front) });
  shape.style.fill = painter.colourOf(i);
  const mark = drawn("g", { class: "mark", role: "button", tabindex: -1, "aria-label": label,
    "data-trial": data.number[i], "data-search": seriesOf(i), transform: `translate(${scatter.at[i]})` },
  drawn("circle", { class: "ring", r: 10 }), shape);
  mark.addEventListener("focus", () => focusMark(i));
  mark.addEventListener("blur", hideTooltip);
  mark.addEventListener("keydown", (event) => moveMark(event, i));
  scatter.marks.set(i, mark);
  return mark;
}

function focusMark(i) {
  for (const [other, mark] of scatter.marks) mark.setAttribute("tabindex", other === i ? 0 : -1);
  const box = scatter.box.getBoundingClientRect();
  showTooltip(i, box.left + scatter.at[i][0], box.top + scatter.at[i][1]);
}

const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, Home: -Infinity, End: Infinity };
function moveMark(event, i) {
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    choose(i);
  }
  if (!(event.key in steps)) return;
  event.preventDefault();
  const last = scatter.order.length - 1;
  const to = Math.max(0, Math.min(last, scatter.order.indexOf(i) + steps[event.key]));
  scatter.marks.get(scatter.order[to]).focus();
}

function nearestDesign(event, reach = 14) {
  const box = scatter.box.getBoundingClientRect();
  const [left, top] = [event.clientX - box.left, event.clientY - box.top];
  let found = null;
  let least = reach * reach;
  scatter.at.forEach((at, i) => {
    if (!at || !matches(i)) return;
    const away = (at[0] - left) ** 2 + (at[1] - top) ** 2 - (onFront.has(i) ? 16 : 0);
    if (away < least) [found, least] = [i, away];
  });
  return found;
}

function legend(painter) {
  const texts = { front: data.goals > 1 ? "Pareto front" : "best", dominated: "dominated", infeasible: "infeasible", pruned: "pruned" };
  const rows = searchNames.flatMap((name, search) => {
    const counts = { front: 0, dominated: 0, infeasible: 0, pruned: 0 };
    scatter.at.forEach((at, i) => at && matches(i) && seriesOf(i) === search && counts[kindOf(i)]++);
    const found = Object.entries(counts).filter(([, count]) => count)
      .map(([kind, count]) => legendRow(kind, search, `${name ? `${name}: ` : ""}${texts[kind]} (${number(count, 0)})`));
    const { mx, my } = scatter.view;
    const isKnown = mx.baselines[search] !== null && my.baselines[search] !== null;
    return isKnown ? [...found, legendRow("baseline", search, baselineText(search))] : found;
  });
  byId("scatter-legend").replaceChildren(...rows, ...(painter.metric ? [colourBar(painter)] : []));
}
function legendRow(kind, search, text) {
  const name = `var(--${kind === "baseline" && !search ? kind : colourName(kind, search)})`;
  const paint = isLined(kind) ? { fill: "none", stroke: name, "stroke-width": 1.5 } : { fill: name };
  const shape = drawn("path", { d: shapeOf(kind, search)(Math.min(sizes[kind] + 0.5, 6)), transform: "translate(7 7)", ...paint });
  return element("li", { "data-kind": kind, "data-search": search }, drawn("svg", { "aria-hidden": "true" }, shape), text);
}
function colourBar({ metric, mixed, low, high }) {
  const pieces = Array.from({ length: 40 }, (_, k) =>
    drawn("rect", { x: k * 3, width: 3.2, height: 12, fill: mixed(k / 39) }));
  return element("li", { id: "colour-bar" }, `${metric.name} ${number(low, metric.decimals)} `,
    drawn("svg", { class: "wide", role: "img", "aria-label": "from the smallest to the largest value" }, ...pieces),
    ` ${number(high, metric.decimals)}`);
}

function markChosen() {
  scatter.box.querySelector(".chosen-mark")?.remove();
  for (const [i, mark] of scatter.marks) mark.setAttribute("aria-pressed", i === shown.design);
  const at = scatter.at[shown.design];
  if (!at) return;
  const ring = drawn("circle", { class: "chosen-mark", r: 9, cx: at[0], cy: at[1] });
  scatter.box.querySelector("svg").append(ring);
}

function startScatter() {
  selectors();
  const { box } = scatter;
  box.addEventListener("pointermove", (event) => {
    if (dragging.from) return;
    const i = nearestDesign(event);
    if (i === null) hideTooltip();
    else showTooltip(i, event.clientX, event.clientY);
    box.style.cursor = i === null ? "crosshair" : "pointer";
  });
  box.addEventListener("pointerleave", hideTooltip);
  box.addEventListener("click", (event) => {
    const i = dragging.moved ? null : nearestDesign(event, 18);
    if (i !== null) choose(i);
  });
  startZoom();
  byId("scatter-svg").addEventListener("click", () => saveSvg(box, "front"));
  listeners.push(markChosen);
  filter.listeners.push(keepDrawn(box, drawScatter));
}
