// Opens exported logs in Inspect's viewer. Called by inspect.sh with the viewer's URL; the folder has the hostile logs too.

import { createRequire } from "node:module";
import { strict as assert } from "node:assert";

const { chromium } = createRequire(`${process.env.NODE_PATH}/`)("playwright-core");
const url = process.argv[2];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1400, height: 1400 } });
page.setDefaultTimeout(60000);
const problems = [];
page.on("pageerror", (error) => problems.push(`error: ${error}`));
page.on("request", (request) => { if (!request.url().startsWith(url)) problems.push(`foreign request: ${request.url()}`); });
const text = () => page.locator("body").innerText();
const shows = (wanted, timeout) => page.waitForFunction((wanted) => document.body.innerText.includes(wanted), wanted, { timeout });

await page.goto(url);
await shows("mcprl/trained");
assert((await text()).includes("sqlite/exam"), "the exam is listed");

// The hostile log: a sample's conversation, shown as text.
await page.goto(`${url}/#/logs/base.eval`);
// On a slow machine the list goes on drawing itself again, and its rows never stand still for a pointer.
for (let tries = 0; ; tries += 1) {
  await page.getByText("a-000003").first().dispatchEvent("click");
  try {
    await shows("needle", 10000);
    break;
  } catch (error) {
    if (tries == 5) throw error;
  }
}
const shown = await text();
for (const part of ["What is number 3?", "run_query", "complete_task", "<script>document.title='owned'</script>", "⟨U+202E⟩"]) {
  assert(shown.includes(part), `the transcript shows ${part}`);
}
await page.getByRole("tab", { name: "Messages" }).first().click();
await shows("Answer with the tools.");
await page.getByRole("tab", { name: "Scoring" }).first().click();
await shows("correct");
assert.notEqual(await page.title(), "owned", "no text becomes a script");
assert.deepEqual(problems, []);
await browser.close();
console.log("the viewer shows the logs and a sample's conversation");
