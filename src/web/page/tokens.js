// The tokens of an episode, exactly as they were sampled and trained on.

import { get, address } from "./api.js";
import { h, replace, number, shown, plain } from "./dom.js";

const PART = 4000;
// Given tokens in a row that are folded, and how many of them stay at both ends.
const FOLD = 160, KEPT = 40;
// Bounds of the probability classes, in nats.
const BOUNDS = [-0.1, -0.7, -2, -4];
const NAMES = ["over 90 %", "50 to 90 %", "14 to 50 %", "2 to 14 %", "below 2 %"];

const level = (logprob) => { const at = BOUNDS.findIndex((bound) => logprob >= bound); return at < 0 ? BOUNDS.length : at; };

function visible(text) {
  // A line break stays one, and is visible.
  return text.split(/(\n)/).filter((part) => part !== "").map((part) => (part === "\n" ? "⏎\n" : shown(part)));
}

export async function show(page, { run, parameters, signal }) {
  const where = { run, stage: parameters.stage, id: parameters.id, row: parameters.row };
  const back = address(run, "episode", parameters);
  const box = h("div", { class: "tokens", role: "group", "aria-label": "Tokens" });
  const status = h("div", { class: "status", role: "status" }, "Click a token, or use the arrow keys, for its numbers.");
  const more = h("button", { type: "button" }, "more tokens");
  let total = 0, end = 0, chosen = null;

  const first = await get("tokens", { ...where, from: 0, limit: PART }, signal);
  const sign = first.advantage > 0 ? "up" : first.advantage < 0 ? "down" : "";

  const choose = (element) => {
    chosen?.classList.remove("chosen");
    chosen = element;
    element.classList.add("chosen");
    const { index, id, logprob } = element.token;
    const sampled = logprob !== null && logprob !== undefined;
    replace(status, `token ${index}, id ${id} · `, element.token.sampled ? (sampled ? `sampled with log-probability ${logprob.toFixed(4)} (${(100 * Math.exp(logprob)).toFixed(1)} %) · advantage ${number(first.advantage)}` : "said by the assistant, without a log-probability") : "given: no loss");
  };

  const draw = (part) => {
    const starts = new Set(part.rows.slice(1));
    const make = (place) => {
      const index = part.from + place;
      const text = part.texts ? part.texts[place] : `${part.ids[place]} `;
      const sampled = part.sampled[place];
      const kind = sampled ? `sampled ${sign} ${part.logprobs[place] !== null ? `p${level(part.logprobs[place])}` : ""}` : "";
      const element = h("span", { class: `token ${kind} ${part.control[place] ? "control" : ""}` }, text === "" ? h("span", { class: "escape" }, "·") : visible(text));
      element.token = { index, id: part.ids[place], logprob: part.logprobs[place], sampled };
      return starts.has(index) ? [h("span", { class: "row-start" }, `row ${[...part.rows].indexOf(index) + 1}: the context again, without earlier reasoning`), element] : [element];
    };
    let at = 0;
    while (at < part.ids.length) {
      let until = at;
      while (until < part.ids.length && part.sampled[until] === part.sampled[at]) until++;
      const size = until - at;
      if (!part.sampled[at] && size > FOLD) {
        for (let place = at; place < at + KEPT; place++) box.append(...make(place));
        const [from, to] = [at + KEPT, until - KEPT];
        const button = h("button", { type: "button", class: "fold" }, `… ${to - from} given tokens …`);
        button.addEventListener("click", () => {
          const inner = [];
          for (let place = from; place < to; place++) inner.push(...make(place));
          button.replaceWith(...inner);
          inner[0]?.scrollIntoView({ block: "nearest" });
        });
        box.append(button);
        at = to;
      }
      for (; at < until; at++) box.append(...make(at));
    }
    ({ total } = part);
    end = part.from + part.ids.length;
    more.hidden = end >= total;
    more.textContent = `more tokens (${(total - end).toLocaleString("en")} left)`;
  };
  draw(first);
  more.addEventListener("click", async () => {
    more.disabled = true;
    try {
      draw(await get("tokens", { ...where, from: end, limit: PART }, signal));
    } catch (cause) {
      if (cause.name !== "AbortError") status.textContent = cause.message;
    }
    more.disabled = false;
  });
  box.addEventListener("click", (event) => {
    const element = event.target.closest(".token");
    if (element) choose(element);
  });
  const walk = (step) => {
    const all = [...box.querySelectorAll(".token.sampled")];
    const at = all.indexOf(chosen);
    const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + step))];
    if (next) {
      choose(next);
      next.scrollIntoView({ block: "nearest" });
    }
  };
  const keys = (event) => {
    if (event.target.matches("input, select, textarea")) return;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) { event.preventDefault(); walk(step); }
  };
  addEventListener("keydown", keys);
  const least = first.least_likely.filter((index) => index < end);
  replace(page,
    h("h1", {}, "Tokens"),
    h("p", {}, h("a", { href: back }, "← the conversation"), shown(` · ${plain(parameters.stage)} · `), `${first.total.toLocaleString("en")} tokens, ${first.sampled_count.toLocaleString("en")} sampled, mean log-probability ${number(first.mean_logprob)} · `, first.advantage === null ? "without an advantage: no stage compares it with others" : h("span", {}, "every sampled token carries the advantage ", h("b", { class: first.advantage > 0 ? "good" : first.advantage < 0 ? "bad" : "" }, number(first.advantage)))),
    first.problem ? h("p", { class: "note" }, shown(first.problem)) : "",
    h("p", { class: "quiet" }, "The loss covers sampled tokens only, which are underlined: green if they become likelier, red if less likely. The colour behind is the probability at sampling: ", NAMES.map((name, index) => h("span", { class: "key" }, h("span", { class: `swatch token p${index}` }), name))),
    least.length ? h("p", {}, "least likely: ", least.map((index) => h("button", { type: "button", class: "fold", onclick: () => { const element = [...box.querySelectorAll(".token")].find((one) => one.token.index === index); if (element) { choose(element); element.scrollIntoView({ block: "center" }); } } }, shown(`${JSON.stringify(first.texts?.[index - first.from] ?? "")}, token ${index}`)))) : "",
    box, h("p", {}, more), status);
  return { stop: () => removeEventListener("keydown", keys) };
}
