"use strict";
const table = document.querySelector("table.summary");
const body = table.tBodies[0];
const rows = Array.from(body.rows);

function value(row, column) {
  const cell = row.cells[column];
  const number = Number(cell.dataset.value);
  return cell.dataset.value === undefined || Number.isNaN(number) ? cell.textContent : number;
}

function sorted(header, column) {
  const falling = header.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", falling ? "descending" : "ascending");
  rows.sort((one, other) => {
    const a = value(one, column), b = value(other, column);
    const order = typeof a === "number" && typeof b === "number"
      ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
    return falling ? -order : order;
  });
  body.append(...rows);
}

Array.from(table.tHead.rows[0].cells).forEach((header, column) => {
  header.querySelector("button").addEventListener("click", () => sorted(header, column));
});

const filter = document.getElementById("filter");
const count = document.getElementById("count");
filter.addEventListener("input", () => {
  const words = filter.value.toLowerCase();
  let shown = 0;
  for (const row of rows) {
    row.hidden = !row.textContent.toLowerCase().includes(words);
    if (!row.hidden) shown += 1;
  }
  count.textContent = `${shown} of ${rows.length} parameters`;
});
