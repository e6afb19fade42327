// The episodes of a run as a table to filter, sort and search. The server sends one page of it.

import { get, address } from "./api.js";
import { cards, percent, h, replace, number, shown, plain, outcome, badge, debounced, problem } from "./dom.js";
import { SIGNALS } from "./charts.js";

const PAGE = 50;
const COLUMNS = [
  ["", "Episode"], ["family", "Family"], ["scenario", "Task"], ["", "Outcome"], ["reward", "Reward", true], ["advantage", "Advantage", true],
  ["end", "End"], ["turns", "Turns", true], ["calls", "Calls", true], ["errors", "Errors", true],
];
const OUTCOMES = [["", "any"], ["right", "right"], ["wrong", "wrong"], ["unknown", "no known answer"], ["tool-error", "with a failed call"], ["parse-failure", "with an unreadable call"], ["labelled", "labelled by a person"]];

// `of`: the filter and the order that the reader goes through, as a query.
export const episodeAddress = (run, { stage, id, row }, of) => address(run, "episode", { stage, id, row, of });

export function advantage(episode) {
  if (episode.advantage !== null) return (episode.advantage > 0 ? "+" : "") + number(episode.advantage);
  return episode.no_signal ? episode.no_signal.replaceAll("_", " ") : "–";
}

export function labelBadge(label) {
  if (!label) return null;
  return badge(label.right === true ? "person: right" : label.right === false ? "person: wrong" : "note", "warn");
}

