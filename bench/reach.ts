/**
 * Runs in the client's namespace. Reads targets, one a line, and prints for each when a connection to it first
 * got through the node: milliseconds of the Unix epoch.
 */
import { connect } from 'node:net';
import { createInterface } from 'node:readline';
import type { ConnectTarget } from './packets.ts';

/** Milliseconds. An endpoint refuses at once; without rules there is no answer in this time. */
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
