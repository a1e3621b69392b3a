// The table of the front: its order, and the design that is chosen in it.

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
  const byTrial = new Map(data.number.map((trial, i) => [`${seriesOf(i)} ${trial}`, i]));
  const placeOf = ({ trial, search = "0" }) => byTrial.get(`${search} ${trial}`);
  table.addEventListener("click", (event) => {
    const { dataset } = event.target.closest("button") ?? {};
    const i = dataset?.trial === undefined ? undefined : placeOf(dataset);
    if (i !== undefined) choose(i);
  });
  const mark = (i) => {
    for (const button of table.querySelectorAll(".choose")) {
      const is = placeOf(button.dataset) === i;
      button.closest("tr").classList.toggle("chosen", is);
      button.setAttribute("aria-pressed", is);
    }
  };
  listeners.push(mark);
  mark(shown.design);
}
