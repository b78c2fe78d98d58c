/**
 * The keys of the sets that the rules of `RefusalLog` read, for one IP family. A changed Route costs the keys of its own
 * VIPs and node port. Changes nothing in the kernel.
 */
import { familyOf } from '../../api/addresses.ts';
import { getOrCreate, trimmedCopy } from '../../api/collections.ts';
import type { IpFamily } from '../../api/objects.ts';
import { addressBytes } from '../../netlink/core/address.ts';
import { protocolNumbers } from '../../netlink/core/protocol.ts';
import { type Route, vipsOf } from '../../services/route.ts';
import { BackgroundSlice } from '../../sync/precedence.ts';
import { mayRefuse } from './refusal.ts';
import { type NodePort, nodePortOf, type ServiceIndex } from './service-index.ts';

/**
 * VIPs with a Route that may refuse packets, and node ports of such Routes. `listed-vips`, only in mode ipvs: other VIPs,
 * whose packets to all ports but `served-ports` are refused. VIPs with port ranges are left out.
 */
export const REFUSAL_SETS = ['vips', 'node-ports', 'served-ports', 'listed-vips'] as const;
export type RefusalSet = (typeof REFUSAL_SETS)[number];

/** Bytes of a protocol or port in a concatenated key. */
export const FIELD = 4;

/** What the proxy mode does with packets before the rules of the log. */
export interface RefusalMode {
  /** See `RefusalRules.mayBeTranslated`. */
  readonly mayBeTranslated: boolean;
}

/** Keys to add to a set and to delete from it, in hexadecimal. */
export interface KeyChanges {
  readonly added: string[];
  readonly deleted: string[];
}

/** Keys in hexadecimal, by set. */
type Keys = Partial<Readonly<Record<RefusalSet, readonly string[]>>>;

export class RefusalKeys {
  readonly #family: IpFamily;
  readonly #index: ServiceIndex;
  readonly #mode: RefusalMode;
  /** By VIP, or by the key of a node port: each key has one owner. */
  readonly #keys = new Map<string, Keys>();
  /** VIPs, and node ports by their key, whose Routes changed since `takeChanges`. */
  #vips: Set<string>;
  #nodePorts = new Map<string, NodePort>();
  readonly #stopWatching: () => void;

  /** All VIPs and node ports of the index count as changed. */
  constructor(family: IpFamily, index: ServiceIndex, mode: RefusalMode) {
    this.#family = family;
    this.#index = index;
    this.#mode = mode;
    this.#vips = new Set(index.vips);
    for (const route of index.nodePorts(family)) this.#markNodePort(route);
    this.#stopWatching = index.watch((before, after) => {
      for (const route of [before, after]) {
        if (route?.family !== family) continue;
        for (const vip of vipsOf(route)) this.#vips.add(vip);
        this.#markNodePort(route);
      }
    });
  }

  /** Computes the keys of what changed since the last call, in time slices. @returns sets with changes. */
  async takeChanges(): Promise<ReadonlyMap<RefusalSet, KeyChanges>> {
    const [vips, nodePorts] = [this.#vips, this.#nodePorts];
    this.#vips = new Set();
    this.#nodePorts = new Map();
    const changes = new Map<RefusalSet, KeyChanges>();
    const slice = new BackgroundSlice();
    for (const vip of vips) {
      if (slice.isOver()) await slice.yield();
      if (familyOf(vip) === this.#family) this.#replace(vip, this.#keysOfVip(vip), changes);
    }
    for (const [key, nodePort] of nodePorts) {
      if (slice.isOver()) await slice.yield();
      const route = this.#index.routeOfNodePort(this.#family, nodePort);
      const isRefusing = route !== undefined && mayRefuse(route, this.#mode);
      this.#replace(key, isRefusing ? { 'node-ports': [key] } : {}, changes);
    }
    return changes;
  }

  /** All keys of a set, as of the last `takeChanges`. */
  *all(set: RefusalSet): Iterable<string> {
    for (const keys of this.#keys.values()) yield* keys[set] ?? [];
  }

  /** Ends the watch of the index. */
  close(): void {
    this.#stopWatching();
  }

  #markNodePort(route: Route): void {
    const nodePort = nodePortOf(route);
    if (nodePort !== undefined) this.#nodePorts.set(portKey(nodePort), nodePort);
  }

  #keysOfVip(vip: string): Keys {
    const routes = this.#index.routesOf(vip);
    if (routes.length === 0) return {};
    const address = addressBytes(vip).toString('hex');
    if (routes.some((route) => mayRefuse(route, this.#mode))) return { vips: [address] };
    const ports: string[] = [];
    for (const { match } of routes) {
      if (match.kind !== 'port') return {};
      ports.push(`${address}${portKey(match)}`);
    }
    return { 'listed-vips': [address], 'served-ports': trimmedCopy(ports) };
  }

  #replace(owner: string, after: Keys, changes: Map<RefusalSet, KeyChanges>): void {
    const before = this.#keys.get(owner) ?? {};
    if (Object.keys(after).length > 0) this.#keys.set(owner, after);
    else this.#keys.delete(owner);
    for (const set of REFUSAL_SETS) {
      if (before[set] === undefined && after[set] === undefined) continue;
      const added = without(after[set], before[set]);
      const deleted = without(before[set], after[set]);
      if (added.length + deleted.length === 0) continue;
      const change = getOrCreate(changes, set, noChanges);
      for (const key of added) change.added.push(key);
      for (const key of deleted) change.deleted.push(key);
    }
  }
}

function without(keys: readonly string[] = [], others: readonly string[] = []): readonly string[] {
  if (others.length === 0) return keys;
  const known = new Set(others);
  return keys.filter((key) => !known.has(key));
}

function noChanges(): KeyChanges {
  return { added: [], deleted: [] };
}

function portKey({ protocol, port }: NodePort): string {
  const key = Buffer.alloc(2 * FIELD);
  key.writeUInt8(protocolNumbers[protocol]);
  key.writeUInt16BE(port, FIELD);
  return key.toString('hex');
}
