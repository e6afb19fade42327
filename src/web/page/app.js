// The frame: which run, which view, and when to look again.

import { get, address, RUNS } from "./api.js";
import { h, replace, problem, badge, plain } from "./dom.js";

// Read when they are shown first; that of a run comes with the page.
const VIEWS = {
  runs: () => import("./runs.js"), run: () => import("./run.js"), episodes: () => import("./episodes.js"), episode: () => import("./conversation.js"),
  tokens: () => import("./tokens.js"), exam: () => import("./exam.js"), judges: () => import("./judges.js"), tasks: () => import("./tasks.js"),
};
const TABS = [["run", "Run"], ["episodes", "Episodes"], ["exam", "Exam"], ["judges", "Judges"], ["tasks", "Tasks"]];
const TAB_OF = { episode: "episodes", tokens: "episodes" };

const header = document.getElementById("header");
const main = document.getElementById("main");
let runs = [];
let chosen = [];
// Asked for at once. Views of one run do not wait for it.
const listed = get("runs").then((found) => { ({ runs, chosen } = found); });
listed.catch(() => {});
let current = null;
let source = null;

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  if (`#/${path}` === RUNS) return { run: "", view: "runs", parameters: Object.fromEntries(new URLSearchParams(query || "")) };
  const [name, view] = path.split("/");
  return {
    run: name ? decodeURIComponent(name) : "",
    view: VIEWS[view] && view !== "runs" ? view : "run",
    parameters: Object.fromEntries(new URLSearchParams(query || "")),
  };
}

function theme() {
  const names = ["auto", "light", "dark"];
  const set = (name) => {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
  };
  const now = localStorage.getItem("theme") || "auto";
  set(now);
  const button = h("button", { type: "button", title: "Colours: automatic, light or dark" }, `◐ ${now}`);
  button.addEventListener("click", () => {
    const next = names[(names.indexOf(localStorage.getItem("theme") || "auto") + 1) % names.length];
    localStorage.setItem("theme", next);
    set(next);
    button.textContent = `◐ ${next}`;
  });
  return button;
}

const status = h("span", { class: "quiet", role: "status" });
const toggle = theme();
let framed = null;

// An equal header stays: a click on an element that is replaced is lost.
function frame({ run: name, view, parameters }) {
  const now = JSON.stringify([name, view, parameters.with, runs.map((run) => [run.id, run.state])]);
  if (framed === now) return;
  framed = now;
  const all = h("a", { href: RUNS, "aria-current": view === "runs" ? "page" : null }, "all runs");
  const select = h("select", { "aria-label": "Run" }, name ? null : h("option", { value: "" }, "choose a run"), [...runs].reverse().map((run) => h("option", { value: run.id }, plain(`${run.id} (${run.state})`))));
  select.value = name;
  select.addEventListener("change", () => { location.hash = address(select.value, "run"); });
  const found = runs.find((run) => run.id === name);
  const tab = ([id, title]) => h("a", { href: address(name, id, id === "run" && parameters.with ? { with: parameters.with } : {}), "aria-current": (TAB_OF[view] || view) === id ? "page" : null }, title);
  replace(
    header,
    h("div", { class: "bar" }, h("b", {}, "mcprl"), select, all, found ? badge(found.state, { finished: "good", failed: "bad", killed: "bad" }[found.state] || "warn") : null, h("span", { class: "space" }), status, toggle),
    name ? h("nav", { "aria-label": "Views" }, TABS.map(tab)) : null,
  );
}

let pressed = false;
addEventListener("pointerdown", () => { pressed = true; });
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { pressed = false; });

// Looks again when the run has changed, but works at most a hundredth of the time.
function follow(name) {
  source?.close();
  source = new EventSource(`/api/events?run=${encodeURIComponent(name)}`);
  let first = true;
  let free = 0;
  let timer = null;
  const look = async () => {
    if (pressed) {
      timer = setTimeout(look, 200);
      return;
    }
    timer = null;
    const began = performance.now();
    try {
      ({ runs } = await get("runs"));
      frame(place());
      await current?.refresh?.();
      status.textContent = "";
    } catch (cause) {
      if (cause.name !== "AbortError") status.textContent = cause.message;
    }
    free = performance.now() + Math.max(1000, 100 * (performance.now() - began));
  };
  source.addEventListener("changed", () => {
    status.textContent = "";
    if (first) {
      first = false;
      return;
    }
    timer ??= setTimeout(look, Math.max(0, free - performance.now()));
  });
  source.addEventListener("progress", (event) => current?.progress?.(JSON.parse(event.data)));
  source.addEventListener("error", () => { status.textContent = "mcprl does not answer any more"; });
}

let followed = null;
let shown = 0;

async function show() {
  const where = place();
  if (!where.run) await listed;
  if (!where.run && where.view !== "runs") {
    const name = chosen.at(-1) || runs.at(-1)?.id;
    if (!name) {
      replace(main, h("p", {}, "There are no runs in this cache yet. ", h("code", {}, "mcprl run FILE"), " makes one."));
      return;
    }
    const others = chosen.slice(0, -1);
    location.replace(address(name, "run", { with: others.join(",") }));
    return;
  }
  const turn = ++shown;
  current?.stop?.();
  delete main.dataset.view;
  frame(where);
  if (where.run && followed !== where.run) follow((followed = where.run));
  document.title = `${where.run || "Runs"} – mcprl`;
  const page = h("div");
  const abort = new AbortController();
  current = { stop: () => abort.abort() };
  const context = {
    run: where.run,
    runs,
    parameters: where.parameters,
    signal: abort.signal,
    // Changes the parameters without a new view.
    remember: (parameters) => history.replaceState(null, "", where.run ? address(where.run, where.view, parameters) : `${RUNS}?${new URLSearchParams(parameters)}`),
    go: (view, parameters) => { location.hash = address(where.run, view, parameters); },
  };
  try {
    const module = await VIEWS[where.view]();
    const view = await module.show(page, context);
    if (turn !== shown) return;
    current = { ...view, stop: () => { abort.abort(); view?.stop?.(); } };
    replace(main, page);
    main.dataset.view = where.view;
  } catch (cause) {
    if (cause.name === "AbortError" || turn !== shown) return;
    if (!cause.status && cause.status !== 0) console.error(cause);
    replace(main, h("h1", {}, "This cannot be shown"), problem(cause));
    main.dataset.view = where.view;
  }
}

addEventListener("hashchange", () => { show(); main.focus({ preventScroll: true }); scrollTo(0, 0); });

try {
  await show();
  await listed;
  frame(place());
} catch (cause) {
  replace(main, problem(cause));
}
