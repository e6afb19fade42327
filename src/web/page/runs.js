// All runs: what each changed, and how well it does, to sort, filter and compare.

import { get, address } from "./api.js";
import { h, replace, duration, badge, shown, plain, percent, inPercent, points, counted, compact, wide, cards, problem } from "./dom.js";
import { track, sparkline } from "./charts.js";

// Most runs that a summary looks at.
const SUMMED = 100;
const TONE = { finished: "good", failed: "bad", killed: "bad" };
// Most parameters that have a column.
const COLUMNS = 8;

// What a run changed, as a map from the whole name of a parameter to its value.
const changes = (run) => new Map(run.set.map((text) => [text.slice(0, text.indexOf("=")).trim(), text.slice(text.indexOf("=") + 1).trim()]));

// The shortest ends of the names that tell them apart.
function short(names) {
  const ends = (name, count) => name.split(".").slice(-count).join(".");
  return new Map(names.map((name) => {
    for (let count = 1; ; count++) {
      const end = ends(name, count);
      if (end === name || names.every((other) => other === name || ends(other, count) !== end)) return [name, end];
    }
  }));
}

function success({ headline }) {
  if (!headline) return h("span", { class: "quiet" }, "–");
  const { baseline, success, interval } = headline;
  const marks = [
    ...(interval ? [{ kind: "whisker", at: interval[0], to: interval[1] }] : []),
    ...(baseline === null ? [] : [{ kind: "dot before", at: baseline }]), { kind: "dot after", at: success },
  ];
  return [track(marks), h("span", { class: "figures" }, `${baseline === null ? "" : `${percent(baseline)} → `}${percent(success)}`, h("small", { class: "quiet" }, interval ? ` [${inPercent(interval[0], 0)}, ${inPercent(interval[1], 0)}]` : ""))];
}

const isSeed = (name) => name === "seed" || name.endsWith(".seed");

// The seeds that a run was given, or that of its file.
function seed(run, changed) {
  const given = [...new Set([...changed].filter(([name]) => name.endsWith(".seed")).map(([, value]) => value))];
  return given.length ? given.join(", ") : run.seed ?? "–";
}

// Of a difference that the test finds and whose interval excludes none.
const tone = (difference) => (difference?.finding === "better" && difference.low > 0 ? "good" : difference?.finding === "worse" && difference.high < 0 ? "bad" : "");

// What a parameter or the seeds do: a row for each value, with its runs as dots.
function sweep({ parameter, common, policy, baseline, tasks, mode, values }) {
  const interval = ([gain, low, high]) => `${points(gain)} [${points(low, 0)}, ${points(high, 0)}]`;
  const row = ({ value, runs, replicates, to_first: difference }) => {
    const of = (name) => replicates.policies.find((one) => one.policy === name);
    const [base, last] = [of(baseline), of(policy)];
    const marks = [
      ...(base ? [{ kind: last.mean < base.mean ? "span worse" : "span", at: Math.min(base.mean, last.mean), to: Math.max(base.mean, last.mean) }, { kind: "dot before", at: base.mean }] : []),
      ...last.success.map((at) => ({ kind: "dot one", at })), { kind: "dot after", at: last.mean },
    ];
    const each = runs.map((run, index) => [index ? ", " : "", h("a", { href: address(run, "run"), title: plain(run) }, percent(last.success[index]))]);
    return h("tr", {},
      parameter ? h("th", { scope: "row" }, value === null ? "as in the file" : shown(value)) : null,
      h("td", { class: "plotted" }, track(marks)),
      h("td", { class: "number" }, base ? `${percent(base.mean)} → ` : "", h("b", {}, percent(last.mean)), last.deviation === null ? "" : h("small", { class: "quiet" }, ` ±${inPercent(last.deviation)}`)),
      h("td", { class: "number" }, last.gain ? interval(last.gain) : "–"),
      parameter ? h("td", { class: `number ${tone(difference)}` }, difference ? interval([difference.gain, difference.low, difference.high]) : "–") : null,
      h("td", {}, each));
  };
  const heads = [...(parameter ? [[plain(parameter.split(".").at(-1))]] : []), ["Success, 0 to 100 %"], ["mean", "number"], ["gain in points", "number"], ...(parameter ? [["against the first", "number"]] : []), [counted(Math.max(...values.map((value) => value.runs.length)), "run")]];
  return h("section", { class: "card sweep" },
    h("h2", {}, parameter ? shown(`${parameter}: ${counted(values.length, "value")}`) : counted(values[0].runs.length, "seed")),
    wide(parameter ? plain(parameter) : "seeds", cards(h("table", {}, h("thead", {}, h("tr", {}, heads.map(([name, kind]) => h("th", { scope: "col", class: kind || "" }, name)))), h("tbody", {}, values.map(row))))),
    h("p", { class: "quiet" }, `${counted(tasks, "held-out task")}, ${mode}; 95 % intervals over the tasks, the dots show what seeds do`, common.length ? shown(`; all with ${common.join(" ")}`) : ""));
}

