// A run: its stages, what is left, and how training goes. Other runs can be laid over it.

import { get, address } from "./api.js";
import { h, replace, number, duration, badge, shown, plain, problem } from "./dom.js";
import { graph } from "./graph.js";
import { lines, stacked, legend } from "./charts.js";

// Why a rollout has no gradient, in the order in which the bars stack.
const SIGNAL = [["zero_variance", "all of the group alike"], ["at_mean", "at the group's mean"], ["truncated", "cut off"], ["unjudged", "no reward"], ["alone", "alone or empty"]];

const CHARTS = [
  { title: "Success in training", y: (point) => point.success, interval: true, range: [0, 1] },
  { title: "Success on tasks drawn for the first time", y: (point) => point.success_new, range: [0, 1] },
  { title: "Greedy success on tasks that nothing trains on", y: (point) => point.success_greedy, range: [0, 1] },
  { title: "Reward", y: (point) => point.reward },
  { title: "Loss", y: (point) => point.loss },
  { title: "Gradient norm", y: (point) => point.gradient_norm },
  { title: "Entropy", y: (point) => point.entropy, unit: " nats" },
  { title: "Clipped share of tokens", y: (point) => point.clip_fraction },
  { title: "KL to the policy that played, at most", y: (point) => point.moved_kl, unit: " nats" },
  { title: "KL to the reference", y: (point) => point.kl },
  { title: "Learning rate", y: (point) => point.learning_rate },
  { title: "Share of rollouts with gradient", y: (point) => point.signal_share, range: [0, 1] },
  { title: "Calls in the template's form", y: (point) => point.template_calls, range: [0, 1] },
  { title: "Answers given by complete_task", y: (point) => point.tool_answers, range: [0, 1] },
  { title: "Tool errors per episode", y: (point) => point.tool_errors },
  { title: "Turns per episode", y: (point) => point.turns },
  { title: "Episodes cut off by a limit", y: (point) => point.truncated, range: [0, 1] },
  { title: "Tokens sampled per second", y: (point) => rate(point, point.sampled_tokens) },
  { title: "Calls per second", y: (point) => rate(point, point.calls) },
];

