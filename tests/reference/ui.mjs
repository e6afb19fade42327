// Opens every view of the live page in Chromium and uses it. Called by ui.sh with the page's URL.

import { createRequire } from "node:module";
import { strict as assert } from "node:assert";

const { chromium } = createRequire(`${process.env.NODE_PATH}/`)("playwright-core");
const url = process.argv[2];
const shots = process.env.SCREENSHOTS;
const problems = [];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: "light" });
const page = await context.newPage();
if (process.env.ASSETS) {
  // The page's files as they are now, without a build.
  await context.route(/\.(js|css)$/, (route) => route.fulfill({ path: process.env.ASSETS + new URL(route.request().url()).pathname }));
}
page.setDefaultTimeout(60000);
page.on("console", (message) => { if (["error", "warning"].includes(message.type())) problems.push(`console: ${message.text()}`); });
page.on("pageerror", (error) => problems.push(`error: ${error}`));
page.on("requestfailed", (request) => {
  // A stream that ends with its page, and requests of a view that was left.
  if (!request.failure()?.errorText.includes("ERR_ABORTED")) problems.push(`failed: ${request.url()} ${request.failure()?.errorText}`);
});
page.on("request", (request) => { if (!request.url().startsWith(new URL(url).origin)) problems.push(`foreign request: ${request.url()}`); });

async function shot(name) {
  if (shots) await page.screenshot({ path: `${shots}/${name}.png` });
}

