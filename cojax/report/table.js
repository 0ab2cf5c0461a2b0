// Tables that are sorted by a click on a column's head, and saved as CSV with all rows, not only those shown.
const ROWS_SHOWN = 300;

// A column is {title, value: row → text or number, cell: row → what is shown, number: whether it is right-aligned}.
function sortable({name, columns, rows, pick = null, chosen = () => false, order = null, empty = "Nothing to show.", shown = () => {}}) {
  const kept = remembered(`table ${name}`, {order});
  const body = h("tbody"), heads = h("tr");
  let current = rows;
  const sorted = () => {
    if (!kept.order) return current;
    const [place, down] = kept.order, value = columns[place].value;
    return [...current].sort((a, b) => compare(value(a), value(b)) * (down ? -1 : 1));
  };
  function draw() {
    replace(heads, columns.map((column, place) => {
      const active = kept.order && kept.order[0] === place;
      const turn = () => { kept.order = [place, active ? !kept.order[1] : Boolean(column.number)]; draw(); };
      return h("th", {class: column.number ? "number" : null, "aria-sort": active ? (kept.order[1] ? "descending" : "ascending") : null},
        h("button", {type: "button", class: "head", title: "sort", onclick: turn}, column.title, active ? (kept.order[1] ? " ↓" : " ↑") : ""));
    }));
    const found = sorted().slice(0, ROWS_SHOWN);
    replace(body, found.map((row) => {
      const line = h("tr", {class: [pick && "pick", chosen(row) && "chosen"].filter(Boolean).join(" ") || null, "data-id": row.id ?? null},
        columns.map((column) => h("td", {class: column.number ? "number" : null}, (column.cell || column.value)(row))));
      return pick ? pickable(line, () => pick(row)) : line;
    }), !found.length && h("tr", {}, h("td", {colspan: columns.length, class: "empty"}, self.empty)));
    shown(found.length, current.length);
  }
  const self = {empty, set(others) { current = others; draw(); }};
  const node = h("table", {}, h("thead", {}, heads), body);
  const save = () => saveCsv(name, columns, sorted());
  draw();
  return Object.assign(self, {node, body, save});
}

function compare(a, b) {
  if (!known(a) || !known(b)) return known(a) ? -1 : known(b) ? 1 : 0;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", {numeric: true});
}

// A text that a spreadsheet would take for a formula gets an apostrophe.
function csvCell(value) {
  if (!known(value)) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
const csvText = (columns, rows) => [columns.map((column) => csvCell(column.title)), ...rows.map((row) => columns.map((column) => csvCell(column.value(row))))]
  .map((cells) => cells.join(",")).join("\r\n");

function saveCsv(name, columns, rows) {
  const address = URL.createObjectURL(new Blob(["\ufeff", csvText(columns, rows), "\r\n"], {type: "text/csv"}));
  h("a", {href: address, download: `${name}.csv`}).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
const csvButton = (save) => h("button", {type: "button", title: "all rows found, as a table for a spreadsheet", onclick: save}, "save as CSV");