// Per second of the stage that plays the episodes, which reports `sampled_tokens`.
function rate(point, perEpisode) {
  const metric = Object.keys(point.metrics).find((name) => name.endsWith(".sampled_tokens"));
  const seconds = metric && point.seconds_by_stage[metric.slice(0, -".sampled_tokens".length)];
  return seconds > 0 && Number.isFinite(perEpisode) ? (perEpisode * point.episodes) / seconds : undefined;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

function summary(run) {
  const facts = [];
  const fact = (name, ...value) => facts.push(h("div", {}, h("span", {}, name), value));
  if (run.headline) {
    const { baseline, success, success_new } = run.headline;
    fact(baseline === null ? "success" : "success, base → trained", h("b", {}, baseline === null ? percent(success) : `${percent(baseline)} → ${percent(success)}`, success_new === undefined ? "" : ` (${percent(success_new)} on new tasks)`));
  }
  if (run.began_ms) fact("began", new Date(run.began_ms).toLocaleString());
  fact("running time", duration(run.seconds));
  if (run.left) {
    const { seconds, stages, unknown } = run.left;
    const rest = unknown.length ? `, without ${unknown.map(plain).join(", ")} (no estimate)` : "";
    fact("left, at most about", stages === 0 ? "nothing" : seconds > 0 ? `${duration(seconds)} for ${stages} stages${rest}` : `${stages} stages, not yet known how long`);
  }
  const usage = run.spent.usage.map(([name, count]) => `${count.toLocaleString("en")} ${name}`).join(" · ");
  fact("cost so far", run.spent.dollars ? `${run.spent.dollars.toFixed(2)} dollars · ` : "", usage || "nothing but time");
  if (run.seed !== null) fact("seed", run.seed);
  for (const result of run.loop_results || []) fact("result", result);
  if (run.set.length) fact("changed with --set", shown(run.set.join(" ")));
  return h("div", { class: "facts" }, facts);
}

// A stage in detail.
function details(run, stage, close) {
  const names = Object.keys(stage.metrics || {});
  const title = h("h2", { tabindex: -1 }, shown(stage.id), " ", badge(stage.state, { ran: "good", cached: "good", failed: "bad" }[stage.state]));
  const has = (kind) => stage.outputs.some((output) => output.kind === kind);
  const gone = stage.outputs.filter((output) => !output.is_present).map((output) => output.port);
  const panel = h("section", { class: "card", "aria-label": `Stage ${stage.id}` },
    title,
    stage.error ? h("p", { class: "problem" }, shown(stage.error)) : null,
    gone.length ? h("p", { class: "note" }, `No longer in the cache: ${gone.map(plain).join(", ")}. `, h("code", {}, "mcprl resume"), " makes them again.") : null,
    h("p", {}, [stage.kind && `kind ${plain(stage.kind)}`, stage.seconds !== null ? duration(stage.seconds) : stage.run_seconds !== null ? `${duration(stage.run_seconds)} in an earlier run` : null, stage.retries ? `${stage.retries} retries` : null].filter(Boolean).join(" · ")),
    stage.reasons.length ? h("p", { class: "quiet" }, "ran because ", shown(stage.reasons.join(", "))) : null,
    stage.notes.map((note) => h("p", { class: "note" }, shown(note))),
    h("p", {}, has("trajectories") ? h("a", { href: address(run, "episodes", { stage: stage.id }) }, "its episodes") : null, " ", has("verdict") ? h("a", { href: address(run, "exam", { stage: stage.id }) }, "its comparison") : null, " ", has("rewards") ? h("a", { href: address(run, "judges") }, "its judges") : null),
    names.length ? h("details", { open: names.length < 30 }, h("summary", {}, `${names.length} metrics`), h("dl", {}, names.map((name) => [h("dt", {}, shown(name)), h("dd", {}, number(stage.metrics[name]))]))) : null,
    h("button", { type: "button", onclick: close }, "Close"));
  return { panel, title };
}

// An iteration in detail: its steps, and the way to its episodes.
function iteration(run, point, close) {
  const title = h("h2", { tabindex: -1 }, shown(point.id));
  const fields = ["loss", "held_out_loss", "gradient_norm", "learning_rate", "entropy", "clip_fraction", "moved_kl", "tokens", "loss_tokens", "max_logprob_gap"];
  const steps = point.steps.slice(0, 200);
  const panel = h("section", { class: "card", "aria-label": `Iteration ${point.id}` },
    title,
    h("p", {}, point.success !== null ? `success ${number(point.success)} · ` : "", point.success_new !== null ? `on new tasks ${number(point.success_new)} · ` : "", point.reward !== null ? `reward ${number(point.reward)} · ` : "", h("a", { href: address(run, "episodes", { iteration: point.iteration }) }, "episodes of this iteration"), " · ", h("a", { href: address(run, "episodes", { iteration: point.iteration, outcome: "wrong" }) }, "the wrong ones")),
    steps.length ? h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "step"), fields.map((field) => h("th", { class: "number" }, field.replaceAll("_", " "))))), h("tbody", {}, steps.map((step) => h("tr", {}, h("td", {}, step.step), fields.map((field) => h("td", { class: "number" }, number(step[field])))))))) : h("p", { class: "quiet" }, "No optimizer step yet, or its table is no longer in the cache."),
    h("details", {}, h("summary", {}, "All metrics"), h("dl", {}, Object.entries(point.metrics).map(([name, value]) => [h("dt", {}, shown(name)), h("dd", {}, number(value))]))),
    h("button", { type: "button", onclick: close }, "Close"));
  return { panel, title };
}

// The running stages, each with a bar.
function running(stages) {
  return stages.map(({ stage, phase, done, units, rate, left, status }) => {
    const count = units ? `${phase} ${done.toLocaleString("en")} of ${units.toLocaleString("en")}` : phase;
    const facts = [count, rate && units ? `${number(rate)} per second` : "", left !== null ? `${duration(left)} left` : "", status];
    return h("p", { class: "running" }, h("b", {}, shown(stage)), " ", units ? h("progress", { value: done, max: units, "aria-label": plain(stage) }) : null, " ", shown(facts.filter(Boolean).join(" · ")));
  });
}

