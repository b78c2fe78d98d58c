/**
 * Decides when a node checks whether a shared Event was written.
 *
 * All nodes of a cluster observe the cause of a shared Event at the same time. One writer is
 * enough, but without a delay all nodes would send requests at once. A few random nodes, a number
 * independent of the cluster's size, therefore check early. The other nodes check later, in case no
 * node checked early, at a total rate that is also independent of the cluster's size.
 */

/**
 * Average number of nodes that check early. If no node checks early (once in 150), a late node
 * writes the Event.
 */
const EARLY_NODES = 5;
/** Milliseconds in which the early nodes check. */
export const EARLY_WINDOW_MS = 5000;
/**
 * Checks per second of all late nodes together for one Event. If more Events wait, the checks of
 * each Event are spread over a longer time.
 */
const LATE_PER_SECOND = 20;
/** Milliseconds. A later check is useless, because API servers delete Events after an hour. */
const LATEST_MS = 30 * 60_000;

/**
 * @param nodes number of nodes in the cluster. If this number is too low, more requests are sent;
 * if it is too high, the Event is written later.
 * @param waiting shared Events of this node that wait for their check, including this one.
 * @param random from 0 (inclusive) to 1 (exclusive).
 * @returns milliseconds until this node checks; undefined if this node does not check.
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
