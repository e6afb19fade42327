// A conversation to read: arguments by name, JSON laid out, long texts and repeated calls folded.

import { get } from "./api.js";
import { h, shown, plain, badge, bytes, problem, counted } from "./dom.js";
import { byClauses, parsed, lines, laidOut } from "./json.js";

// What is shown of a long text before it is unfolded.
const LINES = 12, LETTERS = 1500;

// A text, folded where it is long. What it lacks is on the server.
export function long(text, more, written = text?.text) {
  if (!text) return null;
  const place = h("pre", {});
  const box = h("div", {}, place);
  let end = new TextEncoder().encode(text.text).length;
  const rest = () => {
    if (end >= text.bytes || !more) return;
    const button = h("button", { type: "button", class: "fold" }, `show more (${bytes(text.bytes - end)} left)`);
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        const next = await more(end);
        place.append(...shown(next.text));
        end += new TextEncoder().encode(next.text).length;
        button.remove();
        rest();
      } catch (cause) {
        button.replaceWith(problem(cause));
      }
    });
    box.append(button);
  };
  const rows = written.split("\n");
  const first = rows.slice(0, LINES).join("\n").slice(0, LETTERS);
  // A fold saves more than its button takes.
  if (written.length < first.length + 200 && rows.length < LINES + 4) {
    place.append(...shown(written));
    rest();
    return box;
  }
  place.append(...shown(first));
  const button = h("button", { type: "button", class: "fold" }, rows.length > LINES ? `show all ${counted(rows.length, "line")}` : `show all (${bytes(end)})`);
  button.addEventListener("click", () => {
    place.replaceChildren(...shown(written));
    button.remove();
    rest();
  });
  box.append(button);
  return box;
}

// The value of an argument: a text with its line breaks, or SQL with those of its clauses; other JSON laid out.
function argument(value) {
  const isText = typeof value === "string" && value.startsWith('"');
  const text = isText ? byClauses(JSON.parse(value)) : lines(value);
  if (text.length <= 72 && !text.includes("\n")) return h("code", {}, shown(text));
  return long({ text, bytes: new TextEncoder().encode(text).length });
}

function call({ name, arguments: given }, more) {
  const tree = parsed(given.text);
  const listed = tree?.open === "{" ? h("dl", {}, tree.items.map(({ name, value }) => [h("dt", {}, shown(JSON.parse(name))), h("dd", {}, argument(value))])) : long(given, more);
  return h("div", { class: "call" }, h("b", {}, shown(name)), tree?.items.length === 0 ? h("span", { class: "quiet" }, " without arguments") : listed);
}

// An element for each message.
export function messages(list, where) {
  return list.map((message, index) => {
    const more = (part) => where && ((from) => get("text", { ...where, message: index, part, from }));
    const name = message.name ? ` · ${plain(message.name)}` : "";
    return h("article", { class: `message ${["assistant", "tool", "user", "system"].includes(message.role) ? message.role : ""} ${message.error ? "error" : ""}`, "aria-label": `${message.role}${name}` },
      h("div", { class: "who" }, shown(message.role), shown(name), message.error ? [" ", badge(`error: ${plain(message.error).replaceAll("_", " ")}`, "bad")] : null, message.clipped_from ? ` · the policy saw only its beginning and end; the whole has ${bytes(message.clipped_from)}` : null),
      message.reasoning ? h("details", {}, h("summary", { class: "quiet" }, `reasoning (${bytes(message.reasoning.bytes)})`), long(message.reasoning, more("reasoning"))) : null,
      message.role === "system" && message.content ? h("details", {}, h("summary", { class: "quiet" }, `text (${bytes(message.content.bytes)})`), long(message.content, more("content"))) : message.content?.bytes ? long(message.content, more("content"), laidOut(message.content.text)) : null,
      message.calls.map((one, place) => call(one, more(`call${place}`))));
  });
}

// The messages without those that the page shows elsewhere, and with those folded that do the same again: equal calls with equal
// results.
export function transcript(list, where) {
  const articles = messages(list, where);
  const key = ({ role, name, content, error, calls }) => JSON.stringify([role, name, content, error, calls]);
  const steps = [];
  for (const [index, message] of list.entries()) {
    if (message.isShown) continue;
    if (message.role === "tool" && steps.length) {
      steps.at(-1).key += key(message);
      steps.at(-1).articles.push(articles[index]);
    } else steps.push({ key: key(message), calls: message.calls.length, articles: [articles[index]] });
  }
  const found = [];
  for (let at = 0; at < steps.length; ) {
    let until = at + 1;
    while (steps[at].calls > 0 && steps[until]?.key === steps[at].key) until++;
    found.push(steps[at].articles);
    const again = until - at - 1;
    if (again > 0) found.push(h("details", { class: "again" }, h("summary", {}, `the same call with the same result ${counted(again, "more time")}`), steps.slice(at + 1, until).map((step) => step.articles)));
    at = until;
  }
  return found;
}
