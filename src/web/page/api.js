// Requests to the server, which answers in JSON.

export class Refused extends Error {
  constructor(status, message, hint) {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch (cause) {
    if (cause.name === "AbortError") throw cause;
    throw new Refused(0, "mcprl does not answer any more.", "Start the command again and open the address that it prints.");
  }
  const text = await response.text();
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Refused(response.status, response.ok ? "The answer is no JSON." : text.trim());
  }
  if (!response.ok) throw new Refused(response.status, value.error?.message || "The request failed.", value.error?.hint);
  return value;
}

function query(parameters) {
  const pairs = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return new URLSearchParams(pairs).toString();
}

export const get = (name, parameters = {}, signal) => answer(fetch(`/api/${name}?${query(parameters)}`, { signal }));

export const post = (name, body) =>
  answer(fetch(`/api/${name}`, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } }));

export const RUNS = "#/runs";

// The address of a view.
export function address(run, view, parameters = {}) {
  const text = query(parameters);
  return `#/${encodeURIComponent(run)}/${view}${text ? "?" + text : ""}`;
}
