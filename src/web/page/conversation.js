// One episode: its conversation, its rewards, its group, and what a person says about it.

import { get, post, address } from "./api.js";
import { h, replace, number, shown, plain, outcome, badge, bytes, problem } from "./dom.js";
import { episodeAddress, advantage, labelBadge } from "./episodes.js";

// A text that may go on on the server.
function long(text, more) {
  if (!text) return null;
  const place = h("pre", {}, shown(text.text));
  const box = h("div", {}, place);
  let end = new TextEncoder().encode(text.text).length;
  const rest = () => {
    if (end >= text.bytes || !more) return;
    const button = h("button", { type: "button" }, `show more (${bytes(text.bytes - end)} left)`);
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        const next = await more(end);
        place.append(document.createTextNode(""), ...shown(next.text));
        end += new TextEncoder().encode(next.text).length;
        button.remove();
        rest();
      } catch (cause) {
        button.replaceWith(problem(cause));
      }
    });
    box.append(button);
  };
  rest();
  return box;
}

export function messages(list, where) {
  return list.map((message, index) => {
    const more = (part) => where && ((from) => get("text", { ...where, message: index, part, from }));
    const name = message.name ? ` · ${plain(message.name)}` : "";
    return h("article", { class: `message ${["assistant", "tool", "user", "system"].includes(message.role) ? message.role : ""} ${message.error ? "error" : ""}`, "aria-label": `${message.role}${name}` },
      h("div", { class: "who" }, shown(message.role), shown(name), message.error ? [" ", badge(`error: ${plain(message.error).replaceAll("_", " ")}`, "bad")] : null, message.clipped_from ? ` · the policy saw only its beginning and end; the whole has ${bytes(message.clipped_from)}` : null),
      message.reasoning ? h("details", {}, h("summary", { class: "quiet" }, `reasoning (${bytes(message.reasoning.bytes)})`), long(message.reasoning, more("reasoning"))) : null,
      message.role === "system" && message.content ? h("details", {}, h("summary", { class: "quiet" }, `text (${bytes(message.content.bytes)})`), long(message.content, more("content"))) : message.content?.bytes ? long(message.content, more("content")) : null,
      message.calls.map((call, place) => h("div", { class: "call" }, h("b", {}, shown(call.name)), long(call.arguments, more(`call${place}`)))));
  });
}

export function facts(episode) {
  return h("p", {}, outcome(episode.correct), " ", badge(episode.end.replaceAll("_", " ")), " ", labelBadge(episode.label), ` reward ${number(episode.reward)} · advantage ${advantage(episode)} · ${episode.turns} turns · ${episode.calls} calls · ${episode.tool_errors} failed`);
}

function labelForm(run, episode, done) {
  let right = episode.label ? episode.label.right : null;
  const note = h("textarea", { rows: 1, "aria-label": "Note", placeholder: "note (optional)", value: episode.label?.note || "" });
  const status = h("span", { class: "quiet", role: "status" });
  const buttons = [[true, "✓ right"], [false, "✗ wrong"], [null, "no verdict"]].map(([value, text]) => {
    const button = h("button", { type: "button", "aria-pressed": String(right === value) }, text);
    button.addEventListener("click", () => {
      right = value;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
    });
    return button;
  });
  const save = h("button", { type: "submit" }, "Save");
  const form = h("form", { class: "label-form" }, h("span", {}, "You say:"), buttons, note, save, status);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    save.disabled = true;
    try {
      const { labels } = await post("label", { run, stage: episode.stage, id: episode.id, right, note: note.value });
      status.textContent = `saved; ${labels} labels in this run`;
      done({ right, note: note.value });
    } catch (cause) {
      status.textContent = cause.message;
    }
    save.disabled = false;
  });
  return form;
}

