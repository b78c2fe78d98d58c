import { getOrCreate } from '../../api/collections.ts';
import type { Labels, PodSelection } from '../../api/policy-objects.ts';
import { protocolNumbers } from '../../netlink/core/protocol.ts';
import type { NamedMember } from './facts.ts';
import type { List, ListChanges, PortList } from './lists.ts';
import type { NamespaceState, Shape } from './pods.ts';
import { reaches, selects } from './selectors.ts';
import type { ListNumber } from './shape.ts';

/** The lists that the pods of a shape are in, wherever they run. */
export interface Membership {
  readonly peers: readonly ListNumber[];
  readonly named: readonly NamedMember[];
}

/** Lists that select pods, found by where these are. */
export class Memberships {
  /** Lists by the namespaces that they name. */
  readonly #inNamespace = new Map<string, Set<List>>();
  /** Lists that select namespaces. */
  readonly #across = new Set<List>();
  /** Lists of named ports of this node's pods. */
  readonly #local = new Set<PortList>();
  /** Lists that reach a namespace, by its labels, which are others when it is relabelled. */
  #reaching = new WeakMap<Labels, readonly List[]>();

  /** What the pods of a shape are in, from what is known of the shape, or anew. */
  of(shape: Shape): Membership {
    shape.membership ??= extended(NONE, shape, this.#candidates(shape.namespace));
    return shape.membership;
  }

  /** What pods of this shape are in besides, on their own node. */
  localOf(shape: Shape): readonly NamedMember[] {
    if (shape.namedPorts.length === 0) return [];
    return [...this.#local].flatMap((list) => namedMembers(list, shape));
  }

  /**
   * Brings memberships that are known already up to date.
   * @param every All namespaces.
   * @param locals Shapes of this node's pods.
   * @returns shapes that are in other lists than before.
   */
  change(
    { fresh, dropped }: ListChanges,
    every: () => Iterable<NamespaceState>,
    locals: Iterable<Shape>,
  ): ReadonlySet<Shape> {
    const touched = new Set<Shape>();
    this.#reaching = new WeakMap();
    for (const list of fresh) this.#index(list, true);
    for (const list of dropped) this.#index(list, false);
    const selecting = [...fresh, ...dropped].filter((list) => selectionsOf(list).length > 0);
    for (const namespace of selecting.length === 0 ? [] : every()) {
      const isHere = (list: List) => reachesNamespace(list, namespace);
      const [come, gone] = [fresh.filter(isHere), dropped.filter(isHere)];
      if (come.length + gone.length === 0) continue;
      const numbers = new Set(gone.map(({ number }) => number));
      for (const shape of namespace.shapes.values()) {
        if (revise(shape, come, numbers)) touched.add(shape);
      }
    }
    const isLocal = [...fresh, ...dropped].some(
      (list) => list.kind === 'ports' && list.scope === 'local',
    );
    if (isLocal) {
      for (const shape of locals) if (shape.namedPorts.length > 0) touched.add(shape);
    }
    return touched;
  }

  /** Worked out once for all shapes of a namespace: a cluster has 10,000 of these, and lists by the hundred. */
  #candidates(namespace: NamespaceState): readonly List[] {
    const known = this.#reaching.get(namespace.labels);
    if (known !== undefined) return known;
    const across = [...this.#across].filter((list) => reachesNamespace(list, namespace));
    const lists = [...(this.#inNamespace.get(namespace.name) ?? []), ...across];
    this.#reaching.set(namespace.labels, lists);
    return lists;
  }

  #index(list: List, isThere: boolean): void {
    if (list.kind === 'ports' && list.scope === 'local') {
      if (isThere) this.#local.add(list);
      else this.#local.delete(list);
      return;
    }
    const names = namesOf(list);
    if (names === undefined) {
      if (isThere) this.#across.add(list);
      else this.#across.delete(list);
    }
    for (const name of names ?? []) {
      const lists = getOrCreate(this.#inNamespace, name, () => new Set());
      if (isThere) lists.add(list);
      else lists.delete(list);
      if (lists.size === 0) this.#inNamespace.delete(name);
    }
  }
}

const NONE: Membership = { peers: [], named: [] };

/** @returns whether the shape is in other lists than before, as far as that was known. */
function revise(shape: Shape, fresh: readonly List[], gone: ReadonlySet<ListNumber>): boolean {
  const before = shape.membership;
  // To be worked out anyway, and whoever left it so knows that it concerns addresses.
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
  shape.membership = extended(left, shape, fresh);
  return shape.membership !== before;
}

function extended(membership: Membership, shape: Shape, lists: Iterable<List>): Membership {
  const peers: ListNumber[] = [];
  const named: NamedMember[] = [];
  for (const list of lists) {
    if (list.kind === 'ports' && shape.namedPorts.length === 0) continue;
    const isMember = selectionsOf(list).some((selection) =>
      selects(selection, shape.namespace, shape.labels),
    );
    if (!isMember) continue;
    if (list.kind === 'peers') peers.push(list.number);
    else named.push(...namedMembers(list, shape));
  }
  if (peers.length === 0 && named.length === 0) return membership;
  return { peers: [...membership.peers, ...peers], named: [...membership.named, ...named] };
}

/** The ports of a shape that a list names, each once. */
function namedMembers({ number, names }: PortList, { namedPorts }: Shape): NamedMember[] {
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

function reachesNamespace(list: List, namespace: NamespaceState): boolean {
  return selectionsOf(list).some(({ namespaces }) => reaches(namespaces, namespace));
}

function selectionsOf(list: List): readonly PodSelection[] {
  if (list.kind === 'peers') return list.selections;
  return list.scope === 'local' ? [] : list.scope;
}

/** The namespaces that a list names; undefined: it selects some. */
function namesOf(list: List): readonly string[] | undefined {
  const names: string[] = [];
  for (const { namespaces } of selectionsOf(list)) {
    if (typeof namespaces !== 'string') return undefined;
    names.push(namespaces);
  }
  return names;
}
