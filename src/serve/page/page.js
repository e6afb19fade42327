// Asks what is served. Each question is a task of its own unless the conversation is continued. No text of a model or tool
// becomes markup.

import { h, replace, shown, plain, percent, badge, outcome, counted, problem } from "./dom.js";
import { Side, asker, posted } from "./answer.js";
import { kept } from "./kept.js";

const $ = (id) => document.getElementById(id);
const ask = asker(() => $("key").value.trim(), () => {
  $("key-form").hidden = false;
  $("key").focus();
  $("key-form").scrollIntoView({ block: "center" });
});

let about = { models: [], tools: [], tasks: [] };
// The messages of the last answered card.
let turns = [];
// What is answering.
const running = new Set();
// The card of a question without an answer, which gives way to the next.
let unanswered = null;
// When the last question was sent.
let sent = 0;

const range = ({ low, high }) => `${percent(low)} to ${percent(high)}`;
const label = (model) => plain(model.policy ?? "");
const titled = (model) => `${label(model)}${model.is_agent || !about.run ? "" : ", without tools"}`;
const chosen = () => about.models[Number($("model").value)];

// The model to compare with: the next one that answers in the same way.
const other = (model) => about.models.find((one) => one !== model && one.is_agent === model.is_agent);

function introduction() {
  const [first] = about.models;
  const rival = other(first);
  const names = about.tools.map((tool) => tool.name);
  const of = [about.run ? `run ${about.run}` : null, about.server ? `server ${about.server}` : null].filter(Boolean).join(" · ");
  const title = about.exam && first.exam
    ? [`${label(first)} solved ${percent(first.exam.success)} of ${counted(about.exam.tasks, about.exam.of_trained_cases ? "task about trained cases in other words" : "held-out task")}`, rival?.exam ? `; ${label(rival)} solved ${percent(rival.exam.success)}` : ""].join("")
    : first.is_agent ? `${label(first)} answers with the tools of ${about.server || "its server"}` : label(first);
  const intervals = [first, rival].filter((one) => one?.exam).map((one) => `${label(one)} ${range(one.exam)}`).join(", ");
  return h("section", { class: "band", "aria-label": "Who answers" },
    h("p", { class: "quiet" }, shown(first.is_agent ? ["agent", `policy ${label(first)}`, of].filter(Boolean).join(" · ") : ["model", of].filter(Boolean).join(" · "))),
    h("h1", { class: "claim" }, shown(title)),
    intervals && about.exam.claim ? h("p", {}, shown([about.exam.claim.text, about.exam.advice].filter(Boolean).join(". "))) : null,
    intervals ? h("p", { class: "quiet" }, shown(`95 % intervals: ${intervals}; ${about.exam.mode}`)) : null,
    first.is_agent && about.run && !intervals ? h("p", { class: "quiet" }, "No exam has measured this policy.") : null,
    first.is_agent
      ? h("details", {}, h("summary", {}, shown(`${counted(names.length, "tool")}: ${names.join(", ")}`)), h("dl", { class: "tools", tabindex: 0 }, about.tools.map((tool) => [h("dt", { class: "mono" }, shown(tool.name)), h("dd", {}, shown(tool.description))])))
      : h("p", {}, "No server is attached, so it has no tools: it answers from what it has learned. ", h("code", {}, "mcprl serve MODEL --server FILE"), " attaches one."));
}

function models() {
  const option = (model) => h("option", { value: about.models.indexOf(model) }, titled(model));
  const group = (name, all) => (all.length ? h("optgroup", { label: name }, all.map(option)) : null);
  replace($("model"), group("agent", about.models.filter((one) => one.is_agent)), group("model alone", about.models.filter((one) => !one.is_agent)));
  $("model").value = "0";
  $("model-label").hidden = about.models.length < 2;
}

function chips() {
  const chip = ({ task }) => h("button", { type: "button", class: "chip", title: plain(task), onclick: () => send(task, true) }, h("span", {}, shown(task)));
  replace($("chips").querySelector("div"), about.tasks.map(chip));
  $("chips").hidden = about.tasks.length === 0;
}

function busy() {
  const is_busy = running.size > 0;
  $("stop").hidden = !is_busy;
  $("send").hidden = is_busy;
  for (const one of document.querySelectorAll(".chip, .compare")) one.disabled = is_busy;
  $("continue").disabled = turns.length === 0;
}

