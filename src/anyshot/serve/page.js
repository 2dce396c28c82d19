// The page as a whole: pictures that are chosen, dropped, pasted or taken, and what changes the classes.
import { ask, askAgain, picture, whenChosen } from "/ask.js";
import { fromCamera } from "/camera.js";
import { showClass, showClasses, whenAsked } from "/cards.js";
import { whenDecided } from "/review.js";
import { at, call, make, many, named, percent, say } from "/server.js";

const removals = []; // that can be undone, the last one last

function show(about) {
  const { length } = about.classes;
  const pictures = about.classes.reduce((sum, one) => sum + one.count, 0);
  const right = about.accuracy == null ? "" : ` · ${percent(about.accuracy)} of them told right when left out`;
  at("about").textContent = length ? `${many(length, "class", "classes")} · ${many(pictures, "picture")}${right}` : "No classes yet: add two.";
  at("save").hidden = !about.can_save || !length;
  at("answer").classList.toggle("alone", length < 2);
  showClasses(about.classes);
}

/** Change the classes, one change after the other; what goes wrong is said beside them. */
let last = Promise.resolve(true);
function change(work) {
  last = last.then(async () => {
    say("trouble", "");
    document.body.setAttribute("aria-busy", "true");
    try {
      const about = await work();
      show(about);
      await askAgain(about);
      return true;
    } catch (error) {
      say("trouble", error.message);
      return false;
    } finally {
      document.body.removeAttribute("aria-busy");
    }
  });
  return last;
}

function notice(words, undo) {
  at("notice").replaceChildren(make("span", { textContent: words }));
  if (undo) at("notice").append(make("button", { type: "button", textContent: "Undo", onclick: undoLast, title: "Ctrl+Z" }));
  const away = make("button", { type: "button", textContent: "×", ariaLabel: "Dismiss" });
  away.addEventListener("click", () => at("notice").replaceChildren());
  at("notice").append(away);
}

function add(name, files) {
  return change(async () => {
    if (!name) { at("name").focus(); throw new Error("Give the class a name first."); }
    let about = null;
    const refused = [];
    for (const [place, file] of files.entries()) {
      if (files.length > 1) notice(`Adding ${place + 1} of ${files.length} to ${name}…`);
      try {
        show(about = await call("POST", named("/api/classes/examples", name), file));
      } catch (error) {
        refused.push(`${file.name || "The picture"}: ${error.message}`);
      }
    }
    const added = files.length - refused.length;
    if (added) notice(`Added ${many(added, "picture")} to ${name}.`);
    else at("notice").replaceChildren();
    if (!about) throw new Error(refused.join(" "));
    if (refused.length) say("trouble", refused.join(" "));
    return about;
  });
}

const remove = (path, words, method = "DELETE") => change(async () => {
  const about = await call(method, path);
  removals.push(about.removal);
  notice(words, true);
  return about;
});

function undoLast() {
  const removal = removals.pop();
  if (removal === undefined) return;
  change(async () => {
    const about = await call("POST", `/api/undo?removal=${removal}`);
    notice("It is back.", removals.length > 0);
    return about;
  });
}

whenChosen(showClass);
whenDecided((path, words) => remove(path, words, "POST"));
whenAsked({
  add,
  removeClass: async (name) => { if (await remove(named("/api/classes", name), `Removed the class ${name}.`)) at("notice").querySelector("button").focus(); },
  removeExample: (name, key) => remove(named("/api/classes/examples", name, `&key=${key}`), `Removed a picture of ${name}.`),
});

function chosen(id, work) {
  at(id).addEventListener("change", async () => { await work([...at(id).files]); at(id).value = ""; });
}
const askFirst = (files) => files.length && ask(files[0]);
chosen("ask-file", askFirst);
chosen("camera-file", askFirst);
chosen("add-files", async (files) => { if (await add(at("name").value.trim(), files)) at("adding").reset(); });
at("camera").addEventListener("click", () => fromCamera(ask));
at("adding").addEventListener("submit", (event) => { event.preventDefault(); at("add-files").click(); });
at("teach").addEventListener("submit", (event) => { event.preventDefault(); add(at("teach-name").value.trim(), [picture()]); });
at("save").addEventListener("click", async () => {
  at("save").disabled = true; // a second click would only save the same again
  try {
    await call("POST", "/api/save").catch((error) => {
      const words = "Another program changed the saved classifier. Keep its examples too, and save?";
      if (!error.changed || !confirm(words)) throw error;
      return call("POST", "/api/save?merge=true");
    });
    notice("Saved.");
  } catch (error) { say("trouble", error.message); }
  at("save").disabled = false;
});

// A picture may be dropped anywhere: on a class it is one more example, elsewhere it is a question.
function place(target) {
  const element = target instanceof Element ? target : document.body;
  const card = element.closest("#cards li[data-name]");
  if (card) return { element: card, words: `Let go to add to ${card.dataset.name}`, work: (files) => add(card.dataset.name, files) };
  const form = element.closest("#adding");
  const name = at("name").value.trim();
  if (form && name) return { element: form, words: `Let go to add to ${name}`, work: (files) => add(name, files) };
  return { element: at("ask"), words: "Let go to ask what this is", work: askFirst };
}
function mark(where) {
  document.querySelectorAll(".over").forEach((one) => one !== where?.element && one.classList.remove("over"));
  where?.element.classList.add("over");
  say("drop-hint", where ? where.words : "");
}
const hasFiles = (event) => [...(event.dataTransfer?.types || [])].includes("Files");
addEventListener("dragover", (event) => { if (hasFiles(event)) { event.preventDefault(); mark(place(event.target)); } });
addEventListener("dragleave", (event) => { if (!event.relatedTarget) mark(null); });
addEventListener("drop", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  mark(null);
  place(event.target).work([...event.dataTransfer.files]);
});
addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files || [])];
  if (files.length) { event.preventDefault(); ask(files[0]); }
});
addEventListener("keydown", (event) => {
  const writes = event.target.matches?.("input:not([type=range], [type=file]), select");
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && event.key === "z" && !writes && removals.length) { event.preventDefault(); undoLast(); }
});

change(() => call("GET", "/api/classes"));
