// Chats with a served agent in Chromium. Called by serve.sh with the server's URL.

import { createRequire } from "node:module";
import { strict as assert } from "node:assert";

const { chromium } = createRequire(`${process.env.NODE_PATH}/`)("playwright-core");
const url = process.argv[2];
const problems = [];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 360, height: 780 } });
page.setDefaultTimeout(60000);
page.on("console", (message) => { if (["error", "warning"].includes(message.type())) problems.push(`console: ${message.text()}`); });
page.on("pageerror", (error) => problems.push(`error: ${error}`));
page.on("request", (request) => { if (!request.url().startsWith(url)) problems.push(`foreign request: ${request.url()}`); });

await page.goto(url);
await page.waitForFunction(() => document.querySelector("#model").value === "agent");
const answers = page.locator("#talk .message.assistant");

// The agent, with its calls.
await page.getByLabel("Message").fill("How many employees are there in the Sales department?");
await page.getByLabel("Message").press("Control+Enter");
await page.waitForFunction(() => !document.querySelector("#send").disabled && document.querySelectorAll("#talk summary").length > 0);
await answers.first().locator("summary").first().click();
assert.match(await answers.first().locator("pre").first().innerText(), /^\{/);

// Kept conversations come by themselves.
await page.waitForSelector("#conversations details");
await page.locator("#conversations details").first().locator("summary").click();
assert.match(await page.locator("#conversations").innerText(), /Sales department/);

// A policy, and text that looks like markup.
await page.getByRole("button", { name: "New conversation" }).click();
assert.equal(await answers.count(), 0);
await page.getByLabel("Model").selectOption({ index: 0 });
await page.getByLabel("Message").fill("<img src=x onerror=\"document.title='owned'\">");
await page.getByRole("button", { name: "Send" }).click();
await page.waitForFunction(() => !document.querySelector("#send").disabled);
assert.equal(await page.locator("#talk .message.user").innerText(), "<img src=x onerror=\"document.title='owned'\">");
assert.equal(await page.locator("#talk img").count(), 0);
assert.notEqual(await page.title(), "owned");

const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
if (wide > 0) problems.push(`${wide} pixels too wide at 360`);
assert.deepEqual(problems, []);
await browser.close();
console.log("the page of mcprl serve: chats with the agent and a policy, and shows what is kept");
