// Filters: parts of rows that a design has to cross, drawn by dragging along a row or typed in.

const filters = new Map(); // key of a row -> [from, to] as shares of its length
const brushing = { row: null, moved: false };
const reachOfRow = 10; // pixels above and below

function passesAll(i) {
  for (const [key, [from, to]] of filters) {
    const { values, scale } = rowNamed(key);
    if (values[i] === null || values[i] === undefined) return false;
    const share = scale.share(values[i]);
    const room = (scale.room ?? 0) / 2 + 1e-9; // designs of one choice are drawn side by side
    if (share < from - room || share > to + room) return false;
  }
  return true;
}

function applyFilters() {
  filter.passes = filters.size ? data.number.map((_, i) => passesAll(i)) : null;
  showFilters();
  for (const listener of filter.listeners) listener();
}
function setFilter(key, range) {
  if (range) filters.set(key, range);
  else filters.delete(key);
  applyFilters();
  say(byId("filter-count").textContent || "No filter");
}

function filterText(key) {
  const { name, scale } = rowNamed(key);
  const [from, to] = filters.get(key);
  if (scale.choices) {
    const room = (scale.room ?? 0) / 2 + 1e-9;
    const inside = scale.choices.filter(({ share }) => share >= from - room && share <= to + room);
    return `${name}: ${inside.map(({ text }) => text).join(", ") || "nothing"}`;
  }
  const [low, high] = [from, to].map((share) => scale.low + share * (scale.high - scale.low));
  return `${name}: ${number(low, scale.decimals)} to ${number(high, scale.decimals)}`;
}
function showFilters() {
  const chips = [...filters.keys()].map((key) => element("li", {},
    button(`${filterText(key)} ×`, () => setFilter(key, null), { "aria-label": `Remove the filter ${filterText(key)}` })));
  byId("filter-list").replaceChildren(...chips);
  const kept = filter.passes?.filter(Boolean).length;
  byId("filter-count").textContent = filter.passes ? `${number(kept, 0)} of ${number(data.number.length, 0)} designs pass the filters` : "";
}

// by pointer

function rowAt(event) {
  if (!parallel.heights || event.pointerType === "touch") return null;
  const box = parallel.box.getBoundingClientRect();
  const [left, top] = [event.clientX - box.left, event.clientY - box.top];
  if (left < parallel.left - 6 || left > parallel.right + 6) return null;
  const k = parallel.heights.findIndex((height) => Math.abs(height - top) <= reachOfRow);
  return k < 0 ? null : parallel.rows[k];
}
function shareAt(event) {
  const left = event.clientX - parallel.box.getBoundingClientRect().left;
  return Math.max(0, Math.min(1, (left - parallel.left) / (parallel.right - parallel.left)));
}
function startBrushing() {
  parallel.box.addEventListener("pointerdown", (event) => {
    brushing.moved = false;
    brushing.row = event.button === 0 ? rowAt(event) : null;
    brushing.from = brushing.row ? shareAt(event) : null;
  });
  window.addEventListener("pointermove", (event) => {
    if (!brushing.row) return;
    const to = shareAt(event);
    brushing.moved ||= Math.abs(to - brushing.from) * (parallel.right - parallel.left) > 4;
    if (!brushing.moved) return;
    hideTooltip();
    filters.set(brushing.row.key, [Math.min(brushing.from, to), Math.max(brushing.from, to)]);
    drawParallel();
  });
  window.addEventListener("pointerup", () => {
    if (!brushing.row) return;
    const { key } = brushing.row;
    const [from, to] = filters.get(key) ?? [2, 2];
    brushing.row = null;
    if (brushing.moved) applyFilters();
    else if (brushing.from >= from - 0.01 && brushing.from <= to + 0.01) {
      brushing.moved = true; // a click on a filter removes it and chooses nothing
      setFilter(key, null);
    }
  });
}

// by keyboard

function limitInputs() {
  const { scale } = rowNamed(byId("filter-row").value);
  const inputs = ["from", "to"].map((end, k) => {
    if (scale.choices) {
      const made = element("select", { id: `filter-${end}` }, ...scale.choices.map(({ share, text }) => element("option", { value: share }, text)));
      made.selectedIndex = k ? scale.choices.length - 1 : 0;
      return made;
    }
    const value = (k ? scale.high : scale.low).toFixed(Math.min(9, scale.decimals));
    return element("input", { id: `filter-${end}`, type: "number", step: "any", value });
  });
  byId("filter-limits").replaceChildren(...inputs.map((input, k) => element("label", {}, k ? "to " : "from ", input)));
}
function addTypedFilter(event) {
  event.preventDefault();
  const key = byId("filter-row").value;
  const { scale } = rowNamed(key);
  const typed = ["from", "to"].map((end) => byId(`filter-${end}`).value);
  if (typed.includes("")) return;
  const shares = typed.map((text) => (scale.choices ? Number(text) : scale.share(Number(text))));
  setFilter(key, shares.sort((a, b) => a - b));
}
function startFilters() {
  startBrushing();
  if (!allRows.length) return;
  byId("filter-row").append(...allRows.map(({ key, name }) => element("option", { value: key }, name)));
  byId("filter-row").addEventListener("change", limitInputs);
  byId("filter-form").addEventListener("submit", addTypedFilter);
  limitInputs();
}
