// Zoom of the scatter chart: drag a rectangle, or use the buttons and keys.

const dragging = { from: null, moved: false };
const leastDrag = 6; // pixels

function zoomTo(zoom) {
  scatter.zoom = zoom;
  drawScatter();
}

// Around the chosen design if it is in sight, else around the middle.
function zoomBy(factor) {
  if (!scatter.view) return;
  const { x, y, mx, my } = scatter.view;
  const part = (side, metric) => {
    const value = shown.design === null ? null : metric.values[shown.design];
    const middle = side.sees(value) ? side.warp(value) : (side.low + side.high) / 2;
    return [middle - (middle - side.low) * factor, middle + (side.high - middle) * factor];
  };
  zoomTo({ x: part(x, mx), y: part(y, my) });
}

function pointIn(event) {
  const box = scatter.box.getBoundingClientRect();
  const { area } = scatter.view;
  return [Math.max(area.left, Math.min(area.right, event.clientX - box.left)),
    Math.max(area.top, Math.min(area.bottom, event.clientY - box.top))];
}

function dragTo(event) {
  const [[x1, y1], [x2, y2]] = [dragging.from, pointIn(event)];
  dragging.moved ||= Math.abs(x2 - x1) > leastDrag || Math.abs(y2 - y1) > leastDrag;
  if (!dragging.moved) return;
  hideTooltip();
  dragging.rectangle ??= scatter.view.svg.appendChild(drawn("rect", { class: "brush" }));
  const place = { x: Math.min(x1, x2), y: Math.min(y1, y2), width: Math.abs(x2 - x1), height: Math.abs(y2 - y1) };
  for (const [name, value] of Object.entries(place)) dragging.rectangle.setAttribute(name, value);
}

function endDrag(event) {
  if (!dragging.from) return;
  const [[x1, y1], [x2, y2]] = [dragging.from, pointIn(event)];
  const { x, y } = scatter.view;
  dragging.rectangle?.remove();
  Object.assign(dragging, { from: null, rectangle: null });
  if (!dragging.moved || Math.abs(x2 - x1) < leastDrag || Math.abs(y2 - y1) < leastDrag) return;
  const part = (side, a, b) => [side.at(a), side.at(b)].sort((one, other) => one - other);
  zoomTo({ x: part(x, x1, x2), y: part(y, y1, y2) });
}

function startZoom() {
  const { box } = scatter;
  box.addEventListener("pointerdown", (event) => {
    dragging.moved = false;
    if (event.button !== 0 || event.pointerType === "touch" || !scatter.view) return;
    dragging.from = pointIn(event);
  });
  window.addEventListener("pointermove", (event) => dragging.from && dragTo(event));
  window.addEventListener("pointerup", endDrag);
  box.addEventListener("dblclick", () => zoomTo(null));
  box.addEventListener("keydown", (event) => {
    const actions = { "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2), 0: () => zoomTo(null) };
    const focused = [...scatter.marks].find(([, mark]) => mark === document.activeElement)?.[0];
    actions[event.key]?.();
    if (event.key in actions) scatter.marks.get(focused)?.focus();
  });
  byId("zoom-in").addEventListener("click", () => zoomBy(0.5));
  byId("zoom-out").addEventListener("click", () => zoomBy(2));
  byId("zoom-reset").addEventListener("click", () => zoomTo(null));
}
