// The table of the front, and the start of everything.

function sortTable(table, place, head) {
  const descending = head.getAttribute("aria-sort") === "ascending";
  const body = table.tBodies[0];
  const key = (row) => {
    const text = row.cells[place].dataset.value;
    return text === "" ? null : Number(text);
  };
  const keyed = [...body.rows].map((row) => [key(row), row]);
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // what is absent comes last
    return descending ? b - a : a - b;
  });
  body.append(...keyed.map(([, row]) => row));
  for (const other of table.tHead.rows[0].cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
}

function startTable() {
  const table = byId("front-table");
  if (!table) return;
  [...table.tHead.rows[0].cells].forEach((head, place) =>
    head.querySelector(".sort")?.addEventListener("click", () => sortTable(table, place, head)));
  const byTrial = new Map(data.number.map((trial, i) => [String(trial), i]));
  table.addEventListener("click", (event) => {
    const { trial } = event.target.closest("button")?.dataset ?? {};
    if (trial !== undefined && byTrial.has(trial)) choose(byTrial.get(trial));
  });
  const mark = (i) => {
    for (const button of table.querySelectorAll(".choose")) {
      const is = byTrial.get(button.dataset.trial) === i;
      button.closest("tr").classList.toggle("chosen", is);
      button.setAttribute("aria-pressed", is);
    }
  };
  listeners.push(mark);
  mark(shown.design);
}

function startCopying() {
  for (const button of document.querySelectorAll(".copy[data-apply], .copy[data-whole]")) {
    const { apply } = button.dataset;
    button.addEventListener("click", () => copy(button, apply === undefined ? data.command : applyCommand(apply)));
  }
}

startScatter();
startTable();
startCurves();
startParallel();
startCopying();
startDesign();
document.documentElement.dataset.ready = "true";
