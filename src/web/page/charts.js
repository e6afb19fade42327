// Charts as SVG: lines with raw points and intervals, stacked bars, and intervals of gains.

import { h, s, number, replace, plain } from "./dom.js";

const W = 380, H = 190, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 22;

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

// Exponential moving average, corrected at its start.
function smooth(points, weight) {
  let sum = 0, total = 0;
  return points.map((point) => {
    sum = weight * sum + (1 - weight) * point.y;
    total = weight * total + (1 - weight);
    return { ...point, y: sum / total };
  });
}

export function legend(names) {
  if (names.length < 2) return null;
  const line = (index) => s("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" }, s("path", { class: `line s${index % 6}`, d: "M0 5H22" }));
  return h("div", {}, names.map((name, index) => h("span", { class: "key" }, line(index), plain(name))));
}

// `series`: [{name, color, points: [{x, y, low?, high?}]}], by x ascending.
export function lines({ title, series, smoothing = 0, unit = "", x: xName = "iteration", y: range, pick }) {
  const drawn = series
    .map((one) => ({ ...one, points: one.points.filter((point) => Number.isFinite(point.y)) }))
    .filter((one) => one.points.length > 0);
  if (drawn.length === 0) return null;
  const all = drawn.flatMap((one) => one.points);
  const xs = [...new Set(all.map((point) => point.x))].sort((a, b) => a - b);
  let [x0, x1] = [xs[0], xs.at(-1)];
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  // An interval far beyond the values would hide them.
  const values = all.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]);
  let [y0, y1] = range || [Math.min(...values), Math.max(...values)];
  if (y0 === y1) [y0, y1] = [y0 - Math.abs(y0 || 1) * 0.1, y1 + Math.abs(y1 || 1) * 0.1];
  const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * (W - LEFT - RIGHT);
  const py = (y) => H - BOTTOM - ((Math.min(Math.max(y, y0), y1) - y0) / (y1 - y0)) * (H - TOP - BOTTOM);
  const marks = ticks(y0, y1, 4);
  const path = (points) => points.map((point, index) => `${index ? "L" : "M"}${px(point.x).toFixed(1)} ${py(point.y).toFixed(1)}`).join("");
  const grid = [
    marks.map((y) => [s("path", { class: "axis", d: `M${LEFT} ${py(y)}H${W - RIGHT}` }), s("text", { x: LEFT - 5, y: py(y) + 4, "text-anchor": "end" }, number(y, digits(marks)))]),
    ticks(x0, x1, 6).filter((x) => Number.isInteger(x)).map((x) => s("text", { x: px(x), y: H - 7, "text-anchor": "middle" }, x)),
  ];
  const curves = drawn.map(({ color, points }) => {
    const banded = points.filter((point) => Number.isFinite(point.low));
    const back = [...banded].reverse();
    const band = banded.length > 1 && s("path", { class: `band f${color % 6}`, d: path(banded.map(({ x, high }) => ({ x, y: high }))) + path(back.map(({ x, low }) => ({ x, y: low }))).replace("M", "L") + "Z" });
    const dots = points.length <= 150 ? points.map((point) => s("circle", { class: `f${color % 6}`, cx: px(point.x), cy: py(point.y), r: points.length > 60 ? 1.2 : 2, opacity: smoothing ? 0.5 : 1 })) : null;
    return [band, smoothing > 0 && s("path", { class: `raw s${color % 6}`, d: path(points) }), s("path", { class: `line s${color % 6}`, d: path(smoothing > 0 ? smooth(points, smoothing) : points) }), dots];
  });
  const cursor = s("path", { class: "cursor", d: "" });
  const last = drawn.map((one) => `${number(one.points.at(-1).y)}${unit}`).join(", ");
  const caption = h("figcaption", { "aria-live": "polite" }, `last: ${last}`);
  let at = xs.length - 1;
  const point = (index) => {
    at = Math.max(0, Math.min(xs.length - 1, index));
    cursor.setAttribute("d", `M${px(xs[at])} ${TOP}V${H - BOTTOM}`);
    const texts = drawn.map((one) => {
      const found = one.points.find((point) => point.x === xs[at]);
      if (!found) return null;
      const interval = Number.isFinite(found.low) ? ` (${number(found.low)} to ${number(found.high)})` : "";
      return `${drawn.length > 1 ? plain(one.name) + ": " : ""}${number(found.y)}${unit}${interval}`;
    });
    replace(caption, `${xName} ${xs[at]} · `, texts.filter(Boolean).join(" · "), pick ? " · Enter or click: details" : "");
  };
  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    const x = x0 + ((((event.clientX - box.left) / box.width) * W - LEFT) / (W - LEFT - RIGHT)) * (x1 - x0);
    return xs.reduce((best, one, index) => (Math.abs(one - x) < Math.abs(xs[best] - x) ? index : best), 0);
  };
  const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: 0, "aria-label": `${title}, ${xs.length} points, last ${last}. Arrow keys move, Enter opens.` }, grid, curves, cursor);
  svg.addEventListener("pointermove", (event) => point(nearest(event)));
  svg.addEventListener("click", (event) => { point(nearest(event)); pick?.(xs[at]); });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -xs.length, End: xs.length }[event.key];
    if (step) point(cursor.getAttribute("d") === "" ? at : at + step);
    else if (event.key === "Enter") pick?.(xs[at]);
    else return;
    event.preventDefault();
  });
  return h("figure", { class: "card" }, h("h3", {}, title), svg, caption);
}

