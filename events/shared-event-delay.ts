/**
 * When a node looks whether a shared Event was written. All nodes of a cluster see what it tells at the same
 * time; each would send its requests at once, and one writer is enough. So by chance a few nodes look early, however large
 * the cluster is, and the others later, in case that none of those was there: at a rate that does not grow with the
 * cluster either.
 */

/** Nodes that look early, on average. Without any (once in 150), one of the others writes the Event. */
const EARLY_NODES = 5;
/** Milliseconds in which they do. */
export const EARLY_WINDOW_MS = 5000;
/** Looks of all other nodes together at one Event, in a second. At each further one that waits they look more seldom. */
const LATE_PER_SECOND = 20;
/** Milliseconds. Later, a look would be of no use: API servers keep Events for an hour. */
const LATEST_MS = 30 * 60_000;

/**
 * @param nodes of the cluster. If there are more, more requests are sent; if there are fewer, the Event comes later.
 * @param waiting shared Events of this node that wait for their look, this one included.
 * @param random gives numbers from 0 up to and without 1.
 * @returns milliseconds until this node is to look; undefined: it leaves it to the others.
 */
export function sharedEventDelay(
  nodes: number,
  waiting: number,
  random: () => number,
): number | undefined {
  if (random() * nodes < EARLY_NODES) return random() * EARLY_WINDOW_MS;
  const spread = ((nodes * waiting) / LATE_PER_SECOND) * 1000;
  const delay = EARLY_WINDOW_MS + random() * spread;
  return delay < LATEST_MS ? delay : undefined;
}
