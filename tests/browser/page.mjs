// The page of the seckill example and its console, pressed by a headless Chromium.

import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { chromium } from 'playwright-core';

import { consoleTests } from './console.mjs';
import { Servers } from './servers.mjs';

const PRESSES = 10;
const WAIT_MS = 15_000;
const CHROMIUM_ARGS = [
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
  '--disable-background-networking', '--disable-component-update', '--disable-sync',
];

const { values: options } = parseArgs({
  options: {
    seckill: { type: 'string' },
    'test-redis': { type: 'string' },
    chromium: { type: 'string', default: '/usr/bin/chromium' },
    screenshots: { type: 'string' },
    only: { type: 'string', default: '' },
  },
});

let servers;
let page;
let complaints = [];
let requested = [];

const text = (id) => page.locator(`#${id}`).innerText();
const number = async (id) => Number(await text(id));
/** Waits until the page shows it; it is live, so nothing has to be reloaded. */
const shows = (id, expected) =>
  page.waitForFunction(
    ([id, expected]) => document.getElementById(id).innerText === String(expected),
    [id, expected],
    { timeout: WAIT_MS },
  );
const answers = () =>
  page.locator('#answers li').evaluateAll((items) => items.map(({ dataset }) => ({ ...dataset })));
const outcomes = async () => {
  const count = {};
  for (const { outcome } of await answers()) count[outcome] = (count[outcome] ?? 0) + 1;
  return count;
};

function begin() {
  complaints = [];
  requested = [];
}

async function open({ width = 1100, height = 800, scheme = 'light' } = {}) {
  begin();
  await page.setViewportSize({ width, height });
  await page.emulateMedia({ colorScheme: scheme });
  await page.goto(`${servers.origins[0]}/`);
  await page.waitForSelector('body[data-ready]', { timeout: WAIT_MS });
}

async function choose(mode, user) {
  await page.locator(`.modes label:has([value=${mode}])`).click();
  await page.fill('#user', String(user));
  await page.dispatchEvent('#user', 'change');
  await page.click('#start-over');
  await shows('orders', 0);
  await shows('which-user', user);
}

async function pressTen() {
  await page.click('#ten');
  await page.waitForFunction(
    (presses) => document.querySelectorAll('#answers li').length === presses, PRESSES,
    { timeout: WAIT_MS },
  );
  await page.waitForSelector('#ten:enabled');
}

async function picture(name) {
  if (!options.screenshots) return;
  await mkdir(options.screenshots, { recursive: true });
  await page.screenshot({ path: join(options.screenshots, `${name}.png`), fullPage: true });
}

