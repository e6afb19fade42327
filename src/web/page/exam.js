// A comparison of policies: gains with intervals, and the scenarios whose outcome changed.

import { get, address } from "./api.js";
import { h, replace, number, shown, plain, outcome, problem, percent, inPercent, points, counted, wide, cards } from "./dom.js";
import { forest, gainScale } from "./charts.js";
import { transcript } from "./transcript.js";

const PAGE = 30;
const CHANGES = [["", "all"], ["won", "won"], ["lost", "lost"], ["still-wrong", "still wrong"], ["still-right", "still right"]];
// A slice of fewer tasks is drawn as small: its rates say little.
const SMALL = 5;
const TONE = { better: "good", worse: "bad" };

const heads = (names) => h("thead", {}, h("tr", {}, names.map(([name, kind]) => h("th", { class: kind || "", scope: "col" }, name || h("span", { class: "hidden" }, "to do")))));

// How well each policy does, on tasks nothing of which was trained on.
function standings(headline) {
  if (!headline) return null;
  const cell = (value) => h("td", { class: "number" }, value);
  const share = (value) => cell(value === null ? "–" : percent(value));
  const row = (one) => h("tr", {}, h("td", {}, shown(one.policy)), share(one.success), cell(`${percent(one.low)} to ${percent(one.high)}`), share(one.sampled), share(one.all_right?.[0] ?? null), share(one.by_protocol), h("td", {}, headline.advice?.use === one.policy ? "yes" : ""));
  return wide("Success by policy", h("table", { class: "narrow" }, h("caption", { class: "quiet" }, `${counted(headline.tasks, "held-out task")}${headline.of_trained_cases ? " (unseen phrasings of trained cases)" : ""}, ${headline.mode}`), heads([["policy"], ["success", "number"], ["95 % interval", "number"], ["sampled", "number"], ["all samples right", "number"], ["strict", "number"], ["to use"]]), h("tbody", {}, headline.policies.map(row))));
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
  // One scale for all slices of all policies.
  const interval = (row) => ({ gain: row.gain, low: row.gain_low, high: row.gain_high });
  const scale = gainScale(rows.map(interval));
  const failures = (row) => Math.round(row.scenarios * (1 - row.success));
  const titles = { all: "All held-out tasks", split: "By split", family: "By kind", tool: "By tool" };
  const slices = (policy) => Object.keys(titles).map((scope) => {
    const of = rows.filter((row) => row.scope === scope && row.policy === policy);
    if (of.length === 0 || (scope === "all" && of.every((row) => row.gain === null))) return null;
    // Those with most failed tasks first, and those of few tasks last.
    if (scope === "family" || scope === "tool") of.sort((one, other) => (one.scenarios < SMALL) - (other.scenarios < SMALL) || failures(other) - failures(one));
    const base = (row) => rows.find((other) => other.scope === scope && other.slice === row.slice && other.policy === exam.policies[0]);
    const name = (row) => (scope === "family" || scope === "tool" ? h("a", { href: address(run, "exam", { ...wanted, [scope]: row.slice }) }, shown(row.slice)) : scope === "all" ? "all" : [shown(row.slice.replaceAll("_", " ")), row.is_counted ? null : h("small", { class: "quiet" }, " not in \"all\"")]);
    const line = (row) => ({ ...interval(row), name: name(row), tone: TONE[row.finding] || "plain", is_small: row.scenarios < SMALL, note: [`${base(row) ? `${inPercent(base(row).success, 0)} → ` : ""}${percent(row.success, 0)} of ${row.scenarios}`, h("small", { class: "quiet" }, ` ${points(row.gain ?? 0)}`)] });
    const cell = (value) => h("td", { class: "number" }, value);
    // Unless all are small.
    const folds = (scope === "family" || scope === "tool") && of.at(-1).scenarios < SMALL && of[0].scenarios >= SMALL;
    return [
      h("h3", {}, titles[scope]),
      forest(of.filter((row) => !folds || row.scenarios >= SMALL).map(line), scale),
      folds ? h("details", {}, h("summary", { class: "quiet" }, `${of.filter((row) => row.scenarios < SMALL).length} of fewer than ${SMALL} tasks`), forest(of.filter((row) => row.scenarios < SMALL).map(line), scale)) : null,
      h("details", {}, h("summary", { class: "quiet" }, "numbers"), wide(titles[scope], h("table", {},
        heads([["slice"], ...["tasks", "failed", plain(exam.policies[0]), plain(policy), "strict", "gain", "95 % interval", "p (Holm)", "better", "worse", "calls", "recovery"].map((name) => [name, "number"]), ["finding"]]),
        h("tbody", {}, of.map((row) => h("tr", {}, h("td", {}, name(row)), cell(row.scenarios), cell(failures(row)), cell(base(row) ? percent(base(row).success) : "–"), cell(percent(row.success)), cell(row.success_strict === null ? "–" : percent(row.success_strict)), cell(row.gain === null ? "–" : points(row.gain)), cell(row.gain_low === null ? "–" : `${points(row.gain_low)} to ${points(row.gain_high)}`), cell(number(row.p_adjusted)), cell(row.better ?? "–"), cell(row.worse ?? "–"), cell(number(row.calls, 2)), cell(row.error_recovery === null ? "–" : percent(row.error_recovery)), h("td", {}, row.finding || "")))))))
    ];
  });
  const legend = compared.length ? h("p", { class: "quiet" }, [["good", "better"], ["bad", "worse"], ["plain", "no measurable gain"]].map(([tone, text]) => h("span", { class: "key" }, h("i", { class: `sample ${tone}` }), text)), `gain in points with its 95 % interval; a colour wants an adjusted p below 0.05 and an interval without 0; thin: fewer than ${SMALL} tasks`) : null;

  const list = h("div"), sides = h("div"), summary = h("p", { role: "status" });
  let turn = 0;
  const side = async (title, one) => {
    const where = { run, stage: exam.stage, id: one.episode, row: one.position };
    const found = await get("episode", where, signal);
    return h("section", { "aria-label": title }, h("h3", {}, shown(title), " ", outcome(found.episode.correct)), h("p", {}, h("a", { href: address(run, "episode", { stage: exam.stage, id: one.episode, row: one.position }) }, "the whole episode"), ` · ${one.right} of ${one.of} right · ended ${plain(one.end.replaceAll("_", " "))}`), h("p", {}, "answer: ", one.answer === null ? h("span", { class: "quiet" }, "none") : shown(one.answer)), transcript(found.messages.filter((message) => message.role !== "system"), null));
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
    replace(summary, `${counted(matching, "task")} · won ${counts.won || 0} · lost ${counts.lost || 0} · still wrong ${counts["still-wrong"] || 0} · still right ${counts["still-right"] || 0}`);
    const row = (pair) => {
      const button = h("button", { type: "button" }, "compare");
      button.addEventListener("click", () => open(pair, button));
      return h("tr", {}, h("td", {}, { won: h("span", { class: "badge good" }, "won"), lost: h("span", { class: "badge bad" }, "lost") }[pair.change] || h("span", { class: "badge" }, pair.change.replace("-", " "))), h("td", {}, shown(pair.family)), h("td", { class: "text" }, shown(pair.task || pair.scenario), pair.expected !== null ? h("div", { class: "quiet" }, "expected ", shown(pair.expected)) : null), [pair.base, pair.other].map((one) => h("td", { class: "text" }, `${one.right}/${one.of} `, one.answer === null ? h("span", { class: "quiet" }, plain(one.end.replaceAll("_", " "))) : shown(one.answer))), h("td", {}, button));
    };
    replace(list, wide("Tasks", cards(h("table", {}, heads([["Change"], ["Kind"], ["Task"], [plain(exam.policies[0])], [compared.map(plain).join(", ")], [""]]), h("tbody", {}, pairs.map(row))))),
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
    exam.sentences.map(({ text, finding }) => h("p", { class: TONE[finding] || "" }, shown(text))),
    exam.advice ? h("p", {}, shown(exam.advice)) : null,
    standings(exam.headline),
    legend,
    compared.map((policy) => [h("h2", {}, compared.length > 1 ? ["Gains of ", shown(policy)] : "Gains"), slices(policy)]),
    h("h2", { id: "tasks" }, "Tasks, failures first"),
    h("form", { class: "filters" }, select("change", "Change", CHANGES), select("split", "Of", [["", "all that the headline counts"], ...names("split").map((name) => [name, plain(name.replaceAll("_", " "))])]), select("family", "Kind", any(names("family"))), select("tool", "Tool", any(names("tool"))), compared.length > 1 ? select("policy", "Policy", any(compared)) : null),
    summary, list, sides);
  page.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  await look();
  return {};
}
