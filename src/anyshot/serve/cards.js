// Classes as cards that fold. A card's pictures are made when it is opened, so that 500 classes cost little.
import { at, make, many, percent, thumbnail } from "/server.js";

const FEW = 6; // so many classes are shown open at first
const cards = new Map(); // by the name of the class
const plain = (text) => text.normalize("NFD").replace(/\p{Mn}/gu, "").toLowerCase();
let acts = {};

/** What is done when a reader adds pictures or removes a picture or a class. */
export function whenAsked(actions) {
  acts = actions;
}

export function showClasses(classes) {
  for (const [name, card] of cards) if (!classes.some((one) => one.name === name)) { card.item.remove(); cards.delete(name); }
  for (const one of classes) {
    if (!cards.has(one.name)) cards.set(one.name, newCard(one.name, classes.length <= FEW));
    update(cards.get(one.name), one);
  }
  at("finding").hidden = classes.length < 2;
  at("recall-means").hidden = !classes.some((one) => one.recall != null);
  arrange();
}

/** Open the card of a class and go there. */
export function showClass(name) {
  const card = cards.get(name);
  if (!card) return;
  at("search").value = "";
  arrange();
  card.details.open = true;
  card.item.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  card.details.firstElementChild.focus({ preventScroll: true });
}

function newCard(name, open) {
  const cover = make("img", { className: "cover", alt: "", loading: "lazy" });
  const count = make("span", { className: "hush count" });
  const recall = make("span", { className: "hush recall" });
  const summary = make("summary", {}, cover, make("span", { className: "title" }, make("span", { className: "name", textContent: name, title: name }), count, recall));
  const body = make("div", { className: "body" });
  const details = make("details", { open }, summary, body);
  const item = make("li", {}, details);
  item.dataset.name = name;
  const card = { item, details, body, cover, count, recall, summary, drawn: "" };
  details.addEventListener("toggle", () => draw(card));
  return card;
}

function update(card, one) {
  card.one = one;
  card.count.textContent = many(one.count, "picture");
  card.recall.textContent = one.recall == null ? "" : `recall ${percent(one.recall)}`;
  if (one.examples.length) card.cover.src = thumbnail(one.examples[0]);
  card.cover.hidden = !one.examples.length;
  draw(card);
}

function draw(card) {
  const { one } = card;
  const pictures = one.examples.join();
  if (!card.details.open || card.drawn === `${one.count} ${pictures}`) return;
  card.drawn = `${one.count} ${pictures}`;
  const input = make("input", { type: "file", accept: "image/*", multiple: true, className: "out", id: `add ${one.name}` });
  input.addEventListener("change", async () => { await acts.add(one.name, [...input.files]); input.value = ""; });
  const forget = make("button", { type: "button", className: "quiet", textContent: "Remove class", ariaLabel: `Remove class ${one.name}` });
  forget.addEventListener("click", () => acts.removeClass(one.name));
  const more = make("label", { className: "button", htmlFor: input.id, textContent: "Add pictures" }, make("span", { className: "out", textContent: ` of ${one.name}` }));
  const tile = make("li", { className: "more" }, more, input);
  const hidden = one.count - one.examples.length;
  card.body.replaceChildren(
    make("ul", { className: "pictures" }, ...one.examples.map((key, place) => thumb(one, key, place)), tile),
    ...(hidden > 0 ? [make("p", { className: "hush", textContent: `and ${hidden} more, which count but are not kept as pictures` })] : []),
    make("div", { className: "ways" }, forget),
  );
}

function thumb(one, key, place) {
  const words = `picture ${place + 1} of ${one.name}`;
  const away = make("button", { type: "button", className: "away", textContent: "×", title: "Remove", ariaLabel: `Remove ${words}` });
  away.addEventListener("click", async () => {
    if (!(await acts.removeExample(one.name, key))) return;
    const card = cards.get(one.name); // the keyboard stays where it was
    const next = card && [...card.body.querySelectorAll(".away")];
    (next?.[Math.min(place, next.length - 1)] || card?.summary || at("name")).focus();
  });
  return make("li", {}, make("img", { src: thumbnail(key), alt: words, loading: "lazy" }), away);
}

function arrange() {
  const wanted = plain(at("search").value.trim());
  const by = {
    name: () => 0,
    recall: (a, b) => (a.one.recall ?? 2) - (b.one.recall ?? 2),
    count: (a, b) => a.one.count - b.one.count,
  }[at("order").value];
  const order = [...cards.values()].sort((a, b) => by(a, b) || a.one.name.localeCompare(b.one.name));
  let shown = 0;
  order.forEach((card, place) => {
    card.item.hidden = !plain(card.one.name).includes(wanted);
    shown += !card.item.hidden;
    if (at("cards").children[place] !== card.item) at("cards").insertBefore(card.item, at("cards").children[place] || null);
  });
  at("matches").textContent = wanted ? `${shown} of ${many(cards.size, "class", "classes")}` : "";
}

at("search").addEventListener("input", arrange);
at("order").addEventListener("change", arrange);
at("fold").addEventListener("click", () => cards.forEach((card) => { card.details.open = false; }));
