// Axes, linear and logarithmic, with labels that never run into each other.

const ruler = document.createElement("canvas").getContext("2d");
function textWidth(text) {
  ruler.font = "12px system-ui, sans-serif";
  return ruler.measureText(text).width * 1.06; // figures of equal width are a little wider
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

// `guests` are seen too, unless they lie so far off that nothing else could be told apart. `zoom` is
// the part to show, as `low` and `high` are: logarithms on a logarithmic axis.
function axis(values, from, to, { guests = [], log = false, zoom = null } = {}) {
  const warp = log ? Math.log10 : (value) => value;
  const isSeen = (value) => value !== null && value !== undefined && (!log || value > 0);
  let [low, high] = extent(values.filter(isSeen).map(warp));
  const reach = (high - low || Math.abs(high) || 1) * 0.5;
  for (const guest of guests.filter(isSeen).map(warp)) {
    if (guest >= low - reach && guest <= high + reach) [low, high] = extent([low, high, guest]);
  }
  const room = (high - low) * 0.05 || (log ? 0.1 : Math.abs(high) * 0.1) || 1;
  [low, high] = zoom ?? [low - room, high + room];
  const place = (value) => from + ((warp(value) - low) / (high - low)) * (to - from);
  const at = (pixel) => low + ((pixel - from) / (to - from)) * (high - low);
  return { place, at, low, high, log, warp, length: Math.abs(to - from),
    sees: (value) => isSeen(value) && warp(value) >= low && warp(value) <= high };
}

const units = [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e4, " k", 1e3]];
// Texts of numbers that are `step` apart, all in one unit.
function tickTexts(values, step) {
  const most = Math.max(...values.map(Math.abs));
  if (most > 0 && most < 1e-3) {
    const digits = Math.max(0, Math.floor(Math.log10(most) + 1e-9) - Math.floor(Math.log10(step) + 1e-9));
    return values.map((value) => (value ? value.toExponential(digits).replace(/-/g, "−") : "0"));
  }
  const [, unit, by] = units.map(([from, mark, size]) => [from, mark, size ?? from])
    .find(([from]) => most >= from) ?? [0, "", 1];
  const decimals = Math.min(9, Math.max(0, -Math.floor(Math.log10(step / by) + 1e-9)));
  return values.map((value) => (value < 0 ? "−" : "") + Math.abs(value / by).toFixed(decimals) + (value ? unit : ""));
}

const closeness = 2e4; // steps from zero, beyond which labels would be long and nearly alike
function linearTicks(low, high, wanted, whole) {
  const raw = (high - low) / wanted;
  const size = 10 ** Math.floor(Math.log10(raw));
  const off = (step) => Math.abs(Math.log(step / raw));
  let step = [1, 2, 5, 10].map((m) => m * size).reduce((a, b) => (off(b) < off(a) ? b : a));
  if (whole) step = Math.max(1, Math.round(step));
  const values = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && values.length < 1000; k++) values.push(k * step);
  const isClose = Math.max(Math.abs(low), Math.abs(high)) / step > closeness;
  if (!values.length || !isClose) return { marks: labelled(values, tickTexts(values, step)), offset: null };
  const unit = 10 ** Math.ceil(Math.log10(high - low));
  const base = Math.floor(values[0] / unit) * unit;
  const decimals = Math.min(9, Math.max(0, -Math.floor(Math.log10(unit) + 1e-9)));
  const texts = tickTexts(values.map((value) => Math.round((value - base) / step) * step), step);
  return { marks: labelled(values, texts.map((text) => `+${text}`)), offset: number(base, decimals) };
}
const labelled = (values, texts) => values.map((value, k) => ({ value, text: texts[k] }));

function logTicks(low, high, wanted) {
  const [from, to] = [Math.floor(low), Math.ceil(high)];
  const every = Math.max(1, Math.ceil((to - from) / wanted));
  for (const steps of to - from > 3 ? [[1]] : [[1], [1, 2, 5], [1, 2, 3, 5, 7]]) {
    const values = [];
    for (let k = from; k <= to; k += every) values.push(...steps.map((m) => m * 10 ** k));
    const inside = values.filter((value) => Math.log10(value) >= low - 1e-9 && Math.log10(value) <= high + 1e-9);
    if (inside.length >= 3) return { marks: inside.map((value) => ({ value, text: tickTexts([value], value)[0] })), offset: null };
  }
  return linearTicks(10 ** low, 10 ** high, wanted, false);
}

// As many ticks as have room; of labels side by side, `apart` is the least space between two.
function ticks(scale, { upright = false, whole = false, apart = 10 } = {}) {
  const room = ({ text }) => (upright ? 16 : textWidth(text)) / 2;
  const collide = (a, b) =>
    Math.abs(scale.place(a.value) - scale.place(b.value)) < room(a) + room(b) + (upright ? 0 : apart);
  const most = Math.max(2, Math.floor(scale.length / (upright ? 55 : 80)));
  let found = null;
  for (let wanted = most; wanted >= 1; wanted--) {
    found = scale.log ? logTicks(scale.low, scale.high, wanted) : linearTicks(scale.low, scale.high, wanted, whole);
    if (found.marks.every((mark, k) => !k || !collide(found.marks[k - 1], mark))) return found;
  }
  return { ...found, marks: withoutCollisions(found.marks, collide) };
}
function withoutCollisions(marks, collide) {
  const kept = [];
  for (const mark of marks) if (!kept.length || !collide(kept[kept.length - 1], mark)) kept.push(mark);
  return kept;
}
// How much room the labels of a vertical axis need on its left.
const labelRoom = ({ marks }) => Math.ceil(Math.max(28, ...marks.map(({ text }) => textWidth(text)))) + 14;

const beyond = (offset) => (offset === null ? "" : ` (above ${offset})`);
function axes(svg, x, y, area, names, whole = {}) {
  const width = Number(svg.getAttribute("width"));
  const [across, up] = [ticks(x, { whole: whole.x }), ticks(y, { upright: true, whole: whole.y })];
  for (const { value, text } of up.marks) {
    const at = y.place(value);
    svg.append(drawn("line", { class: "grid", x1: area.left, x2: area.right, y1: at, y2: at }));
    svg.append(drawn("text", { class: "tick-y", x: area.left - 8, y: at + 4, "text-anchor": "end" }, text));
  }
  for (const { value, text } of across.marks) {
    const at = x.place(value);
    const middle = Math.min(at, width - textWidth(text) / 2 - 1);
    svg.append(drawn("line", { class: "axis", x1: at, x2: at, y1: area.bottom, y2: area.bottom + 5 }));
    svg.append(drawn("text", { class: "tick-x", x: middle, y: area.bottom + 19, "text-anchor": "middle" }, text));
  }
  svg.append(drawn("line", { class: "axis", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom }));
  svg.append(drawn("text", { class: "label", x: area.right, y: area.bottom + 38, "text-anchor": "end" }, names.x + beyond(across.offset)));
  svg.append(drawn("text", { class: "label", x: 0, y: area.top - 12 }, names.y + beyond(up.offset)));
}
function haloed(attributes, text) {
  return drawn("text", { ...attributes, stroke: "var(--paper)", "stroke-width": 4, "paint-order": "stroke" }, text);
}
