// Decide on examples with one click each, and download the decisions as a table. Names are only ever set as text.
// The browser remembers decisions by the page's content, so that a reload loses none and two pages do not mix.
const bar = document.getElementById("review");
const isLabelling = bar.dataset.kind === "labels";
const spots = new Map(); // the elements of each example: it may be shown several times
const decisions = new Map(); // the cells of its row in the table
const place = `anyshot ${bar.dataset.page}`; // in the storage of the browser

function store() {
  try {
    if (decisions.size) localStorage.setItem(place, JSON.stringify([...decisions]));
    else localStorage.removeItem(place);
  } catch { /* Some browsers have no storage for files: decisions then last as long as the page. */ }
}

function restore() {
  try {
    for (const [id, one] of JSON.parse(localStorage.getItem(place)) || []) if (spots.has(id)) decisions.set(id, one);
  } catch { /* as above */ }
  for (const id of decisions.keys()) show(id);
}

function make(tag, properties) {
  return Object.assign(document.createElement(tag), properties);
}

function decide(id, decision, newLabel = "") {
  const { path, key, label } = spots.get(id)[0].dataset;
  const isUndone = decisions.get(id)?.decision === decision && decisions.get(id).new_label === newLabel;
  if (isUndone) decisions.delete(id);
  else decisions.set(id, { path, key, label, decision, new_label: newLabel });
  show(id);
  store();
}

function show(id) {
  const { decision, new_label: newLabel } = decisions.get(id) || {};
  for (const spot of spots.get(id)) {
    for (const button of spot.querySelectorAll("button")) {
      button.ariaPressed = String(button.dataset.decision === decision && button.dataset.label === newLabel);
    }
    spot.querySelector("input").value = newLabel && newLabel !== spot.dataset.suggestion ? newLabel : "";
  }
  bar.hidden = false;
  const skipped = [...decisions.values()].filter((one) => one.decision === "skip").length;
  bar.querySelector("output").textContent = `${decisions.size - skipped} decided${skipped ? `, ${skipped} skipped` : ""}`;
}

function addControls(spot) {
  const { path, key, label, suggestion, known } = spot.dataset;
  const id = JSON.stringify([path, key, label]);
  spots.set(id, [...(spots.get(id) || []), spot]);
  const choices = isLabelling ? [] : [["Keep", "keep", ""]];
  if (suggestion) choices.push([`It is ${suggestion}`, "relabel", suggestion]);
  choices.push(isLabelling ? ["None of these", "skip", ""] : ["Drop", "drop", ""]);
  if (known === "False") choices.reverse(); // the likeliest answer comes first
  for (const [textContent, decision, newLabel] of choices) {
    const button = make("button", { type: "button", textContent, ariaPressed: "false" });
    Object.assign(button.dataset, { decision, label: newLabel });
    button.addEventListener("click", () => decide(id, decision, newLabel));
    spot.append(button);
  }
  const other = make("input", { placeholder: "another class", ariaLabel: `Another class for ${path}` });
  other.setAttribute("list", "classes");
  other.addEventListener("change", () => { if (other.value.trim()) decide(id, "relabel", other.value.trim()); });
  spot.append(other);
}

document.querySelectorAll("[data-path]").forEach(addControls);
restore();
bar.querySelector("[value=restart]").addEventListener("click", () => {
  if (!confirm("Forget all decisions on this page?")) return;
  const ids = [...decisions.keys()];
  decisions.clear();
  ids.forEach(show);
  store();
});
bar.querySelector("[value=download]").addEventListener("click", () => {
  const made = [...decisions.values()].filter((one) => one.decision !== "skip");
  const rows = made.map((one) => (isLabelling ? { path: one.path, label: one.new_label } : one));
  if (!rows.length) return;
  const cells = [Object.keys(rows[0]), ...rows.map(Object.values)];
  const text = cells.map((row) => `${row.map((cell) => `"${cell.replaceAll('"', '""')}"`).join(",")}\n`).join("");
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: bar.dataset.file });
  link.click();
});
