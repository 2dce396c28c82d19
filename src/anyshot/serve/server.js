// What is asked of the server, and small helpers of the page. Everything shown is put in as text, never as HTML.
export const at = (id) => document.getElementById(id);
const MOST_BYTES = 20e6;

export async function call(method, path, file) {
  const headers = file ? { "Content-Type": file.type.startsWith("image/") ? file.type : "image/unknown" } : {};
  if (file && file.size > MOST_BYTES) throw new Error("It is too large: an image may have at most 20 MB.");
  let response;
  try {
    response = await fetch(path, { method, headers, body: file });
  } catch {
    throw new Error("The server did not take that, or is gone.");
  }
  const value = await response.json().catch(() => ({}));
  if (!response.ok) {
    const words = typeof value.detail === "string" ? value.detail : `Refused (${response.status}).`;
    throw Object.assign(new Error(words), { changed: words.includes("merge=true") });
  }
  return value;
}

export function make(tag, properties = {}, ...inside) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...inside);
  return made;
}

export const many = (number, word, words = `${word}s`) => `${number.toLocaleString("en")} ${number === 1 ? word : words}`;
export const percent = (share) => `${Math.round(100 * share)} %`;
export const chance = (share) => (share > 0.99 ? "more than 99 %" : percent(share)); // nothing is certain
export const named = (path, name, more = "") => `${path}?name=${encodeURIComponent(name)}${more}`;
export const thumbnail = (key) => `/api/thumbnails/${key}`;

export function say(id, words) {
  at(id).textContent = words;
  at(id).hidden = !words;
}
