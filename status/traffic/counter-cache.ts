/** Remembers the counters of connections that take the same path. Pure. */
import type { DetailedEntry } from '../../netlink/conntrack/conntrack.ts';
import type { CounterSet } from './traffic-counters.ts';

/** Number of places, a power of two. A path is a VIP and an endpoint, with ports; at most half of the places are used. */
const PLACES = 1 << 15;
/** Numbers of one key. */
const WIDTH = 4;

/**
 * Finds counters by numbers. Most connections go to few VIPs and endpoints, and the search by address as text takes 2 µs:
 * at 10,000 connections a second this saves 2 % of a core. Open addressing, because a Map of numbers beyond 31 bits creates
 * an object for each search. Clear it when Routes, node addresses or counters may have changed.
 */
export class CounterCache {
  readonly #find: (entry: DetailedEntry) => CounterSet | undefined;
  readonly #keys = new Int32Array(PLACES * WIDTH);
  /** null: no Service has the path. undefined: the place is free. */
  #found: (CounterSet | null | undefined)[] = new Array(PLACES).fill(undefined);
  #size = 0;

  /** @param find finds the counters of an entry that is not remembered; undefined if no Service has it. */
  constructor(find: (entry: DetailedEntry) => CounterSet | undefined) {
    this.#find = find;
  }

  clear(): void {
    if (this.#size > 0) this.#found = new Array(PLACES).fill(undefined);
    this.#size = 0;
  }

  /** The counters of an entry; undefined if no Service has it. */
  find(entry: DetailedEntry): CounterSet | undefined {
    const { origDstBits: vip, replySrcBits: endpoint, zone, protocol } = entry;
    if (vip === undefined || endpoint === undefined || zone !== 0) return this.#find(entry);
    const ports = (entry.origDstPort << 16) | entry.replySrcPort;
    const keys = this.#keys;
    let place = hash(vip, endpoint, ports) & (PLACES - 1);
    for (; this.#found[place] !== undefined; place = (place + 1) & (PLACES - 1)) {
      const at = place * WIDTH;
      const isSame =
        keys[at] === vip &&
        keys[at + 1] === endpoint &&
        keys[at + 2] === ports &&
        keys[at + 3] === protocol;
      if (isSame) return this.#found[place] ?? undefined;
    }
    const found = this.#find(entry);
    // `find` counts the connections that get no counter.
    if (found?.length === 0) return found;
    if (this.#size >= PLACES / 2) {
      this.clear();
      place = hash(vip, endpoint, ports) & (PLACES - 1);
    }
    keys.set([vip, endpoint, ports, protocol], place * WIDTH);
    this.#found[place] = found ?? null;
    this.#size += 1;
    return found;
  }
}

/** Multiplies by large odd numbers, as MurmurHash3 does. */
function hash(vip: number, endpoint: number, ports: number): number {
  const mixed =
    Math.imul(vip, 0x9e3779b1) ^ Math.imul(endpoint, 0x85ebca6b) ^ Math.imul(ports, 0xc2b2ae35);
  return mixed ^ (mixed >>> 15);
}
