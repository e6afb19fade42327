// One episode: the task, the answer against what was expected, the conversation, and beside it its reward, its group, and what a
// person says about it.

import { get, post, address } from "./api.js";
import { h, replace, number, shown, plain, outcome, problem } from "./dom.js";
import { episodeAddress, advantage, labelBadge } from "./episodes.js";
import { long, transcript } from "./transcript.js";

// Longest title, in characters.
const TITLE = 240;
const LABELS = [[true, "✓ right", "y"], [false, "✗ wrong", "w"], [null, "no verdict", "u"]];

const key = (letter) => h("kbd", {}, letter);

// The answer beside what was expected of it, and what else keeps the episode from being right.
function versus({ episode, answer, task, unmet }) {
  const cell = (name, mark, value, note) => h("div", {}, h("h2", {}, name, " ", mark), value, note);
  const text = (value, without) => (value ? long(value) : h("p", { class: "quiet" }, without));
  const checks = task?.checks ? h("details", {}, h("summary", { class: "quiet" }, "all checks"), h("pre", {}, shown(task.checks))) : null;
  // Without checks, it is the answer.
  const found = task?.checks ? unmet : [];
  return h("section", { class: "card versus", "aria-label": "Answer and what was expected" },
    cell("Answer", outcome(episode.correct), text(answer, `none: the episode ended as "${plain(episode.end.replaceAll("_", " "))}"`)),
    task ? cell("Expected", null, text(task.answer === null ? null : { text: task.answer, bytes: 0 }, task.checks ? "no answer in words; checks decide" : "not known"), task.answer === null ? null : h("p", { class: "quiet" }, `compared as ${plain(task.check)}`)) : cell("Expected", null, h("p", { class: "quiet" }, "The task is no longer in the cache.")),
    found.length || checks ? h("div", { class: "all" }, found.length ? h("ul", { class: "unmet" }, found.map((one) => h("li", {}, "✗ ", shown(one)))) : null, checks) : null);
}

// What a person says: saved at once, and taken back by the same button or key.
function labels(run, episode, done) {
  const status = h("p", { class: "quiet", role: "status" });
  const note = h("textarea", { rows: 1, "aria-label": "Note", placeholder: "note (optional)", value: episode.label?.note || "" });
  const right = () => episode.label?.right ?? null;
  // What was pressed last, before it is saved.
  let wanted = right();
  let saving = Promise.resolve();
  const save = (change) => {
    saving = saving.then(async () => {
      try {
        const { labels, label } = await post("label", { run, stage: episode.stage, id: episode.id, ...change });
        episode.label = label;
        if (document.activeElement !== note) note.value = label?.note || "";
        status.textContent = `saved; ${labels} labels in this run`;
        mark();
        done();
      } catch (cause) {
        status.textContent = cause.message;
        wanted = right();
      }
    });
    return saving;
  };
  const press = (value) => {
    wanted = wanted === value ? null : value;
    return save({ right: wanted });
  };
  const buttons = LABELS.map(([value, title, letter]) => h("button", { type: "button", "aria-keyshortcuts": letter, onclick: () => press(value) }, title, " ", key(letter)));
  const mark = () => buttons.slice(0, 2).forEach((button, index) => button.setAttribute("aria-pressed", String(right() === LABELS[index][0])));
  mark();
  note.addEventListener("change", () => save({ note: note.value }));
  return { element: h("section", { class: "card" }, h("h2", {}, "You say"), h("div", { class: "label-form" }, buttons, note), status), press };
}

function reward({ rewards, episode }) {
  const part = ({ name, value }) => h("div", { class: "part" }, h("span", {}, shown(name.replaceAll("_", " "))), h("b", {}, (value > 0 ? "+" : "") + number(value)));
  const by = (judge) => [
    h("div", { class: "part total" }, h("span", {}, shown(judge.stage)), h("b", {}, number(judge.reward))),
    judge.components.map(part),
    judge.explanation ? h("details", { open: true }, h("summary", { class: "quiet" }, "the judge's words"), long(judge.explanation)) : null,
  ];
  return h("section", { class: "card" }, h("h2", {}, "Reward"),
    rewards.length ? rewards.map(by) : h("p", { class: "quiet" }, "No judge has scored this episode."),
    rewards.length ? h("div", { class: "part" }, h("span", {}, "advantage in its group"), h("b", {}, advantage(episode))) : null);
}

function members(run, episode, group, of) {
  if (group.length < 2) return null;
  const row = (other) => {
    const content = [h("span", {}, `#${other.sample} `, outcome(other.correct), " ", labelBadge(other.label)), h("span", { class: "figures" }, other.reward === null ? "" : number(other.reward, 2), h("small", { class: "quiet" }, other.reward === null ? "" : ` ${advantage(other)}`)), h("small", { class: "quiet" }, other.answer === null ? shown(other.end.replaceAll("_", " ")) : ["→ ", shown(other.answer)])];
    return h("li", {}, other.row === episode.row ? h("b", { class: "member", "aria-current": "true" }, content) : h("a", { class: "member", href: episodeAddress(run, other, of) }, content));
  };
  return h("section", { class: "card" }, h("h2", {}, `Group: ${group.length} episodes of this task`), h("ol", { class: "members" }, group.map(row)));
}

