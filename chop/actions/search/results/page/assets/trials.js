// The table of all trials, a page at a time, and its download.

const pageSize = 25;
const listing = { sorted: "trial", descending: false, page: 0, state: "" };
const failed = data.failed ?? { number: [], params: {}, seconds: null, error: null };
const failedCount = failed.number.length;
const failedParams = new Map(namedColumns(failed.params, failedCount).map(({ name, values }) => [name, values]));
const failedError = failedCount ? column(failed.error, failedCount) : [];
const failedSeconds = failedCount ? column(failed.seconds, failedCount) : [];
const secondsOf = column(data.seconds);

// Every trial is a row: place i of the data, or of the failed trials if `isFailed`.
const allTrials = [
  ...data.number.map((trial, i) => ({ trial, i, isFailed: false })),
  ...failed.number.map((trial, i) => ({ trial, i, isFailed: true })),
];
const stateOf = ({ i, isFailed }) => (isFailed ? "failed" : kindText[kindOf(i)]);
const stateKey = ({ i, isFailed }) => (isFailed ? "failed" : kindOf(i));
const trialColumns = [
  ...(series ? [{ name: "search", get: ({ i }) => searchNames[seriesOf(i)] }] : []),
  { name: "trial", get: ({ trial }) => trial, isNumber: true },
  { name: "state", get: stateOf },
  ...data.metrics.map((m) => ({ name: m.name, metric: m, isNumber: true, get: ({ i, isFailed }) => (isFailed ? null : m.values[i]) })),
  ...distinguishing.map(({ name, values }) => ({
    name, title: shortKey(name), get: ({ i, isFailed }) => (isFailed ? failedParams.get(name)?.[i] ?? null : values[i]),
  })),
  { name: "seconds", isNumber: true, get: ({ i, isFailed }) => (isFailed ? failedSeconds : secondsOf)[i] },
];

function listedTrials() {
  const kept = allTrials.filter((row) => (!listing.state || stateKey(row) === listing.state) &&
    (filter.passes === null || (!row.isFailed && matches(row.i))));
  const { get } = trialColumns.find(({ name }) => name === listing.sorted) ?? trialColumns[0];
  const sign = listing.descending ? -1 : 1;
  const keyed = kept.map((row) => [get(row), row]);
  keyed.sort(([a, one], [b, other]) => {
    const [noA, noB] = [a === null || a === undefined, b === null || b === undefined];
    if (noA || noB) return noA - noB || one.trial - other.trial; // what is absent comes last
    const order = typeof a === "number" && typeof b === "number" ? a - b : plain(a).localeCompare(plain(b));
    return sign * order || one.trial - other.trial;
  });
  return keyed.map(([, row]) => row);
}

function cellOf(columnOf, row) {
  const value = columnOf.get(row);
  if (columnOf.name === "trial") {
    if (row.isFailed) return element("th", { scope: "row", class: "n" }, String(row.trial));
    const pressed = { "aria-pressed": row.i === shown.design, "aria-label": `Choose ${trialText(row.i)}`, class: "choose" };
    return element("th", { scope: "row", class: "n" }, button(String(row.trial), () => choose(row.i), pressed));
  }
  if (columnOf.name === "state" && row.isFailed) return element("td", { title: failedError[row.i] }, value);
  if (columnOf.metric) return right(measured(columnOf.metric, value, row.isFailed ? 0 : seriesOf(row.i)));
  if (columnOf.name === "seconds") return right(value === null ? absent : number(value, 3));
  return element("td", { class: typeof value === "number" ? "n" : "" }, plain(value));
}
function headOf(columnOf) {
  const isSorted = columnOf.name === listing.sorted;
  const sort = () => {
    listing.descending = isSorted && !listing.descending;
    Object.assign(listing, { sorted: columnOf.name, page: 0 });
    showTrials();
    byId("trials-body").querySelector("[aria-sort='ascending'] .sort, [aria-sort='descending'] .sort")?.focus();
  };
  return element("th", { scope: "col", class: columnOf.isNumber ? "n" : "",
    "aria-sort": isSorted ? (listing.descending ? "descending" : "ascending") : "none" },
  button(columnOf.title ?? columnOf.name, sort, { class: "sort" }));
}

function showTrials() {
  const rows = listedTrials();
  const pages = Math.max(1, Math.ceil(rows.length / pageSize));
  listing.page = Math.max(0, Math.min(pages - 1, listing.page));
  const start = listing.page * pageSize;
  const shownRows = rows.slice(start, start + pageSize);
  const table = tableOf("All trials", trialColumns.map(headOf), shownRows.map((row) => trialColumns.map((c) => cellOf(c, row))), "trials");
  shownRows.forEach((row, k) => table.querySelectorAll("tbody tr")[k].classList.toggle("chosen", !row.isFailed && row.i === shown.design));
  byId("trials-body").replaceChildren(rows.length ? table : element("p", {}, "No trial is like that."));
  byId("trials-place").textContent = rows.length
    ? `${number(start + 1, 0)} to ${number(start + shownRows.length, 0)} of ${number(rows.length, 0)} trials` : "";
  byId("trials-before").disabled = !listing.page;
  byId("trials-after").disabled = listing.page >= pages - 1;
}

// All trials that the table lists, with every metric and choice.
function trialsCsv() {
  const errors = data.metrics.filter(({ samples }) => samples);
  const head = [...trialColumns.map(({ name }) => name), ...errors.map(({ name }) => `${name} standard error`), "error"];
  const rows = listedTrials().map((row) => [...trialColumns.map(({ get }) => get(row)),
    ...errors.map((m) => (row.isFailed ? null : standardError(m, m.values[row.i], seriesOf(row.i)))),
    row.isFailed ? failedError[row.i] : null]);
  return csvText([head, ...rows]);
}

function startTrials() {
  const kinds = [...new Set(allTrials.map(stateKey))];
  byId("trials-state").append(...kinds.map((kind) => element("option", { value: kind }, kindText[kind] ?? kind)));
  byId("trials-state").addEventListener("change", (event) => {
    Object.assign(listing, { state: event.target.value, page: 0 });
    showTrials();
  });
  for (const [id, by] of [["trials-before", -1], ["trials-after", 1]]) {
    byId(id).addEventListener("click", () => {
      listing.page += by;
      showTrials();
    });
  }
  byId("trials-csv").addEventListener("click", () => download(fileName("trials.csv"), "text/csv", trialsCsv()));
  listeners.push(showTrials);
  filter.listeners.push(() => {
    listing.page = 0;
    showTrials();
  });
  showTrials();
}
