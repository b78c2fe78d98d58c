/** Nodes, and the peer lists that select them. */
import { isDeepStrictEqual } from 'node:util';
import { getOrCreate } from '../../api/collections.ts';
import type { Node, ObjectKey } from '../../api/objects.ts';
import type { Labels } from '../../api/policy-objects.ts';
import type { ListChanges, PeerList } from './rule-lists.ts';
import { matches } from './selectors.ts';
import type { ListId } from './terms.ts';

export class NodeIndex {
  readonly #nodes = new Map<ObjectKey, Node>();
  readonly #byAddress = new Map<string, Set<Node>>();
  readonly #lists = new Set<PeerList>();

  /** @returns addresses whose lists may have changed; none for the many updates of a node that change neither. */
  upsert(node: Node): readonly string[] {
    const { labels, addresses } = this.#nodes.get(node.key) ?? {};
    if (isDeepStrictEqual([labels, addresses], [node.labels, node.addresses])) return [];
    const before = this.remove(node.key);
    this.#nodes.set(node.key, node);
    for (const address of node.addresses) {
      getOrCreate(this.#byAddress, address, () => new Set()).add(node);
    }
    return [...before, ...node.addresses];
  }

  /** @returns addresses whose lists may have changed. */
  remove(key: ObjectKey): readonly string[] {
    const node = this.#nodes.get(key);
    if (node === undefined) return [];
    this.#nodes.delete(key);
    for (const address of node.addresses) {
      const nodes = this.#byAddress.get(address);
      nodes?.delete(node);
      if (nodes?.size === 0) this.#byAddress.delete(address);
    }
    return node.addresses;
  }

  /** Addresses of all nodes. */
  addresses(): Iterable<string> {
    return this.#byAddress.keys();
  }

  /** Whether a node has an address. */
  has(key: ObjectKey, address: string): boolean {
    return this.#nodes.get(key)?.addresses.includes(address) === true;
  }

  /** Lists that select a node with this address. */
  listsOf(address: string): readonly ListId[] {
    const nodes = this.#byAddress.get(address);
    if (nodes === undefined) return [];
    return [...this.#lists]
      .filter((list) => [...nodes].some(({ labels }) => selectsNode(list, labels)))
      .map(({ id }) => id);
  }

  /** @returns addresses whose lists may have changed. */
  applyListChanges({ added, removed }: ListChanges): readonly string[] {
    const changed = [...added, ...removed].filter(
      (list): list is PeerList => list.kind === 'peers' && list.nodes.length > 0,
    );
    for (const list of changed) {
      if (list.isLive) this.#lists.add(list);
      else this.#lists.delete(list);
    }
    if (changed.length === 0) return [];
    return [...this.#nodes.values()]
      .filter(({ labels }) => changed.some((list) => selectsNode(list, labels)))
      .flatMap(({ addresses }) => addresses);
  }
}

function selectsNode({ nodes }: PeerList, labels: Labels): boolean {
  return nodes.some((selector) => matches(selector, labels));
}
