// The review of recorded conversations: a list, and one conversation that a person accepts, edits or drops.

import { get, post } from "./api.js";
import { h, replace, shown, plain, problem, badge, debounced } from "./dom.js";
import { messages } from "./transcript.js";

const PAGE = 25;
const STATES = { open: ["open"], accept: ["accepted", "good"], edit: ["edited", "good"], drop: ["dropped", "bad"], unusable: ["unusable", "warn"] };
const main = document.getElementById("main");
const wanted = {};
let left = () => {};

const listed = (turns, results) => `${turns} ${turns === 1 ? "turn" : "turns"}, ${results} ${results === 1 ? "result" : "results"}`;
const notes = (trace) => trace.notes.map((note) => h("div", { class: "quiet" }, shown(note)));
const counted = (counts) => Object.entries(STATES).map(([state, [title]]) => `${title} ${counts[state] || 0}`).join(" · ");

async function list(isWanted) {
  const summary = h("p", { role: "status" }), table = h("div"), head = h("div"), message = h("div");
  let turn = 0;
  const look = async () => {
    const mine = ++turn;
    const found = await get("traces", { limit: PAGE, ...wanted });
    if (mine !== turn) return;
    const { total, counts, matching, offset, traces, file } = found;
    if (!head.firstChild) {
      const search = h("input", { type: "search", value: wanted.text || "", "aria-label": "Search in conversations" });
      search.addEventListener("input", debounced(() => change("text", search.value), 200));
      const state = h("select", {}, [["", ["any"]], ...Object.entries(STATES)].map(([value, [title]]) => h("option", { value }, title)));
      state.value = wanted.state || "";
      state.addEventListener("change", () => change("state", state.value));
      const filters = h("form", { class: "filters" }, h("label", {}, "Decision", state), h("label", {}, "Search", search));
      filters.addEventListener("submit", (event) => event.preventDefault());
      replace(head, h("p", { class: "quiet" }, `${total.toLocaleString("en")} conversations. Decisions are kept in `, h("code", {}, shown(file)), "; a stage of kind ", h("code", {}, "traces"), " reads it."), filters);
    }
    replace(summary, `${matching.toLocaleString("en")} conversations · ${counted(counts)}`);
    const row = (trace) => h("tr", {},
      h("td", {}, badge(...STATES[trace.state])),
      h("td", { class: "text" }, trace.state === "unusable" ? shown(trace.place) : h("a", { class: "row", href: `#/${trace.index}` }, shown(trace.task || trace.place)), notes(trace)),
      h("td", { class: "text quiet" }, trace.state === "unusable" ? null : listed(trace.turns, trace.results)),
      h("td", { class: "text quiet" }, shown(trace.state === "unusable" ? trace.format : `${trace.place} (${trace.format})`)));
    replace(table, h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, ["", "Asked", "", "From"].map((name) => h("th", {}, name)))), h("tbody", {}, traces.map(row)))),
      h("div", { class: "pages" }, h("button", { type: "button", disabled: offset === 0, onclick: () => change("offset", String(Math.max(0, offset - PAGE))) }, "← before"), h("span", {}, matching ? `${offset + 1}–${Math.min(offset + PAGE, matching)}` : "nothing matches"), h("button", { type: "button", disabled: offset + PAGE >= matching, onclick: () => change("offset", String(offset + PAGE)) }, "next →")));
  };
  const change = async (name, value) => {
    if (value) wanted[name] = value;
    else delete wanted[name];
    if (name !== "offset") delete wanted.offset;
    try {
      await look();
      replace(message);
    } catch (cause) {
      replace(message, problem(cause));
    }
  };
  await look();
  if (!isWanted()) return;
  replace(main, h("h1", {}, "Conversations"), head, summary, message, table);
  main.dataset.view = "traces";
}

