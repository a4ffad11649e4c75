// The console at /locks of the seckill example, looked at and pressed by a headless Chromium.

import assert from 'node:assert/strict';

const WAIT_MS = 20_000;
const NAMESPACE = 'seckill';
const MARKUP = '<img src=x onerror="window.injected=1">';
const TOKEN = '11111111-2222-4333-8444-555555555555';

/** What the console must do; `look` has the page and its helpers. */
export function consoleTests(look) {
  const { page, servers, picture } = look;
  const text = (selector) => page().locator(selector).innerText();
  const until = (check, argument) => page().waitForFunction(check, argument, { timeout: WAIT_MS });
  const bodyHas = (text) => until((text) => document.body.innerText.includes(text), text);
  const row = (name) => page().locator('#locks tbody tr', { hasText: name });
  const redis = (...command) => servers().redisCommand(...command);

  async function open({ width = 1100, height = 800, scheme = 'light', origin } = {}) {
    look.begin();
    await page().setViewportSize({ width, height });
    await page().emulateMedia({ colorScheme: scheme });
    await page().goto(`${origin ?? servers().origins[0]}/locks`);
    await page().waitForSelector('body[data-process][data-store]', { timeout: WAIT_MS });
  }

  /** An order whose payment takes so long that its lock can be seen. */
  function order(user) {
    return fetch(`${servers().slow}/macro/vouchers/page-macro/orders`, {
      method: 'POST', headers: { 'x-user-id': String(user) },
    });
  }

  return {
    async 'console: it needs no other host, and says what it knows when there is nothing'() {
      await open();
      assert.match(await text('#about'), /namespace seckill · client [0-9a-f]{8} · process \d+/);
      assert.match(await text('#store-state'), /redis .* answers, after [\d.]+ ms/);
      assert.equal(await text('#locks-empty'), 'No lock of this namespace is taken.');
      assert.equal(await text('#held-empty'), 'This process holds no lock.');
      for (const url of look.requested()) assert.ok(url.startsWith(servers().origins[0]), url);
      assert.deepEqual(look.complaints(), []);
    },

    async 'console: locks of this and of other processes appear and go, and markup stays text'() {
      await redis('SET', `${NAMESPACE}:${MARKUP}`, TOKEN, 'PX', '60000');
      await open();
      await row(MARKUP).waitFor({ timeout: WAIT_MS });
      assert.match(await row(MARKUP).innerText(), /client 11111111/);
      assert.equal(await page().evaluate(() => window.injected), undefined);
      await redis('DEL', `${NAMESPACE}:${MARKUP}`);
      await row(MARKUP).waitFor({ state: 'detached', timeout: WAIT_MS });
      assert.deepEqual(look.complaints(), []);
    },

    async 'console: a lock is taken by keyboard, after a question that names it'() {
      await redis('SET', `${NAMESPACE}:order:page-macro:9`, TOKEN, 'PX', '60000');
      await open();
      const button = row('order:page-macro:9').getByRole('button');
      await button.waitFor({ timeout: WAIT_MS });
      assert.equal(
        await button.getAttribute('aria-label'),
        'Force release order:page-macro:9, held by client 11111111',
      );
      await button.focus();
      // The table is renewed meanwhile, and keeps the focus where it is.
      const before = await row('order:page-macro:9').locator('td').nth(1).innerText();
      await until(
        (before) => [...document.querySelectorAll('#locks tbody td:nth-of-type(2)')]
          .every((cell) => cell.innerText !== before),
        before,
      );
      assert.equal(await page().evaluate(() => document.activeElement.innerText), 'Force release…');
      await page().keyboard.press('Enter');
      const dialog = page().locator('#confirm');
      await dialog.waitFor();
      assert.match(await dialog.innerText(), /order:page-macro:9/);
      assert.match(await dialog.innerText(), /client 11111111/);
      assert.match(await dialog.innerText(), /goes on until a message reaches it/);
      await picture('console-confirm-light');
      // Enter on what has the focus first changes nothing.
      await page().keyboard.press('Enter');
      await dialog.waitFor({ state: 'hidden' });
      assert.equal(await redis('GET', `${NAMESPACE}:order:page-macro:9`), TOKEN);
      await button.press('Enter');
      await page().keyboard.press('Tab');
      await page().keyboard.press('Enter');
      await until(() => document.getElementById('said').innerText.startsWith('Done: '));
      assert.match(await text('#said'), /taken from client 11111111/);
      assert.equal(await redis('GET', `${NAMESPACE}:order:page-macro:9`), null);
      assert.deepEqual(look.complaints(), []);
    },

    async 'console: the next owner keeps a lock that the viewer wanted from the last'() {
      await redis('SET', `${NAMESPACE}:order:page-macro:9`, TOKEN, 'PX', '60000');
      await open();
      await row('order:page-macro:9').getByRole('button').click();
      const next = TOKEN.replaceAll('1', '9');
      await redis('SET', `${NAMESPACE}:order:page-macro:9`, next, 'PX', '60000');
      await until(() => document.getElementById('confirm-note').innerText !== '');
      assert.ok(await page().locator('#take').isDisabled());
      // As if the question had been answered before that was known.
      await page().evaluate(() => {
        document.getElementById('take').disabled = false;
        document.getElementById('take').click();
      });
      await until(() => document.getElementById('said').innerText.startsWith('Not done: '));
      assert.equal(await redis('GET', `${NAMESPACE}:order:page-macro:9`), next);
      await redis('DEL', `${NAMESPACE}:order:page-macro:9`);
    },

    async 'console: an answer that is not the console\'s says nothing of the lock'() {
      await redis('SET', `${NAMESPACE}:order:page-macro:9`, TOKEN, 'PX', '60000');
      await open();
      for (const answer of [
        { status: 200, contentType: 'text/html', body: '<form>sign in</form>' },
        { status: 504, contentType: 'application/json', body: '{"detail":"too late"}' },
      ]) {
        await page().route('**/release', (route) => route.fulfill(answer));
        await row('order:page-macro:9').getByRole('button').click();
        await page().locator('#take').click();
        await until(() => document.getElementById('said').innerText.startsWith('Unknown: '));
        await page().evaluate(() => { document.getElementById('said').textContent = ''; });
        await page().unroute('**/release');
      }
      await redis('DEL', `${NAMESPACE}:order:page-macro:9`);
    },

    async 'console: it comes back after a proxy\'s 502, and says meanwhile that it is not live'() {
      await page().route('**/events', (route) => route.fulfill({ status: 502, body: 'bad gateway' }));
      look.begin();
      await page().goto(`${servers().origins[0]}/locks`);
      await bodyHas('The server gives no news; trying again.');
      assert.equal(await text('#live'), 'not live');
      await page().unroute('**/events');
      await until(() => document.getElementById('live').innerText === 'live');
      assert.ok(await page().locator('#banner').isHidden());
    },

    async 'console: a connection that is dead without an error is noticed'() {
      // As if no packet came any more: the page gets the connection, and nothing by it.
      await page().addInitScript(() => {
        window.EventSource = class extends window.EventSource {
          addEventListener(name, listener) {
            super.addEventListener(name, (event) => { if (!window.deaf) listener(event); });
          }
        };
      });
      await open();
      assert.equal(await text('#live'), 'live');
      await page().evaluate(() => { window.deaf = true; });
      await bodyHas('No news of the process since');
      assert.equal(await text('#live'), 'not live');
      await page().evaluate(() => { window.deaf = false; });
      await until(() => document.getElementById('live').innerText === 'live');
    },

    async 'console: holders, waiters and losses of the process are shown as they happen'() {
      for (const scheme of ['light', 'dark']) {
        const users = scheme === 'light' ? [71, 72] : [81, 82];
        await open({ scheme, height: 1000, origin: servers().slow });
        const orders = [...users, users[0], users[0]].map((user) => order(user));
        await until(() => document.querySelectorAll('#held tbody tr').length === 2);
        await until(() => document.querySelector('#waiting tbody tr td')?.innerText === '2');
        await row(`order:page-macro:${users[1]}`).waitFor({ timeout: WAIT_MS });
        await redis('DEL', `${NAMESPACE}:order:page-macro:${users[1]}`);
        await until((user) => document.getElementById('losses').innerText.includes(user), String(users[1]));
        assert.match(await text('#said'), new RegExp(`Lock lost: order:page-macro:${users[1]}`));
        await row(`order:page-macro:${users[0]}`).waitFor({ timeout: WAIT_MS });
        await picture(`console-${scheme}`);
        await Promise.all(orders);
      }
      assert.deepEqual(look.complaints(), []);
    },

    async 'console: a narrow screen scrolls only downwards, by day and by night'() {
      await redis('SET', `${NAMESPACE}:order:${'wide-'.repeat(40)}`, TOKEN, 'PX', '60000');
      for (const scheme of ['light', 'dark']) {
        await open({ width: 320, height: 640, scheme });
        await row('wide-').waitFor({ timeout: WAIT_MS });
        const [content, screen] = await page().evaluate(() => [
          document.documentElement.scrollWidth, document.documentElement.clientWidth,
        ]);
        assert.ok(content <= screen, `${content} px wide on a screen of ${screen} px`);
        await picture(`console-narrow-${scheme}`);
      }
      await redis('DEL', `${NAMESPACE}:order:${'wide-'.repeat(40)}`);
    },

    async 'console: text has the contrast that WCAG asks, by day and by night'() {
      for (const scheme of ['light', 'dark']) {
        await open({ scheme });
        const poor = await page().evaluate(contrasts);
        assert.deepEqual(poor, [], scheme);
      }
    },

    async 'console: a process that ends is named, and its page comes back with the next'() {
      await open();
      await servers().restart(0, () => bodyHas('shutting down'));
      await until(() => document.getElementById('live').innerText.includes('live')
        && !document.getElementById('live').innerText.includes('not'));
      await until(() => document.getElementById('banner').hidden);
    },

    // The last: it takes Redis away.
    async 'console: a store that is down is named, with what it means'() {
      await open();
      await servers().stopRedis();
      await until(() => document.getElementById('banner').innerText.includes('The store has not answered'));
      assert.match(await text('#banner'), /since .*\d.*: .+\. Locks that are held end at their deadlines/);
      assert.ok(await page().locator('#held-empty').isVisible());
      await picture('console-without-redis');
    },
  };
}

/** Elements whose text has less contrast than 4.5 with what is behind it. Runs in the page. */
function contrasts() {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => c / 255)
      .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim() !== '');
    if (!own || !node.checkVisibility() || node.closest('script, style')) continue;
    const pair = [rgb(getComputedStyle(node).color), behind(node)].map(luminance);
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < 4.5) poor.push(`${node.tagName} ${node.innerText}: ${ratio.toFixed(2)}`);
  }
  return poor;
}
