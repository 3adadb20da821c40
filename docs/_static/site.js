// Tables that are wider than the page become a block for each row, whose cells have the names of their columns.
"use strict";

function stack() {
  for (const table of document.querySelectorAll("article table.docutils")) {
    table.classList.remove("stacked");
    const box = table.closest(".table-wrapper") ?? table.parentElement;
    if (table.scrollWidth <= box.clientWidth + 1) continue;
    const columns = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.children].forEach((cell, i) => columns[i] && cell.setAttribute("data-column", columns[i]));
    table.classList.add("stacked");
  }
}

let waiting;
document.addEventListener("DOMContentLoaded", stack);
window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(stack, 100); });
