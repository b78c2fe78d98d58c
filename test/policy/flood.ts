/**
 * Sends datagrams to these addresses until it is ended: `flood.ts PORT ADDRESS...`. Runs in the
 * namespace of a host. What is dropped begins a connection anew each time.
 */
import { createSocket } from 'node:dgram';
import { setTimeout as sleep } from 'node:timers/promises';

/** Datagrams to each address, and the milliseconds between. */
const BATCH = 20;
const PAUSE = 2;

const [port = '', ...addresses] = process.argv.slice(2);
const targets = addresses.map((address) => {
  const socket = createSocket(address.includes(':') ? 'udp6' : 'udp4');
  socket.on('error', () => undefined);
  return { socket, address };
});
console.log('ready');
for (;;) {
  for (const { socket, address } of targets) {
    for (let count = 0; count < BATCH; count++) {
      socket.send('x', Number(port), address, () => undefined);
    }
  }
  await sleep(PAUSE);
}
