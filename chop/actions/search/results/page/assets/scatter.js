// Two metrics of all designs: the front as marks one can focus, the rest on a canvas.

const mostMarks = 400; // elements; a longer front goes on the canvas
const shapes = {
  front: (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0z`,
  dominated: (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0z`,
  infeasible: (r) => `M${-r},${-r}L${r},${r}M${-r},${r}L${r},${-r}`,
  pruned: (r) => `M0,${-r}L${r},${r * 0.8}L${-r},${r * 0.8}z`,
  baseline: (r) => `M0,${-r}L${r},0L0,${r}L${-r},0z`,
};
const sizes = { front: 5.5, dominated: 2.5, infeasible: 3.5, pruned: 4, baseline: 8 };
const scatter = { box: byId("scatter"), at: [], marks: new Map(), focus: null };

function selectors() {
  const usable = data.metrics.filter(({ values }) => values.some((value) => value !== null));
  const goals = usable.filter(({ objective }) => objective);
  const start = { x: goals[goals.length > 1 ? 1 : 0] ?? usable[0], y: goals[0] ?? usable[0] };
  if (start.x === start.y) start.x = usable.find((metric) => metric !== start.y) ?? start.y;
  for (const side of ["x", "y"]) {
    const select = byId(`${side}-axis`);
    select.append(...usable.map(({ name }) => element("option", { value: name }, name)));
    if (start[side]) select.value = start[side].name;
    select.addEventListener("change", drawScatter);
  }
}

function drawScatter() {
  const [mx, my] = ["x-axis", "y-axis"].map((id) => metricNamed(byId(id).value));
  const { box } = scatter;
  box.parentElement.querySelector(".controls").hidden = byId("scatter-help").hidden = !mx || !my;
  if (!mx || !my) {
    box.replaceChildren(element("p", {}, "No trial has been completed, so there is nothing to draw."));
    return;
  }
  const drawing = stage(box, box.clientWidth < 480 ? 320 : 480);
  const { width, height, pen, svg } = drawing;
  const area = { left: 58, right: width - 12, top: 30, bottom: height - 46 };
  const x = axis(mx.values, area.left, area.right, mx.baseline);
  const y = axis(my.values, area.bottom, area.top, my.baseline);
  scatter.at = data.number.map((_, i) =>
    mx.values[i] === null || my.values[i] === null ? null : [x.place(mx.values[i]), y.place(my.values[i])]);
  axes(svg, x, y, area, { x: titled(mx), y: titled(my) });
  drawOthers(pen);
  drawJoined(svg, mx, my);
  drawBaseline(svg, x, y, mx, my, area);
  drawMarks(svg, pen, mx);
  box.setAttribute("aria-label", `Scatter chart of ${my.name} over ${mx.name}: ` +
    `${data.front.length} designs on the front of ${data.number.length}`);
  legend(mx.baseline === null || my.baseline === null ? null : baselineText([[mx, x], [my, y]]));
  markChosen();
}

function drawOthers(pen) {
  const ordered = ["dominated", "pruned", "infeasible"];
  for (const kind of ordered) {
    pen.fillStyle = pen.strokeStyle = colour(kind);
    pen.lineWidth = 1.5;
    const members = scatter.at.filter((at, i) => at && kindOf(i) === kind);
    pen.globalAlpha = Math.max(0.35, Math.min(0.85, (kind === "dominated" ? 600 : 100) / members.length));
    const shape = new Path2D(shapes[kind](sizes[kind]));
    for (const at of members) stamp(pen, shape, at, kind);
  }
  pen.globalAlpha = 1;
}

function stamp(pen, shape, [left, top], kind) {
  pen.translate(left, top);
  if (kind === "infeasible" || kind === "pruned") pen.stroke(shape);
  else pen.fill(shape);
  pen.translate(-left, -top);
}

// The designs of the front that no other beats in these two metrics, as a staircase.
function drawJoined(svg, mx, my) {
  if (!mx.direction || !my.direction || mx === my) return;
  const sign = (metric) => (metric.direction === "maximize" ? -1 : 1);
  const points = data.front.filter((i) => scatter.at[i])
    .map((i) => ({ i, x: sign(mx) * mx.values[i], y: sign(my) * my.values[i] }))
    .sort((a, b) => a.x - b.x || a.y - b.y);
  let best = Infinity;
  const edge = points.filter(({ y }) => y < best && ((best = y), true));
  const path = edge.map(({ i }, k) => {
    const [left, top] = scatter.at[i];
    return k ? `H${left}V${top}` : `M${left},${top}`;
  });
  svg.append(drawn("path", { class: "line", id: "front-line", d: path.join("") }));
}

// A baseline beyond the axes stands at the edge, with the values that it really has.
function drawBaseline(svg, x, y, mx, my, area) {
  if (mx.baseline === null || my.baseline === null) return;
  const inside = (value, low, high) => Math.max(low, Math.min(high, value));
  const left = inside(x.place(mx.baseline), area.left + 8, area.right - 8);
  const top = inside(y.place(my.baseline), area.top + 8, area.bottom - 8);
  const text = `Baseline: ${mx.name} ${number(mx.baseline, mx.decimals)}, ${my.name} ${number(my.baseline, my.decimals)}`;
  svg.append(drawn("path", { class: "baseline-mark", id: "baseline-mark", d: shapes.baseline(sizes.baseline),
    transform: `translate(${left} ${top})` }, drawn("title", {}, text)));
}

function baselineText(pairs) {
  const beyond = pairs.filter(([metric, side]) => !side.sees(metric.baseline))
    .map(([metric]) => `${metric.name} ${number(metric.baseline, metric.decimals)}`);
  return beyond.length ? `baseline, beyond the edge: ${beyond.join(", ")}` : "baseline";
}

function drawMarks(svg, pen, mx) {
  const placed = data.front.filter((i) => scatter.at[i]).sort((a, b) => mx.values[a] - mx.values[b]);
  scatter.marks = new Map();
  scatter.order = placed.slice(0, mostMarks);
  pen.fillStyle = colour("front");
  const shape = new Path2D(shapes.front(sizes.front - 1));
  for (const i of placed.slice(mostMarks)) stamp(pen, shape, scatter.at[i], "front");
  for (const i of scatter.order) {
    const { title, kind, lines, choices } = describe(i);
    const label = [`${title}, ${kind}`, ...[...lines, ...choices].map((pair) => pair.join(" "))].join("; ");
    const mark = drawn("g", { class: "mark", role: "button", tabindex: -1, "aria-label": label,
      "data-trial": data.number[i], transform: `translate(${scatter.at[i]})` },
    drawn("circle", { class: "ring", r: 10 }), drawn("path", { class: "shape", d: shapes.front(sizes.front) }));
    mark.addEventListener("focus", () => focusMark(i));
    mark.addEventListener("blur", hideTooltip);
    mark.addEventListener("keydown", (event) => moveMark(event, i));
    scatter.marks.set(i, mark);
    svg.append(mark);
  }
  const first = scatter.marks.get(shown.design) ?? scatter.marks.get(scatter.order[0]);
  first?.setAttribute("tabindex", 0);
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
    if (!at) return;
    const away = (at[0] - left) ** 2 + (at[1] - top) ** 2 - (onFront.has(i) ? 16 : 0);
    if (away < least) [found, least] = [i, away];
  });
  return found;
}

