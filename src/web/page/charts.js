// Charts: lines with raw points and intervals, stacked bars, and marks on a track. Each is drawn at the pixel size of its box, so
// that its type has one size.

import { h, s, number, replace, plain, wide, inPercent, points as signed } from "./dom.js";

// What a rollout teaches, or why nothing, in the order in which the bars stack.
export const SIGNALS = [["", "any"], ["gradient", "gradient"], ["zero_variance", "all of the group alike"], ["at_mean", "at the group's mean"], ["truncated", "cut off"], ["unjudged", "no reward"], ["alone,empty", "alone or empty"]];

const H = 214, LEFT = 46, RIGHT = 8, TOP = 20, BOTTOM = 34;

// A box that is drawn again when its width changes. It has the focus and the events, which a redraw would lose.
function fitted(attributes, draw) {
  const box = h("div", { class: "plot", tabindex: 0, role: "img", ...attributes });
  let drawn = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.max(220, Math.floor(entry.contentRect.width));
    if (width === drawn) return;
    drawn = width;
    replace(box, draw(width));
  }).observe(box);
  return box;
}

// About `count` round numbers that cover a range.
function ticks(low, high, count) {
  const step0 = (high - low) / count || 1;
  const size = 10 ** Math.floor(Math.log10(step0));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((step) => step >= step0);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  return found;
}

// Digits after the point by which marks differ.
const digits = (marks) => Math.max(0, -Math.floor(Math.log10(marks[1] - marks[0] || 1) + 1e-9));

// The names of the axes.
const axes = (width, xName, yName) => [s("text", { x: 2, y: 11 }, yName), s("text", { x: LEFT + (width - LEFT - RIGHT) / 2, y: H - 3, "text-anchor": "middle" }, xName)];

// The charts whose values are shown: they stay open when a run that changes is drawn again.
const opened = new Set();

