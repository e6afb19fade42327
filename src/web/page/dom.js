// Builds elements. Texts are inserted as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function replace(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

// Characters that a browser would not show, or that would change how others are shown, and halves of characters. The ranges
// are those of `src/text.rs`; a test compares them.
const HIDDEN = /[\u{0}-\u{8}\u{b}-\u{1f}\u{7f}-\u{9f}\u{ad}-\u{ad}\u{34f}-\u{34f}\u{61c}-\u{61c}\u{115f}-\u{1160}\u{180e}-\u{180e}\u{200b}-\u{200f}\u{2028}-\u{2029}\u{202a}-\u{202e}\u{2060}-\u{206f}\u{3164}-\u{3164}\u{fe00}-\u{fe0f}\u{feff}-\u{feff}\u{ffa0}-\u{ffa0}\u{fff9}-\u{fffb}\u{e0000}-\u{e0fff}\u{d800}-\u{dfff}]/gu;

// Text of a server or a model as nodes; hidden characters become visible.
export function shown(text) {
  const nodes = [];
  let last = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > last) nodes.push(text.slice(last, match.index));
    const code = match[0].codePointAt(0);
    const name = code === 27 ? "ESC" : "U+" + code.toString(16).toUpperCase().padStart(4, "0");
    nodes.push(h("span", { class: "escape" }, name));
    last = match.index + match[0].length;
    // Nobody reads more of them.
    if (nodes.length > 5000) break;
  }
  nodes.push(plain(text.slice(last)));
  return nodes;
}

// The same for attributes and options, which hold no elements.
export const plain = (text) => text.replace(HIDDEN, "\ufffd");

export function number(value, digits = 3) {
  if (value === undefined || value === null) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return Number.isInteger(value) || size >= 100 ? value.toLocaleString("en", { maximumFractionDigits: 1 }) : value.toFixed(digits);
}

// `12.3k`, `1.2M`.
export const compact = (count) => new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(count).replace("K", "k");

// A share in percent, without its unit. Halves are rounded up, also those that are stored a little below, as `text::percent` does.
export const inPercent = (share, digits = 1) => {
  const scale = 10 ** digits;
  return ((Math.sign(share) * Math.round(Math.abs(100 * share * scale) + 1e-9)) / scale).toFixed(digits);
};

export const percent = (share, digits = 1) => `${inPercent(share, digits)} %`;

// A difference of shares in points, with its sign.
export function points(gain, digits = 1) {
  const text = inPercent(gain, digits);
  return Number(text) === 0 ? text.replace("-", "") : `${gain > 0 ? "+" : ""}${text}`;
}

export const counted = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

// What scrolls sideways can be reached by keyboard.
export const wide = (name, ...children) => h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": name }, children);

// On a phone each row of the table is a card, with the names of its columns.
export function cards(table) {
  table.classList.add("cards");
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.replace(/ [↑↓]$/, ""));
  for (const row of table.tBodies[0].rows) for (const [index, cell] of [...row.cells].entries()) cell.dataset.label = names[index] || "";
  return table;
}

// Code with a button that copies it.
export function copyable(text) {
  const button = h("button", { type: "button", class: "copy", "aria-label": `Copy ${plain(text)}` }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      button.textContent = "not allowed";
    }
  });
  return h("span", { class: "copyable" }, h("code", {}, shown(text)), button);
}

// A text with code between backticks.
export const prose = (text, code = (part) => h("code", {}, shown(part))) => text.split("`").map((part, index) => (index % 2 === 0 ? shown(part) : code(part)));

// The same, where what can be run or set can be copied.
export const advice = (text) => prose(text, (part) => (/^mcprl |=/.test(part) ? copyable(part) : h("code", {}, shown(part))));

export function duration(seconds) {
  if (seconds === undefined || seconds === null) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function bytes(count) {
  if (count < 1000) return `${count} B`;
  return count < 1e6 ? `${(count / 1e3).toFixed(0)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}

export const badge = (text, kind) => h("span", { class: `badge ${kind || ""}` }, text);

export function outcome(correct) {
  if (correct === true) return badge("✓ right", "good");
  if (correct === false) return badge("✗ wrong", "bad");
  return badge("? no known answer");
}

export const problem = (error) => h("p", { class: "problem", role: "alert" }, shown(error.message || String(error)), error.hint ? [" ", h("span", { class: "quiet" }, shown(error.hint))] : null);

// Calls after a pause.
export function debounced(call, wait) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), wait);
  };
}
