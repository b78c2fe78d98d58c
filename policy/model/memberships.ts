/** Which lists the pods of a class are members of. */
import { getOrCreate } from '../../api/collections.ts';
import type { Labels } from '../../api/policy-objects.ts';
import { protocolNumbers } from '../../netlink/core/protocol.ts';
import type { List, ListChanges, PortList } from './lists.ts';
import { NamespaceIndex } from './namespace-index.ts';
import type { NamespaceState, PodClass } from './pods.ts';
import { reaches, selects } from './selectors.ts';
import type { ListNumber } from './terms.ts';

/** A port that a list names, of a pod. */
export interface NamedMember {
  readonly list: ListNumber;
  /** As IP numbers it. */
  readonly protocol: number;
  readonly port: number;
}

/** The lists that the pods of a class are in, wherever they run. */
export interface Membership {
  readonly peers: readonly ListNumber[];
  readonly named: readonly NamedMember[];
}

const NONE: Membership = { peers: [], named: [] };

export class Memberships {
  /** Computed so far. */
  readonly #known = new WeakMap<PodClass, Membership>();
  readonly #selecting = new NamespaceIndex<List>();
  /** Lists of named ports of this node's pods. */
  readonly #local = new Set<PortList>();
  /** Lists that may select pods of a namespace, by its labels object, which a relabelling replaces. */
  #reaching = new WeakMap<Labels, readonly List[]>();

  of(pods: PodClass): Membership {
    return getOrCreate(this.#known, pods, () =>
      extended(NONE, pods, this.#candidates(pods.namespace)),
    );
  }

  /** Lists of named ports that pods of this class are members of on their own node only. */
  localOf(pods: PodClass): readonly NamedMember[] {
    if (pods.namedPorts.length === 0) return [];
    return [...this.#local].flatMap((list) => namedMembers(list, pods));
  }

  /** Computes the membership anew at the next `of()`, because the namespace was relabelled. */
  forget(pods: PodClass): void {
    this.#known.delete(pods);
  }

  /**
   * Updates memberships that were computed.
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

  /** @returns whether a computed membership changed. */
  #revise(pods: PodClass, fresh: readonly List[], gone: ReadonlySet<ListNumber>): boolean {
    const before = this.#known.get(pods);
    // `of()` will compute it; the caller of `forget()` has touched the addresses.
    if (before === undefined) return false;
    const isLeft =
      before.peers.every((list) => !gone.has(list)) &&
      before.named.every(({ list }) => !gone.has(list));
    const left = isLeft
      ? before
      : {
          peers: before.peers.filter((list) => !gone.has(list)),
          named: before.named.filter(({ list }) => !gone.has(list)),
        };
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

function extended(membership: Membership, pods: PodClass, lists: Iterable<List>): Membership {
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
  if (peers.length === 0 && named.length === 0) return membership;
  return { peers: [...membership.peers, ...peers], named: [...membership.named, ...named] };
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