// Keeps the end in view for who looks at it.
async function following(work) {
  const page = document.documentElement;
  const is_at_end = () => page.scrollHeight - scrollY - innerHeight < 120;
  let follows = is_at_end();
  const noticed = () => { follows = is_at_end(); };
  addEventListener("scroll", noticed, { passive: true });
  const follow = () => { if (follows) scrollTo(0, page.scrollHeight); };
  const observer = new ResizeObserver(follow);
  observer.observe($("talk"));
  try {
    return await work();
  } finally {
    follow();
    observer.disconnect();
    removeEventListener("scroll", noticed);
  }
}

// The expected answer to one of the tasks, and whether this one is right, or why that is not known.
async function verdict(side, number, answer) {
  const expected = about.tasks[number].answer;
  if (expected === null) return;
  const found = await ask("/check", posted({ task: number, answer })).then((response) => response.json()).catch((cause) => ({ cause }));
  const mark = found.cause ? badge("? not compared") : found.is_right === null ? badge("? the answer alone does not decide") : outcome(found.is_right);
  side.element.append(h("p", { class: "expected" }, mark, h("span", {}, h("span", { class: "quiet" }, "expected: "), shown(expected))));
  if (found.cause) side.element.append(problem({ message: `The answer was not compared: ${found.cause.message}`, hint: found.cause.hint }));
}

// Lets a model answer within a card.
async function answered(card, model, messages, temperature) {
  const side = new Side(titled(model));
  card.querySelector(".sides").append(side.element);
  const abort = new AbortController();
  running.add(abort);
  busy();
  try {
    const body = { ...(model.model === null ? {} : { model: model.model }), messages, temperature };
    const answer = await side.answer(ask, body, abort.signal);
    const number = messages.length === 1 ? about.tasks.findIndex(({ task }) => task.trim() === messages[0].content.trim()) : -1;
    if (number >= 0 && model.is_agent) await verdict(side, number, answer);
    $("status").textContent = `${label(model)}: ${plain(answer)}`;
    return answer;
  } finally {
    running.delete(abort);
    busy();
  }
}

// `is_new`: a task of its own in any case.
async function send(text, is_new = false) {
  if (running.size || !text.trim() || !about.models.length) return;
  const is_continued = !is_new && $("continue").checked && turns.length > 0;
  const temperature = $("temperature").valueAsNumber || 0;
  const messages = [...(is_continued ? turns : []), { role: "user", content: text }];
  const model = chosen();
  const rival = other(model);
  unanswered?.remove();
  sent = performance.now();
  const card = h("article", { class: `card task ${is_continued ? "continued" : ""}` }, h("header", {}, h("h2", {}, shown(text))), h("div", { class: "sides" }));
  if (rival) {
    const compare = h("button", { type: "button", class: "compare" }, `Compare with ${label(rival)}`);
    compare.addEventListener("click", async () => {
      compare.disabled = true;
      card.querySelector(".side + .side")?.remove();
      const done = await answered(card, rival, messages, temperature).then(() => true, () => false);
      if (done) compare.remove();
      $("text").focus({ preventScroll: true });
    });
    card.querySelector("header").append(compare);
  }
  $("chips").open = false;
  $("text").value = "";
  $("text").focus({ preventScroll: true });
  $("talk").append(card);
  unanswered = card;
  scrollTo(0, document.documentElement.scrollHeight);
  try {
    const answer = await following(() => answered(card, model, messages, temperature));
    unanswered = null;
    turns = [...messages, { role: "assistant", content: answer }];
  } catch {
    // It is drawn. The question is sent again, or another one.
    if (!$("text").value) $("text").value = text;
  }
  busy();
}

async function start() {
  try {
    about = await (await ask("/about")).json();
    $("key-form").hidden = true;
    $("form").hidden = false;
    replace($("about"), introduction());
    models();
    chips();
    if (about.keeps) kept(ask, $("kept"), $("show-kept"));
    $("text").focus({ preventScroll: true });
  } catch (cause) {
    const needs_key = cause.status === 401;
    replace($("about"),
      h("h1", {}, needs_key ? "This server needs its key" : "This cannot be shown"),
      needs_key ? h("p", {}, $("key").value ? "This is not its key. " : "", "It is the value of the environment variable that ", h("code", {}, "--api-key-env"), " names.") : problem(cause));
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send($("text").value);
});
$("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send($("text").value);
});
// The second click of a double click on Send is no Stop.
$("stop").addEventListener("click", () => {
  if (performance.now() - sent < 500) return;
  running.forEach((one) => one.abort());
  $("text").focus({ preventScroll: true });
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
start();