// `bars`: [{x, parts: [numbers]}]; `names`: of the parts.
export function stacked({ title, names, bars, pick }) {
  if (bars.length === 0) return null;
  const most = Math.max(...bars.map((bar) => bar.parts.reduce((a, b) => a + b, 0)), 1);
  const width = (W - LEFT - RIGHT) / bars.length;
  const py = (y) => H - BOTTOM - (y / most) * (H - TOP - BOTTOM);
  const caption = h("figcaption", { "aria-live": "polite" });
  let at = bars.length - 1;
  const point = (index) => {
    at = Math.max(0, Math.min(bars.length - 1, index));
    replace(caption, `iteration ${bars[at].x} · `, names.map((name, part) => (bars[at].parts[part] ? `${name}: ${bars[at].parts[part]}` : null)).filter(Boolean).join(" · "));
  };
  const columns = bars.map((bar, index) => {
    let sum = 0;
    return bar.parts.map((part, color) => {
      const rect = part > 0 && s("rect", { class: `f${color % 6}`, x: (LEFT + index * width).toFixed(2), y: py(sum + part).toFixed(2), width: Math.max(width - (width > 4 ? 1 : 0), 0.5).toFixed(2), height: (py(sum) - py(sum + part)).toFixed(2) });
      sum += part;
      return rect;
    });
  });
  const every = Math.ceil(bars.length / 8);
  const labels = bars.map((bar, index) => index % every === 0 && s("text", { x: LEFT + (index + 0.5) * width, y: H - 7, "text-anchor": "middle" }, bar.x));
  const axis = ticks(0, most, 4).map((y) => [s("path", { class: "axis", d: `M${LEFT} ${py(y)}H${W - RIGHT}` }), s("text", { x: LEFT - 5, y: py(y) + 4, "text-anchor": "end" }, number(y, 0))]);
  const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: 0, "aria-label": `${title}: ${names.join(", ")}. Arrow keys move, Enter opens.` }, axis, columns, labels);
  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.floor((((event.clientX - box.left) / box.width) * W - LEFT) / width);
  };
  svg.addEventListener("pointermove", (event) => point(nearest(event)));
  svg.addEventListener("click", (event) => { point(nearest(event)); pick?.(bars[at].x); });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) point(at + step);
    else if (event.key === "Enter") pick?.(bars[at].x);
    else return;
    event.preventDefault();
  });
  point(at);
  const keys = names.map((name, color) => h("span", { class: "key" }, s("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" }, s("rect", { class: `f${color % 6}`, width: 22, height: 10 })), name));
  return h("figure", { class: "card" }, h("h3", {}, title), svg, h("div", {}, keys), caption);
}

// `rows`: [{name, gain, low, high, note, good}]: a line for each, with its interval.
export function forest(rows) {
  const shownRows = rows.filter((row) => Number.isFinite(row.gain));
  if (shownRows.length === 0) return null;
  const values = shownRows.flatMap((row) => [row.low ?? row.gain, row.high ?? row.gain, 0]);
  const [low, high] = [Math.min(...values, -0.05), Math.max(...values, 0.05)];
  const width = 760, left = 230, right = 150, row = 22, height = shownRows.length * row + 30;
  const px = (x) => left + ((x - low) / (high - low)) * (width - left - right);
  const grid = ticks(low, high, 6).map((x) => [s("path", { class: x === 0 ? "cursor" : "axis", d: `M${px(x)} 4V${height - 20}` }), s("text", { x: px(x), y: height - 6, "text-anchor": "middle" }, `${x > 0 ? "+" : ""}${Math.round(100 * x)}`)]);
  const line = (one, index) => {
    const y = index * row + 16;
    const color = one.good === true ? 2 : one.good === false ? 1 : 0;
    const name = plain(one.name);
    return [
      s("text", { class: "label", x: 4, y: y + 4 }, s("title", {}, name), name.length > 34 ? name.slice(0, 33) + "…" : name),
      Number.isFinite(one.low) && s("path", { class: `line whole s${color}`, d: `M${px(one.low)} ${y}H${px(one.high)}` }),
      s("rect", { class: `f${color}`, x: px(one.gain) - 4, y: y - 4, width: 8, height: 8 }),
      s("text", { class: "label", x: width - right + 8, y: y + 4 }, one.note),
    ];
  };
  return s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Gains with 95 % intervals of ${shownRows.length} slices` }, grid, shownRows.map(line));
}
