/** Computes which lists the pods of a class are members of. */
import { getOrCreate } from '../../api/collections.ts';
import type { Labels } from '../../api/policy-objects.ts';
import { protocolNumbers } from '../../netlink/core/protocol.ts';
import { NamespaceIndex } from './namespace-index.ts';
import type { NamespaceState, PodClass } from './pods.ts';
import type { ListChanges, PortList, RuleList } from './rule-lists.ts';
import { selectsNamespace, selectsPod } from './selectors.ts';
import type { Direction, ListId } from './terms.ts';

/** A named port of a pod, as a member of a port list. */
export interface NamedPortMember {
  readonly list: ListId;
  /** IP protocol number. */
  readonly protocol: number;
  readonly port: number;
}

/**
 * The lists and policy sets of an address, from which its set elements are compiled. The pods of a
 * class on this node share one entry, and the pods of the class on other nodes share another.
 */
export interface AddressEntry {
  /** Peer lists that contain the address. */
  readonly peers: readonly ListId[];
  readonly namedPorts: readonly NamedPortMember[];
  /** Whether a pod of this node has the address. */
  readonly isLocalPod: boolean;
  /** Whether a policy with domain names selects the pod. Always false for pods of other nodes. */
  readonly usesNames: boolean;
  /** Ids of the policy sets that apply to the pod. Always undefined for pods of other nodes. */
  readonly policySets: Readonly<Record<Direction, number | undefined>>;
}

export const EMPTY_ENTRY: AddressEntry = {
  peers: [],
  namedPorts: [],
  isLocalPod: false,
  usesNames: false,
  policySets: { ingress: undefined, egress: undefined },
};

export class Memberships {
  /** Cache of computed entries. */
  readonly #entries = new WeakMap<PodClass, AddressEntry>();
  readonly #listsByNamespace = new NamespaceIndex<RuleList>();
  /** Port lists of ingress rules: they contain named ports of this node's pods. */
  readonly #localPortLists = new Set<PortList>();
  /**
   * Lists that may select pods of a namespace. Keyed by the labels object of the namespace, which
   * relabelling replaces.
   */
  #candidateLists = new WeakMap<Labels, readonly RuleList[]>();

  /** Returns the entry of pods of this class on other nodes. */
  entryOf(podClass: PodClass): AddressEntry {
    return getOrCreate(this.#entries, podClass, () =>
      withLists(EMPTY_ENTRY, podClass, this.#candidates(podClass.namespace)),
    );
  }

  /**
   * Named ports of this class that ingress rules refer to. Only the node of the pods needs them.
   */
  localNamedPorts(podClass: PodClass): readonly NamedPortMember[] {
    if (podClass.namedPorts.length === 0) return [];
    return [...this.#localPortLists].flatMap((list) => namedMembers(list, podClass));
  }

  /**
   * Drops the cached entry, because the namespace was relabelled. The next `entryOf()` computes it
   * again.
   */
  invalidate(podClass: PodClass): void {
    this.#entries.delete(podClass);
  }

  /**
   * Updates the cached entries.
   * @param namespaces All namespaces; called only if needed.
   * @param localClasses Classes with pods on this node.
   * @returns classes whose memberships changed.
   */
  applyListChanges(
    { added, removed }: ListChanges,
    namespaces: () => Iterable<NamespaceState>,
    localClasses: Iterable<PodClass>,
  ): ReadonlySet<PodClass> {
    const changedClasses = new Set<PodClass>();
    this.#candidateLists = new WeakMap();
    const changed = [...added, ...removed];
    for (const list of changed) {
      if (!isLocal(list))
        this.#listsByNamespace[list.isLive ? 'add' : 'delete'](list, list.selections);
      else if (list.isLive) this.#localPortLists.add(list);
      else this.#localPortLists.delete(list);
    }
    const selectsPods = changed.some((list) => list.selections.length > 0);
    for (const namespace of selectsPods ? namespaces() : []) {
      const isInNamespace = (list: RuleList) => reachesNamespace(list, namespace);
      const [addedHere, removedHere] = [added.filter(isInNamespace), removed.filter(isInNamespace)];
      if (addedHere.length + removedHere.length === 0) continue;
      const removedIds = new Set(removedHere.map(({ id }) => id));
      for (const podClass of namespace.classes.values()) {
        if (this.#updateEntry(podClass, addedHere, removedIds)) changedClasses.add(podClass);
      }
    }
    if (changed.some(isLocal)) {
      for (const podClass of localClasses)
        if (podClass.namedPorts.length > 0) changedClasses.add(podClass);
    }
    return changedClasses;
  }

  /** @returns whether a cached entry changed. */
  #updateEntry(
    podClass: PodClass,
    added: readonly RuleList[],
    removedIds: ReadonlySet<ListId>,
  ): boolean {
    const before = this.#entries.get(podClass);
    // The entry is not cached, because the class is new or was invalidated. Its addresses are
    // already dirty, and `entryOf()` will compute the entry.
    if (before === undefined) return false;
    const isUnchanged =
      before.peers.every((list) => !removedIds.has(list)) &&
      before.namedPorts.every(({ list }) => !removedIds.has(list));
    const remaining = isUnchanged
      ? before
      : entryOf(
          before.peers.filter((list) => !removedIds.has(list)),
          before.namedPorts.filter(({ list }) => !removedIds.has(list)),
        );
    const now = withLists(remaining, podClass, added);
    this.#entries.set(podClass, now);
    return now !== before;
  }

  /**
   * Lists that may select pods of a namespace. Cached, because a cluster may have 10,000 classes
   * and hundreds of lists.
   */
  #candidates(namespace: NamespaceState): readonly RuleList[] {
    return getOrCreate(this.#candidateLists, namespace.labels, () =>
      [...this.#listsByNamespace.candidates(namespace.name)].filter((list) =>
        reachesNamespace(list, namespace),
      ),
    );
  }
}

function withLists(
  entry: AddressEntry,
  podClass: PodClass,
  lists: Iterable<RuleList>,
): AddressEntry {
  const peers: ListId[] = [];
  const named: NamedPortMember[] = [];
  for (const list of lists) {
    if (list.kind === 'ports' && podClass.namedPorts.length === 0) continue;
    const isMember = list.selections.some((selection) =>
      selectsPod(selection, podClass.namespace, podClass.labels),
    );
    if (!isMember) continue;
    if (list.kind === 'peers') peers.push(list.id);
    else named.push(...namedMembers(list, podClass));
  }
  if (peers.length === 0 && named.length === 0) return entry;
  return entryOf([...entry.peers, ...peers], [...entry.namedPorts, ...named]);
}

function entryOf(peers: readonly ListId[], namedPorts: readonly NamedPortMember[]): AddressEntry {
  return peers.length + namedPorts.length > 0 ? { ...EMPTY_ENTRY, peers, namedPorts } : EMPTY_ENTRY;
}

/** Named ports of a class that a port list contains, without duplicates. */
function namedMembers(
  { id, namedPorts: matches }: PortList,
  { namedPorts }: PodClass,
): NamedPortMember[] {
  const members = new Map<string, NamedPortMember>();
  for (const { name, protocol, port } of namedPorts) {
    const isMember = matches.some(
      (match) => match.name === name && (match.protocol ?? protocol) === protocol,
    );
    if (!isMember) continue;
    const member = { list: id, protocol: protocolNumbers[protocol], port };
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
