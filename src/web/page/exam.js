// A comparison of policies: gains with intervals, and the scenarios whose outcome changed.

import { get, address } from "./api.js";
import { h, replace, number, shown, plain, outcome, problem } from "./dom.js";
import { forest } from "./charts.js";
import { messages } from "./conversation.js";

const PAGE = 30;
const CHANGES = [["", "all"], ["won", "won"], ["lost", "lost"], ["still-wrong", "still wrong"], ["still-right", "still right"]];
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const points = (gain) => `${gain > 0 ? "+" : ""}${(100 * gain).toFixed(1)}`;

// How well each policy does, on tasks nothing of which was trained on.
function standings(headline) {
  if (!headline) return null;
  const cell = (value) => h("td", { class: "number" }, value);
  const share = (value) => cell(value === null ? "–" : percent(value));
  const row = (one) => h("tr", {}, h("td", {}, shown(one.policy)), share(one.success), cell(`${percent(one.low)} to ${percent(one.high)}`), share(one.sampled), share(one.all_right?.[0] ?? null), share(one.by_protocol), h("td", {}, headline.advice?.use === one.policy ? "yes" : ""));
  return h("div", { class: "wide" }, h("table", {}, h("caption", { class: "quiet" }, `${headline.tasks} held-out tasks${headline.of_trained_cases ? " (unseen phrasings of trained cases)" : ""}, ${headline.mode}`), h("thead", {}, h("tr", {}, ["policy", "success", "95 % interval", "sampled", "all samples right", "strict", "to use"].map((name) => h("th", {}, name)))), h("tbody", {}, headline.policies.map(row))));
}

