/**
 * Runs in the client's namespace. Reads targets, one per line. Prints when the first connection to
 * each target passed the node, in milliseconds of the Unix epoch. With the argument `accepted`, an
 * endpoint must accept the connection: the node itself refuses those to a Service without endpoints.
 */
import { connect } from 'node:net';
import { createInterface } from 'node:readline';
import type { ConnectTarget } from './packets.ts';

/** Milliseconds. An endpoint refuses at once; without rules there is no response in this time. */
const CONNECT_TIMEOUT = 2;

const mustAccept = process.argv[2] === 'accepted';

for await (const line of createInterface({ input: process.stdin })) {
  const target = JSON.parse(line) as ConnectTarget;
  while (!(await reaches(target)));
  console.log(performance.timeOrigin + performance.now());
}

function reaches({ address, port }: ConnectTarget): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, address);
    const end = (isReached: boolean) => {
      clearTimeout(timer);
      socket.destroy();
      resolve(isReached);
    };
    const timer = setTimeout(() => end(false), CONNECT_TIMEOUT);
    socket.on('connect', () => end(true));
    socket.on('error', ({ code }: NodeJS.ErrnoException) => {
      if (code === 'ECONNREFUSED') end(!mustAccept);
    });
  });
}
