// The tasks of a run: what is asked, what the answer is, and whether a person accepts, edits or drops them.

import { get, post } from "./api.js";
import { h, replace, shown, plain, problem, badge, debounced, counted, number, wide, cards } from "./dom.js";

const PAGE = 25;
const DECISIONS = [["", "any"], ["open", "open"], ["accept", "accepted"], ["edit", "edited"], ["drop", "dropped"]];
const BADGES = { accept: ["accepted", "good"], edit: ["edited", "good"], drop: ["dropped", "bad"] };

export async function show(page, { run, parameters, signal, remember }) {
  const wanted = { ...parameters };
  const list = h("div"), summary = h("p", { role: "status" }), message = h("div"), head = h("div");
  let turn = 0;

  const decide = async (stage, task, line, decision, changes) => {
    try {
      const found = await post("decision", { run, stage, id: task.id, decision, ...changes });
      replace(message);
      const after = row(stage, found.task);
      line.replaceWith(after);
      // The next open task is where a reviewer goes on.
      const next = decision ? after.nextElementSibling : after;
      next?.querySelector("button")?.focus();
    } catch (cause) {
      replace(message, problem(cause));
    }
  };

  // A text to edit, and what it is now. One that nobody touched stays as it is: a text area changes line ends.
  const field = (name, rows, before) => {
    const area = h("textarea", { rows, "aria-label": name });
    area.value = before;
    const untouched = area.value;
    return [area, () => (area.value === untouched ? before : area.value)];
  };

  // `whole`: all of the task, of which the list may show the beginning.
  const form = (stage, task, whole, line) => {
    const [text, textNow] = field("Task", 3, whole.task);
    const [answer, answerNow] = field("Answer", 1, whole.answer ?? "");
    const save = h("form", { class: "edit" }, h("label", {}, "task", text), h("label", {}, "answer", answer), h("button", { type: "submit" }, "Save"), h("button", { type: "button", onclick: () => line.replaceWith(row(stage, task)) }, "Cancel"));
    save.addEventListener("submit", (event) => {
      event.preventDefault();
      decide(stage, task, line, "edit", { task: textNow(), answer: answerNow() });
    });
    return save;
  };

  const row = (stage, task) => {
    const now = task.decision;
    const line = h("tr", {});
    const edit = async () => {
      try {
        const whole = await get("task", { run, stage, id: task.id }, signal);
        replace(line, h("td", { colspan: 4 }, form(stage, task, whole, line)));
        line.querySelector("textarea").focus();
      } catch (cause) {
        if (cause.name !== "AbortError") replace(message, problem(cause));
      }
    };
    const button = (name, title, act) => h("button", { type: "button", "aria-pressed": String(now?.name === name), onclick: act }, title);
    const isEdited = now?.name === "edit";
    const calls = (task.calls || []).map((call) => h("code", {}, shown(`${call.name}(${JSON.stringify(call.arguments || {})})`)));
    return fillRow(line,
      h("td", {}, now ? badge(...BADGES[now.name]) : badge("open"), h("div", { class: "quiet" }, shown(task.family), " · ", shown(task.split.replaceAll("_", " ")))),
      h("td", { class: "text" }, shown(isEdited ? now.task : task.task), isEdited && now.task !== task.task ? h("div", { class: "quiet" }, "was: ", shown(task.task)) : null,
        calls.length ? h("details", {}, h("summary", { class: "quiet" }, `${counted(calls.length, "call solves it", "calls solve it")}`), calls.map((call) => h("div", {}, call))) : null),
      h("td", { class: "text" }, shown((isEdited ? now.answer : task.answer) ?? "–"), h("div", { class: "quiet" }, shown(task.check))),
      h("td", { class: "actions" }, button("accept", "Accept", () => decide(stage, task, line, "accept")), " ", button("edit", "Edit", edit), " ", button("drop", "Drop", () => decide(stage, task, line, "drop")), now ? [" ", button("", "Undo", () => decide(stage, task, line, null))] : null));
  };
  const fillRow = (line, ...cells) => { line.append(...cells); return line; };

  const select = (name, title, options) => {
    const element = h("select", {}, options.map(([value, text]) => h("option", { value }, text)));
    element.value = wanted[name] || "";
    element.addEventListener("change", () => change(name, element.value));
    return h("label", {}, title, element);
  };

  const look = async () => {
    const mine = ++turn;
    remember(wanted);
    const found = await get("tasks", { run, limit: PAGE, ...wanted }, signal);
    if (mine !== turn) return;
    if (found.stages.length === 0) {
      replace(list, h("p", { class: "quiet" }, "No stage of this run has made tasks yet."));
      return;
    }
    const { stage, stages, splits, families, total, refused, counts, matching, offset, tasks, file } = found;
    if (!head.firstChild) {
      const any = (names, title = (name) => name) => [["", "any"], ...names.map((name) => [name, plain(title(name))])];
      const search = h("input", { type: "search", value: wanted.text || "", "aria-label": "Search in tasks and answers" });
      search.addEventListener("input", debounced(() => change("text", search.value), 200));
      const filters = h("form", { class: "filters" }, stages.length > 1 ? select("stage", "Stage", any(stages)) : null, select("decision", "Decision", DECISIONS), select("split", "Split", any(splits, (split) => split.replaceAll("_", " "))), select("family", "Family", any(families)), h("label", {}, "Search", search));
      filters.addEventListener("submit", (event) => event.preventDefault());
      const reasons = Object.entries(refused).map(([reason, count]) => `${count.toLocaleString("en")} ${reason.replaceAll("-", " ")}`);
      replace(head, h("p", { class: "quiet" }, `${counted(total, "task")}, made by the stage ${plain(stage)}.`, reasons.length ? ` Not admitted: ${plain(reasons.join(", "))}.` : ""), h("p", { class: "quiet" }, "Decisions are kept in ", h("code", {}, shown(file)), "; a stage with ", h("code", {}, 'source = "file"'), " reads it."), filters);
    }
    replace(summary, `${counted(matching, "task")} · open ${number(counts.open || 0)} · accepted ${number(counts.accept || 0)} · edited ${number(counts.edit || 0)} · dropped ${number(counts.drop || 0)}`);
    replace(list, wide("Tasks", cards(h("table", {}, h("thead", {}, h("tr", {}, ["Decision", "Task", "Answer", "To do"].map((name) => h("th", {}, name)))), h("tbody", {}, tasks.map((task) => row(stage, task)))))),
      h("div", { class: "pages" }, h("button", { type: "button", disabled: offset === 0, onclick: () => change("offset", String(Math.max(0, offset - PAGE))) }, "← before"), h("span", {}, matching ? `${offset + 1}–${Math.min(offset + PAGE, matching)}` : "nothing matches"), h("button", { type: "button", disabled: offset + PAGE >= matching, onclick: () => change("offset", String(offset + PAGE)) }, "next →")));
  };
  const change = async (name, value) => {
    if (value) wanted[name] = value;
    else delete wanted[name];
    if (name !== "offset") delete wanted.offset;
    if (name === "stage") replace(head);
    try {
      await look();
    } catch (cause) {
      if (cause.name !== "AbortError") replace(list, problem(cause));
    }
  };

  page.append(h("h1", {}, "Tasks"), head, summary, message, list);
  await look();
  return {};
}
