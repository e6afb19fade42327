// A run: its stages, what is left, and how training goes. Other runs can be laid over it.

import { get, address, RUNS } from "./api.js";
import { h, replace, number, duration, badge, shown, plain, problem, prose, wide } from "./dom.js";
import { answerView } from "./answer.js";
import { graph } from "./graph.js";
import { timeline } from "./timeline.js";
import { lines, stacked, legend, SIGNALS } from "./charts.js";

// How success goes, in one chart.
const SUCCESS = [
  { name: "in training", y: (point) => point.success, interval: true },
  { name: "on tasks drawn for the first time", y: (point) => point.success_new },
  { name: "greedy, on tasks that nothing trains on", y: (point) => point.success_greedy },
];

// Whether training is healthy: with the bars of what teaches.
const HEALTH = [
  { title: "KL to the policy that played, at most", y: (point) => point.moved_kl, unit: " nats" },
  { title: "Entropy", y: (point) => point.entropy, unit: " nats" },
];

const MORE = [
  { title: "Reward", y: (point) => point.reward },
  { title: "Loss", y: (point) => point.loss },
  { title: "Gradient norm", y: (point) => point.gradient_norm },
  { title: "Clipped share of tokens", y: (point) => point.clip_fraction },
  { title: "KL to the reference", y: (point) => point.kl },
  { title: "Learning rate", y: (point) => point.learning_rate },
  { title: "Share of rollouts with gradient", y: (point) => point.signal_share, share: true },
  { title: "Calls in the template's form", y: (point) => point.template_calls, share: true },
  { title: "Answers given by complete_task", y: (point) => point.tool_answers, share: true },
  { title: "Tool errors per episode", y: (point) => point.tool_errors },
  { title: "Turns per episode", y: (point) => point.turns },
  { title: "Episodes cut off by a limit", y: (point) => point.truncated, share: true },
  { title: "Tokens sampled per second", y: (point) => rate(point, point.sampled_tokens) },
  { title: "Calls per second", y: (point) => rate(point, point.calls) },
];

// Per second of the stage that plays the episodes, which reports `sampled_tokens`.
function rate(point, perEpisode) {
  const metric = Object.keys(point.metrics).find((name) => name.endsWith(".sampled_tokens"));
  const seconds = metric && point.seconds_by_stage[metric.slice(0, -".sampled_tokens".length)];
  return seconds > 0 && Number.isFinite(perEpisode) ? (perEpisode * point.episodes) / seconds : undefined;
}

// A stage in detail.
function details(run, stage, close) {
  const names = Object.keys(stage.metrics || {});
  const title = h("h2", { tabindex: -1 }, shown(stage.id), " ", badge(stage.state, { ran: "good", cached: "good", failed: "bad" }[stage.state]));
  const has = (kind) => stage.outputs.some((output) => output.kind === kind);
  const gone = stage.outputs.filter((output) => !output.is_present).map((output) => output.port);
  const panel = h("section", { class: "card drawer", "aria-label": `Stage ${stage.id}` },
    title,
    stage.error ? h("p", { class: "problem" }, shown(stage.error), stage.hint ? [h("br"), h("b", {}, "hint: "), prose(stage.hint)] : null) : null,
    gone.length ? h("p", { class: "note" }, `No longer in the cache: ${gone.map(plain).join(", ")}. `, h("code", {}, "mcprl resume"), " makes them again.") : null,
    h("p", {}, [stage.kind && `kind ${plain(stage.kind)}`, stage.seconds !== null ? duration(stage.seconds) : stage.run_seconds !== null ? `${duration(stage.run_seconds)} in an earlier run` : null, stage.retries ? `${stage.retries} retries` : null].filter(Boolean).join(" · ")),
    stage.reasons.length ? h("p", { class: "quiet" }, "ran because ", shown(stage.reasons.join(", "))) : null,
    stage.notes.map((note) => h("p", { class: "note" }, prose(note))),
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
  const panel = h("section", { class: "card drawer", "aria-label": `Iteration ${point.id}` },
    title,
    h("p", {}, point.success !== null ? `success ${number(point.success)} · ` : "", point.success_new !== null ? `on new tasks ${number(point.success_new)} · ` : "", point.reward !== null ? `reward ${number(point.reward)} · ` : "", h("a", { href: address(run, "episodes", { iteration: point.iteration }) }, "episodes of this iteration"), " · ", h("a", { href: address(run, "episodes", { iteration: point.iteration, outcome: "wrong" }) }, "the wrong ones")),
    steps.length ? wide("Optimizer steps", h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "step"), fields.map((field) => h("th", { class: "number" }, field.replaceAll("_", " "))))), h("tbody", {}, steps.map((step) => h("tr", {}, h("td", {}, step.step), fields.map((field) => h("td", { class: "number" }, number(step[field])))))))) : h("p", { class: "quiet" }, "No optimizer step yet, or its table is no longer in the cache."),
    h("details", {}, h("summary", {}, "All metrics"), h("dl", {}, Object.entries(point.metrics).map(([name, value]) => [h("dt", {}, shown(name)), h("dd", {}, number(value))]))),
    h("button", { type: "button", onclick: close }, "Close"));
  return { panel, title };
}

