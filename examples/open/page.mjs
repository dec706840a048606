// A flame graph in headless Chromium: clicks a frame, searches, resets the zoom, and switches to dark.
// usage: node page.mjs CHROMIUM FILE FUNCTION
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import puppeteer from "puppeteer-core";

const [chromium, file, name] = process.argv.slice(2);
const browser = await puppeteer.launch({ executablePath: chromium, args: ["--no-sandbox"] });
try {
    const page = await browser.newPage();
    const failures = [];
    page.on("pageerror", (error) => failures.push(error));
    page.on("dialog", (dialog) => dialog.accept(name));
    await page.goto(pathToFileURL(file).href);

    const frames = () =>
        page.evaluate(() =>
            [...document.querySelectorAll("#frames > *")].map((group) => {
                const rectangle = group.querySelector("rect");
                return {
                    title: group.querySelector("title").textContent,
                    width: rectangle.getBoundingClientRect().width,
                    fill: getComputedStyle(rectangle).fill,
                    hidden: group.classList.contains("hide"),
                };
            }),
        );
    const text = (id) => page.evaluate((id) => document.getElementById(id).textContent, id);
    const is_shown = (id) =>
        page.evaluate((id) => !document.getElementById(id).classList.contains("hide"), id);
    const click = (selector) =>
        page.evaluate((selector) => {
            const at = document.querySelector(selector);
            at.dispatchEvent(new MouseEvent("click", { bubbles: true }));
        }, selector);
    const widest = (all) => Math.max(...all.map((frame) => frame.width));

    const before = await frames();
    const number = before.findIndex((frame) => frame.title.startsWith(`${name} (`) || frame.title.includes(`::${name} (`));
    assert.ok(number >= 0, `no ${name} among ${before.length} frames`);
    assert.ok(before[number].width < widest(before), "the frame has not all samples");

    await click(`#frames > :nth-child(${number + 1})`);
    const zoomed = await frames();
    assert.ok(zoomed[number].width >= 0.98 * widest(before), "the clicked frame is as wide as the graph");
    assert.ok(zoomed.filter((frame) => frame.hidden).length > 0, "others are hidden");
    assert.ok(await is_shown("unzoom"));
    await click("#unzoom");
    const after = await frames();
    assert.ok(Math.abs(after[number].width - before[number].width) < 1, "the zoom is reset");
    assert.ok(!(await is_shown("unzoom")));

    await click("#search");
    const marked = await frames();
    assert.match(await text("matched"), /^Matched: [0-9.]+%/);
    assert.notEqual(marked[number].fill, before[number].fill, "what is found has another color");
    await click("#search");
    assert.equal((await frames())[number].fill, before[number].fill, "the search is reset");

    const colors = () =>
        page.evaluate(() => ({
            page: getComputedStyle(document.querySelector("svg > rect")).fill,
            title: getComputedStyle(document.getElementById("title")).fill,
            subtitle: getComputedStyle(document.getElementById("subtitle")).fill,
        }));
    const brightness = (color) => (color.match(/\d+/g) ?? [255]).slice(0, 3).reduce((sum, part) => sum + Number(part), 0);
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "dark" }]);
    const dark = await colors();
    assert.ok(brightness(dark.page) < 150 && brightness(dark.title) > 500 && brightness(dark.subtitle) > 500, JSON.stringify(dark));
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "light" }]);
    assert.ok(brightness((await colors()).title) < 150);
    assert.deepEqual(failures, []);
    console.log(`the page: ${before.length} frames; clicked, zoomed, searched, and dark`);
} finally {
    await browser.close();
}
