// Tables that are wider than the page, or leave little room to their last column on a phone, become a block for each
// row, whose cells have the names of their columns.
"use strict";

function fits(table, box) {
  const last = table.querySelector("tbody tr")?.lastElementChild;
  const narrow = box.clientWidth < 500 && last && last.clientWidth < box.clientWidth / 2;
  return table.scrollWidth <= box.clientWidth + 1 && !narrow;
}

function stack() {
  for (const table of document.querySelectorAll("article table.docutils")) {
    table.classList.remove("stacked");
    if (fits(table, table.closest(".table-wrapper") ?? table.parentElement)) continue;
    const columns = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.children].forEach((cell, i) => {
        if (columns[i]) cell.setAttribute("data-column", columns[i]);
        cell.classList.toggle("nothing", !cell.textContent.trim() && !cell.querySelector("img"));
      });
    table.classList.add("stacked");
  }
}

let waiting;
document.addEventListener("DOMContentLoaded", stack);
window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(stack, 100); });
