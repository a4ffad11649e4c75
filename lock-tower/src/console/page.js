'use strict';
const $ = (id) => document.getElementById(id);
// Wherever the console is mounted, with or without a slash at the end.
const BASE = location.pathname.replace(/\/?$/, '/');
const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

function span(ms) {
  if (ms === null) return 'for ever';
  if (ms < MINUTE) return `${(ms / SECOND).toFixed(1)} s`;
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)} min ${Math.floor((ms % MINUTE) / SECOND)} s`;
  if (ms < DAY) return `${Math.floor(ms / HOUR)} h ${Math.floor((ms % HOUR) / MINUTE)} min`;
  return `${Math.floor(ms / DAY)} d ${Math.floor((ms % DAY) / HOUR)} h`;
}

const clock = (time) => new Date(time).toLocaleTimeString();
const plural = (count, one, many) => `${count} ${count === 1 ? one : many}`;

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** What names a lock: its key if keys are shown, else its template. */
function names({ key, label, guessed, owner }) {
  const template = guessed && label !== null ? `looks like ${label}` : label;
  if (key === undefined) {
    const name = template ?? (guessed ? 'of an unknown template' : 'a key without a label');
    // Two locks of one template look alike but for this.
    return owner ? [name, `lock ${owner.slice(0, 8)}`] : [name];
  }
  return label === null || label === key ? [key] : [key, template];
}

/** Fills a table, and keeps the rows that stay, so that the focus does. */
function fill(id, rows, total, identify, cells) {
  const table = $(id);
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
  const known = new Map([...body.rows].map((row) => [row.dataset.id, row]));
  const first = !table.dataset.filled;
  const used = new Set();
  rows.forEach((data, index) => {
    let key = identify(data, index);
    while (used.has(key)) key += '+';
    used.add(key);
    let row = known.get(key);
    known.delete(key);
    if (!row) {
      row = element('tr');
      row.dataset.id = key;
      // Tables that are laid out as blocks lose what they mean; the roles keep it.
      row.setAttribute('role', 'row');
      const name = element('th');
      name.scope = 'row';
      name.setAttribute('role', 'rowheader');
      row.append(name, ...heads.slice(1).map((head) => {
        const cell = element('td');
        cell.dataset.head = head;
        cell.setAttribute('role', 'cell');
        return cell;
      }));
      if (!first) {
        row.className = 'new';
        setTimeout(() => row.classList.remove('new'), 2 * SECOND);
      }
    }
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
    const [name, more] = names(data);
    const title = row.cells[0];
    if (title.dataset.name !== name || title.dataset.more !== (more ?? '')) {
      title.dataset.name = name;
      title.dataset.more = more ?? '';
      title.replaceChildren(element('span', name, 'name'));
      if (more !== undefined) title.append(element('small', more));
    }
    cells(data, [...row.cells].slice(1));
  });
  for (const row of known.values()) {
    // Else the focus would go to the top of the page.
    if (row.contains(document.activeElement)) table.focus();
    row.remove();
  }
  table.dataset.filled = 'yes';
  table.classList.toggle('bare', rows.length === 0);
  $(`${id}-empty`).hidden = rows.length > 0;
  const count = total > rows.length ? `(${rows.length} of ${total})` : rows.length > 0 ? `(${total})` : '';
  setText($(`${id}-count`), count);
}

for (const table of document.querySelectorAll('table')) {
  table.setAttribute('role', 'table');
  table.tabIndex = -1;
  for (const group of [table.tHead, ...table.tBodies]) group.setAttribute('role', 'rowgroup');
  table.tHead.rows[0].setAttribute('role', 'row');
  for (const head of table.tHead.rows[0].cells) head.setAttribute('role', 'columnheader');
  table.classList.add('bare');
}

// What is wrong, most important first.
const wrong = { connection: '', store: '', draining: '' };
function banner() {
  const text = wrong.connection || wrong.store || wrong.draining;
  setText($('banner'), text);
  $('banner').hidden = text === '';
}

function say(text) {
  setText($('said'), text);
}

let client = null;
let lastLoss = null;
let shown = null;
// By this clock, when what is shown was read.
const readAt = {};

function showProcess(data) {
  if (data.client !== client) {
    // Another instance, with losses of its own that are not news.
    if (client !== null) say(`This page is now of another process, client ${data.client}.`);
    client = data.client;
    lastLoss = null;
  }
  wrong.draining = data.draining
    ? 'This process is shutting down: it takes no more locks and releases those it holds.' : '';
  setText($('about'), `${data.namespace ? `namespace ${data.namespace}` : 'no namespace'} · client ${data.client} · process ${data.process}`);
  document.title = ['Locks', data.namespace].filter(Boolean).join(' · ');
  const releases = data.pending === 0
    ? 'All its releases are confirmed by the store.'
    : `${plural(data.pending, 'release is', 'releases are')} not confirmed by the store yet.`;
  setText($('process-state'), `${releases} As of ${clock(readAt.process)}.`);
  fill('held', data.held.rows, data.held.total,
    (row, index) => (row.fence === '0' ? `#${index}` : row.fence),
    ({ heldMs, leftMs, fence, doubt }, [held, left, token]) => {
      setText(held, span(heldMs));
      setText(left, doubt ? `${span(leftMs)}, last renewal not confirmed` : span(leftMs));
      left.className = doubt ? 'busy' : '';
      setText(token, fence === '0' ? 'none' : fence);
    });
  fill('waiting', data.waiting.rows, data.waiting.total, (_, index) => String(index),
    ({ tasks }, [count]) => setText(count, String(tasks)));
  const now = readAt.process;
  fill('losses', data.losses, data.losses.length, ({ number }) => `${data.client}/${number}`,
    ({ reason, heldMs, agoMs }, [why, held, when]) => {
      setText(why, reason);
      why.className = 'bad';
      setText(held, span(heldMs));
      setText(when, `${span(agoMs)} ago`);
      when.title = clock(now - agoMs);
    });
  const latest = data.losses[0];
  const number = latest?.number ?? 0;
  if (lastLoss !== null && number > lastLoss) say(`Lock lost: ${names(latest)[0]}, ${latest.reason}.`);
  lastLoss = number;
}

