// node-redlock and this library exclude each other.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { after, test } from "node:test";

import Redis from "ioredis";
import Redlock from "redlock";

const url = process.env.REDIS_URL;
const redis = new Redis(url);
const redlock = new Redlock([redis], { retryCount: 0 });
after(() => redis.quit());

// A process that holds a lock of this library until its input ends.
function peer(how, key) {
  const child = spawn(process.env.LOCK_PEER, [how, url, key], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  after(() => child.kill());
  const says = async () => (await lines.next()).value;
  const letGo = async () => {
    child.stdin.end();
    return says();
  };
  return { says, letGo };
}

test("node-redlock is refused while we hold, and served after", async () => {
  const holder = peer("hold", "order:node-1");
  assert.equal(await holder.says(), "held");
  await assert.rejects(redlock.acquire(["lock:order:node-1"], 30_000));
  assert.equal(await holder.letGo(), "released InTime");
  const foreign = await redlock.acquire(["lock:order:node-1"], 30_000);
  await foreign.release();
});

test("we are refused while node-redlock holds, and leave it alone", async () => {
  const foreign = await redlock.acquire(["lock:order:node-2"], 30_000);
  const value = await redis.get("lock:order:node-2");
  assert.equal(await peer("hold", "order:node-2").says(), "busy");
  assert.equal(await redis.get("lock:order:node-2"), value);
  await foreign.release();
});

test("we wait for node-redlock", async () => {
  const foreign = await redlock.acquire(["lock:order:node-3"], 30_000);
  const holder = peer("wait", "order:node-3");
  await foreign.release();
  assert.equal(await holder.says(), "held");
  assert.equal(await holder.letGo(), "released InTime");
});
