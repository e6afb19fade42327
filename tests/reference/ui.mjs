// Opens every view of the live page in Chromium and uses it. Called by ui.sh with the page's URL.

import { createRequire } from "node:module";
import { strict as assert } from "node:assert";
import { readFileSync } from "node:fs";

const { chromium } = createRequire(`${process.env.NODE_PATH}/`)("playwright-core");
const url = process.argv[2];
const shots = process.env.SCREENSHOTS;
const axe = readFileSync(`${process.env.NODE_PATH}/axe-core/axe.min.js`, "utf8");
const problems = [];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: "light" });
const page = await context.newPage();
if (process.env.ASSETS) {
  // The page's files as they are now, without a build.
  await context.route(/\.(js|css)$/, (route) => route.fulfill({ path: process.env.ASSETS + new URL(route.request().url()).pathname }));
}
// Each answer of the server this many milliseconds later: what does not wait for one fails.
if (process.env.SLOW) await context.route("**/api/**", async (route) => { await new Promise((done) => { setTimeout(done, Number(process.env.SLOW)); }); await route.fallback(); });
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

// No rule of axe is broken.
async function accessible(view) {
  await page.evaluate(axe);
  for (const found of await page.evaluate(async () => (await globalThis.axe.run(document)).violations)) {
    problems.push(`${view}: ${found.id}: ${found.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
  }
}

const shown = (view) => page.waitForSelector(`main[data-view=${view}]`);
const open = async (name) => {
  await page.getByRole("navigation").getByRole("link", { name, exact: true }).click();
  await shown(name.toLowerCase());
};

// The token becomes a cookie, and leaves the address. The first view is there when the verdict is.
await page.addInitScript(() => {
  const look = () => {
    if (document.querySelector(".band .claim")) globalThis.first ??= performance.now();
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
});
await page.goto(url);
await shown("run");
const first = Math.round(await (await page.waitForFunction(() => globalThis.first)).jsonValue());
assert(!page.url().includes("token="), page.url());

// Run: the answer, the curves, and the way to a stage and to an iteration, by keyboard.
await check("run");
await page.waitForSelector(".band .claim");
assert((await page.locator(".next li").count()) <= 3);
await page.locator(".stages button").first().focus();
await page.keyboard.press("Enter");
await page.getByRole("button", { name: "Close" }).waitFor();
await page.getByRole("button", { name: "Close" }).press("Enter");
await page.waitForSelector("figure svg");
const charts = await page.locator("figure svg").count();
if (charts > 0) {
  const chart = page.locator("figure", { hasText: "Success in training" }).locator(".plot").first();
  if (await chart.count()) {
    await chart.focus();
    await page.keyboard.press("ArrowLeft");
    await page.keyboard.press("ArrowLeft");
    await page.keyboard.press("Enter");
    await page.getByRole("link", { name: "episodes of this iteration" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("link", { name: "episodes of this iteration" }).waitFor({ state: "detached" });
  }
}
await page.getByLabel("Smoothing").fill("0.6");
if (charts > 0) {
  await page.locator(".values summary").first().click();
  await page.locator(".values[open] tbody tr").first().waitFor();
}
await shot("run");

// A run that changes is drawn again under the hands of its reader: the header stays, and so do the focus and the values that are shown.
const changing = await context.newPage();
let changes = true;
await changing.route("**/api/events?*", (route) => {
  route.fulfill({ contentType: "text/event-stream", body: `retry: 300\n${changes ? "event: changed\ndata: 1\n" : ""}\n` });
  changes = false;
});
await changing.goto(new URL(url).origin);
await changing.waitForSelector("figure svg");
await changing.waitForSelector(".band .claim");
const values = changing.locator(".values[open] tbody tr").first();
await changing.locator(".values summary").first().click();
await values.waitFor();
await changing.waitForTimeout(500);
await changing.locator(".stages button").nth(1).focus();
await changing.evaluate(() => {
  globalThis.moved = 0;
  new PerformanceObserver((list) => { for (const entry of list.getEntries()) globalThis.moved += entry.value; }).observe({ type: "layout-shift" });
});
await changing.evaluate(() => { globalThis.link = document.querySelector("nav a"); globalThis.box = document.activeElement; });
changes = true;
await changing.waitForFunction(() => !globalThis.box.isConnected);
const kept = await changing.evaluate(() => ({ link: globalThis.link.isConnected, box: document.activeElement.textContent === globalThis.box.textContent }));
assert.deepEqual(kept, { link: true, box: true });
assert(await values.isVisible(), "values that are shown stay");
await changing.waitForTimeout(300);
assert.equal(await changing.evaluate(() => globalThis.moved), 0, "nothing moves when the run is drawn again");
await changing.close();

// SQL in a call has a line for each clause, as in the chat.
const statement = await page.evaluate(async () => {
  const { messages } = await import("/transcript.js");
  const text = JSON.stringify({ sql: "SELECT a FROM t WHERE b = 'of where x' LIMIT 12345678901234567890", short: "SELECT 1 FROM t" });
  const [article] = messages([{ role: "assistant", calls: [{ name: "q", arguments: { text, bytes: text.length } }] }]);
  return [...article.querySelectorAll("dd")].map((one) => one.textContent);
});
assert.deepEqual(statement, ["SELECT a\nFROM t\nWHERE b = 'of where x'\nLIMIT 12345678901234567890", "SELECT 1 FROM t"]);

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
// Through what the filter left, in its order, by keyboard.
await page.getByLabel("Outcome").selectOption("wrong");
await page.waitForFunction(() => document.querySelector("main [role=status]").textContent.includes(" of "));
await page.getByRole("button", { name: "Reward" }).click();
await page.waitForSelector("th[aria-sort=ascending]");
await page.locator("h1").click();
await page.keyboard.press("j");
await page.keyboard.press("Enter");
await shown("episode");
await page.getByText(/^1 of [\d,]+ that match$/).waitFor();
const title = await page.locator("h1").textContent();
await page.keyboard.press("n");
await page.getByText(/^2 of [\d,]+ that match$/).waitFor();
await page.getByText("✗ wrong").first().waitFor();
await page.keyboard.press("p");
await page.getByText(/^1 of [\d,]+ that match$/).waitFor();
assert.equal(await page.locator("h1").textContent(), title);
await check("episode");
assert((await page.locator("article.message").count()) > 1);
await page.getByText("Tools that the policy was offered").click();
await page.waitForSelector("details .call");
await shot("episode");

// A label is stored by one key, taken back by the same, and changed by another.
await page.locator("h1").click();
await page.keyboard.press("y");
await page.getByText("person: right").first().waitFor();
await page.keyboard.press("y");
await page.getByText("saved; 0 labels").waitFor();
await page.keyboard.press("w");
await page.getByText("person: wrong").first().waitFor();
await page.getByLabel("Note").fill("<b>checked</b> by ui.mjs");
const noted = page.waitForResponse((response) => response.request().postData()?.includes("by ui.mjs"));
await page.getByLabel("Note").blur();
await noted;
await page.getByText("saved; 1 labels").waitFor();
await open("Judges");
await check("judges");
await page.getByText("<b>checked</b> by ui.mjs").waitFor();
await shot("judges");
await page.getByText("<b>checked</b> by ui.mjs").locator("xpath=ancestor::tr").getByRole("link").first().click();
await shown("episode");
await page.getByLabel("Note").fill("");
await page.locator("h1").click();
await page.keyboard.press("u");
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
  await state(/^1 task /).waitFor();
  if (decision === "edit") await page.getByText("<i>Which</i> one?").waitFor();
  await page.getByRole("button", { name: "Undo" }).click();
  await page.getByRole("button", { name: "Undo" }).waitFor({ state: "detached" });
}
await page.getByLabel("Decision").selectOption("");
await state("dropped 0").waitFor();
await state("edited 0").waitFor();
await check("tasks, reviewed");

// Runs: sorted, filtered, and one opened.
await page.getByRole("link", { name: "all runs" }).click();
await shown("runs");
await check("runs");
const runs = await page.locator(".runs tbody tr").count();
if (process.env.SEEDS) {
  await page.locator(".sweep tbody tr").first().waitFor();
  assert.equal(await page.locator(".sweep tbody tr").count(), 1, "two seeds are summed up");
}
await page.getByRole("button", { name: "Success on held-out tasks" }).click();
await page.waitForSelector("th[aria-sort=descending]");
await page.getByLabel("Search").fill("zzz nowhere zzz");
await page.getByText("0 runs").waitFor();
await page.getByLabel("Search").fill("");
await page.waitForFunction((count) => document.querySelectorAll(".runs tbody tr").length === count, runs);
await shot("runs");
await page.goBack();
await shown("tasks");

// No text is smaller than 11 pixels, and no rule of axe is broken, in light and dark colours.
for (const [width, colorScheme] of [[390, "dark"], [1440, "light"], [1440, "dark"]]) {
  await page.setViewportSize({ width, height: 900 });
  await page.emulateMedia({ colorScheme });
  for (const name of ["Run", "Episodes", "Episode", "Tokens", "Exam", "Judges", "Tasks", "Runs"]) {
    if (name === "Runs") {
      await page.getByRole("link", { name: "all runs" }).click();
      await shown("runs");
    } else if (name === "Episode") {
      await page.locator("a.row").first().click();
      await shown("episode");
    } else if (name === "Tokens") {
      await page.keyboard.press("t");
      await shown("tokens");
    } else await open(name);
    await page.waitForTimeout(300);
    await accessible(`${name} at ${width}, ${colorScheme}`);
    const small = await page.evaluate(() => [...document.querySelectorAll("main *")].filter((one) => {
      const scale = one instanceof SVGElement && one.ownerSVGElement ? one.ownerSVGElement.getScreenCTM().a : 1;
      return [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) && one.getClientRects().length > 0 && scale * parseFloat(getComputedStyle(one).fontSize) < 10.99;
    }).map((one) => one.textContent.slice(0, 40)));
    if (small.length) problems.push(`${name} at ${width}: small type: ${small.slice(0, 5).join(" | ")}`);
    if (name === "Runs") {
      await page.goBack();
      await shown("tasks");
    }
  }
}

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
await page.getByRole("link", { name: /^tokens/ }).click();
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