export async function show(page, { run, parameters, signal, remember }) {
  const wanted = { ...parameters };
  const summary = h("p", { role: "status" }), table = h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Episodes" }), pages = h("div", { class: "pages" }), notes = h("div"), form = h("form", { class: "filters", "aria-label": "Filter" });
  let answer = null;
  let turn = 0;

  const look = async () => {
    const mine = ++turn;
    remember(wanted);
    const began = performance.now();
    const found = await get("episodes", { run, limit: PAGE, ...wanted }, signal);
    if (mine !== turn) return;
    answer = found;
    draw(performance.now() - began);
  };
  const again = async () => {
    try {
      await look();
    } catch (cause) {
      if (cause.name !== "AbortError") replace(notes, problem(cause));
    }
  };
  const change = (name, value) => {
    if (value === "" || value === undefined) delete wanted[name];
    else wanted[name] = value;
    if (name !== "offset") delete wanted.offset;
    again();
  };

  const fields = {};
  const field = (name, title, element) => {
    fields[name] = element;
    element.addEventListener("change", () => change(name, element.value));
    form.append(h("label", {}, title, element));
  };
  const choice = (name, title, options) => field(name, title, h("select", {}, h("option", { value: "" }, "any"), options.map(([value, text]) => h("option", { value }, text))));
  const controls = (facets) => {
    replace(form);
    const counted = (counts) => Object.entries(counts).map(([value, count]) => [value, plain(`${value} (${count.toLocaleString("en")})`)]);
    const search = h("input", { type: "search", placeholder: "text in messages", "aria-label": "Text in messages" });
    search.addEventListener("input", debounced(() => change("text", search.value), 250));
    fields.text = search;
    form.append(h("label", {}, "Search", search));
    choice("stage", "Stage", counted(facets.stage));
    if (facets.iterations) field("iteration", `Iteration (${facets.iterations[0]}–${facets.iterations[1]})`, h("input", { type: "number", min: facets.iterations[0], max: facets.iterations[1] }));
    choice("split", "Split", counted(facets.split));
    choice("family", "Family", counted(facets.family));
    choice("policy", "Policy", counted(facets.policy));
    field("outcome", "Outcome", h("select", {}, OUTCOMES.map(([value, text]) => h("option", { value }, text))));
    if (facets.iterations) field("signal", "Teaches", h("select", {}, SIGNALS.map(([value, text]) => h("option", { value }, text))));
    choice("end", "End", counted(facets.end));
    choice("tool", "Tool called", counted(facets.tool));
    field("least", "Reward from", h("input", { type: "number", step: "any" }));
    field("most", "to", h("input", { type: "number", step: "any" }));
    field("scenario", "Scenario", h("input", { type: "text", size: 14 }));
    form.append(h("button", { type: "button", onclick: () => { for (const name of Object.keys(wanted)) delete wanted[name]; fillIn(); again(); } }, "Clear"));
    fillIn();
  };
  const fillIn = () => {
    for (const [name, element] of Object.entries(fields)) {
      const value = wanted[name] || "";
      // One iteration of a stage is no choice of the list.
      if (element.tagName === "SELECT" && value && ![...element.options].some((option) => option.value === value)) element.append(h("option", { value }, plain(value)));
      element.value = value;
    }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); change("text", fields.text.value); });

  const sortBy = (name) => {
    const descends = wanted.sort === name && wanted.order !== "descending";
    wanted.order = descends || wanted.sort !== name ? (wanted.sort === name ? "descending" : undefined) : undefined;
    if (wanted.order === undefined) delete wanted.order;
    change("sort", name);
  };
  const head = ([name, title, isNumber]) => {
    const sorted = name && wanted.sort === name ? (wanted.order === "descending" ? "descending" : "ascending") : null;
    const arrow = sorted === "ascending" ? " ↑" : sorted ? " ↓" : "";
    return h("th", { class: isNumber ? "number" : "", "aria-sort": sorted, scope: "col" }, name ? h("button", { type: "button", onclick: () => sortBy(name) }, title + arrow) : title);
  };
  const order = () => {
    const { offset, ...of } = wanted;
    return new URLSearchParams(of).toString();
  };
  const row = (episode) => h("tr", {},
    h("td", {}, h("a", { href: episodeAddress(run, episode, order()), class: "row" }, shown(`${episode.stage}`)), h("div", { class: "quiet" }, shown(`${episode.policy} · #${episode.sample}`))),
    h("td", {}, h("a", { href: address(run, "episodes", { family: episode.family }) }, shown(episode.family)), h("div", { class: "quiet" }, shown(episode.split))),
    h("td", { class: "text" }, shown(episode.task || episode.scenario), episode.answer !== null ? h("div", { class: "quiet" }, "→ ", shown(episode.answer)) : null),
    h("td", {}, outcome(episode.correct), " ", labelBadge(episode.label)),
    h("td", { class: "number" }, number(episode.reward)),
    h("td", { class: "number" }, advantage(episode)),
    h("td", {}, shown(episode.end.replaceAll("_", " "))),
    h("td", { class: "number" }, episode.turns),
    h("td", { class: "number" }, episode.calls),
    h("td", { class: "number" }, episode.tool_errors + episode.parse_failures));

  const draw = (milliseconds) => {
    const { total, matching, success, reward, episodes, unavailable } = answer;
    const offset = answer.offset;
    const places = [matching === total ? `${total.toLocaleString("en")} episodes` : `${matching.toLocaleString("en")} of ${total.toLocaleString("en")} episodes`];
    // Of whatever stages, policies and iterations pass the filter: no success of the run.
    if (success !== null) places.push(`${percent(success)} of them right`);
    if (reward !== null) places.push(`mean reward ${number(reward)}`);
    replace(summary, places.join(" · "), h("span", { class: "quiet" }, ` · ${milliseconds.toFixed(0)} ms`));
    replace(notes, unavailable.map((one) => h("p", { class: "note" }, h("b", {}, shown(one.stage)), ": ", shown(one.problem))));
    const focused = [...table.querySelectorAll("th button")].indexOf(document.activeElement);
    replace(table, total === 0 ? h("p", { class: "quiet" }, "No stage with episodes has finished yet.") : cards(h("table", {}, h("thead", {}, h("tr", {}, COLUMNS.map(head))), h("tbody", {}, episodes.map(row)))));
    if (focused >= 0) table.querySelectorAll("th button")[focused]?.focus();
    replace(pages,
      h("button", { type: "button", disabled: offset === 0, onclick: () => change("offset", String(Math.max(0, offset - PAGE))) }, "← before"),
      h("span", {}, matching === 0 ? "nothing matches" : `${(offset + 1).toLocaleString("en")}–${Math.min(offset + PAGE, matching).toLocaleString("en")}`),
      h("button", { type: "button", disabled: offset + PAGE >= matching, onclick: () => change("offset", String(offset + PAGE)) }, "next →"));
  };

  // j and k go through the rows.
  const keys = (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const links = [...table.querySelectorAll("a.row")];
    const step = { j: 1, k: -1 }[event.key];
    if (step) links[Math.max(0, Math.min(links.length - 1, links.indexOf(document.activeElement) + step))]?.focus();
    else if (event.key === "/") { event.preventDefault(); fields.text.focus(); }
  };
  addEventListener("keydown", keys);

  await look();
  let known = JSON.stringify(answer.facets);
  controls(answer.facets);
  const refresh = async () => {
    await again();
    const now = JSON.stringify(answer.facets);
    if (now !== known && !form.contains(document.activeElement)) {
      known = now;
      controls(answer.facets);
    }
  };
  page.append(h("h1", {}, "Episodes"), h("details", { open: innerWidth > 600 }, h("summary", {}, "Filter"), form), notes, summary, table, pages, h("p", { class: "quiet" }, "Keys: / searches, j and k go through the rows, Enter opens one."));
  return { refresh, stop: () => removeEventListener("keydown", keys) };
}