function one(index, found) {
  const { trace, editable, tools } = found;
  const message = h("div"), where = { index };
  const go = (to) => { location.hash = to === null || to === undefined ? "#/" : `#/${to}`; };
  // The form fields of an edit by the number of their message, and what they began with.
  const fields = new Map();
  const decide = async (decision) => {
    // What nobody touched stays as it is: a text area changes line ends.
    const changed = [...fields].filter(([, field]) => field.area.value !== field.untouched);
    const texts = decision === "edit" ? Object.fromEntries(changed.map(([number, field]) => [number, field.area.value])) : {};
    try {
      const after = await post("decision", { index, decision, texts });
      if (decision && after.open !== null) go(after.open);
      else if (decision) go(null);
      else one(index, after);
    } catch (cause) {
      replace(message, problem(cause));
    }
  };
  const button = (name, title, act) => h("button", { type: "button", "aria-pressed": String(trace.state === name), onclick: act }, title);
  const articles = messages(found.messages, where);
  let isEditing = false;
  const edit = async () => {
    if (isEditing) return;
    isEditing = true;
    try {
      for (const [number, article] of articles.entries()) {
        if (!editable[number]) continue;
        const { text } = await get("editable", { index, message: number });
        const area = h("textarea", { rows: Math.min(12, 1 + text.split("\n").length), "aria-label": `Text of message ${number + 1}, ${plain(found.messages[number].role)}`, value: text });
        fields.set(number, { area, untouched: area.value });
        article.classList.add("edited");
        article.append(h("div", { class: "edit" }, area));
      }
      replace(actions, h("button", { type: "button", onclick: () => decide("edit") }, "Save"), " ", h("button", { type: "button", onclick: () => { left(); open(); } }, "Cancel"));
      [...fields.values()][0]?.area.focus();
    } catch (cause) {
      isEditing = false;
      replace(message, problem(cause));
    }
  };
  const actions = h("p", { class: "actions" }, button("accept", "Accept", () => decide("accept")), " ", button("edit", "Edit", edit), " ", button("drop", "Drop", () => decide("drop")), trace.state === "open" ? null : [" ", h("button", { type: "button", onclick: () => decide(null) }, "Undo")]);
  const step = (by) => { const to = index + by; return to >= 0 && to < found.total ? to : null; };
  const link = (to, text) => (to === null ? h("span", { class: "quiet" }, text) : h("a", { href: `#/${to}` }, text));
  replace(main,
    h("h1", {}, shown(trace.place)),
    h("p", {}, h("a", { href: "#/" }, "all"), " · ", link(step(-1), "← before"), " · ", link(step(1), "next →")),
    h("p", { role: "status" }, badge(...STATES[trace.state]), ` ${found.left.toLocaleString("en")} open · ${listed(trace.turns, trace.results)} · ${trace.format}`),
    notes(trace), actions, message,
    tools.length ? h("p", { class: "quiet" }, "tools: ", shown(tools.join(", "))) : null,
    articles,
    h("p", { class: "quiet" }, "Keys: a accepts, e edits, d drops, n and p go on and back. After a decision, the next open conversation is shown."));
  main.dataset.view = "trace";
  left();
  const keys = (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = { a: () => decide("accept"), d: () => decide("drop"), e: edit, n: () => step(1) !== null && go(step(1)), p: () => step(-1) !== null && go(step(-1)) }[event.key];
    if (!act || isEditing) return;
    event.preventDefault();
    act();
  };
  addEventListener("keydown", keys);
  left = () => removeEventListener("keydown", keys);
}

let turn = 0;

async function open() {
  left();
  const mine = ++turn;
  const index = location.hash.replace(/^#\/?/, "");
  try {
    if (!index) return await list(() => mine === turn);
    const found = await get("trace", { index });
    if (mine === turn) one(Number(index), found);
  } catch (cause) {
    if (mine !== turn) return;
    replace(main, h("h1", {}, "This cannot be shown"), problem(cause), h("p", {}, h("a", { href: "#/" }, "all conversations")));
    main.dataset.view = "problem";
  }
}

addEventListener("hashchange", () => { open(); main.focus({ preventScroll: true }); scrollTo(0, 0); });
replace(document.getElementById("header"), h("div", { class: "bar" }, h("b", {}, "mcprl"), h("span", { class: "quiet" }, "review of conversations")));
await open();
