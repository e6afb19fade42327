// The stages of a run: one box for each stage of the run file, with a cell for each iteration.

import { h, s, duration, plain } from "./dom.js";

const BOX = 152, GAP = 28, HEIGHT = 62, SPACE = 16, CELLS = 30;

// Stages by name, with the stages that they read from in the same iteration.
function collapse(stages) {
  const byId = new Map(stages.map((stage) => [stage.id, stage]));
  const boxes = new Map();
  for (const stage of stages) {
    if (!boxes.has(stage.name)) boxes.set(stage.name, { name: stage.name, kind: stage.kind, loop: stage.iteration?.[0], stages: [], reads: new Set() });
    const box = boxes.get(stage.name);
    box.stages.push(stage);
    box.kind ??= stage.kind;
    for (const input of stage.inputs) {
      const from = byId.get((input.from || "").replace(/\.[^.\]]*$/, ""));
      // The edge from an iteration to the next is the loop itself.
      if (!from || from.name === stage.name) continue;
      if (from.iteration && stage.iteration && from.iteration[1] !== stage.iteration[1]) continue;
      box.reads.add(from.name);
    }
  }
  return boxes;
}

function depths(boxes) {
  const depth = new Map();
  const visit = (name, path) => {
    if (depth.has(name)) return depth.get(name);
    if (path.has(name)) return 0;
    path.add(name);
    const before = [...boxes.get(name).reads].filter((other) => boxes.has(other)).map((other) => visit(other, path) + 1);
    path.delete(name);
    depth.set(name, Math.max(0, ...before));
    return depth.get(name);
  };
  for (const name of boxes.keys()) visit(name, new Set());
  return depth;
}

export function graph(stages, open) {
  const boxes = collapse(stages);
  if (boxes.size === 0) return h("p", { class: "quiet" }, "No stage has begun yet.");
  const depth = depths(boxes);
  const columns = [];
  for (const box of boxes.values()) {
    const column = (columns[depth.get(box.name)] ??= []);
    box.x = depth.get(box.name) * (BOX + GAP) + 12;
    box.y = column.length * (HEIGHT + SPACE) + 26;
    column.push(box);
  }
  const width = columns.length * (BOX + GAP) - GAP + 24;
  const height = Math.max(...columns.map((column) => column?.length || 0)) * (HEIGHT + SPACE) + 26;
  const edges = [...boxes.values()].flatMap((box) => [...box.reads].map((name) => {
    const from = boxes.get(name);
    if (!from || from.x >= box.x) return null;
    const [x0, y0, x1, y1] = [from.x + BOX, from.y + HEIGHT / 2, box.x, box.y + HEIGHT / 2];
    return s("path", { class: "edge", d: `M${x0} ${y0}C${x0 + GAP / 2} ${y0} ${x1 - GAP / 2} ${y1} ${x1} ${y1}` });
  }));
  const loops = [...new Set([...boxes.values()].map((box) => box.loop).filter(Boolean))].map((name) => {
    const inner = [...boxes.values()].filter((box) => box.loop === name);
    const [x0, y0] = [Math.min(...inner.map((box) => box.x)) - 7, Math.min(...inner.map((box) => box.y)) - 20];
    const [x1, y1] = [Math.max(...inner.map((box) => box.x + BOX)) + 7, Math.max(...inner.map((box) => box.y + HEIGHT)) + 7];
    const count = Math.max(...inner.map((box) => box.stages.length));
    return [s("rect", { class: "loop", x: x0, y: y0, width: x1 - x0, height: y1 - y0, rx: 8 }), s("text", { x: x0 + 8, y: y0 + 14 }, `loop ${plain(name)}, ${count} iterations`)];
  });
  const drawn = [...boxes.values()].map((box) => {
    const counts = {};
    for (const stage of box.stages) counts[stage.state] = (counts[stage.state] || 0) + 1;
    const text = Object.entries(counts).map(([state, count]) => (box.stages.length > 1 ? `${count} ${state}` : state)).join(", ");
    const times = box.stages.map((stage) => stage.seconds ?? stage.run_seconds).filter(Number.isFinite);
    const time = times.length ? duration(times.reduce((a, b) => a + b, 0)) : "";
    const newest = box.stages.findLast((stage) => stage.state !== "pending") || box.stages[0];
    const own = plain(box.name.split("/").at(-1));
    // Long loops show as many cells as there is room for.
    const wide = (BOX - 20) / Math.max(box.stages.length, CELLS);
    const cells = box.stages.map((stage, index) => s("rect", { class: `cell ${stage.state}`, x: box.x + 10 + index * wide, y: box.y + HEIGHT - 14, width: Math.max(wide - (wide > 3 ? 1 : 0), 0.4), height: 7 }, s("title", {}, `${stage.id}: ${stage.state}`)));
    const group = s("g", { tabindex: 0, role: "button", "aria-label": [own, box.kind, text, time].filter(Boolean).join(" ") },
      s("rect", { class: "box", x: box.x, y: box.y, width: BOX, height: HEIGHT, rx: 6 }),
      s("text", { class: "label", x: box.x + 10, y: box.y + 18 }, own.length > 13 ? own.slice(0, 12) + "…" : own, " "),
      s("text", { x: box.x + BOX - 10, y: box.y + 18, "text-anchor": "end" }, plain(box.kind || ""), " "),
      s("text", { x: box.x + 10, y: box.y + 36 }, text.length > 15 ? text.slice(0, 14) + "…" : text, " "),
      s("text", { x: box.x + BOX - 10, y: box.y + 36, "text-anchor": "end" }, time),
      cells);
    group.addEventListener("click", () => open(newest));
    group.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      open(newest);
    });
    return group;
  });
  return h("div", { class: "graph wide" }, s("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, loops, edges, drawn));
}
