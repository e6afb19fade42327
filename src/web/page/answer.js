// The first screen of a run: whether it learned, where it fails, and what to do next.

import { address } from "./api.js";
import { h, shown, plain, percent, inPercent, points, duration, copyable, advice, prose, counted } from "./dom.js";
import { track } from "./charts.js";

const TONE = { better: "good", worse: "bad" };

// One policy: its name, its success in large type, and its interval.
function standing(one, is_last) {
  return h("div", { class: is_last ? "standing last" : "standing" },
    h("span", {}, shown(one.policy)),
    h("b", {}, percent(one.success)),
    h("small", {}, `${percent(one.low)} to ${percent(one.high)}`));
}

function splits(exam) {
  if (exam.splits.length < 2) return null;
  const [base, last] = [exam.baseline, exam.policies.at(-1).policy];
  const row = (split) => h("div", { class: "split" },
    h("span", {}, shown(split.name.replaceAll("_", " ")), h("small", {}, ` ${counted(split.tasks, "task")}${split.is_counted ? "" : ", not in the headline"}`)),
    track([{ kind: "bar before", at: 0, to: split.base ?? 0 }, { kind: "bar after", at: 0, to: split.success }]),
    h("span", { class: "figures" }, split.base === null ? percent(split.success) : `${percent(split.base)} → ${percent(split.success)}`));
  return h("div", { class: "splits" }, h("p", { class: "quiet" }, base === last ? "by split" : ["by split, ", shown(base), " → ", shown(last)]), exam.splits.map(row));
}

// The kinds that the last policy is measurably worse at.
function worse(exam, name) {
  if (exam.worse.length === 0) return null;
  const kinds = exam.worse.slice(0, 5).map((kind, index) => [index ? ", " : "", h("a", { href: address(name, "exam", { stage: exam.stage, family: kind }) }, shown(kind))]);
  return h("p", { class: "bad" }, `Worse on ${exam.worse.length} of ${counted(exam.kinds, "kind")}: `, kinds, exam.worse.length > 5 ? " and others" : "");
}

// The figures of an exam.
function examined(exam, name) {
  const last = exam.policies.at(-1);
  const steps = exam.policies.flatMap((one, index) => [index ? h("span", { class: "arrow", "aria-hidden": "true" }, "→") : null, standing(one, one === last)]);
  const what = exam.of_trained_cases ? "trained cases in other words" : "tasks that nothing was trained on";
  const left = h("div", {},
    h("div", { class: "standings" }, steps, exam.gain ? h("div", { class: "standing gain" }, h("span", {}, `over ${plain(exam.gain.to)}`), h("b", {}, points(exam.gain.gain), h("small", {}, " points")), h("small", {}, `${points(exam.gain.low, 0)} to ${points(exam.gain.high, 0)}`)) : null),
    h("p", { class: "quiet" }, `${counted(exam.tasks, "held-out task")} (${what}), ${exam.mode}, with 95 % intervals`),
    worse(exam, name),
    exam.advice ? h("p", {}, shown(exam.advice)) : null);
  return h("div", { class: "verdict" }, left, splits(exam));
}

// How far each loop is, as planned.
function iterations(stages) {
  const loops = new Map();
  for (const { iteration, state } of stages) {
    if (!iteration) continue;
    const [name, number] = iteration;
    const found = loops.get(name) || { name, at: 0, of: 0 };
    found.of = Math.max(found.of, number);
    if (state !== "pending") found.at = Math.max(found.at, number);
    loops.set(name, found);
  }
  return [...loops.values()].filter(({ at }) => at > 0);
}

// What is known before an exam has finished.
function before(answer, run) {
  const facts = [];
  const fact = (name, ...value) => facts.push(h("div", {}, h("span", {}, name), value));
  for (const { name, at, of } of run.state === "running" ? iterations(run.stages) : []) fact(`loop ${plain(name)}`, h("b", {}, `iteration ${at}`), of > at ? ` of ${of}` : "");
  for (const { stage, success } of answer.tried) fact(`${plain(stage)}: solved of the training tasks`, h("b", {}, percent(success)));
  if (answer.training) {
    const { success, success_new, stage } = answer.training;
    fact(`success in training (${plain(stage)})`, h("b", {}, percent(success)), success_new === undefined ? "" : ` (${percent(success_new)} on new tasks)`);
  }
  if (answer.coming && run.state !== "failed") {
    const { stage, policies, tasks, detectable } = answer.coming;
    const size = tasks === null ? "" : `, each on ${counted(tasks, "held-out task")}; differences below ${Math.ceil(100 * detectable)} points will not show`;
    fact("the exam will measure", shown(`${stage}: ${policies.join(" and ")}${size}`));
  }
  if (run.left) {
    const { seconds, stages } = run.left;
    fact("left", seconds === null ? `${counted(stages, "stage")}; how long is not known yet` : `about ${duration(seconds)} for ${counted(stages, "stage")}`);
  }
  return facts.length ? h("div", { class: "facts" }, facts) : null;
}

