// The stages of a run as a strip to scale of their times, a loop as one segment with a cell for each iteration, and a button for
// each stage.

import { h, duration, plain } from "./dom.js";

const time = (stage) => stage.seconds ?? stage.run_seconds ?? 0;
const sum = (stages) => stages.reduce((total, stage) => total + time(stage), 0);

// The stages outside loops one by one, and those of a loop together, in the order of the run.
function segments(stages) {
  const found = new Map();
  for (const stage of stages) {
    const name = stage.iteration ? stage.iteration[0] : stage.id;
    if (!found.has(name)) found.set(name, { name, is_loop: stage.iteration !== null, stages: [] });
    found.get(name).stages.push(stage);
  }
  return [...found.values()];
}

function states(stages) {
  const counts = {};
  for (const stage of stages) counts[stage.state] = (counts[stage.state] || 0) + 1;
  return Object.entries(counts).map(([state, count]) => (stages.length > 1 ? `${count} ${state}` : state)).join(", ");
}

// The state that a reader has to see of several.
const worst = (stages) => ["failed", "running", "unfinished", "pending", "ran", "cached", "skipped"].find((state) => stages.some((stage) => stage.state === state));

export function timeline(stages, open) {
  if (stages.length === 0) return h("p", { class: "quiet" }, "No stage has begun yet.");
  const all = segments(stages);
  const least = Math.max(sum(stages) / 100, 0.01);
  const strip = all.map((segment) => {
    const cells = segment.is_loop ? [...Map.groupBy(segment.stages, (stage) => stage.iteration[1]).values()] : [segment.stages];
    const element = h("span", { class: "segment" }, cells.map((cell) => h("i", { class: `cell ${worst(cell)}` })));
    element.style.flexGrow = String(Math.max(sum(segment.stages), least));
    return element;
  });
  const button = (name, of) => {
    const newest = of.findLast((stage) => stage.state !== "pending") || of[0];
    const seconds = sum(of);
    return h("button", { type: "button", onclick: () => open(newest), title: states(of) },
      h("i", { class: `sample ${worst(of)}`, "aria-hidden": "true" }), plain(name), h("small", {}, ` ${states(of)}${seconds ? `, ${duration(seconds)}` : ""}`));
  };
  const buttons = all.map((segment) => {
    if (!segment.is_loop) return button(segment.name, segment.stages);
    const own = [...Map.groupBy(segment.stages, (stage) => stage.name.split("/").at(-1))];
    const iterations = new Set(segment.stages.map((stage) => stage.iteration[1])).size;
    return h("span", { class: "loop", role: "group", "aria-label": `Loop ${plain(segment.name)}` }, h("small", {}, `loop ${plain(segment.name)}, ${iterations} iterations`), own.map(([name, of]) => button(name, of)));
  });
  return h("div", { class: "timeline" }, h("div", { class: "strip", "aria-hidden": "true" }, strip), h("div", { class: "stages" }, buttons));
}