export async function show(page, { run, parameters, signal, go }) {
  const where = { run, stage: parameters.stage, id: parameters.id, row: parameters.row };
  const found = await get("episode", where, signal);
  const { episode, task, rewards, group } = found;
  const place = group.findIndex((other) => other.id === episode.id);
  const beside = (step) => group[place + step] && episodeAddress(run, group[place + step]);
  const tools = h("div");
  const offered = h("details", {}, h("summary", {}, "Tools that the policy was offered"), tools);
  offered.addEventListener("toggle", async () => {
    if (!offered.open || tools.childNodes.length) return;
    try {
      const list = await get("tools", where, signal);
      replace(tools, list.length ? list.map((tool, index) => h("div", { class: "call" }, `${index + 1}. `, h("b", {}, shown(tool.name)), long(tool.description), h("details", {}, h("summary", { class: "quiet" }, "arguments"), long(tool.schema)))) : h("p", { class: "quiet" }, "The table of tools is no longer in the cache."));
    } catch (cause) {
      replace(tools, problem(cause));
    }
  });
  const head = h("div");
  const draw = () => replace(head, facts(episode));
  draw();
  const link = (href, text) => (href ? h("a", { href }, text) : h("span", { class: "quiet" }, text));
  const member = (other) => h("tr", {}, h("td", {}, other.id === episode.id ? h("b", {}, `#${other.sample}`) : h("a", { href: episodeAddress(run, other) }, `#${other.sample}`)), h("td", {}, outcome(other.correct), " ", labelBadge(other.label)), h("td", { class: "number" }, number(other.reward)), h("td", { class: "number" }, advantage(other)), h("td", {}, shown(other.end.replaceAll("_", " "))), h("td", { class: "text" }, shown(other.answer || "")));
  replace(page,
    h("h1", {}, shown(`${episode.stage} · ${episode.family} · #${episode.sample}`)),
    h("p", {}, link(beside(-1), "← before in the group"), " · ", link(beside(1), "next →"), " · ", h("a", { href: address(run, "tokens", { stage: episode.stage, id: episode.id, row: parameters.row }) }, "tokens"), " · ", h("a", { href: address(run, "episodes", { scenario: episode.scenario }) }, "all episodes of this scenario")),
    head,
    labelForm(run, episode, (label) => { episode.label = label.right === null && !label.note ? null : label; draw(); }),
    h("dl", {},
      task ? [h("dt", {}, "task"), h("dd", {}, long(task.task))] : null,
      task?.answer !== null && task ? [h("dt", {}, "expected"), h("dd", {}, shown(task.answer), h("span", { class: "quiet" }, ` (${plain(task.check)})`))] : null,
      task?.checks ? [h("dt", {}, "checks"), h("dd", { class: "mono" }, shown(task.checks))] : null,
      task?.reference ? [h("dt", {}, "reference solution"), h("dd", { class: "mono" }, shown(task.reference))] : null,
      h("dt", {}, "answer"), h("dd", {}, episode.answer === null ? h("span", { class: "quiet" }, "none") : shown(episode.answer)),
      h("dt", {}, "policy"), h("dd", {}, shown(episode.policy)),
      found.trained_by ? [h("dt", {}, "trained on by"), h("dd", {}, shown(found.trained_by))] : null),
    rewards.length ? h("h2", {}, "Reward") : null,
    rewards.map((judge) => h("div", {},
      h("p", {}, h("b", {}, number(judge.reward)), ` by ${plain(judge.stage)}: `, judge.components.map((part, index) => [index ? ", " : "", shown(part.name), " ", h("b", {}, (part.value > 0 ? "+" : "") + number(part.value))])),
      judge.explanation ? h("details", { open: true }, h("summary", { class: "quiet" }, "the judge's words"), long(judge.explanation)) : null)),
    group.length > 1 ? [h("h2", {}, `Group: ${group.length} episodes of this scenario by this policy`), h("div", { class: "wide" }, h("table", {}, h("tbody", {}, group.map(member))))] : null,
    h("h2", {}, "Conversation"),
    offered,
    messages(found.messages, where),
    h("p", { class: "quiet" }, "Keys: n and p go through the group, t shows the tokens."));
  const keys = (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { n: 1, p: -1 }[event.key];
    if (step && beside(step)) location.hash = beside(step);
    if (event.key === "t") go("tokens", { stage: episode.stage, id: episode.id, row: parameters.row });
  };
  addEventListener("keydown", keys);
  return { stop: () => removeEventListener("keydown", keys) };
}
