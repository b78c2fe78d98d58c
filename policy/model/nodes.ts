/** Nodes, and the lists that their addresses are in. */
import { getOrCreate } from '../../api/collections.ts';
import type { Node, ObjectKey } from '../../api/objects.ts';
import type { Labels } from '../../api/policy-objects.ts';
import type { ListChanges, PeerList } from './lists.ts';
import { matches } from './selectors.ts';
import type { ListNumber } from './terms.ts';

interface NodeState {
  readonly labels: Labels;
  readonly addresses: readonly string[];
  lists: readonly ListNumber[];
}

export class Nodes {
  readonly #nodes = new Map<ObjectKey, NodeState>();
  readonly #byAddress = new Map<string, Set<NodeState>>();
  /** Lists that select nodes. */
  readonly #lists = new Set<PeerList>();

  /** @returns the addresses that it concerns. */
  upsert({ key, addresses, labels }: Node): readonly string[] {
    const before = this.remove(key);
    const lists = [...this.#lists].filter((list) => selectsNode(list, labels));
    const state = { labels, addresses, lists: lists.map(({ number }) => number) };
    this.#nodes.set(key, state);
    for (const address of addresses) {
      getOrCreate(this.#byAddress, address, () => new Set()).add(state);
    }
    return [...before, ...addresses];
  }

  /** @returns as `upsert`. */
  remove(key: ObjectKey): readonly string[] {
    const state = this.#nodes.get(key);
    if (state === undefined) return [];
    this.#nodes.delete(key);
    for (const address of state.addresses) {
      const states = this.#byAddress.get(address);
      states?.delete(state);
      if (states?.size === 0) this.#byAddress.delete(address);
    }
    return state.addresses;
  }

  /** Whether an address is one of this node. */
  has(key: ObjectKey, address: string): boolean {
    return this.#nodes.get(key)?.addresses.includes(address) === true;
  }

  /** The lists that select a node that has the address. */
  listsOf(address: string): readonly ListNumber[] {
    const [state, ...others] = this.#byAddress.get(address) ?? [];
    if (state === undefined) return [];
    if (others.length === 0) return state.lists;
    return [...new Set([state, ...others].flatMap(({ lists }) => lists))];
  }

  /** @returns as `upsert`. */
  change({ fresh, dropped }: ListChanges): readonly string[] {
    const touched: string[] = [];
    const selecting = fresh.filter((list) => list.kind === 'peers' && list.nodes.length > 0);
    const gone = new Set(dropped.map(({ number }) => number));
    let isConcerned = selecting.length > 0;
    for (const list of selecting) this.#lists.add(list as PeerList);
    for (const list of dropped) {
      if (list.kind === 'peers' && this.#lists.delete(list)) isConcerned = true;
    }
    for (const state of isConcerned ? this.#nodes.values() : []) {
      const lists = state.lists.filter((list) => !gone.has(list));
      for (const list of selecting as PeerList[]) {
        if (selectsNode(list, state.labels)) lists.push(list.number);
      }
      if (lists.join() === state.lists.join()) continue;
      state.lists = lists;
      touched.push(...state.addresses);
    }
    return touched;
  }
}

function selectsNode({ nodes }: PeerList, labels: Labels): boolean {
  return nodes.some((selector) => matches(selector, labels));
}
