// Asks what `mcprl serve` serves, in Chromium: `chat_page.mjs URL PID KEYED_URL KEYED_PID`. Called by serve.sh with a server and its
// process, and with one that needs the key "s3cret" and denies all calls. Both end here.

import { createRequire } from "node:module";
import { existsSync, readFileSync } from "node:fs";
import { strict as assert } from "node:assert";

const require = createRequire(`${process.env.NODE_PATH}/`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [url, pid, keyed, keyedPid] = process.argv.slice(2);
const shots = process.env.SCREENSHOTS;
const problems = [];
let expected = [];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });

async function opened(address, colorScheme = "light") {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme });
  if (process.env.ASSETS) {
    // The page's files as they are now, without a build.
    const own = (path) => `src/serve/page${path === "/" ? "/index.html" : path}`;
    const file = (path) => (existsSync(own(path)) ? own(path) : `src/web/page${path}`);
    await context.route(/\/$|\.(js|css)$/, async (route) => route.fulfill({ response: await route.fetch(), body: readFileSync(file(new URL(route.request().url()).pathname)) }));
  }
  // Each answer this many milliseconds later: what does not wait for one fails.
  if (process.env.SLOW) await context.route(/\/(about|check|kept|v1)\b/, async (route) => { await new Promise((done) => { setTimeout(done, Number(process.env.SLOW)); }); await route.fallback(); });
  const page = await context.newPage();
  page.setDefaultTimeout(60000);
  page.on("console", (message) => { if (["error", "warning"].includes(message.type()) && !expected.some((text) => message.text().includes(text))) problems.push(`console: ${message.text()}`); });
  page.on("pageerror", (error) => problems.push(`error: ${error}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(address)) problems.push(`foreign request: ${request.url()}`);
    if (request.url().includes("s3cret")) problems.push(`a key in a URL: ${request.url()}`);
  });
  await page.addInitScript(() => {
    globalThis.shift = 0;
    new PerformanceObserver((list) => list.getEntries().forEach((entry) => { if (!entry.hadRecentInput) globalThis.shift += entry.value; })).observe({ type: "layout-shift" });
  });
  await page.goto(address);
  return page;
}

// No violation that axe finds, nothing too wide, and no text that is too small.
async function check(page, view) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  for (const { id, nodes } of violations) problems.push(`${view}: ${id}: ${nodes.map((node) => node.html).join(" | ")}`);
  const [wide, small] = await page.evaluate(() => [
    document.documentElement.scrollWidth - document.documentElement.clientWidth,
    [...document.querySelectorAll("body *")].filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) && one.getClientRects().length > 0 && parseFloat(getComputedStyle(one).fontSize) < 11).map((one) => one.textContent.slice(0, 40)),
  ]);
  if (wide > 0) problems.push(`${view}: ${wide} pixels too wide`);
  if (small.length) problems.push(`${view}: small type: ${small.join(" | ")}`);
  if (shots) await page.screenshot({ path: `${shots}/${view.replaceAll(/\W+/g, "-")}.png` });
}

const ready = (page) => page.waitForFunction(() => !document.querySelector("#send").hidden);
const tasks = (page) => page.locator("#talk > article");
const box = (page) => page.getByLabel("Question");

const page = await opened(url);

// At first look: who answers, how well, with which tools, and what to try.
await page.locator("h1", { hasText: /^trained solved [\d.]+ % of \d+ held-out tasks; base solved [\d.]+ %$/ }).waitFor();
await page.getByText("95 % intervals").waitFor();
await page.getByText(/^\d+ tools: .*run_query/).waitFor();
assert.equal(await page.locator(".chip").count(), 5);
assert.deepEqual(await page.locator("#model optgroup").evaluateAll((groups) => groups.map((group) => [...group.children].map((option) => option.textContent))), [["trained", "base"], ["trained, without tools", "base, without tools"]]);
await check(page, "first look");

// A click asks a held-out task; its expected answer follows. Nothing moves while the answer comes.
await page.evaluate(() => { globalThis.shift = 0; });
process.kill(pid, "SIGSTOP");
await page.locator(".chip").first().click();
await page.getByText("answering…").waitFor();
// Longer than the browser excuses what follows a click.
await page.waitForTimeout(700);
process.kill(pid, "SIGCONT");
await tasks(page).locator(".expected", { hasText: /(right|wrong).*expected: / }).waitFor();
await ready(page);
assert.equal(await page.evaluate(() => globalThis.shift), 0);
await tasks(page).locator("details.call").first().waitFor();

// A call is a line; its arguments stand there once, readable.
const call = tasks(page).locator("details.call").first();
const line = await call.locator("summary").innerText();
assert.match(line, /run_query/);
assert(!line.includes('{"sql"'), line);
await call.locator("summary").click();
await call.locator("pre").waitFor();
assert.equal((await call.innerText()).match(/SELECT/g).length, 1);
await check(page, "answered");
const drawn = await page.evaluate(async () => {
  const { call } = await import("/answer.js");
  return call({ tool: "q", arguments: { sql: "SELECT a FROM t WHERE b = 'of where x'", of: { n: [1] } }, result: "", error: null }).querySelector(".given").textContent;
});
assert.equal(drawn, "sql: SELECT a\nFROM t\nWHERE b = 'of where x', of: {\n  \"n\": [\n    1\n  ]\n}");

// Statements that are read at a glance, prose, and what is quoted stay as they are; so do rates between two tenths, which other pages show.
const laid = await page.evaluate(async () => {
  const [{ byClauses }, { percent, points }] = await Promise.all([import("/json.js"), import("/dom.js")]);
  const texts = ["SELECT COUNT(*) FROM t", `SELECT ${"a, ".repeat(30)}b FROM t`, "Create a note of where it comes from, ordered by date, with values from the list", "DELETE FROM t WHERE a = 1 AND b = 2 LIMIT 1 -- from where", "UPDATE t SET a = ' where ' WHERE b = 12345678901234567890", "SELECT a FROM t LEFT OUTER JOIN u USING (a)", "Select one from the menu, then limit it to three and join us from the left.", "SELECT [a  from] FROM t WHERE b = 'c  from d"];
  return [texts.map(byClauses), [51 / 80, 9 / 16, (0.85 + 0.925) / 2, 0].map((share) => percent(share)), [-1 / 16, 51 / 80, -0.0001].map((gain) => points(gain))];
});
assert.deepEqual(laid, [["SELECT COUNT(*) FROM t", `SELECT ${"a, ".repeat(30)}b\nFROM t`, "Create a note of where it comes from, ordered by date, with values from the list", "DELETE FROM t\nWHERE a = 1 AND b = 2\nLIMIT 1 -- from where", "UPDATE t\nSET a = ' where '\nWHERE b = 12345678901234567890", "SELECT a\nFROM t\nLEFT OUTER JOIN u USING (a)", "Select one from the menu, then limit it to three and join us from the left.", "SELECT [a  from]\nFROM t\nWHERE b = 'c  from d"], ["63.8 %", "56.3 %", "88.8 %", "0.0 %"], ["-6.3", "+63.8", "0.0"]]);

// Enter asks, and Shift with Enter breaks the line. Each question is a task of its own.
const asked = [];
page.on("request", (request) => { if (request.url().endsWith("/v1/chat/completions")) asked.push(request.postDataJSON()); });
await box(page).fill("How many employees are there");
await box(page).press("Shift+Enter");
await box(page).pressSequentially("in the Sales department?");
assert.equal(asked.length, 0);
await box(page).press("Enter");
await ready(page);
assert.deepEqual(asked[0].messages, [{ role: "user", content: "How many employees are there\nin the Sales department?" }]);
assert.equal(asked[0].model, "agent");
assert.equal(await box(page).inputValue(), "");
assert.equal(await tasks(page).count(), 2, "the earlier task stays");

// Unless the conversation is continued.
await page.getByLabel("continue this conversation").check();
await box(page).fill("And in Support?");
await box(page).press("Enter");
await ready(page);
assert.deepEqual(asked[1].messages.map((message) => message.role), ["user", "assistant", "user"]);
await page.getByLabel("continue this conversation").uncheck();

// The base answers beside it.
await tasks(page).first().getByRole("button", { name: "Compare with base" }).click();
await ready(page);
assert.equal(asked[2].model, "agent:base");
assert.equal(asked[2].messages.length, 1);
const sides = tasks(page).first().locator(".side");
assert.equal(await sides.count(), 2);
assert.equal(await tasks(page).first().locator(".expected").count(), 2);
const places = () => sides.evaluateAll((all) => all.map((one) => one.getBoundingClientRect()).map(({ x, y }) => ({ x, y })));
const [left, right] = await places();
assert(left.y === right.y && left.x < right.x, "side by side");
await tasks(page).first().scrollIntoViewIfNeeded();
await check(page, "compared");
await page.setViewportSize({ width: 390, height: 844 });
const [above, below] = await places();
assert(above.x === below.x && above.y < below.y, "stacked");
await check(page, "compared on a phone");
await page.setViewportSize({ width: 1440, height: 900 });

// A model without tools, and text that looks like markup.
await page.getByLabel("Model").selectOption({ index: 2 });
await box(page).fill("<img src=x onerror=\"document.title='owned'\">");
await page.getByRole("button", { name: "Send" }).click();
await ready(page);
assert.equal(asked[3].model, "trained");
assert.equal(await tasks(page).last().locator("h2").innerText(), "<img src=x onerror=\"document.title='owned'\">");
assert.equal(await page.locator("#talk img").count(), 0);
assert.notEqual(await page.title(), "owned");

// Kept conversations, folded, by keyboard.
await page.getByRole("button", { name: "Kept conversations" }).press("Enter");
const one = page.locator("#kept details.one", { hasText: "in the Sales department" }).first();
await one.locator("summary").first().click();
await one.locator("details.call").first().waitFor();
await check(page, "kept");
await page.keyboard.press("Escape");
assert(await page.locator("#kept").isHidden());

// An answer is stopped, and the question is there again.
await page.getByLabel("Model").selectOption({ index: 0 });
process.kill(pid, "SIGSTOP");
await box(page).fill("Stop this.");
await box(page).press("Enter");
// A double click on Send does not stop.
await page.getByRole("button", { name: "Stop" }).click();
await page.waitForTimeout(600);
await page.getByRole("button", { name: "Stop" }).click();
await tasks(page).last().getByText("stopped after").waitFor();
assert.equal(await box(page).inputValue(), "Stop this.");
process.kill(pid, "SIGCONT");

// On a phone, in the dark, and on a wide screen.
await page.setViewportSize({ width: 390, height: 844 });
await page.emulateMedia({ colorScheme: "dark" });
await check(page, "dark on a phone");
assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), "rgb(13, 17, 23)");
await page.setViewportSize({ width: 1920, height: 1080 });
await check(page, "dark and wide");
const dark = await opened(url, "dark");
await dark.locator("h1").waitFor();
await check(dark, "first look in the dark");
await dark.setViewportSize({ width: 390, height: 844 });
await check(dark, "first look on a phone");
await dark.close();

// Names of 200 letters fit; an answer that cannot be compared says why, beside what was expected.
const named = await opened(url);
await named.route("**/about", async (route) => {
  const response = await route.fetch();
  const about = await response.json();
  for (const model of about.models) model.policy = model.policy[0].repeat(200);
  await route.fulfill({ response, json: about });
});
await named.reload();
await named.locator(".chip").first().waitFor();
for (const width of [390, 600, 1440]) {
  await named.setViewportSize({ width, height: 844 });
  await check(named, `long names at ${width}`);
}
await named.setViewportSize({ width: 390, height: 844 });
const compared = async (answer) => {
  await named.unroute("**/check");
  await named.route("**/check", (route) => route.fulfill(answer));
  await named.locator("#chips > summary").click();
  await named.locator(".chip").first().click();
  await named.locator("#talk > article").last().locator(".expected", { hasText: "expected: " }).waitFor();
  await ready(named);
  return named.locator("#talk > article").last().innerText();
};
await named.locator("#chips > summary").click();
assert.match(await compared({ json: { is_right: null } }), /the answer alone does not decide/);
await check(named, "long names, answered");
expected = ["400"];
assert.match(await compared({ status: 400, json: { error: { message: "`task` is gone" } } }), /not compared[^]*The answer was not compared: `task` is gone/);
await named.close();

// The server goes while it answers: an error with a way out, and the question stays for another try.
expected = ["ERR_"];
process.kill(pid, "SIGSTOP");
await box(page).press("Enter");
await page.getByText("answering…").waitFor();
process.kill(pid, "SIGKILL");
await tasks(page).last().locator(".problem", { hasText: "send the question again" }).waitFor();
assert.equal(await box(page).inputValue(), "Stop this.");
const before = await tasks(page).count();
await box(page).press("Enter");
await tasks(page).last().locator(".problem").waitFor();
assert.equal(await tasks(page).count(), before, "a question without an answer gives way to the next");
await check(page, "the server has gone");

// A server with a key asks for it. Calls that it denies are failures that can be read.
expected = ["401"];
const locked = await opened(keyed);
await locked.getByRole("heading", { name: "This server needs its key" }).waitFor();
await locked.getByLabel("Key").fill("wrong");
await locked.getByLabel("Key").press("Enter");
await locked.getByText("This is not its key").waitFor();
await check(locked, "a key is needed");
await locked.getByLabel("Key").fill("s3cret");
await locked.getByRole("button", { name: "Use it" }).click();
await locked.locator(".chip").first().click();
await ready(locked);
const failed = locked.locator("details.call.failed").first();
await failed.getByText("failed: refused").waitFor();
assert((await failed.locator(".first").innerText()).length > 5, "its message is visible");
await check(locked, "a failed call");
process.kill(keyedPid);

await browser.close();
assert.deepEqual(problems, []);
console.log("the page of mcprl serve: asks, compares, continues, stops, shows failures and what is kept");
