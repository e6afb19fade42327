// Takes the pictures of the live page. Called by images.sh with the page's URL, the option that commands need to find its cache,
// and the runs.

import { createRequire } from "node:module";
import { writeFileSync } from "node:fs";
import { crc32, deflateSync, inflateSync } from "node:zlib";

const { chromium } = createRequire(`${process.env.NODE_PATH}/`)("playwright-core");
const [url, option, ...named] = process.argv.slice(2);
const runs = Object.fromEntries(named.map((one) => one.split("=")));
const views = {
  running: [runs.running, "run"], run: [runs.gain, "run"], "no-gain": [runs.none, "run"], interrupted: [runs.stopped, "run"], base: [runs.base, "run"],
  runs: ["runs"], episode: [runs.gain, "episodes?stage=train%2Frollout&outcome=wrong&sort=errors&order=descending"], tokens: [runs.gain, "episodes?stage=train%2Frollout&outcome=right&sort=calls"],
  exam: [runs.gain, "exam"], tasks: [runs.gain, "tasks"],
};
// A screenshot with the 256 colours that most of it has; what has another gets the nearest. A third of its size.
function small(png) {
  const chunks = [];
  for (let at = 8; at < png.length; at += 12 + png.readUInt32BE(at)) chunks.push({ name: png.toString("latin1", at + 4, at + 8), data: png.subarray(at + 8, at + 8 + png.readUInt32BE(at)) });
  const head = chunks[0].data;
  const [width, height, bytes] = [head.readUInt32BE(0), head.readUInt32BE(4), head[9] === 6 ? 4 : 3];
  const raw = inflateSync(Buffer.concat(chunks.filter(({ name }) => name === "IDAT").map(({ data }) => data)));
  const [row, line] = [width * bytes, width * bytes + 1];
  const pixels = Buffer.alloc(row * height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < row; x++) {
      const left = x < bytes ? 0 : pixels[y * row + x - bytes], up = y ? pixels[(y - 1) * row + x] : 0, corner = y && x >= bytes ? pixels[(y - 1) * row + x - bytes] : 0;
      const [a, b, c] = [up - corner, left - corner, left + up - 2 * corner].map(Math.abs);
      const predicted = [0, left, up, (left + up) >> 1, a <= b && a <= c ? left : b <= c ? up : corner][raw[y * line]];
      pixels[y * row + x] = raw[y * line + 1 + x] + predicted;
    }
  }
  const counts = new Map();
  const color = (at) => pixels.readUIntBE(at, 3);
  for (let at = 0; at < pixels.length; at += bytes) counts.set(color(at), (counts.get(color(at)) || 0) + 1);
  const palette = [...counts].sort(([, a], [, b]) => b - a).slice(0, 256).map(([found]) => found);
  const parts = (found) => [found >> 16, (found >> 8) & 255, found & 255];
  const distance = (one, other) => parts(one).reduce((sum, part, index) => sum + (part - parts(other)[index]) ** 2, 0);
  const index = new Map([...counts.keys()].map((found) => [found, palette.reduce((best, one, at) => (distance(one, found) < distance(palette[best], found) ? at : best), 0)]));
  const indexed = Buffer.alloc((width + 1) * height);
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) indexed[y * (width + 1) + 1 + x] = index.get(color(y * row + x * bytes));
  const chunk = (name, data) => {
    const named = Buffer.concat([Buffer.from(name, "latin1"), data]);
    const [size, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
    size.writeUInt32BE(data.length);
    sum.writeUInt32BE(crc32(named));
    return Buffer.concat([size, named, sum]);
  };
  const header = Buffer.from(head);
  header[9] = 3;
  return Buffer.concat([png.subarray(0, 8), chunk("IHDR", header), chunk("PLTE", Buffer.from(palette.flatMap(parts))), chunk("IDAT", deflateSync(indexed, { level: 9 })), chunk("IEND", Buffer.alloc(0))]);
}

// What the first screen of each run says.
const sentences = { running: /not known yet/, run: /beats base/, "no-gain": /no measurable gain/, interrupted: /stopped before an exam/, base: /alone, nothing to compare/, runs: /learning_rate: \d values/ };

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
for (const width of [1440, 390]) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme: "light" });
  // As if the cache were where commands look for it.
  await context.route(/api\/answer/, async (route) => {
    const found = await route.fetch();
    await route.fulfill({ body: (await found.text()).replaceAll(option, ""), contentType: "application/json" });
  });
  const page = await context.newPage();
  await page.goto(url);
  for (const [name, [...parts]] of Object.entries(views)) {
    await page.goto(`${new URL(url).origin}/#/${parts.join("/")}`);
    await page.waitForSelector(`main[data-view=${parts.at(-1).split("?")[0]}]`);
    if (name === "episode" || name === "tokens") {
      await page.locator("a.row").first().click();
      await page.waitForSelector("main[data-view=episode]");
    }
    if (name === "tokens") {
      await page.keyboard.press("t");
      await page.waitForSelector("main[data-view=tokens]");
    }
    // The plan of a run is made when it is first asked for.
    if (name === "running" && width === 1440) await page.getByText(/iteration \d+ of \d+/).first().waitFor();
    if (sentences[name]) await page.getByText(sentences[name]).first().waitFor();
    if (!process.env.OUT) continue;
    await page.waitForTimeout(1200);
    writeFileSync(`${process.env.OUT}/ui-${name}${width === 390 ? "-390" : ""}.png`, small(await page.screenshot()));
  }
  await context.close();
}
await browser.close();