function legend(baseline) {
  const counts = { front: 0, dominated: 0, infeasible: 0, pruned: 0 };
  scatter.at.forEach((at, i) => at && counts[kindOf(i)]++);
  const texts = { front: data.goals > 1 ? "Pareto front" : "best", dominated: "dominated", infeasible: "infeasible", pruned: "pruned" };
  const key = (kind, text) => {
    const lined = kind === "infeasible" || kind === "pruned";
    const paint = lined ? { fill: "none", stroke: `var(--${kind})`, "stroke-width": 1.5 } : { fill: `var(--${kind})` };
    const shape = drawn("path", { d: shapes[kind](Math.min(sizes[kind] + 0.5, 6)), transform: "translate(7 7)", ...paint });
    return element("li", { "data-kind": kind }, drawn("svg", { "aria-hidden": "true" }, shape), text);
  };
  const rows = Object.entries(counts).filter(([, count]) => count)
    .map(([kind, count]) => key(kind, `${texts[kind]} (${number(count, 0)})`));
  if (baseline) rows.push(key("baseline", baseline));
  byId("scatter-legend").replaceChildren(...rows);
}

function markChosen() {
  scatter.box.querySelector(".chosen-mark")?.remove();
  const at = scatter.at[shown.design];
  if (!at) return;
  const ring = drawn("circle", { class: "chosen-mark", r: 9, cx: at[0], cy: at[1] });
  scatter.box.querySelector("svg").append(ring);
  for (const [i, mark] of scatter.marks) mark.setAttribute("aria-pressed", i === shown.design);
}

function startScatter() {
  selectors();
  const { box } = scatter;
  box.addEventListener("pointermove", (event) => {
    const i = nearestDesign(event);
    if (i === null) hideTooltip();
    else showTooltip(i, event.clientX, event.clientY);
    box.style.cursor = i === null ? "default" : "pointer";
  });
  box.addEventListener("pointerleave", hideTooltip);
  box.addEventListener("click", (event) => {
    const i = nearestDesign(event, 18);
    if (i !== null) choose(i);
  });
  listeners.push(markChosen);
  keepDrawn(box, drawScatter);
}
