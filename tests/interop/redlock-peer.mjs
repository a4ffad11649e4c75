// Takes a lock on several servers with node-redlock, again and again: prints `held` when it has it,
// and releases it when it reads a line. Ends when its input does.
//
//     node redlock-peer.mjs KEY URL...
import { createInterface } from "node:readline";

import Redis from "ioredis";
import Redlock from "redlock";

const [key, ...urls] = process.argv.slice(2);
const servers = urls.map((url) => new Redis(url));
const redlock = new Redlock(servers, { retryCount: -1 });
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

for (let ended = false; !ended; ) {
  const lock = await redlock.acquire([key], 10_000);
  console.log("held");
  ended = (await lines.next()).done;
  await lock.release();
}
for (const server of servers) server.disconnect();
