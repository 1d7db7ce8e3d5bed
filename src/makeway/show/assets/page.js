"use strict";
// Tables that sort and filter. Everything the page needs is in it.

// --- tables ---------------------------------------------------------------------------------------

function sortBy(table, column, header) {
  const now = header.getAttribute("aria-sort"); // numbers start with the largest, words with A
  const descending = now ? now === "ascending" : header.classList.contains("number");
  const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const compare = (one, other) => {
    const a = value(one), b = value(other);
    if (a === "" || b === "") return a === b ? 0 : a === "" ? 1 : -1; // unknown comes last, whichever way
    const order = isNaN(a) || isNaN(b) ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
    return descending ? -order : order;
  };
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
}

function filterRows(table, words, count) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...table.tBodies[0].rows];
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !wanted.every((word) => text.includes(word));
  }
  const shown = rows.filter((row) => !row.hidden).length;
  count.textContent = wanted.length ? `${shown} of ${rows.length}` : "";
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => sortBy(table, column, header));
  });
}
for (const box of document.querySelectorAll("input[type=search]")) {
  const table = document.getElementById(box.dataset.table);
  const count = box.parentElement.querySelector("output");
  box.addEventListener("input", () => filterRows(table, box.value, count));
}

// --- folded sections ------------------------------------------------------------------------------

const folded = () => document.querySelectorAll("details.more:not([open])");
addEventListener("beforeprint", () => { for (const one of folded()) one.open = true; }); // paper has no clicks
addEventListener("hashchange", () => {
  const asked = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (const one of folded()) if (asked?.contains(one) || one.contains(asked)) one.open = true;
});

// Black or white, for text on a colour of the style sheet (#rrggbb): on any colour, one of them reaches 4.5 to 1.
function inkOn(colour) {
  const [red, green, blue] = colour.match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16) / 255)
    .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text; // never as markup: names come from traces
  return made;
}