// The running stages, each with a bar.
function running(stages) {
  return stages.map(({ stage, phase, done, units, rate, left, status }) => {
    const count = units ? `${phase} ${done.toLocaleString("en")} of ${units.toLocaleString("en")}` : phase;
    const facts = [count, rate && units ? `${number(rate)} per second` : "", left !== null ? `${duration(left)} left` : "", status];
    return h("p", { class: "live" }, h("b", {}, shown(stage)), " ", units ? h("progress", { value: done, max: units, "aria-label": plain(stage) }) : null, " ", shown(facts.filter(Boolean).join(" · ")));
  });
}

export async function show(page, { run: name, parameters, signal, remember }) {
  let others = (parameters.with || "").split(",").filter((other) => other && other !== name);
  let smoothing = Number(localStorage.getItem("smoothing") || 0);
  let run;
  let curves = null;
  let answer = null;
  let showsGraph = false, showsMore = false;
  const top = h("div"), stages = h("div"), charts = h("div"), detail = h("div"), message = h("div"), live = h("div");

  const open = (made) => {
    const opener = document.activeElement;
    const close = () => { replace(detail); opener?.focus?.(); };
    const { panel, title } = made(close);
    panel.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
    replace(detail, panel);
    title.focus({ preventScroll: true });
  };

  // A redrawn element that had the focus gets it again.
  const focusable = () => [...page.querySelectorAll("button, a[href], summary, [tabindex='0']")];
  const draw = () => {
    const at = focusable().indexOf(document.activeElement);
    redraw();
    if (at >= 0) focusable()[at]?.focus({ preventScroll: true });
  };
  const redraw = () => {
    const errors = run.stages.filter((stage) => stage.error).map((stage) => h("p", { class: "problem" }, h("b", {}, shown(stage.id)), ": ", prose(stage.error), stage.hint ? [h("br"), h("b", {}, "hint: "), prose(stage.hint)] : null));
    // Lines of running stages come and go, and move nothing.
    live.style.minHeight = run.state === "running" ? "34px" : "";
    replace(top, h("h1", {}, shown(run.id)), answer ? answerView(answer, run, errors) : [errors, h("p", { class: "quiet" }, "Loading…")]);
    const openStage = (stage) => open((close) => details(name, stage, close));
    const onDemand = h("details", { open: showsGraph }, h("summary", {}, "What reads from what"), graph(run.stages, openStage));
    onDemand.addEventListener("toggle", () => { showsGraph = onDemand.open; });
    replace(stages, timeline(run.stages, openStage), onDemand);
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
      const cursor = [];
      const series = (y, interval) => present.map((one, color) => ({ name: one, color, points: of(one).map((point) => ({ x: point.iteration, y: y(point) ?? NaN, ...(interval && point.interval ? { low: point.interval.low, high: point.interval.high } : {}) })) }));
      const chart = ({ title, y, share, unit }) => lines({ title, unit, share, smoothing, pick, cursor, series: series(y) });
      // Runs are laid over each other by their success in training alone.
      const of_success = present.length > 1 ? series(SUCCESS[0].y, true) : SUCCESS.map(({ name, y, interval }, color) => ({ ...series(y, interval)[0], name, color }));
      const exam = present.length === 1 ? answer?.exam : null;
      const ends = exam?.policies.filter((one, index, all) => one.policy === exam.baseline || index === all.length - 1) || [];
      const levels = ends.map((one, index) => ({ name: `exam: ${one.policy}`, y: one.success, color: 3 + index }));
      const success = lines({ title: "Success in training", smoothing, pick, cursor, share: true, yName: "success, %", series: of_success, levels });
      const signals = SIGNALS.slice(1);
      const bars = of(name).filter((point) => point.signal).map((point) => {
        const counts = { gradient: point.signal.with_gradient, ...point.signal.silent };
        return { x: point.iteration, parts: signals.map(([reasons]) => reasons.split(",").reduce((sum, reason) => sum + (counts[reason] || 0), 0)) };
      });
      const link = (part, iteration) => address(name, "episodes", { signal: signals[part][0], iteration });
      const health = [stacked({ title: "Rollouts by what they teach", names: signals.map(([, text]) => text), bars, link, pick, cursor }), ...HEALTH.map(chart)].filter(Boolean);
      const more = MORE.map(chart).filter(Boolean);
      if (!success && health.length === 0 && more.length === 0) return null;
      const rest = h("details", { open: showsMore }, h("summary", {}, `${more.length} more curves`), h("div", { class: "grid" }, more));
      rest.addEventListener("toggle", () => { showsMore = rest.open; });
      return [h("h2", {}, `Loop ${plain(loop)}`), success ? [success, present.length > 1 ? null : legend(of_success.filter((one) => one.points.some((point) => Number.isFinite(point.y))))] : null, h("div", { class: "grid health" }, health), more.length ? rest : null];
    }).filter(Boolean);
    const alone = present.flatMap((one, color) => curves.get(one).alone.map((found) => ({ ...found, run: one, color })));
    const stagesAlone = [...new Set(alone.map((found) => found.stage))].map((stage) => {
      const of = (y) => alone.filter((found) => found.stage === stage).map((found) => ({ name: found.run, color: found.color, points: found.steps.map((step) => ({ x: step.step, y: y(step) })) }));
      return [h("h2", {}, `Stage ${plain(stage)}`), h("div", { class: "grid" }, lines({ title: "Loss", x: "step", series: of((step) => step.loss), smoothing }), lines({ title: "Gradient norm", x: "step", series: of((step) => step.gradient_norm), smoothing }), lines({ title: "Learning rate", x: "step", series: of((step) => step.learning_rate) }))];
    });
    replace(charts, legend(present.map((one, color) => ({ name: one, color }))), sections.length || stagesAlone.length ? [sections, stagesAlone] : h("p", { class: "quiet" }, run.state === "running" ? "Curves appear when the first stage that trains has finished." : "Nothing was trained."));
  };

  const loadRun = async () => { run = await get("run", { run: name }, signal); };
  const loadAnswer = async () => { answer = await get("answer", { run: name }, signal); };
  const loadCurves = async () => {
    const wanted = [name, ...others];
    const read = await Promise.all(wanted.map((one) => get("curves", { run: one }, signal)));
    curves = new Map(wanted.map((one, index) => [one, read[index]]));
  };
  const load = () => Promise.all([loadRun(), loadAnswer(), loadCurves()]);

  const slider = h("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: smoothing, "aria-label": "Smoothing" });
  slider.addEventListener("input", () => {
    smoothing = Number(slider.value);
    localStorage.setItem("smoothing", String(smoothing));
    draw();
  });
  // As many as there are colours.
  others = others.slice(0, 5);
  const laid = h("span");
  const listed = () => replace(laid, others.map((other) => h("span", { class: "key" }, shown(other), h("button", { type: "button", "aria-label": `Without ${plain(other)}`, onclick: () => without(other) }, "×"))), h("a", { href: RUNS }, others.length ? "choose others" : "lay other runs over it"));
  const without = async (other) => {
    others = others.filter((one) => one !== other);
    remember({ with: others.join(",") });
    listed();
    try {
      await loadCurves();
      draw();
    } catch (cause) {
      if (cause.name !== "AbortError") replace(message, problem(cause));
    }
  };
  listed();
  const controls = h("div", { class: "bar" }, h("label", { class: "key" }, "smoothing ", slider), laid);

  const failed = (place) => (cause) => { if (cause.name !== "AbortError") replace(place, problem(cause)); };
  // The answer comes at once, unless the exam is large. Nothing waits for the curves, which read every table of the run.
  const answered = loadAnswer();
  await Promise.all([loadRun(), Promise.race([answered.catch(() => null), new Promise((done) => { setTimeout(done, 200); })])]);
  draw();
  if (!answer) answered.then(draw).catch(failed(message));
  loadCurves().then(draw).catch(failed(charts));
  page.append(top, message, live, h("h2", {}, "Training"), controls, charts, h("h2", {}, "Stages"), stages, detail);
  const refresh = async () => {
    await load();
    draw();
  };
  return { refresh, progress: (stages) => replace(live, running(stages)) };
}