const tests = {
  async 'the page comes from one origin and needs nothing else'() {
    await open();
    assert.equal(await text('page-instance'), 'instance-1');
    await shows('stock', 100);
    for (const url of requested) {
      assert.ok(servers.origins.includes(new URL(url).origin), `requested ${url}`);
    }
    assert.deepEqual(complaints, []);
  },

  async 'macro: ten presses at once give one order and nine that see it'() {
    await open();
    await choose('macro', 7);
    await pressTen();
    assert.deepEqual(await outcomes(), { ordered: 1, already_ordered: PRESSES - 1 });
    await shows('of-user', 1);
    await shows('orders', 1);
    await shows('stock', 99);
    await shows('verdict', 'One coupon each.');
    const instances = new Set((await answers()).map(({ instance }) => instance));
    assert.deepEqual([...instances].sort(), ['instance-1', 'instance-2']);
    assert.match(await text('latest'), /user 7/);
    assert.match(await text('latest'), /fence …\d{6}/);
    assert.deepEqual(complaints, []);
    for (const scheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme: scheme });
      await picture(`page-${scheme}`);
    }
  },

  async 'layer: ten presses at once give one order and nine conflicts'() {
    await open();
    await choose('layer', 8);
    await pressTen();
    const { ordered, busy = 0, already_ordered: already = 0 } = await outcomes();
    assert.equal(ordered, 1);
    assert.equal(busy + already, PRESSES - 1);
    assert.ok(busy > 0, 'no press was refused, though the presses were at once');
    await shows('of-user', 1);
    await shows('stock', 99);
    await picture('layer');
  },

  async 'none: ten presses at once give several orders, and the page says so'() {
    await open();
    await choose('none', 9);
    await pressTen();
    await shows('duplicates', 1);
    const { ordered } = await outcomes();
    assert.ok(ordered > 1, `${ordered} ordered`);
    assert.equal(await number('of-user'), ordered);
    assert.equal(await number('stock'), 100 - ordered);
    assert.equal(await text('verdict'), 'Somebody got more than one coupon.');
    assert.deepEqual(complaints, []);
    await picture('none');
  },

  async 'one press orders, the next sees the order, and another user is not in its way'() {
    await open();
    await choose('macro', 21);
    await page.click('#once');
    await shows('of-user', 1);
    await page.waitForSelector('#once:enabled');
    await page.press('#user', 'Enter');
    await page.waitForSelector('#answers li:nth-child(2)');
    assert.deepEqual(await outcomes(), { ordered: 1, already_ordered: 1 });
    await page.waitForSelector('#once:enabled');
    await page.fill('#user', '22');
    await page.click('#once');
    await shows('orders', 2);
    await shows('of-user', 1);
  },

  async 'an order from elsewhere appears without a press'() {
    await open();
    await choose('macro', 31);
    const response = await fetch(`${servers.origins[1]}/macro/vouchers/page-macro/orders`, {
      method: 'POST', headers: { 'x-user-id': '32' },
    });
    assert.equal(response.status, 201);
    await shows('orders', 1);
    assert.match(await text('latest'), /user 32 *\s*instance-2/);
  },

  async 'a user who is not a number sends nothing'() {
    await open();
    await choose('macro', 41);
    await page.fill('#user', '');
    requested = [];
    await page.click('#ten');
    await page.click('#once');
    assert.deepEqual(requested.filter((url) => url.endsWith('/orders')), []);
    assert.deepEqual(await answers(), []);
  },

  async 'a narrow screen scrolls only downwards'() {
    await open({ width: 340, height: 700 });
    await choose('macro', 51);
    await pressTen();
    const [content, screen] = await page.evaluate(() => [
      document.documentElement.scrollWidth, document.documentElement.clientWidth,
    ]);
    assert.ok(content <= screen, `${content} px wide on a screen of ${screen} px`);
    await picture('narrow');
  },

  ...consoleTests({
    page: () => page,
    servers: () => servers,
    begin,
    requested: () => requested,
    complaints: () => complaints,
    picture,
  }),

  // The last, after that of the console: it takes Redis away.
  async 'without redis nothing is ordered, and it is not called busy'() {
    await open();
    await choose('macro', 61);
    await servers.stopRedis();
    await page.click('#once');
    await page.waitForSelector('#answers li', { timeout: WAIT_MS });
    assert.deepEqual(await outcomes(), { failed: 1 });
    assert.match(await text('answers'), /status 503/);
    await shows('orders', 0);
    await picture('without-redis');
  },
};

let passed = 0;
let failed = 0;
const profile = await mkdtemp(join(tmpdir(), 'seckill-chromium-'));
let browser;
try {
  servers = await Servers.start({ redis: options['test-redis'], seckill: options.seckill });
  browser = await chromium.launchPersistentContext(profile, {
    executablePath: options.chromium,
    args: CHROMIUM_ARGS,
    handleSIGINT: false,
    handleSIGTERM: false,
    handleSIGHUP: false,
  });
  // Then the test that runs fails, and everything is cleared away as after any other.
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => browser.close());
  page = browser.pages()[0] ?? (await browser.newPage());
  page.on('request', (request) => requested.push(request.url()));
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('console', (message) => {
    // Chromium logs every answer of 400 and above; a 409 is what the layer is for.
    if (message.type() === 'error' && !message.text().includes('409')) complaints.push(message.text());
  });
  for (const [name, test] of Object.entries(tests)) {
    if (!name.includes(options.only)) continue;
    try {
      await test();
      passed += 1;
      console.log(`ok      ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED  ${name}\n${error.stack}`);
    }
  }
} catch (error) {
  failed += 1;
  console.log(`FAILED  to start\n${error.stack}`);
} finally {
  await browser?.close();
  await servers?.stop();
  await rm(profile, { recursive: true, force: true });
}
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed === 0 ? 0 : 1;