// The values of a chart as a table, made when it is opened.
function table(title, heads, rows) {
  const box = h("details", { class: "values", open: opened.has(title) }, h("summary", { class: "quiet" }, "values"));
  const fill = () => {
    if (box.childNodes.length === 1) box.append(wide(`${title}: values`, h("table", {}, h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", class: "number" }, plain(head))))), h("tbody", {}, rows().map((row) => h("tr", {}, row.map((cell) => h("td", { class: "number" }, cell))))))));
  };
  if (box.open) fill();
  box.addEventListener("toggle", () => {
    if (!box.open) return opened.delete(title);
    opened.add(title);
    fill();
  });
  return box;
}

// Exponential moving average, corrected at its start.
function smooth(points, weight) {
  let sum = 0, total = 0;
  return points.map((point) => {
    sum = weight * sum + (1 - weight) * point.y;
    total = weight * total + (1 - weight);
    return { ...point, y: sum / total };
  });
}

// `entries`: [{name, color}].
export function legend(entries) {
  if (entries.length < 2) return null;
  const line = (color) => s("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" }, s("path", { class: `line s${color % 6}`, d: "M0 5H22" }));
  return h("div", {}, entries.map(({ name, color }) => h("span", { class: "key" }, line(color), plain(name))));
}

// `series`: [{name, color, points: [{x, y, low?, high?}]}], by x ascending. `levels`: [{name, y, color}], as lines across.
// `share`: the values are shares, drawn in percent. `cursor` is shared by charts that point at one x together.
export function lines({ title, series, levels = [], smoothing = 0, unit = "", x: xName = "iteration", y: range, yName = unit.trim(), share = false, pick, cursor: shared = [] }) {
  if (share) {
    const of = (value) => (value === undefined ? undefined : 100 * value);
    const scaled = (point) => ({ ...point, y: of(point.y), low: of(point.low), high: of(point.high) });
    [unit, range, yName] = [" %", [0, 100], yName || "%"];
    series = series.map((one) => ({ ...one, points: one.points.map(scaled) }));
    levels = levels.map(scaled);
  }
  const text = (value) => `${share ? inPercent(value / 100) : number(value)}${unit}`;
  const drawn = series
    .map((one) => ({ ...one, points: one.points.filter((point) => Number.isFinite(point.y)) }))
    .filter((one) => one.points.length > 0);
  if (drawn.length === 0) return null;
  const all = drawn.flatMap((one) => one.points);
  const xs = [...new Set(all.map((point) => point.x))].sort((a, b) => a - b);
  let [x0, x1] = [xs[0], xs.at(-1)];
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  // An interval far beyond the values would hide them.
  const values = [...all.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]), ...levels.map((level) => level.y)];
  let [y0, y1] = range || [Math.min(...values), Math.max(...values)];
  if (y0 === y1) [y0, y1] = [y0 - Math.abs(y0 || 1) * 0.1, y1 + Math.abs(y1 || 1) * 0.1];
  const marks = ticks(y0, y1, 4);
  const py = (y) => H - BOTTOM - ((Math.min(Math.max(y, y0), y1) - y0) / (y1 - y0)) * (H - TOP - BOTTOM);
  let width = 0;
  const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
  const cursor = s("path", { class: "cursor", d: "" });
  const draw = (now) => {
    width = now;
    const path = (points) => points.map((point, index) => `${index ? "L" : "M"}${px(point.x).toFixed(1)} ${py(point.y).toFixed(1)}`).join("");
    const grid = [
      marks.map((y) => [s("path", { class: "axis", d: `M${LEFT} ${py(y)}H${width - RIGHT}` }), s("text", { x: LEFT - 5, y: py(y) + 4, "text-anchor": "end" }, number(y, digits(marks)))]),
      ticks(x0, x1, 6).filter((x) => Number.isInteger(x)).map((x) => s("text", { x: px(x), y: H - 18, "text-anchor": "middle" }, x)),
      axes(width, xName, yName),
    ];
    const across = levels.map(({ name, y, color }) => [s("path", { class: `level s${color % 6}`, d: `M${LEFT} ${py(y)}H${width - RIGHT}` }), s("text", { class: "label", x: width - RIGHT - 2, y: py(y) - 4, "text-anchor": "end" }, plain(name))]);
    const curves = drawn.map(({ color, points }) => {
      const banded = points.filter((point) => Number.isFinite(point.low));
      const back = [...banded].reverse();
      const band = banded.length > 1 && s("path", { class: `band f${color % 6}`, d: path(banded.map(({ x, high }) => ({ x, y: high }))) + path(back.map(({ x, low }) => ({ x, y: low }))).replace("M", "L") + "Z" });
      const dots = points.length <= 150 ? points.map((point) => s("circle", { class: `f${color % 6}`, cx: px(point.x), cy: py(point.y), r: points.length > 60 ? 1.2 : 2, opacity: smoothing ? 0.5 : 1 })) : null;
      return [band, smoothing > 0 && s("path", { class: `raw s${color % 6}`, d: path(points) }), s("path", { class: `line s${color % 6}`, d: path(smoothing > 0 ? smooth(points, smoothing) : points) }), dots];
    });
    return s("svg", { width, height: H, "aria-hidden": "true" }, grid, across, curves, cursor);
  };
  const names = drawn.length > 1;
  const last = drawn.map((one) => `${names ? plain(one.name) + ": " : ""}${text(one.points.at(-1).y)}`).join(" · ");
  const caption = h("figcaption", { "aria-live": "polite" }, `last: ${last}`);
  let at = xs.length - 1;
  const point = (index) => {
    at = Math.max(0, Math.min(xs.length - 1, index));
    for (const follow of shared) follow(xs[at]);
    mark();
  };
  const mark = () => {
    cursor.setAttribute("d", `M${px(xs[at])} ${TOP}V${H - BOTTOM}`);
    const texts = drawn.map((one) => {
      const found = one.points.find((point) => point.x === xs[at]);
      if (!found) return null;
      const interval = Number.isFinite(found.low) ? ` (${text(found.low)} to ${text(found.high)})` : "";
      return `${names ? plain(one.name) + ": " : ""}${text(found.y)}${interval}`;
    });
    replace(caption, `${xName} ${xs[at]} · `, texts.filter(Boolean).join(" · "));
  };
  shared.push((x) => {
    const found = xs.indexOf(x);
    if (found < 0) return;
    at = found;
    mark();
  });
  const box = fitted({ "aria-label": `${title}, ${xs.length} points, last ${last}. Arrow keys move${pick ? ", Enter opens" : ""}.` }, draw);
  const nearest = (event) => {
    const x = x0 + ((event.clientX - box.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT)) * (x1 - x0);
    return xs.reduce((best, one, index) => (Math.abs(one - x) < Math.abs(xs[best] - x) ? index : best), 0);
  };
  box.addEventListener("pointermove", (event) => point(nearest(event)));
  box.addEventListener("click", (event) => { point(nearest(event)); pick?.(xs[at]); });
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -xs.length, End: xs.length }[event.key];
    if (step) point(cursor.getAttribute("d") === "" ? at : at + step);
    else if (event.key === "Enter") pick?.(xs[at]);
    else return;
    event.preventDefault();
  });
  const row = (x) => [x, ...drawn.map((one) => {
    const found = one.points.find((point) => point.x === x);
    return found ? `${text(found.y)}${Number.isFinite(found.low) ? ` (${text(found.low)} to ${text(found.high)})` : ""}` : "–";
  })];
  return h("figure", { class: "card" }, h("h3", {}, title), box, caption, table(title, [xName, ...drawn.map((one) => one.name)], () => xs.map(row)));
}

