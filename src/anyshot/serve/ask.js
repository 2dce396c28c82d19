// The question and its answer. Only the last question counts: what comes late for an earlier one is dropped.
import { at, call, chance, make, many, say, thumbnail } from "/server.js";

const MOST_SCORES = 5;
const winner = (probabilities) => probabilities.indexOf(Math.max(...probabilities));
let asked = null; // the picture
let turn = 0; // of the questions
let answer = null;
let about = { classes: [] };
let open = () => {};

export function whenChosen(showClass) {
  open = showClass;
}

export const picture = () => asked;

/** Ask about a picture; whatever was answered before is gone, also if this fails. */
export async function ask(file) {
  clear();
  asked = file;
  const mine = ++turn;
  at("picture").src = URL.createObjectURL(file);
  at("answer").hidden = false;
  at("invitation").hidden = true;
  at("verdict").textContent = "Looking…";
  try {
    const found = await call("POST", "/api/classify?by_shot=false", file);
    if (mine === turn) show(found);
  } catch (error) {
    if (mine !== turn) return;
    clear();
    say("problem", file.name ? `${file.name}: ${error.message}` : error.message);
  }
}

export function clear() {
  turn += 1;
  asked = answer = null;
  say("problem", "");
  URL.revokeObjectURL(at("picture").src);
  at("picture").removeAttribute("src");
  at("verdict").textContent = at("sure").textContent = "";
  at("answer").hidden = at("found").hidden = at("nearest").hidden = true;
  at("invitation").hidden = false;
  at("fewer").open = false;
  at("teach").reset();
}

/** The classes have changed: the same picture may be something else now. */
export async function askAgain(now) {
  about = now;
  at("names").replaceChildren(...about.classes.map((one) => make("option", { value: one.name })));
  if (!asked) return;
  if (!about.classes.length) return clear();
  const mine = ++turn;
  const found = await call("POST", `/api/classify?by_shot=${at("fewer").open}`, asked);
  if (mine === turn) show(found);
}

function show(found) {
  answer = found;
  at("found").hidden = false;
  at("shots").max = at("shots").value = answer.by_shot.length;
  showAt();
}

/** The answer at the number of examples that the slider says. */
function showAt() {
  const step = Number(at("shots").value);
  const all = step >= answer.by_shot.length;
  const shown = all ? answer.probabilities : answer.by_shot[step].probabilities;
  const best = winner(shown);
  const name = answer.classes[best];
  const none = all && !answer.is_known;
  at("answer").classList.toggle("none", none);
  at("verdict").textContent = none ? "None of these" : name;
  at("sure").textContent = none ? `It looks unlike every class; ${name} is nearest.`
    : answer.classes.length === 1 ? "The only class there is: add another to compare."
    : about.calibrated ? `${chance(shown[best])} sure` : `${chance(shown[best])}, a guess: single pictures do not tell how sure it is.`;
  at("if-any").hidden = !none;
  showNearest(name, none);
  const order = [...shown.keys()].sort((a, b) => shown[b] - shown[a]).slice(0, MOST_SCORES);
  at("scores").replaceChildren(...order.map((place) => score(answer.classes[place], shown[place])));
  say("unknown", answer.can_reject ? "" : whyNot());
  const shot = all ? 0 : answer.by_shot[step].shot;
  at("shots-now").textContent = all ? "all examples of each class" : `at most ${many(shot, "example")} of each class`;
  const final = winner(answer.probabilities);
  const other = answer.by_shot.filter((one) => winner(one.probabilities) !== final).map((one) => one.shot);
  at("changes").textContent = !answer.by_shot.length ? "Looking…" : other.length
    ? `The answer was another with ${other.join(", ")} examples per class.` : "The answer is the same at every number of examples.";
}

function showNearest(name, none) {
  const keys = answer.nearest[name] || [];
  at("nearest").hidden = !keys.length;
  at("nearest").querySelector(".likes").replaceChildren(...keys.map((key, place) =>
    make("img", { src: thumbnail(key), alt: `Example of ${name}, ${["nearest", "second", "third", "fourth"][place]}` })));
  at("nearest").querySelector("figcaption").textContent = none ? `Nearest, of ${name}` : `Nearest of ${name}`;
}

function score(name, probability) {
  const button = make("button", { type: "button", title: `Show the pictures of ${name}` }, make("span", { className: "name", textContent: name }),
    make("span", { className: "number", textContent: `${(100 * probability).toFixed(1)} %` }));
  button.style.setProperty("--share", probability);
  button.addEventListener("click", () => open(name));
  return make("li", {}, button);
}

/** Why it cannot be told whether a picture is none of these. */
function whyNot() {
  const more = about.until_rejection;
  if (about.classes.every((one) => one.count === 1)) {
    return "Whether it is none of these cannot be told: every class has a single picture. Add a second one to some.";
  }
  return more == null ? "This classifier was told to reject nothing: it never answers “none of these”."
    : `Whether it is none of these cannot be told yet: it takes ${many(more, "more picture")}, in classes of two or more.`;
}

at("shots").addEventListener("input", showAt);
at("fewer").addEventListener("toggle", async () => {
  if (!at("fewer").open || !answer || answer.by_shot.length) return;
  const mine = turn;
  at("changes").textContent = "Looking…";
  try {
    const found = await call("POST", "/api/classify?by_shot=true", asked);
    if (mine === turn) show(found);
  } catch (error) {
    if (mine === turn) at("changes").textContent = error.message;
  }
});
