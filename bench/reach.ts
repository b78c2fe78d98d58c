/**
 * Runs in the client's namespace. Reads targets, one per line. Prints when the first connection to
 * each target passed the node, in milliseconds of the Unix epoch.
 */
import { connect } from 'node:net';
import { createInterface } from 'node:readline';
import type { ConnectTarget } from './packets.ts';

/** Milliseconds. An endpoint refuses at once; without rules there is no response in this time. */
const CONNECT_TIMEOUT = 2;

for await (const line of createInterface({ input: process.stdin })) {
  const target = JSON.parse(line) as ConnectTarget;
  while (!(await reaches(target)));
  console.log(performance.timeOrigin + performance.now());
}

function reaches({ address, port }: ConnectTarget): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, address);
    const timer = setTimeout(() => {
      socket.destroy();
      resolve(false);
    }, CONNECT_TIMEOUT);
    socket.on('error', ({ code }: NodeJS.ErrnoException) => {
      if (code !== 'ECONNREFUSED') return;
      clearTimeout(timer);
      resolve(true);
    });
  });
}