let silentSince = null;

function holder({ client, here, released }) {
  if (client === null) return ['a foreign value', 'set by another library or by hand'];
  const notes = [here ? 'this process' : '', released ? 'released, kept by min_hold' : ''];
  return [`client ${client}`, notes.filter(Boolean).join('; ')];
}

function showStore(data) {
  const state = $('store-state');
  if (!data.answers) {
    const since = readAt.store - data.silentMs;
    if (silentSince === null || Math.abs(since - silentSince) > 5 * SECOND) silentSince = since;
    wrong.store = `The store has not answered since ${clock(silentSince)}: ${data.error}. `
      + 'Locks that are held end at their deadlines unless it comes back; no new ones are granted.';
    setText(state, `No answer for ${span(data.silentMs)}. The table shows what it said before.`);
    state.className = 'bad';
    $('locks').classList.add('stale');
    $('problems').hidden = true;
    if (shown === null) setText($('locks-empty'), 'The store has not answered yet.');
    buttons(false);
    return;
  }
  silentSince = null;
  wrong.store = '';
  $('locks').classList.remove('stale');
  state.className = '';
  setText(state, data.server
    ? `${data.server} answers, after ${(data.tookUs / 1000).toFixed(1)} ms, as of ${clock(readAt.store)}`
    : 'It does not say how it is.');
  const problems = data.problems ?? [];
  $('problems').replaceChildren(...problems.map((text) => element('li', text)));
  $('problems').hidden = problems.length === 0;
  if (data.listError !== undefined) {
    shown = null;
    fill('locks', [], 0, String, () => {});
    setText($('locks-empty'), `The locks of other processes are not shown: ${data.listError}.`);
    return;
  }
  shown = data.locks.rows;
  setText($('locks-empty'), 'No lock of this namespace is taken.');
  fill('locks', shown, shown.length, (row, index) => (row.owner === null ? `#${index}` : `${row.owner}/${row.key ?? ''}`), showLock);
  const listed = clock(readAt.store - data.listAgeMs);
  setText($('locks-count'), data.locks.cut
    ? `(${shown.length} as of ${listed}; there may be more)` : `(${shown.length} as of ${listed})`);
  buttons(true);
  watchConfirm();
}

function showLock(lock, [who, left, waiting, act]) {
  const [name, note] = holder(lock);
  if (who.dataset.text !== name + note) {
    who.dataset.text = name + note;
    who.replaceChildren(element('span', name));
    if (note) who.firstChild.append(element('small', note));
  }
  setText(left, span(lock.leftMs));
  left.className = lock.leftMs === null ? 'busy' : '';
  setText(waiting, lock.waiting === null ? 'not told' : String(lock.waiting));
  if (document.body.dataset.force !== 'yes') return act.classList.add('act');
  // Without its key, a lock with a foreign value cannot be told from others.
  if (lock.owner === null) return setText(act, 'with lockctl only');
  let button = act.firstElementChild;
  if (!button) {
    button = element('button', 'Force release…');
    button.type = 'button';
    button.addEventListener('click', () => ask(button.lock));
    act.append(button);
  }
  button.lock = lock;
  const title = lock.key ?? names(lock).join(', ');
  button.setAttribute('aria-label', `Force release ${title}, held by ${name}`);
}

