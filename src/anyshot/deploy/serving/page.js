"use strict";
// Everything shown comes from the server as JSON and is put into the page as text, never as HTML.
const at = (id) => document.getElementById(id);
let answer = null;

function say(problem) {
  at("problem").textContent = problem || "";
  at("problem").hidden = !problem;
}

async function call(method, path, file) {
  const headers = file ? { "Content-Type": file.type.startsWith("image/") ? file.type : "image/unknown" } : {};
  let response;
  try {
    response = await fetch(path, { method, headers, body: file });
  } catch {
    throw new Error("The server did not take that, or is gone.");
  }
  const value = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(typeof value.detail === "string" ? value.detail : `Refused (${response.status}).`);
  return value;
}

const MOST_BYTES = 20e6;
function check(file) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} is too large: an image may have at most 20 MB.`);
}

function element(tag, words, kind) {
  const made = document.createElement(tag);
  if (words !== undefined) made.textContent = words;
  if (kind) made.className = kind;
  return made;
}

function showClasses(about) {
  const many = about.classes.length;
  const sure = about.accuracy == null ? "" : `, ${Math.round(100 * about.accuracy)} % right on its own examples, left out`;
  at("about").textContent = many ? `${many} ${many === 1 ? "class" : "classes"}${sure}` : "No classes yet: add two.";
  at("save").hidden = !about.can_save || !many;
  at("classes").replaceChildren(...about.classes.map((one) => {
    const item = element("li");
    item.dataset.name = one.name;
    const row = element("div", undefined, "row");
    const forget = element("button", "Remove");
    forget.type = "button";
    forget.setAttribute("aria-label", `Remove ${one.name}`);
    forget.addEventListener("click", () => act(async () => showClasses(await call("DELETE", `/api/classes?name=${encodeURIComponent(one.name)}`))));
    row.append(element("span", `${one.name} (${one.count})`), forget);
    item.append(row, ...one.examples.map((key) => {
      const image = element("img");
      image.src = `/api/thumbnails/${key}`;
      image.alt = `Example of ${one.name}`;
      return image;
    }));
    return item;
  }));
}

async function act(work) {
  say("");
  document.body.setAttribute("aria-busy", "true");
  try { await work(); } catch (error) { say(error.message); }
  document.body.removeAttribute("aria-busy");
}

function add(files) {
  const name = at("name").value.trim();
  return act(async () => {
    if (!name) throw new Error("Give the class a name first.");
    for (const file of files) {
      check(file);
      showClasses(await call("POST", `/api/classes/examples?name=${encodeURIComponent(name)}`, file));
    }
  });
}

function ask(files) {
  return act(async () => {
    if (!files.length) return;
    check(files[0]);
    answer = await call("POST", "/api/classify", files[0]);
    URL.revokeObjectURL(at("picture").src);
    at("picture").src = URL.createObjectURL(files[0]);
    at("answer").hidden = false;
    at("shots").max = answer.by_shot.length;
    at("shots").value = answer.by_shot.length;
    showAnswer();
  });
}

const winner = (probabilities) => probabilities.indexOf(Math.max(...probabilities));

function showAnswer() {
  const step = Number(at("shots").value);
  const all = step >= answer.by_shot.length;
  const shown = all ? answer.probabilities : answer.by_shot[step].probabilities;
  const shot = all ? 0 : answer.by_shot[step].shot;
  at("shots-now").textContent = all ? "all examples of each class" : `at most ${shot} example${shot === 1 ? "" : "s"} of each class`;
  const best = winner(shown);
  const percent = Math.round(100 * shown[best]);
  at("verdict").textContent = all && !answer.is_known
    ? `None of these, it seems; ${answer.classes[best]} is nearest.` : `${answer.classes[best]} (${percent} %)`;
  const order = [...shown.keys()].sort((a, b) => shown[b] - shown[a]).slice(0, 10);
  at("scores").replaceChildren(...order.map((place) => {
    const row = element("tr");
    const bar = element("meter");
    bar.value = shown[place];
    bar.setAttribute("aria-label", answer.classes[place]);
    const cell = element("td");
    cell.append(bar);
    row.append(element("td", answer.classes[place]), cell, element("td", `${(100 * shown[place]).toFixed(1)} %`, "number"));
    return row;
  }));
  for (const item of at("classes").children) item.classList.toggle("best", item.dataset.name === answer.classes[best]);
  const final = winner(answer.probabilities);
  const other = answer.by_shot.filter((one) => winner(one.probabilities) !== final).map((one) => one.shot);
  at("changes").textContent = other.length
    ? `The decision was another with ${other.join(", ")} examples per class.` : "The decision is the same at every number of examples.";
}

function drop(id, work) {
  const area = at(id);
  area.addEventListener("dragover", (event) => { event.preventDefault(); area.classList.add("over"); });
  area.addEventListener("dragleave", () => area.classList.remove("over"));
  area.addEventListener("drop", (event) => { event.preventDefault(); area.classList.remove("over"); work([...event.dataTransfer.files]); });
}

drop("add-drop", add);
drop("ask-drop", ask);
at("add-files").addEventListener("change", async (event) => { await add([...event.target.files]); event.target.value = ""; });
at("ask-file").addEventListener("change", async (event) => { await ask([...event.target.files]); event.target.value = ""; });
at("shots").addEventListener("input", showAnswer);
at("adding").addEventListener("submit", (event) => event.preventDefault());
at("save").addEventListener("click", async () => {
  at("save").disabled = true;  // a second click would only save the same again
  await act(async () => { await call("POST", "/api/save"); at("about").textContent = "Saved."; });
  at("save").disabled = false;
});
act(async () => showClasses(await call("GET", "/api/classes")));
