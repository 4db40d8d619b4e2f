// Looks at pages in a real browser: node look.mjs JOB.json > SEEN.json
//
// A job is {modules, browser, out, pages: [{name, file}], widths, themes}. For each page, width and theme: what the console
// said, what axe finds of accessibility, whether the page is wider than the window, when it was there, and a screenshot.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const job = JSON.parse(readFileSync(process.argv[2], "utf8"));
const require = createRequire(join(job.modules, "package.json"));
const puppeteer = (await import(pathToFileURL(require.resolve("puppeteer-core")).href)).default;
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const browser = await puppeteer.launch({
  executablePath: job.browser, headless: true, protocolTimeout: 240_000, timeout: 120_000,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
});
const seen = [];
for (const { name, file } of job.pages) {
  for (const theme of job.themes) {
    for (const width of job.widths) {
      const page = await browser.newPage();
      page.setDefaultTimeout(240_000);
      const said = [], asked = [];
      page.on("console", (message) => said.push(`${message.type()}: ${message.text()}`));
      page.on("pageerror", (error) => said.push(`error: ${error.message}`));
      page.on("request", (request) => asked.push(request.url()));
      await page.setViewport({ width, height: 900 });
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
      await page.setBypassCSP(true); // axe is put into the page; what the policy forbids is tested apart
      await page.goto(pathToFileURL(file).href, { waitUntil: "load" });
      const times = await page.evaluate(async () => {
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        const { loadEventEnd } = performance.getEntriesByType("navigation")[0];
        return { load: loadEventEnd, shown: performance.now() };
      });
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      await page.screenshot({ path: join(job.out, `${name}-${theme}-${width}.png`), fullPage: !job.short });
      let violations = [];
      if (!job.quick) {
        await page.evaluate(axe);
        const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
        violations = found.violations.map(({ id, help, nodes }) => ({
          id, help, count: nodes.length, first: nodes[0].html.slice(0, 300), why: nodes[0].failureSummary,
        }));
      }
      seen.push({ name, theme, width, times, wide, said, asked, violations });
      await page.close();
    }
  }
}
await browser.close();
process.stdout.write(JSON.stringify(seen, null, 1));
