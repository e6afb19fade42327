// Reviews recorded conversations on the page in Chromium. Called by ui.sh with the page's URL.

import { createRequire } from "node:module";
import { strict as assert } from "node:assert";
import { readFileSync } from "node:fs";

const { chromium } = createRequire(`${process.env.NODE_PATH}/`)("playwright-core");
const [url, out] = process.argv.slice(2);
const problems = [];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
const page = await context.newPage();
if (process.env.ASSETS) await context.route(/\.(js|css)$/, (route) => route.fulfill({ path: process.env.ASSETS + new URL(route.request().url()).pathname }));
if (process.env.SLOW) await context.route("**/api/**", async (route) => { await new Promise((done) => { setTimeout(done, Number(process.env.SLOW)); }); await route.fallback(); });
page.setDefaultTimeout(60000);
page.on("console", (message) => { if (["error", "warning"].includes(message.type())) problems.push(`console: ${message.text()}`); });
page.on("pageerror", (error) => problems.push(`error: ${error}`));
const shown = (view) => page.waitForSelector(`main[data-view=${view}] h1`);
const fits = async (where) => {
  const state = await page.evaluate(() => ({
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    headings: document.querySelectorAll("h1").length,
    objects: /\[object |undefined|NaN/.test(document.querySelector("main").innerText),
    title: document.title,
  }));
  assert.deepEqual(state, { wide: 0, headings: 1, objects: false, title: "Conversations – mcprl" }, where);
};
const lines = () => readFileSync(out, "utf8").trim().split("\n").map((line) => JSON.parse(line));

await page.goto(url);
await shown("traces");
await fits("the list");
await page.getByRole("status").filter({ hasText: "4 conversations · open 3" }).waitFor();
await page.locator(".badge", { hasText: "unusable" }).waitFor();
if (process.env.SCREENSHOTS) await page.screenshot({ path: `${process.env.SCREENSHOTS}/traces.png` });

// By keyboard: the first is dropped, and the next open one comes.
await page.locator("a.row").first().focus();
await page.keyboard.press("Enter");
await shown("trace");
await fits("a conversation");
await page.locator("h1").click();
await page.keyboard.press("d");
await page.getByText("<b>second</b>").first().waitFor();
assert.deepEqual(lines().map((line) => line.decision), ["drop"]);

// The second is edited: its task and its answer.
await page.getByRole("button", { name: "Edit" }).click();
await page.getByLabel("Text of message 1, user").fill("second, <i>edited</i>");
await page.getByLabel("Text of message 4, assistant").fill("9");
if (process.env.SCREENSHOTS) await page.screenshot({ path: `${process.env.SCREENSHOTS}/trace.png` });
await page.getByRole("button", { name: "Save" }).click();
await page.getByText("third").first().waitFor();
const edited = lines()[1];
assert.deepEqual([edited.decision, edited.messages[0].content, edited.messages[3].content], ["edit", "second, <i>edited</i>", "9"]);
await page.getByRole("button", { name: "Accept" }).click();
await shown("traces");
await page.getByRole("status").filter({ hasText: "open 0 · accepted 1 · edited 1 · dropped 1 · unusable 1" }).waitFor();

// A decision is taken back, on a phone and in the dark.
await page.emulateMedia({ colorScheme: "dark" });
await page.setViewportSize({ width: 360, height: 740 });
await page.getByLabel("Decision").selectOption("drop");
await page.getByRole("status").filter({ hasText: /^1 conversations/ }).waitFor();
await fits("the list on a phone");
await page.locator("a.row").first().click();
await shown("trace");
await fits("a conversation on a phone");
await page.getByRole("button", { name: "Undo" }).click();
await page.getByRole("button", { name: "Undo" }).waitFor({ state: "detached" });
assert.deepEqual(lines().map((line) => line.decision), ["edit", "accept"]);
assert.deepEqual(problems, []);
await browser.close();
console.log("reviewed three conversations");
