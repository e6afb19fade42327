// One answer to a question: its request, and how its calls and its text are drawn as they come.

import { h, shown, plain, badge, counted, duration, problem } from "./dom.js";
import { byClauses, laidOut } from "./json.js";

// Asks the server. `key` is called for each request.
export function asker(key, refused) {
  return async (path, options = {}) => {
    const headers = { ...options.headers, ...(key() ? { Authorization: `Bearer ${key()}` } : {}) };
    let response;
    // A header has no others.
    if (/[^\x20-\x7e]/.test(key())) throw Object.assign(new Error("The key has letters that no key has."), { status: 401, hint: "Enter it anew." });
    try {
      response = await fetch(path, { ...options, headers });
    } catch (cause) {
      if (cause.name === "AbortError") throw cause;
      throw Object.assign(new Error("mcprl does not answer."), { hint: "Start mcprl serve again, and send the question again." });
    }
    if (response.ok) return response;
    if (response.status === 401) refused();
    const told = await response.json().catch(() => null);
    const hint = { 401: "Enter the key above, and send the question again.", 429: "Send the question again in a moment.", 502: "The terminal of mcprl serve says why." }[response.status];
    throw Object.assign(new Error(told?.error?.message ?? `HTTP ${response.status}`), { hint, status: response.status });
  };
}

export const posted = (body, signal) => ({ method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });

// The objects of a stream of events. One without an end is an error.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read().catch((cause) => {
      if (cause.name === "AbortError") throw cause;
      return { done: true };
    });
    if (done) throw Object.assign(new Error("The answer broke off."), { hint: "Send the question again." });
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data: ") ? line.slice(6) : "";
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

// A value of an argument as it is read best: SQL by its clauses, and lists and objects by their items.
const readable = (value) => (typeof value === "string" ? byClauses(value) : JSON.stringify(value, null, 2));

export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

// A call with its result, folded. Without a result it was not made. `error` is why it failed, or true.
export function call({ tool, arguments: given, result, error }) {
  const pairs = given && typeof given === "object" && !Array.isArray(given) ? Object.entries(given) : [["", given]];
  const text = laidOut(result ?? "");
  return h("details", { class: error ? "call failed" : "call" },
    h("summary", {},
      h("b", {}, shown(tool)),
      h("span", { class: "given" }, pairs.map(([name, one], index) => [index ? h("span", { class: "comma" }, ", ") : null, h("span", {}, name ? h("i", {}, shown(name), ": ") : null, shown(readable(one ?? "")))])),
      error ? badge(error === true || error === "tool" ? "failed" : `failed: ${plain(error).replaceAll("_", " ")}`, "bad") : null,
      text ? h("span", { class: "first" }, shown(text.slice(0, error ? 600 : 300))) : null),
    result === undefined ? null : h("pre", {}, text ? shown(text) : h("span", { class: "quiet" }, "an empty result")));
}

// The place of an answer. Everything is added at its end, so that nothing moves while it comes.
export class Side {
  constructor(name) {
    this.state = h("span", {}, "answering…");
    this.element = h("div", { class: "side" }, h("div", { class: "who" }, h("b", {}, shown(name)), this.state));
    this.calls = [];
    this.text = "";
  }

  // Asks for an answer and draws it. Returns its text; throws what went wrong, which is drawn, too.
  async answer(ask, body, signal) {
    const began = performance.now();
    let reason = null;
    let failure = null;
    try {
      for await (const event of events(await ask("/v1/chat/completions", posted({ ...body, stream: true }, signal)))) {
        if (event.error) throw new Error(event.error.message);
        const choice = event.choices?.[0] ?? {};
        this.#add(choice.delta ?? {});
        reason = choice.finish_reason ?? reason;
      }
    } catch (cause) {
      failure = cause;
    }
    const failed = this.calls.filter((one) => one.error).length;
    const calls = this.calls.length ? `${counted(this.calls.length, "call")}${failed ? `, ${failed} failed` : ""} · ` : "";
    const seconds = (performance.now() - began) / 1000;
    const stopped = failure?.name === "AbortError" ? "stopped after " : "";
    this.state.textContent = `${calls}${stopped}${seconds < 0.1 ? "less than 0.1 s" : duration(seconds)}`;
    if (failure) {
      if (!stopped) this.element.append(problem(failure));
      throw failure;
    }
    if (!this.text) this.element.append(h("p", { class: "reply quiet" }, reason === "length" ? "No answer: a limit of turns, calls or tokens was reached." : reason === "tool_calls" ? "It asks for calls, which only the agent makes." : "An empty answer."));
    else if (reason === "length") this.element.append(h("p", { class: "quiet" }, "Cut off at a limit."));
    return this.text;
  }

  #add({ mcprl_calls: made = [], tool_calls: wanted = [], reasoning, content }) {
    if (reasoning) {
      this.reasoning ??= this.#place(h("pre", {}), (text) => h("details", {}, h("summary", { class: "quiet" }, "reasoning"), text));
      this.reasoning.append(...shown(reasoning));
    }
    const asked = wanted.map(({ function: of }) => ({ tool: of.name, arguments: parsed(of.arguments) }));
    for (const one of [...made, ...asked]) {
      this.calls.push(one);
      this.element.append(call(one));
    }
    if (content) {
      this.reply ??= this.#place(h("p", { class: "reply" }));
      this.reply.append(...shown(content));
      this.text += content;
    }
  }

  #place(text, within = (one) => one) {
    this.element.append(within(text));
    return text;
  }
}