// Fits the window, has one main heading, and reports no problem.
async function check(view) {
  await page.waitForSelector("main[data-view] h1");
  const state = await page.evaluate(() => ({
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    headings: document.querySelectorAll("h1").length,
    alerts: [...document.querySelectorAll("[role=alert]")].map((one) => one.textContent),
    title: document.title,
    objects: /\[object |undefined|NaN/.test(document.querySelector("main").innerText),
    unnamed: [...document.querySelectorAll("button, a, select, input, textarea")].filter((one) => !one.textContent.trim() && !one.getAttribute("aria-label") && !one.closest("label") && !one.title && !one.placeholder).length,
  }));
  const width = page.viewportSize().width;
  if (state.wide > 0) problems.push(`${view}: ${state.wide} pixels too wide at ${width}`);
  if (state.headings !== 1) problems.push(`${view}: ${state.headings} main headings`);
  if (state.alerts.length) problems.push(`${view}: ${state.alerts.join("; ")}`);
  if (state.unnamed) problems.push(`${view}: ${state.unnamed} controls without a name`);
  if (state.objects) problems.push(`${view}: an object is shown as text`);
  if (state.title === "owned") problems.push(`${view}: a text became a script`);
}

const shown = (view) => page.waitForSelector(`main[data-view=${view}]`);
const open = async (name) => {
  await page.getByRole("navigation").getByRole("link", { name, exact: true }).click();
  await shown(name.toLowerCase());
};

// The token becomes a cookie, and leaves the address.
const began = Date.now();
await page.goto(url);
await shown("run");
const first = Date.now() - began;
assert(!page.url().includes("token="), page.url());

// Run: the graph, the curves, and the way to a stage and to an iteration, by keyboard.
await check("run");
await page.waitForSelector(".graph g[role=button]");
await page.locator(".graph g[role=button]").first().focus();
await page.keyboard.press("Enter");
await page.getByRole("button", { name: "Close" }).waitFor();
await page.getByRole("button", { name: "Close" }).press("Enter");
await page.waitForSelector("figure svg");
const charts = await page.locator("figure svg").count();
if (charts > 0) {
  const chart = page.locator("figure", { hasText: "Success in training" }).locator("svg").first();
  if (await chart.count()) {
    await chart.focus();
    await page.keyboard.press("ArrowLeft");
    await page.keyboard.press("ArrowLeft");
    await page.keyboard.press("Enter");
    await page.getByRole("link", { name: "episodes of this iteration" }).waitFor();
  }
}
await page.getByLabel("Smoothing").fill("0.6");
await shot("run");

// A run that changes is drawn again under the hands of its reader: the header stays, and so does the focus.
const changing = await context.newPage();
await changing.route("**/api/events?*", (route) => route.fulfill({ contentType: "text/event-stream", body: "retry: 300\nevent: changed\ndata: 1\n\n" }));
await changing.goto(new URL(url).origin);
await changing.waitForSelector("figure svg");
await changing.locator(".graph g[role=button]").nth(1).focus();
await changing.evaluate(() => { globalThis.link = document.querySelector("nav a"); globalThis.box = document.activeElement; });
await changing.waitForFunction(() => !globalThis.box.isConnected);
const kept = await changing.evaluate(() => ({ link: globalThis.link.isConnected, box: document.activeElement.getAttribute("aria-label") === globalThis.box.getAttribute("aria-label") }));
assert.deepEqual(kept, { link: true, box: true });
await changing.close();

// Episodes: filter, sort, search, page, and open one by keyboard.
await open("Episodes");
await check("episodes");
const rows = () => page.locator("tbody tr").count();
const all = await rows();
assert(all > 0, "no episodes");
await page.getByLabel("Outcome").selectOption("right");
await page.waitForFunction(() => document.querySelector("main [role=status]").textContent.includes(" of "));
await page.getByRole("button", { name: "Clear" }).click();
await page.getByRole("button", { name: "Reward" }).click();
await page.waitForSelector("th[aria-sort=ascending]");
await page.getByRole("button", { name: "Reward" }).click();
await page.waitForSelector("th[aria-sort=descending]");
await page.getByLabel("Text in messages").fill("zzz nowhere zzz");
await page.getByText("nothing matches").waitFor();
await page.getByRole("button", { name: "Clear" }).click();
await page.waitForFunction(() => document.querySelectorAll("tbody tr").length > 0);
await shot("episodes");
await page.locator("h1").click();
await page.keyboard.press("j");
await page.keyboard.press("Enter");
await shown("episode");
await check("episode");
assert((await page.locator("article.message").count()) > 1);
await page.getByText("Tools that the policy was offered").click();
await page.waitForSelector("details .call");
await shot("episode");

// A label is stored, and removed again.
await page.getByRole("button", { name: "✗ wrong" }).click();
await page.getByLabel("Note").fill("<b>checked</b> by ui.mjs");
await page.getByRole("button", { name: "Save" }).click();
await page.getByText("person: wrong").first().waitFor();
await open("Judges");
await check("judges");
await page.getByText("<b>checked</b> by ui.mjs").waitFor();
await shot("judges");
await page.getByText("<b>checked</b> by ui.mjs").locator("xpath=ancestor::tr").getByRole("link").first().click();
await shown("episode");
await page.getByLabel("Note").fill("");
await page.getByRole("button", { name: "no verdict" }).click();
await page.getByRole("button", { name: "Save" }).click();
await page.getByText("saved; 0 labels").waitFor();

// Tokens.
await page.locator("h1").click();
await page.keyboard.press("t");
await shown("tokens");
await check("tokens");
await page.keyboard.press("ArrowRight");
await page.getByText("sampled with log-probability").waitFor();
await shot("tokens");

// Exam: both episodes of a scenario side by side.
await open("Exam");
await check("exam");
if (await page.getByRole("button", { name: "compare" }).count()) {
  await page.getByRole("button", { name: "compare" }).first().press("Enter");
  await page.waitForSelector(".sides article.message");
  assert.equal(await page.locator(".sides > section").count(), 2);
  await check("exam, compared");
}
await shot("exam");

// Tasks: one is dropped, one is edited, and both decisions are taken back.
await open("Tasks");
await check("tasks");
const state = (text) => page.getByRole("status").filter({ hasText: text }).first();
await page.getByRole("button", { name: "Drop" }).first().press("Enter");
await page.locator(".badge", { hasText: "dropped" }).first().waitFor();
await page.getByRole("button", { name: "Edit" }).nth(1).click();
await page.getByRole("textbox", { name: "Task" }).fill("<i>Which</i> one?");
await page.getByRole("button", { name: "Save" }).click();
await page.getByText("<i>Which</i> one?").waitFor();
await shot("tasks");
await page.reload();
await shown("tasks");
for (const decision of ["edit", "drop"]) {
  await page.getByLabel("Decision").selectOption(decision);
  await state(/^1 tasks/).waitFor();
  if (decision === "edit") await page.getByText("<i>Which</i> one?").waitFor();
  await page.getByRole("button", { name: "Undo" }).click();
  await page.getByRole("button", { name: "Undo" }).waitFor({ state: "detached" });
}
await page.getByLabel("Decision").selectOption("");
await state("dropped 0").waitFor();
await state("edited 0").waitFor();
await check("tasks, reviewed");

// All of it in the dark and on a phone.
await page.emulateMedia({ colorScheme: "dark" });
await page.setViewportSize({ width: 360, height: 740 });
for (const name of ["Run", "Episodes", "Exam", "Judges", "Tasks"]) {
  await open(name);
  await page.waitForTimeout(200);
  await check(`${name} on a phone`);
  const back = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.equal(back, "rgb(13, 17, 23)", "dark colours");
  if (name === "Run") await shot("phone");
}
await open("Episodes");
await page.locator("a.row").first().click();
await shown("episode");
await check("episode on a phone");
await page.getByRole("link", { name: "tokens", exact: true }).click();
await shown("tokens");
await check("tokens on a phone");

// What is not there is said.
await page.goto(`${new URL(url).origin}/#/no-such-run/episodes`);
await page.getByText("there is no run").waitFor();
const expected = problems.filter((problem) => problem.includes("404"));
await browser.close();
const rest = problems.filter((problem) => !expected.includes(problem));
console.log(`first view after ${first} ms, ${charts} charts, ${all} rows`);
if (rest.length) {
  console.error(rest.join("\n"));
  process.exit(1);
}
