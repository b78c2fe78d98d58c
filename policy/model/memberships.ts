/** Which lists the pods of a class are members of. */
import { getOrCreate } from '../../api/collections.ts';
import type { Labels } from '../../api/policy-objects.ts';
import { protocolNumbers } from '../../netlink/core/protocol.ts';
import { NamespaceIndex } from './namespace-index.ts';
import type { NamespaceState, PodClass } from './pods.ts';
import type { ListChanges, PortList, RuleList } from './rule-lists.ts';
import { selectsNamespace, selectsPod } from './selectors.ts';
import type { Direction, ListId } from './terms.ts';

/** A port that a list names, of a pod. */
export interface NamedPortMember {
  readonly list: ListId;
  /** As IP numbers it. */
  readonly protocol: number;
  readonly port: number;
}

/** All that applies to an address. Pods of one class share it. */
export interface AddressEntry {
  /** Lists of peers that the address is in. */
  readonly peers: readonly ListId[];
  readonly namedPorts: readonly NamedPortMember[];
  /** The address of a pod of this node. */
  readonly isLocalPod: boolean;
  /** Numbers of the policy sets that judge the pod; none for pods of other nodes. */
  readonly policySets: Readonly<Record<Direction, number | undefined>>;
}

export const EMPTY_ENTRY: AddressEntry = {
  peers: [],
  namedPorts: [],
  isLocalPod: false,
  policySets: { ingress: undefined, egress: undefined },
};

export class Memberships {
  /** Computed so far. */
  readonly #entries = new WeakMap<PodClass, AddressEntry>();
  readonly #listsByNamespace = new NamespaceIndex<RuleList>();
  /** Lists of named ports of this node's pods. */
  readonly #localPortLists = new Set<PortList>();
  /** Lists that may select pods of a namespace, by its labels object, which a relabelling replaces. */
  #candidateLists = new WeakMap<Labels, readonly RuleList[]>();

  /** The entry of pods of this class on other nodes. */
  of(pods: PodClass): AddressEntry {
    return getOrCreate(this.#entries, pods, () =>
      withLists(EMPTY_ENTRY, pods, this.#candidates(pods.namespace)),
    );
  }

  /** Lists of named ports that pods of this class are members of on their own node only. */
  localNamedPorts(pods: PodClass): readonly NamedPortMember[] {
    if (pods.namedPorts.length === 0) return [];
    return [...this.#localPortLists].flatMap((list) => namedMembers(list, pods));
  }

  /** Computes the entry anew at the next `of()`, because the namespace was relabelled. */
  invalidate(pods: PodClass): void {
    this.#entries.delete(pods);
  }

  /**
   * Updates entries that were computed.
   * @param every All namespaces.
   * @param locals Classes of this node's pods.
   * @returns classes that are in other lists than before.
   */
  applyListChanges(
    { added: fresh, removed: dropped }: ListChanges,
    every: () => Iterable<NamespaceState>,
    locals: Iterable<PodClass>,
  ): ReadonlySet<PodClass> {
    const touched = new Set<PodClass>();
    this.#candidateLists = new WeakMap();
    const changed = [...fresh, ...dropped];
    for (const list of changed) {
      if (!isLocal(list))
        this.#listsByNamespace[list.isLive ? 'add' : 'delete'](list, list.selections);
      else if (list.isLive) this.#localPortLists.add(list);
      else this.#localPortLists.delete(list);
    }
    const isConcerned = changed.some((list) => list.selections.length > 0);
    for (const namespace of isConcerned ? every() : []) {
      const isHere = (list: RuleList) => reachesNamespace(list, namespace);
      const [come, gone] = [fresh.filter(isHere), dropped.filter(isHere)];
      if (come.length + gone.length === 0) continue;
      const numbers = new Set(gone.map(({ number }) => number));
      for (const pods of namespace.classes.values()) {
        if (this.#updateEntry(pods, come, numbers)) touched.add(pods);
      }
    }
    if (changed.some(isLocal)) {
      for (const pods of locals) if (pods.namedPorts.length > 0) touched.add(pods);
    }
    return touched;
  }

  /** @returns whether a computed entry changed. */
  #updateEntry(pods: PodClass, fresh: readonly RuleList[], gone: ReadonlySet<ListId>): boolean {
    const before = this.#entries.get(pods);
    // `of()` will compute it; the caller of `forget()` has touched the addresses.
    if (before === undefined) return false;
    const isLeft =
      before.peers.every((list) => !gone.has(list)) &&
      before.namedPorts.every(({ list }) => !gone.has(list));
    const left = isLeft
      ? before
      : entryOf(
          before.peers.filter((list) => !gone.has(list)),
          before.namedPorts.filter(({ list }) => !gone.has(list)),
        );
    const now = withLists(left, pods, fresh);
    this.#entries.set(pods, now);
    return now !== before;
  }

  /** Computed once for all classes of a namespace: a cluster has 10,000 classes and hundreds of lists. */
  #candidates(namespace: NamespaceState): readonly RuleList[] {
    return getOrCreate(this.#candidateLists, namespace.labels, () =>
      [...this.#listsByNamespace.candidates(namespace.name)].filter((list) =>
        reachesNamespace(list, namespace),
      ),
    );
  }
}

function withLists(entry: AddressEntry, pods: PodClass, lists: Iterable<RuleList>): AddressEntry {
  const peers: ListId[] = [];
  const named: NamedPortMember[] = [];
  for (const list of lists) {
    if (list.kind === 'ports' && pods.namedPorts.length === 0) continue;
    const isMember = list.selections.some((selection) =>
      selectsPod(selection, pods.namespace, pods.labels),
    );
    if (!isMember) continue;
    if (list.kind === 'peers') peers.push(list.number);
    else named.push(...namedMembers(list, pods));
  }
  if (peers.length === 0 && named.length === 0) return entry;
  return entryOf([...entry.peers, ...peers], [...entry.namedPorts, ...named]);
}

function entryOf(peers: readonly ListId[], named: readonly NamedPortMember[]): AddressEntry {
  return peers.length + named.length > 0
    ? { ...EMPTY_ENTRY, peers, namedPorts: named }
    : EMPTY_ENTRY;
}

/** The ports of pods that a list names, each once. */
function namedMembers({ number, names }: PortList, { namedPorts }: PodClass): NamedPortMember[] {
  const members = new Map<string, NamedPortMember>();
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

function isLocal(list: RuleList): list is PortList {
  return list.kind === 'ports' && list.isLocal;
}

function reachesNamespace(list: RuleList, namespace: NamespaceState): boolean {
  return list.selections.some(({ namespaces }) => selectsNamespace(namespaces, namespace));
}