export async function show(page, { runs, parameters, signal, remember }) {
  const wanted = { sort: "began", ...parameters };
  const chosen = new Set();
  const list = h("div"), summary = h("div", { class: "sweeps" }), status = h("p", { role: "status" }), compare = h("button", { type: "button", disabled: true }, "Compare");
  let found = [];
  const draw = () => {
    const text = (wanted.text || "").toLowerCase();
    const passes = (run) => (!wanted.state || run.state === wanted.state) && (!text || `${run.id} ${run.set.join(" ")}`.toLowerCase().includes(text));
    found = runs.filter(passes).map((run) => ({ run, changed: changes(run) }));
    // Only what differs between the runs shown.
    const varies = (name) => new Set(found.map(({ changed }) => changed.get(name))).size > 1;
    const names = [...new Set(found.flatMap(({ changed }) => [...changed.keys()]))].filter((name) => !isSeed(name) && varies(name)).slice(0, COLUMNS);
    const titles = short(names);
    const columns = [
      ["began", "Run", ({ run }) => run.began_ms ?? 0], ["state", "State", ({ run }) => run.state],
      ...names.map((name) => [name, plain(titles.get(name)), ({ changed }) => Number(changed.get(name)) || changed.get(name) || ""]),
      ["seed", "Seed", ({ run, changed }) => Number(seed(run, changed)) || 0], ["success", "Success on held-out tasks", ({ run }) => run.headline?.success ?? -1],
      ["training", "In training", ({ run }) => run.training?.success ?? -1], ["took", "Took", ({ run }) => run.seconds],
    ];
    const [, , of] = columns.find(([name]) => name === wanted.sort) || columns[0];
    const order = (one, other) => { const [a, b] = [of(one), of(other)]; return typeof a === typeof b ? (a > b) - (a < b) : typeof a === "number" ? -1 : 1; };
    found.sort(order);
    if (wanted.order !== "ascending") found.reverse();
    const head = ([name, title]) => {
      const sorted = wanted.sort === name ? (wanted.order === "ascending" ? "ascending" : "descending") : null;
      const sort = () => {
        if (sorted === "descending") wanted.order = "ascending";
        else delete wanted.order;
        wanted.sort = name;
        again();
      };
      return h("th", { scope: "col", class: name === "took" ? "number" : null, "aria-sort": sorted, title: names.includes(name) ? plain(name) : null }, h("button", { type: "button", onclick: sort }, title, sorted ? (sorted === "ascending" ? " ↑" : " ↓") : ""));
    };
    const row = ({ run, changed }) => {
      const box = h("input", { type: "checkbox", "aria-label": `Choose ${plain(run.id)}` });
      box.checked = chosen.has(run.id);
      box.addEventListener("change", () => {
        if (box.checked) chosen.add(run.id);
        else chosen.delete(run.id);
        compare.disabled = chosen.size < 2;
      });
      return h("tr", {}, h("td", {}, box), h("td", {}, h("a", { href: address(run.id, "run") }, shown(run.id)), run.began_ms ? h("div", { class: "quiet" }, new Date(run.began_ms).toLocaleString()) : null), h("td", {}, badge(run.state, TONE[run.state] || "warn")),
        names.map((name) => h("td", {}, changed.has(name) ? shown(changed.get(name)) : h("span", { class: "quiet" }, "–"))),
        h("td", {}, shown(String(seed(run, changed)))), h("td", { class: "success" }, success(run)),
        h("td", {}, run.training ? h("span", { class: "trained" }, sparkline(run.curve), percent(run.training.success)) : "–"),
        h("td", { class: "number" }, duration(run.seconds), run.tokens ? h("div", { class: "quiet" }, h("small", {}, `${compact(run.tokens)} tokens`)) : null));
    };
    replace(status, counted(found.length, "run"), found.length < runs.length ? ` of ${runs.length}` : "");
    replace(list, wide("Runs", cards(h("table", { class: "runs" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "hidden" }, "choose")), columns.map(head))), h("tbody", {}, found.map(row))))));
  };
  // A summary of the runs that are shown, where they differ in seeds or one parameter alone.
  let summed = "";
  const sum = async () => {
    const wanted = found.filter(({ run }) => run.headline).map(({ run }) => run).sort((one, other) => (one.began_ms ?? 0) - (other.began_ms ?? 0)).slice(-SUMMED).map((run) => run.id).join(",");
    if (wanted === summed) return;
    summed = wanted;
    try {
      const sweeps = wanted ? await get("sweeps", { runs: wanted }, signal) : [];
      if (wanted === summed) replace(summary, sweeps.map(sweep));
    } catch (cause) {
      if (cause.name !== "AbortError") replace(summary, problem(cause));
    }
  };
  const again = () => { remember(wanted); draw(); sum(); };
  const search = h("input", { type: "search", value: wanted.text || "", placeholder: "name or parameter" });
  search.addEventListener("input", () => { wanted.text = search.value; again(); });
  const states = h("select", {}, h("option", { value: "" }, "any"), [...new Set(runs.map((run) => run.state))].map((state) => h("option", { value: state }, state)));
  states.value = wanted.state || "";
  states.addEventListener("change", () => { wanted.state = states.value; again(); });
  compare.addEventListener("click", () => {
    const [first, ...others] = chosen;
    location.hash = address(first, "run", { with: others.join(",") });
  });
  const form = h("form", { class: "filters" }, h("label", {}, "Search", search), h("label", {}, "State", states), compare);
  form.addEventListener("submit", (event) => event.preventDefault());
  page.append(h("h1", {}, "Runs"), form, summary, status, list, h("p", { class: "quiet" }, h("span", { class: "key" }, h("i", { class: "sample before" }), "baseline"), h("span", { class: "key" }, h("i", { class: "sample after" }), "last policy, with its 95 % interval"), "of the run's last exam. Training is no success. Compare lays the curves of up to six runs over each other."));
  draw();
  // What comes later moves nothing: it is awaited, unless it takes long.
  await Promise.race([sum(), new Promise((done) => { setTimeout(done, 400); })]);
  return {};
}