// `bars`: [{x, parts: [numbers]}]; `names`: of the parts. `link(part, x)`: where the members of a part are, of one bar or of all.
export function stacked({ title, names, bars, link, pick, cursor: shared = [] }) {
  if (bars.length === 0) return null;
  const most = Math.max(...bars.map((bar) => bar.parts.reduce((a, b) => a + b, 0)), 1);
  const py = (y) => H - BOTTOM - (y / most) * (H - TOP - BOTTOM);
  const caption = h("figcaption", { "aria-live": "polite" });
  let at = bars.length - 1;
  let wide = 0;
  const mark = () => replace(caption, `iteration ${bars[at].x} · `, names.map((name, part) => bars[at].parts[part] > 0 && h("a", { href: link(part, bars[at].x), class: "key" }, `${name}: ${bars[at].parts[part]}`)));
  const point = (index) => {
    at = Math.max(0, Math.min(bars.length - 1, index));
    for (const follow of shared) follow(bars[at].x);
    mark();
  };
  shared.push((x) => {
    const found = bars.findIndex((bar) => bar.x === x);
    if (found < 0) return;
    at = found;
    mark();
  });
  const draw = (width) => {
    wide = (width - LEFT - RIGHT) / bars.length;
    const columns = bars.map((bar, index) => {
      let sum = 0;
      return bar.parts.map((part, color) => {
        const rect = part > 0 && s("rect", { class: `f${color % 6}`, x: (LEFT + index * wide).toFixed(2), y: py(sum + part).toFixed(2), width: Math.max(wide - (wide > 4 ? 1 : 0), 0.5).toFixed(2), height: (py(sum) - py(sum + part)).toFixed(2) });
        sum += part;
        return rect;
      });
    });
    const every = Math.ceil(bars.length / 8);
    const labels = bars.map((bar, index) => index % every === 0 && s("text", { x: LEFT + (index + 0.5) * wide, y: H - 18, "text-anchor": "middle" }, bar.x));
    const axis = ticks(0, most, 4).map((y) => [s("path", { class: "axis", d: `M${LEFT} ${py(y)}H${width - RIGHT}` }), s("text", { x: LEFT - 5, y: py(y) + 4, "text-anchor": "end" }, number(y, 0))]);
    return s("svg", { width, height: H, "aria-hidden": "true" }, axis, columns, labels, axes(width, "iteration", "rollouts"));
  };
  const box = fitted({ "aria-label": `${title}: ${names.join(", ")}. Arrow keys move, Enter opens.` }, draw);
  const nearest = (event) => Math.floor((event.clientX - box.getBoundingClientRect().left - LEFT) / wide);
  box.addEventListener("pointermove", (event) => point(nearest(event)));
  box.addEventListener("click", (event) => { point(nearest(event)); pick?.(bars[at].x); });
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) point(at + step);
    else if (event.key === "Enter") pick?.(bars[at].x);
    else return;
    event.preventDefault();
  });
  mark();
  // Only what there is.
  const keys = names.map((name, color) => bars.some((bar) => bar.parts[color] > 0) && h("a", { class: "key", href: link(color) }, s("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" }, s("rect", { class: `f${color % 6}`, width: 22, height: 10 })), name));
  return h("figure", { class: "card" }, h("h3", {}, title), box, h("div", {}, keys), caption, table(title, ["iteration", ...names], () => bars.map((bar) => [bar.x, ...bar.parts])));
}

