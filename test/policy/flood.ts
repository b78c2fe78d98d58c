/**
 * Sends UDP datagrams until it is killed: `flood.ts PORT ADDRESS...`. Runs in the network namespace
 * of a host. A dropped datagram leaves no conntrack entry, so each datagram is the first packet of
 * a connection.
 */
import { createSocket } from 'node:dgram';
import { setTimeout as sleep } from 'node:timers/promises';

/** Datagrams to each address, and milliseconds between batches. */
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