export async function show(page, { run: name, runs, parameters, signal, remember }) {
  let others = (parameters.with || "").split(",").filter((other) => other && other !== name);
  let smoothing = Number(localStorage.getItem("smoothing") || 0);
  let run;
  let curves = null;
  const top = h("div"), stages = h("div"), charts = h("div"), detail = h("div"), message = h("div"), live = h("div");

  const open = (made) => {
    const opener = document.activeElement;
    const close = () => { replace(detail); opener?.focus?.(); };
    const { panel, title } = made(close);
    replace(detail, panel);
    title.focus({ preventScroll: true });
    panel.scrollIntoView({ block: "nearest" });
  };

  // A redrawn element that had the focus gets it again.
  const focusable = () => [...page.querySelectorAll("[tabindex='0']")];
  const draw = () => {
    const at = focusable().indexOf(document.activeElement);
    redraw();
    if (at >= 0) focusable()[at]?.focus({ preventScroll: true });
  };
  const redraw = () => {
    replace(top, h("h1", {}, shown(run.id)), summary(run));
    const failed = run.stages.filter((stage) => stage.error);
    replace(message, failed.map((stage) => h("p", { class: "problem" }, h("b", {}, shown(stage.id)), ": ", shown(stage.error))));
    replace(stages, graph(run.stages, (stage) => open((close) => details(name, stage, close))));
    if (!curves) {
      replace(charts, h("p", { class: "quiet" }, "Loading the curves…"));
      return;
    }
    const names = [name, ...others];
    const present = names.filter((one) => curves.has(one));
    const loops = [...new Set(present.flatMap((one) => curves.get(one).loops.map((loop) => loop.name)))];
    const sections = loops.map((loop) => {
      const of = (one) => curves.get(one).loops.find((found) => found.name === loop)?.points || [];
      const pick = (number) => {
        const point = of(name).find((point) => point.iteration === number);
        if (point) open((close) => iteration(name, point, close));
      };
      const drawn = CHARTS.map(({ title, y, interval, range, unit }) => lines({
        title, range, unit, smoothing, pick, y: range,
        series: present.map((one, color) => ({ name: one, color, points: of(one).map((point) => ({ x: point.iteration, y: y(point) ?? NaN, ...(interval && point.interval ? { low: point.interval.low, high: point.interval.high } : {}) })) })),
      }));
      const bars = of(name).filter((point) => point.signal).map((point) => {
        const { with_gradient: learnt, silent } = point.signal;
        return { x: point.iteration, parts: [learnt, ...SIGNAL.map(([reason]) => (silent[reason] || 0) + (reason === "alone" ? silent.empty || 0 : 0))] };
      });
      drawn.splice(2, 0, stacked({ title: "Rollouts by what they teach", names: ["gradient", ...SIGNAL.map(([, text]) => text)], bars, pick }));
      return [h("h2", {}, `Loop ${plain(loop)}`), h("div", { class: "grid" }, drawn)];
    });
    const alone = present.flatMap((one, color) => curves.get(one).alone.map((found) => ({ ...found, run: one, color })));
    const stagesAlone = [...new Set(alone.map((found) => found.stage))].map((stage) => {
      const of = (y) => alone.filter((found) => found.stage === stage).map((found) => ({ name: found.run, color: found.color, points: found.steps.map((step) => ({ x: step.step, y: y(step) })) }));
      return [h("h2", {}, `Stage ${plain(stage)}`), h("div", { class: "grid" }, lines({ title: "Loss", x: "step", series: of((step) => step.loss), smoothing }), lines({ title: "Gradient norm", x: "step", series: of((step) => step.gradient_norm), smoothing }), lines({ title: "Learning rate", x: "step", series: of((step) => step.learning_rate) }))];
    });
    replace(charts, legend(present), sections.length || stagesAlone.length ? [sections, stagesAlone] : h("p", { class: "quiet" }, "Nothing has been trained yet. Curves appear with the first finished update."));
  };

  const loadRun = async () => { run = await get("run", { run: name }, signal); };
  const loadCurves = async () => {
    const wanted = [name, ...others];
    const found = await Promise.all(wanted.map((one) => get("curves", { run: one }, signal)));
    curves = new Map(wanted.map((one, index) => [one, found[index]]));
  };
  const load = () => Promise.all([loadRun(), loadCurves()]);

  const slider = h("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: smoothing, "aria-label": "Smoothing" });
  slider.addEventListener("input", () => {
    smoothing = Number(slider.value);
    localStorage.setItem("smoothing", String(smoothing));
    draw();
  });
  const choices = [...runs].reverse().filter((run) => run.id !== name).slice(0, 100).map((other) => {
    const box = h("input", { type: "checkbox" });
    box.checked = others.includes(other.id);
    box.addEventListener("change", async () => {
      others = box.checked ? [...others, other.id] : others.filter((one) => one !== other.id);
      remember({ with: others.join(",") });
      try {
        await load();
        draw();
      } catch (cause) {
        if (cause.name !== "AbortError") replace(message, problem(cause));
      }
    });
    return h("label", { class: "key" }, box, plain(other.id));
  });
  const controls = h("div", { class: "bar" }, h("label", { class: "key" }, "smoothing ", slider), choices.length ? h("details", { open: others.length > 0 }, h("summary", {}, "Lay other runs over it"), choices) : null);

  // The stages do not wait for the curves, which read every table of the run.
  await loadRun();
  draw();
  loadCurves().then(draw).catch((cause) => { if (cause.name !== "AbortError") replace(charts, problem(cause)); });
  page.append(top, message, h("h2", {}, "Stages"), live, stages, detail, h("h2", {}, "Training"), controls, charts);
  const refresh = async () => {
    await load();
    draw();
  };
  return { refresh, progress: (stages) => replace(live, running(stages)) };
}
