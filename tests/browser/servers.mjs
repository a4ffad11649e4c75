// Redis, two instances of the service and one with slow payments, on free ports, with a directory
// of their own.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

const START_LIMIT_MS = 20_000;
/** Long enough to look at a lock, to lose it at a renewal and to show that. */
const SLOW_PAYMENT_MS = 8_000;

async function freePorts(count) {
  const held = Array.from({ length: count }, () => createServer().listen(0, '127.0.0.1'));
  await Promise.all(held.map((server) => once(server, 'listening')));
  const ports = held.map((server) => server.address().port);
  await Promise.all(held.map((server) => new Promise((closed) => server.close(closed))));
  return ports;
}

/** Starts a program, waits for a line of its standard output with `ready` in it, and gives that line. */
async function start(program, args, ready, started) {
  // The Redis server ends when its standard input closes, and so when this process ends.
  const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  started.push(child);
  const said = [];
  const isReady = new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`${program} is not ready`)), START_LIMIT_MS);
    const settle = (action, value) => { clearTimeout(timer); action(value); };
    createInterface({ input: child.stdout }).on('line', (line) => {
      said.push(line);
      if (line.includes(ready)) settle(resolve, line);
    });
    child.once('error', (error) => settle(reject, error));
    child.once('exit', () => settle(reject, new Error(`${program} has ended:\n${said.join('\n')}`)));
  });
  return { child, line: await isReady };
}

async function stop(child) {
  if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, 'exit');
  child.kill('SIGTERM');
  await ended;
}

export class Servers {
  #started = [];

  static async start(programs) {
    const servers = new Servers();
    try {
      await servers.#start(programs);
    } catch (error) {
      await servers.stop();
      throw error;
    }
    return servers;
  }

  async #start({ redis, seckill }) {
    this.directory = await mkdtemp(join(tmpdir(), 'seckill-browser-'));
    const { child, line: url } = await start(redis, [], 'redis://', this.#started);
    this.redis = child;
    this.url = new URL(url);
    this.program = seckill;
    const ports = await freePorts(3);
    const origins = ports.map((port) => `http://127.0.0.1:${port}`);
    this.slow = origins.pop();
    this.origins = origins;
    for (const index of this.origins.keys()) await this.#instance(index);
    await this.#start_at(this.slow, ['--name', 'slow', '--payment-ms', String(SLOW_PAYMENT_MS)]);
  }

  async #instance(index) {
    this.instances ??= [];
    this.instances[index] = await this.#start_at(
      this.origins[index], ['--name', `instance-${index + 1}`, '--peers', this.origins.join(',')],
    );
  }

  async #start_at(origin, more) {
    const database = `sqlite:${join(this.directory, 'seckill.db')}?mode=rwc`;
    const { child } = await start(
      this.program,
      ['--listen', new URL(origin).host, '--redis', this.url.href, '--database', database, ...more],
      'listening on',
      this.#started,
    );
    return child;
  }

  /** Stops an instance, waits for `meanwhile`, and starts it again at the same address. */
  async restart(index, meanwhile) {
    await stop(this.instances[index]);
    await meanwhile();
    await this.#instance(index);
  }

  /** One command to Redis, and its reply if that is a line or a short text. */
  async redisCommand(...words) {
    const socket = connect(Number(this.url.port), this.url.hostname);
    const parts = words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`);
    socket.write(`*${words.length}\r\n${parts.join('')}`);
    const [reply] = await once(socket, 'data');
    socket.destroy();
    const [head, body] = reply.toString().split('\r\n');
    if (head.startsWith('-')) throw new Error(head);
    return head === '$-1' ? null : head.startsWith('$') ? body : head.slice(1);
  }

  async stopRedis() {
    await stop(this.redis);
  }

  async stop() {
    // Instances before Redis.
    for (const child of this.#started.reverse()) await stop(child);
    if (this.directory) await rm(this.directory, { recursive: true, force: true });
  }
}
