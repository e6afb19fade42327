// Chats with what is served, and shows conversations that are kept. No text of a model or tool becomes markup.

const $ = (id) => document.getElementById(id);
let messages = [];
let asking = null;

function element(tag, text, kind) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

async function fetched(path, options = {}) {
  const key = $("key").value;
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (response.status === 401) $("key-label").hidden = false;
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  throw Object.assign(new Error(told?.error?.message ?? `HTTP ${response.status}`), { status: response.status });
}

function problem(text) {
  $("problem").hidden = !text;
  $("problem").textContent = text ?? "";
}

// A call with its result, closed.
function call({ tool, arguments: given, result, error }) {
  const made = document.createElement("details");
  const text = JSON.stringify(given);
  made.append(element("summary", `${tool} ${text.length > 120 ? `${text.slice(0, 120)}…` : text}${error ? " failed" : ""}`));
  made.append(element("pre", text), element("pre", result ?? ""));
  return made;
}

function bubble(role, text) {
  const made = element("div", "", `message ${role}`);
  const parts = { calls: element("div", ""), reasoning: element("div", "", "reasoning"), text: element("div", text) };
  made.append(parts.calls, parts.reasoning, parts.text);
  $("talk").append(made);
  made.scrollIntoView({ block: "end" });
  return parts;
}

// The objects of a stream of events.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data: ") ? line.slice(6) : "";
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function ask(text) {
  problem();
  messages.push({ role: "user", content: text });
  bubble("user", text);
  const shown = bubble("assistant", "…");
  asking = new AbortController();
  $("stop").hidden = false;
  $("send").disabled = true;
  let answer = "";
  try {
    const body = { model: $("model").value, messages, stream: true, temperature: Number($("temperature").value) };
    const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: asking.signal };
    for await (const event of events(await fetched("/v1/chat/completions", options))) {
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices?.[0]?.delta ?? {};
      (delta.mcprl_calls ?? []).forEach((made) => shown.calls.append(call(made)));
      for (const { function: wanted } of delta.tool_calls ?? []) {
        shown.calls.append(element("summary", `${wanted.name} ${wanted.arguments}`, "quiet"));
      }
      shown.reasoning.textContent += delta.reasoning ?? "";
      answer += delta.content ?? "";
      shown.text.textContent = answer;
    }
    messages.push({ role: "assistant", content: answer });
  } catch (error) {
    // The question is asked again, or another one.
    messages.pop();
    shown.text.textContent = answer || (error.name === "AbortError" ? "stopped" : "no answer");
    if (error.name !== "AbortError") problem(error.message);
  } finally {
    asking = null;
    $("stop").hidden = true;
    $("send").disabled = false;
  }
}

async function served() {
  try {
    const { conversations } = await (await fetched("/conversations")).json();
    $("served").hidden = false;
    const open = new Set([...$("conversations").children].filter((one) => one.open).map((one) => one.dataset.id));
    $("conversations").replaceChildren(...conversations.map(({ id, model, time, messages: said }) => {
      const made = document.createElement("details");
      made.dataset.id = id;
      made.open = open.has(id);
      const first = said.find((one) => one.role === "user")?.content ?? "";
      made.append(element("summary", `${time.slice(0, 19)} ${model}: ${first.slice(0, 80)}`));
      for (const one of said) {
        const calls = (one.tool_calls ?? []).map((wanted) => `${wanted.function.name} ${wanted.function.arguments}`);
        made.append(element("div", [one.role, one.content, ...calls].filter(Boolean).join("\n"), `message ${one.role}`));
      }
      return made;
    }));
  } catch (error) {
    // Nothing is kept, or the server is gone.
    if (error.status === 404) return;
  }
  setTimeout(served, 2000);
}

async function start() {
  try {
    const { data } = await (await fetched("/v1/models")).json();
    $("model").replaceChildren(...data.map(({ id }) => element("option", id)));
    // The agent, where there is one.
    if (data.some(({ id }) => id === "agent")) $("model").value = "agent";
    problem();
    served();
  } catch (error) {
    problem(error.message);
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || asking) return;
  $("text").value = "";
  ask(text);
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});
$("stop").addEventListener("click", () => asking?.abort());
$("new").addEventListener("click", () => {
  asking?.abort();
  messages = [];
  $("talk").replaceChildren();
  problem();
});
$("key").addEventListener("change", start);
start();