function band(answer, run) {
  const tone = TONE[answer.finding] || (run.state === "failed" ? "bad" : "");
  return h("section", { class: `band ${tone}`, "aria-label": "Verdict" }, h("p", { class: "claim" }, shown(answer.sentence)), answer.exam ? examined(answer.exam, run.id) : null, answer.exam && !run.left ? null : before(answer, run));
}

// Base → trained, a row for each kind, which leads to its scenarios.
function kinds(rows, name, exam) {
  const row = (kind) => h("a", { class: "dumbbell", href: address(name, "exam", { stage: exam.stage, family: kind.name }) },
    h("span", {}, shown(kind.name)),
    track(kind.base === null ? [{ kind: "dot after", at: kind.success }] : [
      { kind: kind.success < kind.base ? "span worse" : "span", at: Math.min(kind.base, kind.success), to: Math.max(kind.base, kind.success) },
      { kind: "dot before", at: kind.base }, { kind: "dot after", at: kind.success },
    ]),
    h("span", { class: "figures" }, `${kind.failed} of ${kind.tasks} failed`, h("small", {}, kind.base === null ? ` ${percent(kind.success)}` : ` ${inPercent(kind.base, 0)} → ${percent(kind.success, 0)}`)));
  return h("div", { class: "dumbbells" }, rows.map(row));
}

function where(answer, name) {
  const { failed, exam } = answer;
  if (!failed) return null;
  if (failed.failed_tasks === 0) return h("section", { class: "card" }, h("h2", {}, "Where it fails"), h("p", {}, shown(`Nowhere: ${failed.policy} solves all ${failed.tasks} tasks.`)));
  const most = Math.max(...failed.causes.map((cause) => cause.tasks));
  const cause = (one) => h("div", { class: "cause" },
    h("span", {}, h("b", {}, one.cause), h("small", {}, prose(one.meaning), one.details.length ? [": ", prose(one.details.slice(0, 2).map((found) => `${found.detail} (${found.tasks})`).join(", "))] : "")),
    track([{ kind: "bar fail", at: 0, to: one.tasks / most }]),
    h("span", { class: "figures" }, one.tasks));
  const [large, small] = [answer.kinds.filter((kind) => !kind.is_small), answer.kinds.filter((kind) => kind.is_small)];
  const shared = exam.policies.length > 1 ? h("p", { class: "quiet" }, h("span", { class: "key" }, h("i", { class: "sample before" }), shown(exam.baseline)), h("span", { class: "key" }, h("i", { class: "sample after" }), shown(exam.policies.at(-1).policy)), "success from 0 to 100 %; a row leads to its tasks") : null;
  return h("section", { class: "card" },
    h("h2", {}, "Where it fails"),
    h("p", {}, shown(`${failed.failed_tasks} of ${counted(failed.tasks, "task")} fail with ${failed.policy}. `), h("span", { class: "quiet" }, "By cause:")),
    h("div", { class: "causes" }, failed.causes.slice(0, 3).map(cause)),
    failed.causes.length > 3 ? h("details", {}, h("summary", { class: "quiet" }, counted(failed.causes.length - 3, "other cause")), failed.causes.slice(3).map(cause)) : null,
    large.length ? [h("h3", {}, "Kinds with most failed tasks"), shared, kinds(large, name, exam)] : null,
    small.length ? h("details", { open: large.length === 0 }, h("summary", {}, `${counted(exam.small_kinds, "kind")} of fewer than 5 tasks: too few to tell`), large.length ? null : shared, kinds(small, name, exam)) : null);
}

function next(answer) {
  if (answer.next.length === 0) return null;
  return h("section", { class: "card" }, h("h2", {}, "What next"), h("ol", { class: "next" }, answer.next.map((action) => h("li", {}, h("p", {}, action.toml ? prose(action.text) : advice(action.text)), action.command ? h("div", {}, copyable(action.command)) : null, action.toml ? [h("small", { class: "quiet" }, action.command ? "or in the run file" : "in the run file"), h("div", {}, copyable(action.toml))] : null))));
}

// Numbers that say how, not how well.
function how(run) {
  const facts = [];
  const fact = (name, ...value) => facts.push(h("div", {}, h("span", {}, name), value));
  if (run.began_ms) fact("began", new Date(run.began_ms).toLocaleString());
  fact(run.state === "running" ? "running for" : "took", duration(run.seconds));
  const usage = run.spent.usage.map(([name, count]) => `${count.toLocaleString("en")} ${name}`).join(" · ");
  fact(run.state === "running" ? "cost so far" : "cost", run.spent.dollars ? `${run.spent.dollars.toFixed(2)} dollars · ` : "", usage || "nothing but time");
  if (run.seed !== null) fact("seed", run.seed);
  for (const result of run.loop_results || []) fact("result", result);
  if (run.set.length) fact("changed with --set", shown(run.set.join(" ")));
  return h("div", { class: "facts small" }, facts);
}

// `errors`: what failed, as elements.
export function answerView(answer, run, errors) {
  const parts = [where(answer, run.id), next(answer)].filter(Boolean);
  return [band(answer, run), errors, how(run), parts.length ? h("div", { class: parts.length > 1 ? "answer" : "" }, parts) : null];
}