function buttons(enabled) {
  for (const button of $('locks').querySelectorAll('button')) button.disabled = !enabled;
}

let asked = null;

function ask(lock) {
  asked = lock;
  setText($('confirm-lock'), names(lock).join(' · '));
  setText($('confirm-holder'), holder(lock).filter(Boolean).join(', '));
  setText($('confirm-note'), '');
  $('take').disabled = false;
  $('confirm').showModal();
}

/** The owner may let go while the question is open. */
function watchConfirm() {
  if (!$('confirm').open || shown.some(({ owner }) => owner === asked.owner)) return;
  setText($('confirm-note'), 'That owner no longer has the lock.');
  $('take').disabled = true;
}

const UNKNOWN = 'Unknown: whether the lock was taken is not known. See who has it before you try again.';

async function take() {
  const wanted = asked;
  const { owner, key } = wanted;
  $('take').disabled = true;
  let text = UNKNOWN;
  try {
    const response = await fetch(`${BASE}release`, {
      method: 'POST',
      // A page to sign in at says nothing of the lock.
      redirect: 'error',
      signal: AbortSignal.timeout(15 * SECOND),
      headers: { 'content-type': 'application/json', 'x-lock-console': document.body.dataset.token },
      body: JSON.stringify({ owner, key }),
    });
    const answer = await response.json();
    const said = answer.text ?? answer.detail;
    if (answer.outcome === 'done') text = `Done: ${said}.`;
    else if (answer.outcome === 'nothing') text = `Not done: ${said}.`;
    else if (answer.outcome === 'unknown') text = `Unknown: ${said}.`;
  } catch {
    // It is unknown.
  }
  if (asked === wanted) $('confirm').close();
  say(text);
}

$('keep').addEventListener('click', () => $('confirm').close());
$('take').addEventListener('click', take);

let source = null;
/** When news were expected first. */
let opened = 0;
/** So long a connection may be silent about each: longer than the server takes to look. */
const LATE = { process: 5 * SECOND, store: 15 * SECOND };

function live(state, text) {
  $('live').dataset.state = state;
  setText($('live'), text);
}

function notLive(text) {
  live('off', 'not live');
  wrong.connection = wrong.draining || text;
  buttons(false);
  banner();
}

function isLate(name) {
  return Date.now() - Math.max(readAt[name] ?? 0, opened) > LATE[name];
}

function connect() {
  source?.close();
  const current = new EventSource(`${BASE}events`);
  source = current;
  opened = Date.now();
  const on = (name, show) => current.addEventListener(name, ({ data }) => {
    const news = JSON.parse(data);
    readAt[name] = Date.now() - news.ageMs;
    show(news);
    if (!Object.keys(LATE).some(isLate)) {
      wrong.connection = '';
      live('on', 'live');
    }
    banner();
    document.body.dataset[name] = 'shown';
  });
  on('process', showProcess);
  on('store', showStore);
  current.addEventListener('draining', () => {
    wrong.draining = 'This process is shutting down, and this page with it; it looks for the next one.';
    banner();
  });
  current.addEventListener('again', connect);
  current.addEventListener('error', () => {
    notLive(`The server gives no news; trying again. What is shown is of ${clock(shownAt())} or earlier. `
      + 'If this lasts, sign in again and reload the page.');
    // The browser does not come back after an answer that is no stream, such as a proxy's 502.
    if (current.readyState === EventSource.CLOSED) {
      setTimeout(() => { if (source === current) connect(); }, 3 * SECOND);
    }
  });
}

const shownAt = () => Math.min(...Object.keys(LATE).map((name) => readAt[name] ?? Date.now()));

// A connection can be dead without an error.
setInterval(() => {
  const late = source !== null && Object.keys(LATE).find(isLate);
  if (!late) return;
  notLive(`No news of the ${late} since ${clock(readAt[late] ?? opened)}; trying again.`);
  if (source.readyState === EventSource.OPEN && Date.now() - opened > LATE.store) connect();
}, SECOND);

// A page that is not looked at costs nothing.
function followVisibility() {
  if (document.hidden) {
    source?.close();
    source = null;
    live('wait', 'paused');
  } else if (source === null) {
    connect();
  }
}
document.addEventListener('visibilitychange', followVisibility);
followVisibility();
