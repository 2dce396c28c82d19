// Labels that may be wrong, and copies: kept, corrected or dropped with one click, and applied at once.
import { at, call, make, many, named, thumbnail } from "/server.js";

let correct = async () => {};

/** What is done when a reader decides: it returns whether that worked. */
export function whenDecided(action) {
  correct = action;
}

/** List the examples anew, where the list is open. */
export async function listDoubtful() {
  if (at("doubtful").hidden) return;
  at("doubts").textContent = "Looking…";
  const rows = await call("GET", "/api/review");
  const copies = rows.filter((row) => row.other).length;
  const counts = [[rows.length - copies, "label that may be wrong", "labels that may be wrong"], [copies, "copy", "copies"]];
  const found = counts.filter(([count]) => count).map((count) => many(...count)).join(" and ");
  at("doubts").textContent = found ? `To decide on: ${found}, the most doubtful first.` : "Nothing looks wrong.";
  at("doubtful").querySelector("ul").replaceChildren(...rows.map(item));
}

function item(row) {
  const decide = (decision, name = "") => async () => {
    const path = named("/api/corrections", row.name, `&key=${row.key}&decision=${decision}&new_name=${encodeURIComponent(name)}`);
    if (await correct(path, decision === "keep" ? "Kept." : decision === "drop" ? `Dropped a picture of ${row.name}.` : `Moved to ${name}.`)) await listDoubtful();
  };
  const button = (textContent, action) => make("button", { type: "button", textContent, onclick: action });
  const other = make("input", { placeholder: "another class", ariaLabel: `Another class for this picture of ${row.name}`, maxLength: 100 });
  other.setAttribute("list", "names");
  other.addEventListener("change", () => other.value.trim() && decide("relabel", other.value.trim())());
  const pictures = [row.key, ...(row.other ? [row.other] : [])];
  return make("li", {},
    make("div", { className: "likes" }, ...pictures.map((key) => make("img", { src: thumbnail(key), alt: `picture of ${row.name}`, loading: "lazy" }))),
    make("p", { textContent: `${row.name}: ${row.why}` }),
    make("div", { className: "ways" }, button("Keep", decide("keep")),
      ...(row.suggestion ? [button(`It is ${row.suggestion}`, decide("relabel", row.suggestion))] : []), button("Drop", decide("drop")), other));
}

at("review").addEventListener("click", () => {
  at("doubtful").hidden = !at("doubtful").hidden;
  at("review").ariaExpanded = String(!at("doubtful").hidden);
  listDoubtful();
});
