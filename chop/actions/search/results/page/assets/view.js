// What one looks at, kept while a live page is loaded again.

const viewKey = "mase-view";
const viewInputs = ["x-axis", "y-axis", "colour", "x-log", "y-log", "error-bars", "parallel-all", "follow"];

function saveView() {
  const inputs = viewInputs.map(byId).filter(Boolean).map((input) => [input.id, input.type === "checkbox" ? input.checked : input.value]);
  sessionStorage.setItem(viewKey, JSON.stringify({
    inputs, zoom: scatter.zoom, listing, scroll: window.scrollY, focus: document.activeElement?.id ?? "",
    design: shown.byUser && shown.design !== null ? data.number[shown.design] : null,
    filters: [...filters.keys()].map((key) => [key, limitsOf(key)]),
  }));
}

function restoreView() {
  const view = JSON.parse(sessionStorage.getItem(viewKey) ?? "null");
  sessionStorage.removeItem(viewKey);
  if (!view) return;
  for (const [id, value] of view.inputs) {
    const input = byId(id);
    if (input?.type === "checkbox") input.checked = value;
    else if (input && [...input.options].some((option) => option.value === value)) input.value = value;
  }
  scatter.zoom = view.zoom;
  Object.assign(listing, view.listing);
  byId("trials-state").value = listing.state;
  for (const [key, limits] of view.filters) {
    const shares = rowNamed(key) ? limits.map(rowNamed(key).scale.share) : [];
    if (shares.length && shares.every((share) => share !== undefined)) filters.set(key, shares);
  }
  const i = view.design === null ? -1 : data.number.indexOf(view.design);
  if (i >= 0) choose(i);
  applyFilters();
  showTrials();
  byId(view.focus)?.focus({ preventScroll: true });
  requestAnimationFrame(() => window.scrollTo(0, view.scroll));
}

// The values at the ends of a filter; their places change when there are new trials.
function limitsOf(key) {
  const { scale } = rowNamed(key);
  const [from, to] = filters.get(key);
  if (!scale.choices) return [from, to].map((share) => scale.low + share * (scale.high - scale.low));
  const inside = scale.choices.filter(({ share }) => share >= from - 1e-9 && share <= to + 1e-9);
  return inside.length ? [inside[0].value, inside[inside.length - 1].value] : [];
}

const isBusy = () => Boolean(dragging.from || brushing.row || !tooltip.hidden);
