// The judges: how far they can be trusted, where they disagree, and what people say.

import { get, address } from "./api.js";
import { h, number, shown, plain, outcome, badge, wide } from "./dom.js";
import { lines } from "./charts.js";

export async function show(page, { run, signal }) {
  const { audits, disagreements, compared, disagreeing, labels, unavailable } = await get("judges", { run }, signal);
  const link = (stage, id, text) => h("a", { href: address(run, "episode", { stage, id }) }, text);
  page.append(h("h1", {}, "Judges"), ...unavailable.map((one) => h("p", { class: "note" }, h("b", {}, shown(one.stage)), ": ", shown(one.problem))));
  const number3 = (value) => h("td", { class: "number" }, number(value));

  page.append(h("h2", {}, "Pairs that two judges put in opposite orders"));
  if (compared === 0) {
    page.append(h("p", { class: "quiet" }, "No two judges have scored the same pair of episodes. Ground truth, a language model (relative, rubric), a program, your own labels and what attempts agree on (consensus) count as judges; a right and a wrong label in one group are compared with the others."));
  } else {
    page.append(h("p", {}, `${disagreeing.toLocaleString("en")} of ${compared.toLocaleString("en")} compared pairs; the clearest first.`));
    page.append(wide("Disagreements", h("table", {}, h("thead", {}, h("tr", {}, ["Task", "Episodes", "One judge", "The other"].map((name) => h("th", {}, name)))), h("tbody", {}, disagreements.map((pair) => h("tr", {}, h("td", { class: "text" }, shown(pair.task || pair.scenario), h("div", { class: "quiet" }, shown(pair.stage))), h("td", {}, link(pair.stage, pair.episodes[0], "first"), " ", link(pair.stage, pair.episodes[1], "second")), pair.judges.map((judge, index) => h("td", {}, h("b", {}, shown(judge)), ` ${number(pair.scores[index][0])} ${pair.scores[index][0] > pair.scores[index][1] ? ">" : "<"} ${number(pair.scores[index][1])}`))))))));
  }

  page.append(h("h2", {}, `Labels by people: ${labels.length}`));
  if (labels.length === 0) page.append(h("p", { class: "quiet" }, "Open an episode and say whether it is right. ", h("code", {}, `mcprl export ${run} --labels FILE`), " writes the labels."));
  else page.append(wide("Labels", h("table", {}, h("thead", {}, h("tr", {}, ["Task", "Person", "Ground truth", "Reward", "Note"].map((name) => h("th", {}, name)))), h("tbody", {}, labels.map(({ label, correct, reward, contradicts }) => h("tr", {}, h("td", { class: "text" }, link(label.stage, label.trajectory_id, shown(label.task || label.scenario_id)), label.answer !== null ? h("div", { class: "quiet" }, "→ ", shown(label.answer)) : null), h("td", {}, label.right === null ? "–" : outcome(label.right), contradicts ? [" ", badge("contradicts", "warn")] : null), h("td", {}, outcome(correct)), number3(reward), h("td", { class: "text" }, shown(label.note || ""))))))));

  page.append(h("h2", {}, "Audit"));
  if (audits.length === 0) page.append(h("p", { class: "quiet" }, "No judge has written an audit in this run yet."));
  // Measures over the iterations of a loop.
  const series = new Map();
  for (const { stage, rows } of audits) {
    const iteration = Number(stage.match(/\[(\d+)\]/)?.[1]);
    if (!Number.isInteger(iteration)) continue;
    for (const row of rows.filter((row) => row.trajectory_id === null)) {
      const name = `${row.judge}: ${row.measure.replaceAll("_", " ")}`;
      if (!series.has(name)) series.set(name, []);
      series.get(name).push({ x: iteration, y: row.value, low: row.low ?? undefined, high: row.high ?? undefined });
    }
  }
  const charts = [...series].filter(([, points]) => points.length > 1);
  page.append(h("div", { class: "grid" }, charts.map(([title, points]) => lines({ title: plain(title), series: [{ name: title, color: 0, points }] }))));
  const audit = ({ stage, rows, episodes }) => {
    const measures = rows.filter((row) => row.trajectory_id === null);
    const flagged = rows.filter((row) => row.trajectory_id !== null);
    return h("details", { open: audits.length === 1 }, h("summary", {}, shown(stage), ` · ${flagged.length} flagged episodes`),
      wide("Measures", h("table", {}, h("thead", {}, h("tr", {}, ["Judge", "Measure", "Value", "95 % interval", "Cases"].map((name) => h("th", {}, name)))), h("tbody", {}, measures.map((row) => h("tr", {}, h("td", {}, shown(row.judge)), h("td", {}, shown(row.measure.replaceAll("_", " "))), number3(row.value), h("td", { class: "number" }, row.low === null ? "–" : `${number(row.low)} to ${number(row.high)}`), h("td", { class: "number" }, row.n)))))),
      flagged.length ? h("p", {}, "Flagged: ", flagged.slice(0, 50).map((row) => [link(episodes, row.trajectory_id, plain(row.measure)), " "]), flagged.length > 50 ? `and ${flagged.length - 50} more` : null) : null);
  };
  const list = audits.map(audit);
  page.append(list.length > 3 ? h("details", {}, h("summary", {}, `by stage (${list.length})`), list) : h("div", {}, list));
  return {};
}