export async function show(page, { run, parameters, signal, remember }) {
  const wanted = { ...parameters };
  const exams = await get("exams", { run }, signal);
  if (exams.exams.length === 0) {
    replace(page, h("h1", {}, "Exam"), exams.unavailable.map((one) => h("p", { class: "note" }, h("b", {}, shown(one.stage)), ": ", shown(one.problem))), h("p", { class: "quiet" }, "No comparison of policies has finished in this run. A stage of kind eval makes one."));
    return {};
  }
  const exam = exams.exams.find((one) => one.stage === wanted.stage) || exams.exams.at(-1);
  const compared = exam.policies.slice(1);
  const rows = exam.rows.filter((row) => row.mode === exam.mode);
  const head = h("div");
  if (exams.exams.length > 1) {
    head.append(h("p", {}, "Comparison: ", exams.exams.map((one) => [one.stage === exam.stage ? h("b", {}, shown(one.stage)) : h("a", { href: address(run, "exam", { stage: one.stage }) }, shown(one.stage)), " "])));
  }
  const slices = (policy) => ["all", "split", "family", "tool"].map((scope) => {
    const of = rows.filter((row) => row.scope === scope && row.policy === policy);
    if (of.length === 0) return null;
    const base = (row) => rows.find((other) => other.scope === scope && other.slice === row.slice && other.policy === exam.policies[0]);
    const line = (row) => ({ name: scope === "all" ? "headline" : row.slice, gain: row.gain, low: row.gain_low, high: row.gain_high, good: row.finding === "better" ? true : row.finding === "worse" ? false : null, note: `${points(row.gain ?? 0)} points, n ${row.scenarios}` });
    const cell = (value) => h("td", { class: "number" }, value);
    return [
      h("h3", {}, { all: "Headline", split: "By split", family: "By family", tool: "By tool" }[scope]),
      h("div", { class: "wide" }, forest(of.map(line)) || ""),
      h("details", {}, h("summary", { class: "quiet" }, "numbers"), h("div", { class: "wide" }, h("table", {},
        h("thead", {}, h("tr", {}, ["slice", "scenarios", plain(exam.policies[0]), plain(policy), "strict", "gain", "95 % interval", "p (Holm)", "better", "worse", "calls", "recovery", "finding"].map((name) => h("th", {}, name)))),
        h("tbody", {}, of.map((row) => h("tr", {}, h("td", {}, scope === "family" || scope === "tool" ? h("a", { href: address(run, "exam", { ...wanted, [scope]: row.slice }) }, shown(row.slice)) : shown(row.slice)), cell(row.scenarios), cell(base(row) ? percent(base(row).success) : "–"), cell(percent(row.success)), cell(row.success_strict === null ? "–" : percent(row.success_strict)), cell(row.gain === null ? "–" : points(row.gain)), cell(row.gain_low === null ? "–" : `${points(row.gain_low)} to ${points(row.gain_high)}`), cell(number(row.p_adjusted)), cell(row.better ?? "–"), cell(row.worse ?? "–"), cell(number(row.calls, 2)), cell(row.error_recovery === null ? "–" : percent(row.error_recovery)), h("td", {}, row.finding || "")))))))
    ];
  });

  const list = h("div"), sides = h("div"), summary = h("p", { role: "status" });
  let turn = 0;
  const side = async (title, one) => {
    const where = { run, stage: exam.stage, id: one.episode, row: one.position };
    const found = await get("episode", where, signal);
    return h("section", { "aria-label": title }, h("h3", {}, shown(title), " ", outcome(found.episode.correct)), h("p", {}, h("a", { href: address(run, "episode", { stage: exam.stage, id: one.episode, row: one.position }) }, "the whole episode"), ` · ${one.right} of ${one.of} right · ended ${plain(one.end.replaceAll("_", " "))}`), h("p", {}, "answer: ", one.answer === null ? h("span", { class: "quiet" }, "none") : shown(one.answer)), messages(found.messages.filter((message) => message.role !== "system"), null));
  };
  const open = async (pair, opener) => {
    replace(sides, h("p", { class: "quiet" }, "Loading…"));
    try {
      const both = await Promise.all([side(exam.policies[0], pair.base), side(pair.policy, pair.other)]);
      const title = h("h2", { tabindex: -1 }, shown(pair.task || pair.scenario));
      replace(sides, title, pair.expected !== null ? h("p", {}, "expected: ", shown(pair.expected)) : null, h("div", { class: "sides" }, both), h("button", { type: "button", onclick: () => { replace(sides); opener.focus(); } }, "Close"));
      title.focus({ preventScroll: true });
      sides.scrollIntoView({ block: "start" });
    } catch (cause) {
      if (cause.name !== "AbortError") replace(sides, problem(cause));
    }
  };
  const look = async () => {
    const mine = ++turn;
    remember(wanted);
    const { stage, ...filter } = wanted;
    const found = await get("pairs", { run, stage: exam.stage, limit: PAGE, ...filter }, signal);
    if (mine !== turn) return;
    if (found.problem) {
      replace(list, h("p", { class: "note" }, "The episodes of this comparison cannot be shown: ", shown(found.problem), "."));
      return;
    }
    const { counts, matching, offset, pairs } = found;
    replace(summary, `${matching} scenarios · won ${counts.won || 0} · lost ${counts.lost || 0} · still wrong ${counts["still-wrong"] || 0} · still right ${counts["still-right"] || 0}`);
    const row = (pair) => {
      const button = h("button", { type: "button" }, "compare");
      button.addEventListener("click", () => open(pair, button));
      return h("tr", {}, h("td", {}, { won: h("span", { class: "badge good" }, "won"), lost: h("span", { class: "badge bad" }, "lost") }[pair.change] || h("span", { class: "badge" }, pair.change.replace("-", " "))), h("td", {}, shown(pair.family)), h("td", { class: "text" }, shown(pair.task || pair.scenario), pair.expected !== null ? h("div", { class: "quiet" }, "expected ", shown(pair.expected)) : null), [pair.base, pair.other].map((one) => h("td", { class: "text" }, `${one.right}/${one.of} `, one.answer === null ? h("span", { class: "quiet" }, plain(one.end.replaceAll("_", " "))) : shown(one.answer))), h("td", {}, button));
    };
    replace(list, h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, ["", "Family", "Task", plain(exam.policies[0]), compared.map(plain).join(", "), ""].map((name) => h("th", {}, name)))), h("tbody", {}, pairs.map(row)))),
      h("div", { class: "pages" }, h("button", { type: "button", disabled: offset === 0, onclick: () => change("offset", String(Math.max(0, offset - PAGE))) }, "← before"), h("span", {}, matching ? `${offset + 1}–${Math.min(offset + PAGE, matching)}` : "nothing matches"), h("button", { type: "button", disabled: offset + PAGE >= matching, onclick: () => change("offset", String(offset + PAGE)) }, "next →")));
  };
  const change = async (name, value) => {
    if (value) wanted[name] = value;
    else delete wanted[name];
    if (name !== "offset") delete wanted.offset;
    try {
      await look();
    } catch (cause) {
      if (cause.name !== "AbortError") replace(list, problem(cause));
    }
  };
  const names = (scope) => [...new Set(rows.filter((row) => row.scope === scope).map((row) => row.slice))];
  const select = (name, title, options) => {
    const element = h("select", {}, options.map(([value, text]) => h("option", { value }, text)));
    element.value = wanted[name] || "";
    element.addEventListener("change", () => change(name, element.value));
    return h("label", {}, title, element);
  };
  const any = (list) => [["", "any"], ...list.map((name) => [name, plain(name)])];
  replace(page,
    h("h1", {}, shown(`${exam.stage}: ${exam.policies.join(" and ")}, ${exam.mode} decoding`)),
    head,
    exam.sentences.split("\n").map((sentence) => h("p", {}, shown(sentence))),
    standings(exam.headline),
    compared.map((policy) => [compared.length > 1 ? h("h2", {}, shown(policy)) : null, slices(policy)]),
    h("h2", {}, "Scenarios"),
    h("form", { class: "filters" }, select("change", "Change", CHANGES), select("family", "Family", any(names("family"))), select("tool", "Tool", any(names("tool"))), compared.length > 1 ? select("policy", "Policy", any(compared)) : null),
    summary, list, sides);
  page.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  await look();
  return {};
}
