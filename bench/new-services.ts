/** Measures how long a client waits for new Services. */
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { runIn } from '../test/lab/processes.ts';
import type { Random } from '../test/random.ts';
import { apiObjects } from './api-objects.ts';
import type { ApiServer } from './api-servers.ts';
import { TARGET_PORT } from './cluster.ts';
import type { Network } from './network.ts';
import { serviceTarget } from './packets.ts';
import { now, type Reached, withReach } from './reached.ts';

/** Milliseconds from the Service to its EndpointSlice, at most. */
const GAP = 20;
/** Milliseconds between two new Services. */
const REST = { least: 50, more: 500 };

/** An endpoint in the namespace of endpoints, which owns all their addresses. */
const LISTENER = `require('node:net').createServer((socket) => socket.destroy())
  .listen(${TARGET_PORT}, '0.0.0.0', 4096, () => console.log('listening'))`;

/** As `withReach`, with endpoints that accept connections. */
export async function withAccepted<Result>(
  network: Network,
  use: (reached: Reached) => Promise<Result>,
): Promise<Result> {
  const endpoints = runIn('endpoints', network.endpoints);
  try {
    const { stdout } = endpoints.spawn(process.execPath, ['-e', LISTENER]);
    if (stdout === null) throw new Error('the listener did not start');
    await once(stdout, 'data');
    return await withReach(network, use, 'accepted');
  } finally {
    await endpoints.stop();
  }
}

/**
 * Adds Service number `index` after a random pause.
 * @returns milliseconds from the write of its EndpointSlice until an endpoint accepts a connection.
 */
export async function timeNewService(
  index: number,
  { server, reached, random }: { server: Pick<ApiServer, 'put'>; reached: Reached; random: Random },
): Promise<number> {
  await sleep(REST.least + random.next() * REST.more);
  const [service, slice] = apiObjects(index);
  const target = reached(serviceTarget(index));
  await server.put(service);
  await sleep(random.next() * GAP);
  const written = now();
  const [at] = await Promise.all([target, server.put(slice)]);
  return at - written;
}
