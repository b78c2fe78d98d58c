/** Which lists the pods of a class are members of. */
import { getOrCreate } from '../../api/collections.ts';
import type { Labels } from '../../api/policy-objects.ts';
import { protocolNumbers } from '../../netlink/core/protocol.ts';
import type { List, ListChanges, PortList } from './lists.ts';
import { NamespaceIndex } from './namespace-index.ts';
import type { NamespaceState, PodClass } from './pods.ts';
import { reaches, selects } from './selectors.ts';
import type { Direction, ListNumber } from './terms.ts';

/** A port that a list names, of a pod. */
export interface NamedMember {
  readonly list: ListNumber;
  /** As IP numbers it. */
  readonly protocol: number;
  readonly port: number;
}

/** All that applies to an address. Pods of one class share it. */
export interface AddressEntry {
  /** Lists of peers that the address is in. */
  readonly peers: readonly ListNumber[];
  readonly named: readonly NamedMember[];
  /** The address of a pod of this node. */
  readonly own: boolean;
  /** Numbers of the policy sets that judge the pod; none for pods of other nodes. */
  readonly policySets: Readonly<Record<Direction, number | undefined>>;
}

export const NO_ENTRY: AddressEntry = {
  peers: [],
  named: [],
  own: false,
  policySets: { ingress: undefined, egress: undefined },
};

export class Memberships {
  /** Computed so far. */
  readonly #known = new WeakMap<PodClass, AddressEntry>();
  readonly #selecting = new NamespaceIndex<List>();
  /** Lists of named ports of this node's pods. */
  readonly #local = new Set<PortList>();
  /** Lists that may select pods of a namespace, by its labels object, which a relabelling replaces. */
  #reaching = new WeakMap<Labels, readonly List[]>();

  /** The entry of pods of this class on other nodes. */
  of(pods: PodClass): AddressEntry {
    return getOrCreate(this.#known, pods, () =>
      extended(NO_ENTRY, pods, this.#candidates(pods.namespace)),
    );
  }

  /** Lists of named ports that pods of this class are members of on their own node only. */
  localOf(pods: PodClass): readonly NamedMember[] {
    if (pods.namedPorts.length === 0) return [];
    return [...this.#local].flatMap((list) => namedMembers(list, pods));
  }

  /** Computes the entry anew at the next `of()`, because the namespace was relabelled. */
  forget(pods: PodClass): void {
    this.#known.delete(pods);
  }

  /**
   * Updates entries that were computed.
   * @param every All namespaces.
   * @param locals Classes of this node's pods.
   * @returns classes that are in other lists than before.
   */
  change(
    { fresh, dropped }: ListChanges,
    every: () => Iterable<NamespaceState>,
    locals: Iterable<PodClass>,
  ): ReadonlySet<PodClass> {
    const touched = new Set<PodClass>();
    this.#reaching = new WeakMap();
    const changed = [...fresh, ...dropped];
    for (const list of changed) {
      if (!isLocal(list)) this.#selecting[list.isLive ? 'add' : 'delete'](list, list.selections);
      else if (list.isLive) this.#local.add(list);
      else this.#local.delete(list);
    }
    const isConcerned = changed.some((list) => list.selections.length > 0);
    for (const namespace of isConcerned ? every() : []) {
      const isHere = (list: List) => reachesNamespace(list, namespace);
      const [come, gone] = [fresh.filter(isHere), dropped.filter(isHere)];
      if (come.length + gone.length === 0) continue;
      const numbers = new Set(gone.map(({ number }) => number));
      for (const pods of namespace.classes.values()) {
        if (this.#revise(pods, come, numbers)) touched.add(pods);
      }
    }
    if (changed.some(isLocal)) {
      for (const pods of locals) if (pods.namedPorts.length > 0) touched.add(pods);
    }
    return touched;
  }

  /** @returns whether a computed entry changed. */
  #revise(pods: PodClass, fresh: readonly List[], gone: ReadonlySet<ListNumber>): boolean {
    const before = this.#known.get(pods);
    // `of()` will compute it; the caller of `forget()` has touched the addresses.
    if (before === undefined) return false;
    const isLeft =
      before.peers.every((list) => !gone.has(list)) &&
      before.named.every(({ list }) => !gone.has(list));
    const left = isLeft
      ? before
      : entryOf(
          before.peers.filter((list) => !gone.has(list)),
          before.named.filter(({ list }) => !gone.has(list)),
        );
    const now = extended(left, pods, fresh);
    this.#known.set(pods, now);
    return now !== before;
  }

  /** Computed once for all classes of a namespace: a cluster has 10,000 classes and hundreds of lists. */
  #candidates(namespace: NamespaceState): readonly List[] {
    return getOrCreate(this.#reaching, namespace.labels, () =>
      [...this.#selecting.near(namespace.name)].filter((list) => reachesNamespace(list, namespace)),
    );
  }
}

function extended(entry: AddressEntry, pods: PodClass, lists: Iterable<List>): AddressEntry {
  const peers: ListNumber[] = [];
  const named: NamedMember[] = [];
  for (const list of lists) {
    if (list.kind === 'ports' && pods.namedPorts.length === 0) continue;
    const isMember = list.selections.some((selection) =>
      selects(selection, pods.namespace, pods.labels),
    );
    if (!isMember) continue;
    if (list.kind === 'peers') peers.push(list.number);
    else named.push(...namedMembers(list, pods));
  }
  if (peers.length === 0 && named.length === 0) return entry;
  return entryOf([...entry.peers, ...peers], [...entry.named, ...named]);
}

function entryOf(peers: readonly ListNumber[], named: readonly NamedMember[]): AddressEntry {
  return peers.length + named.length > 0 ? { ...NO_ENTRY, peers, named } : NO_ENTRY;
}

/** The ports of pods that a list names, each once. */
function namedMembers({ number, names }: PortList, { namedPorts }: PodClass): NamedMember[] {
  const members = new Map<string, NamedMember>();
  for (const { name, protocol, port } of namedPorts) {
    const isNamed = names.some(
      (match) => match.name === name && (match.protocol ?? protocol) === protocol,
    );
    if (!isNamed) continue;
    const member = { list: number, protocol: protocolNumbers[protocol], port };
    members.set(`${protocol} ${port}`, member);
  }
  return [...members.values()];
}

function isLocal(list: List): list is PortList {
  return list.kind === 'ports' && list.isLocal;
}

function reachesNamespace(list: List, namespace: NamespaceState): boolean {
  return list.selections.some(({ namespaces }) => reaches(namespaces, namespace));
}
