// Conversations that the server keeps, in a drawer.

import { h, replace, shown, problem } from "./dom.js";
import { call, parsed } from "./answer.js";

// A conversation's messages; a call has its result.
function messages(all) {
  const results = new Map(all.filter((one) => one.role === "tool").map((one) => [one.tool_call_id, one]));
  return all.filter((one) => one.role !== "tool").flatMap((one) => [
    one.content ? h("div", { class: `message ${one.role === "user" ? "user" : "assistant"}` }, one.role === "system" ? h("details", {}, h("summary", { class: "quiet" }, "system prompt"), shown(one.content)) : shown(one.content)) : null,
    ...(one.tool_calls ?? []).map(({ id, function: of }) => {
      const result = results.get(id);
      return call({ tool: of.name, arguments: parsed(of.arguments), result: result?.content, error: result?.is_error });
    }),
  ]);
}

function conversation({ id, model, time, messages: said }, is_open) {
  const first = said.find((one) => one.role === "user")?.content ?? "";
  return h("details", { class: "one", "data-id": id, open: is_open },
    h("summary", {}, h("span", { class: "quiet" }, shown(`${time.slice(0, 19).replace("T", " ")} · ${model} `)), shown(first.slice(0, 120))),
    messages(said));
}

// `ask` gets a path of the server.
export function kept(ask, drawer, button) {
  const list = h("div");
  const close = h("button", { type: "button", onclick: () => show(false) }, "Close");
  replace(drawer, h("header", {}, h("h2", {}, "Kept conversations"), close), list);
  let known = null;
  const update = async () => {
    if (drawer.hidden) return;
    try {
      const { conversations } = await (await ask("/conversations")).json();
      // What is read stays under its reader.
      const now = JSON.stringify(conversations);
      if (now !== known) {
        const open = new Set([...list.querySelectorAll("details.one[open]")].map((one) => one.dataset.id));
        replace(list, conversations.length ? conversations.map((one) => conversation(one, open.has(one.id))) : h("p", { class: "quiet" }, "None yet: each finished answer is kept."));
      }
      known = now;
    } catch (cause) {
      known = null;
      replace(list, problem(cause));
    }
    setTimeout(update, 2000);
  };
  const show = (is_shown) => {
    drawer.hidden = !is_shown;
    button.setAttribute("aria-expanded", String(is_shown));
    (is_shown ? close : button).focus();
    if (is_shown) update();
  };
  drawer.addEventListener("keydown", (event) => { if (event.key === "Escape") show(false); });
  button.onclick = () => show(drawer.hidden);
  button.hidden = false;
}
