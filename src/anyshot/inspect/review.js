// Decide on examples with one click each, and download the decisions as a table. Names are only ever set as text.
const bar = document.getElementById("review");
const isLabelling = bar.dataset.kind === "labels";
const spots = new Map(); // the elements of each example: it may be shown several times
const decisions = new Map(); // the cells of its row in the table

function make(tag, properties) {
  return Object.assign(document.createElement(tag), properties);
}

function decide(id, decision, newLabel = "") {
  const { path, key, label } = spots.get(id)[0].dataset;
  const isUndone = decisions.get(id)?.decision === decision && decisions.get(id).new_label === newLabel;
  if (isUndone) decisions.delete(id);
  else decisions.set(id, { path, key, label, decision, new_label: newLabel });
  for (const spot of spots.get(id)) {
    spot.classList.toggle("decided", decisions.has(id));
    for (const button of spot.querySelectorAll("button")) {
      button.ariaPressed = String(!isUndone && button.dataset.decision === decision && button.dataset.label === newLabel);
    }
    spot.querySelector("input").value = !isUndone && newLabel !== spot.dataset.suggestion ? newLabel : "";
  }
  bar.hidden = false;
  bar.querySelector("output").textContent = `${decisions.size} decided`;
}

function addControls(spot) {
  const { path, key, label, suggestion } = spot.dataset;
  const id = JSON.stringify([path, key, label]);
  spots.set(id, [...(spots.get(id) || []), spot]);
  const choices = isLabelling ? [] : [["Keep", "keep", ""]];
  if (suggestion) choices.push([`It is ${suggestion}`, "relabel", suggestion]);
  if (!isLabelling) choices.push(["Drop", "drop", ""]);
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
bar.querySelector("button").addEventListener("click", () => {
  const rows = [...decisions.values()].map((one) => (isLabelling ? { path: one.path, label: one.new_label } : one));
  if (!rows.length) return;
  const cells = [Object.keys(rows[0]), ...rows.map(Object.values)];
  const text = cells.map((row) => `${row.map((cell) => `"${cell.replaceAll('"', '""')}"`).join(",")}\n`).join("");
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: bar.dataset.file });
  link.click();
});