function about(run, { episode, task, trained_by: trained }) {
  const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, value)];
  return h("section", { class: "card" }, h("h2", {}, "Episode"), h("dl", {},
    fact("policy", shown(episode.policy)), fact("stage", shown(episode.stage)), fact("kind", h("a", { href: address(run, "episodes", { family: episode.family }) }, shown(episode.family))), fact("split", shown(episode.split.replaceAll("_", " "))),
    fact("ended", shown(episode.end.replaceAll("_", " "))), fact("turns", episode.turns), fact("calls", `${episode.calls}, ${episode.tool_errors} failed`),
    trained ? fact("trained on by", shown(trained)) : null,
    fact("task", h("a", { href: address(run, "episodes", { scenario: episode.scenario }) }, "all its episodes"))),
    task?.reference ? h("details", {}, h("summary", { class: "quiet" }, "calls that solve it"), h("pre", {}, shown(task.reference))) : null);
}

function offered(where, signal) {
  const tools = h("div");
  const box = h("details", { class: "card" }, h("summary", {}, "Tools that the policy was offered"), tools);
  box.addEventListener("toggle", async () => {
    if (!box.open || tools.childNodes.length) return;
    try {
      const list = await get("tools", where, signal);
      replace(tools, list.length ? list.map((tool, index) => h("div", { class: "call" }, `${index + 1}. `, h("b", {}, shown(tool.name)), long(tool.description), h("details", {}, h("summary", { class: "quiet" }, "arguments"), long(tool.schema)))) : h("p", { class: "quiet" }, "The table of tools is no longer in the cache."));
    } catch (cause) {
      if (cause.name !== "AbortError") replace(tools, problem(cause));
    }
  });
  return box;
}

export async function show(page, { run, parameters, signal, go }) {
  const where = { run, stage: parameters.stage, id: parameters.id, row: parameters.row };
  // The filter and the order of the table that the reader came from.
  const of = parameters.of || "";
  const filter = Object.fromEntries(new URLSearchParams(of));
  const found = await get("episode", where, signal);
  const { episode, task } = found;
  const self = { stage: episode.stage, id: episode.id, row: episode.row };
  const asked = found.messages.find((message) => message.role === "user")?.content?.text;
  const whole = (task?.task.text || asked || episode.scenario).trim();
  const title = whole.length > TITLE ? `${whole.slice(0, TITLE)}…` : whole;
  // The title has it already.
  const talk = found.messages.map((message, index) => (message.role === "user" && index < 2 && message.content?.text.trim() === title ? { ...message, isShown: true } : message));

  const beside = { n: null, p: null };
  const pager = h("p", { class: "pager" });
  const step = (name, letter) => (beside[letter] ? h("a", { href: episodeAddress(run, beside[letter], of), "aria-keyshortcuts": letter }, name, " ", key(letter)) : h("span", { class: "quiet" }, name, " ", key(letter)));
  const drawPager = (place) => replace(pager, step("← before", "p"), h("span", {}, place), step("next →", "n"), h("a", { href: address(run, "episodes", filter) }, of ? "the filtered list" : "all episodes"), h("a", { href: address(run, "tokens", { ...self, of }), "aria-keyshortcuts": "t" }, "tokens ", key("t")));
  drawPager("…");
  get("neighbours", { run, ...filter, offset: null, of_stage: episode.stage, of_id: episode.id, of_row: episode.row }, signal).then(({ at, matching, before, after }) => {
    Object.assign(beside, { n: after, p: before });
    const all = matching.toLocaleString("en");
    drawPager(at === null ? `not among the ${all} that match` : of ? `${at.toLocaleString("en")} of ${all} that match` : `${at.toLocaleString("en")} of ${all} episodes`);
  }).catch((cause) => { if (cause.name !== "AbortError") drawPager(cause.message); });

  const head = h("p", { class: "quiet" });
  const draw = () => replace(head, shown(`${episode.policy} · ${episode.stage} · sample ${episode.sample} `), labelBadge(episode.label));
  draw();
  const label = labels(run, episode, draw);
  replace(page,
    h("h1", { class: "asked" }, shown(title)),
    head, pager, versus(found),
    h("div", { class: "transcript" },
      h("div", {}, h("h2", { class: "hidden" }, "Conversation"), transcript(talk, where)),
      h("aside", { class: "rail", "aria-label": "About this episode" }, label.element, reward(found), members(run, episode, found.group, of), about(run, found), offered(where, signal))));
  const keys = (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const labelled = LABELS.find(([, , letter]) => letter === event.key);
    if (labelled && !event.repeat) label.press(labelled[0]);
    if (beside[event.key]) location.hash = episodeAddress(run, beside[event.key], of);
    if (event.key === "t") go("tokens", { ...self, of });
  };
  addEventListener("keydown", keys);
  return { stop: () => removeEventListener("keydown", keys) };
}