// Shares from 0 to 1 as a small line; a text beside it has the figures.
export function sparkline(shares) {
  if (shares.length < 2) return null;
  const [width, height] = [84, 22];
  const at = (share, index) => `${index ? "L" : "M"}${(1 + (index / (shares.length - 1)) * (width - 2)).toFixed(1)} ${(height - 2 - share * (height - 4)).toFixed(1)}`;
  return s("svg", { class: "sparkline", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, s("path", { class: "line s0", d: shares.map(at).join("") }));
}

// Marks on a line from 0 to 1: [{kind, at, to?}]. For the eye alone; a text beside it has the figures.
export function track(marks) {
  return h("span", { class: "track", "aria-hidden": "true" }, marks.map(({ kind, at, to }) => {
    const mark = h("i", { class: kind });
    mark.style.left = `${100 * at}%`;
    if (to !== undefined) mark.style.width = `${100 * (to - at)}%`;
    return mark;
  }));
}

// The scale that rows share: round points that cover their intervals and zero.
export function gainScale(rows) {
  const values = rows.flatMap((row) => [row.low, row.high, row.gain, 0]).filter(Number.isFinite);
  const marks = ticks(Math.floor(10 * Math.min(...values)) / 10, Math.ceil(10 * Math.max(...values)) / 10, 5);
  return { low: Math.min(marks[0], ...values), high: Math.max(marks.at(-1), ...values), marks };
}

// `rows`: [{name, gain, low, high, note, tone, is_small}]: a line for each, with its interval, on this scale.
export function forest(rows, { low, high, marks }) {
  const at = (value) => (value - low) / (high - low);
  const axis = h("div", { class: "effect axis-row", "aria-hidden": "true" }, h("span", {}), h("span", { class: "track marks" }, marks.map((mark) => {
    const label = h("small", {}, signed(mark, 0));
    label.style.left = `${100 * at(mark)}%`;
    return label;
  })), h("span", {}));
  const line = (row) => h("div", { class: row.is_small ? "effect small-n" : "effect" },
    h("span", {}, row.name),
    track([{ kind: "zero", at: at(0) }, ...(Number.isFinite(row.low) ? [{ kind: `whisker ${row.tone}`, at: at(row.low), to: at(row.high) }] : []), { kind: `dot ${row.tone}`, at: at(row.gain) }]),
    h("span", { class: "figures" }, row.note));
  return h("div", { class: "forest" }, axis, rows.filter((row) => Number.isFinite(row.gain)).map(line));
}
