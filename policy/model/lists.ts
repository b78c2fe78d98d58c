/** Lists of peers and of ports. Rules with equal peers, or equal ports, share one list. */
import { compareText, getOrCreate } from '../../api/collections.ts';
import type { Peer, PodSelection, PortMatch, Selector } from '../../api/policy-objects.ts';
import { normalizeRanges, type PortRange } from '../../api/ports.ts';
import type { Direction, ListNumber, PeerSet, PortSet } from './terms.ts';

type NetworkPeer = Extract<Peer, { kind: 'network' }>;
type NamedPortMatch = Extract<PortMatch, { name: string }>;

interface SharedList {
  readonly number: ListNumber;
  readonly key: string;
  /** Pods that are peers, or whose named ports count. */
  readonly selections: readonly PodSelection[];
  uses: number;
  /** Reported as fresh, and not as dropped since. */
  isLive: boolean;
}

/** Peers that rules share. */
export interface PeerList extends SharedList {
  readonly kind: 'peers';
  readonly nodes: readonly Selector[];
  readonly networks: readonly NetworkPeer[];
  readonly groups: readonly Selector[];
  readonly names: readonly string[];
  /** Where its members are. */
  readonly sets: readonly PeerSet[];
}

/** Ports that rules share. */
export interface PortList extends SharedList {
  readonly kind: 'ports';
  readonly ranges: readonly PortRange[];
  readonly names: readonly NamedPortMatch[];
  /** Named ports of this node's pods count, instead of those of `selections`. */
  readonly isLocal: boolean;
  readonly sets: readonly PortSet[];
}

export type List = PeerList | PortList;

const EVERY_POD: readonly PodSelection[] = [{ namespaces: [], pods: [] }];

/** Lists that came into use, or went out of use, since the last `settle()`. */
export interface ListChanges {
  readonly fresh: readonly List[];
  readonly dropped: readonly List[];
}

/** Lists by their content. A list keeps its number while a rule uses it; no other list gets that number later. */
export class Lists {
  readonly #byKey = new Map<string, List>();
  /** Lists whose use count became 1 or 0 since the last `settle()`. */
  readonly #touched = new Set<List>();
  readonly #names = new Map<string, Set<ListNumber>>();
  #last = 0;

  /** Patterns of domain names, and the lists that each belongs to. */
  get names(): ReadonlyMap<string, ReadonlySet<ListNumber>> {
    return this.#names;
  }

  /** The list of these peers. The caller releases it. */
  peers(peers: readonly Peer[]): PeerList {
    const entries = new Map(peers.map((peer) => [peerKey(peer), peer]));
    const key = `peers ${[...entries.keys()].sort(compareText).join()}`;
    const list = getOrCreate<string, List>(this.#byKey, key, () => {
      const of = <K extends Peer['kind']>(kind: K) =>
        [...entries.values()].filter((peer) => peer.kind === kind) as Extract<Peer, { kind: K }>[];
      const content = {
        selections: of('pods').map(({ selection }) => selection),
        nodes: of('nodes').map(({ selector }) => selector),
        networks: of('network'),
        groups: of('cidrGroups').map(({ selector }) => selector),
        names: of('domainName').map(({ pattern }) => pattern),
      };
      const sets: PeerSet[] = [];
      if (content.selections.length + content.nodes.length > 0) sets.push('peers');
      if (content.networks.length + content.groups.length > 0) sets.push('networks');
      if (content.names.length > 0) sets.push('learned');
      return { kind: 'peers', number: this.#next(), key, ...content, sets, uses: 0, isLive: false };
    });
    return this.#use(list) as PeerList;
  }

  /**
   * The list of these ports. The caller releases it.
   * @param peers Of the rule: named ports are looked for in pods that these select.
   */
  ports(
    direction: Direction,
    peers: readonly Peer[] | undefined,
    ports: readonly PortMatch[],
  ): PortList {
    const ranges = normalizeRanges(
      ports
        .filter((port) => 'first' in port)
        .map(({ protocol, first, last }) => ({ protocol, from: first, to: last })),
    );
    const named = ports.filter((port): port is NamedPortMatch => 'name' in port);
    const names = [...new Map(named.map((port) => [nameKey(port), port])).values()].sort((a, b) =>
      compareText(nameKey(a), nameKey(b)),
    );
    // A named port is a port of the destination: for ingress a pod of this node.
    const isLocal = names.length > 0 && direction === 'ingress';
    const selections = names.length === 0 || isLocal ? [] : destinations(peers);
    const scopeKey = isLocal ? 'local' : selections.map(selectionKey).sort(compareText);
    const key = `ports ${JSON.stringify([ranges, names.map(nameKey), scopeKey])}`;
    const list = getOrCreate<string, List>(this.#byKey, key, () => {
      const sets: PortSet[] = [];
      if (ranges.length > 0) sets.push('ports');
      if (names.length > 0) sets.push('named-ports');
      return {
        kind: 'ports',
        number: this.#next(),
        key,
        ranges,
        names,
        isLocal,
        selections,
        sets,
        uses: 0,
        isLive: false,
      };
    });
    return this.#use(list) as PortList;
  }

  release(list: List): void {
    list.uses -= 1;
    if (list.uses === 0) this.#touched.add(list);
  }

  /** Forgets lists that are no longer used, and returns what changed since the last call. */
  settle(): ListChanges {
    const [fresh, dropped]: [List[], List[]] = [[], []];
    for (const list of this.#touched) {
      const isUsed = list.uses > 0;
      if (!isUsed) this.#byKey.delete(list.key);
      if (isUsed === list.isLive) continue;
      list.isLive = isUsed;
      (isUsed ? fresh : dropped).push(list);
      for (const name of list.kind === 'peers' ? list.names : []) {
        const numbers = getOrCreate(this.#names, name, () => new Set());
        if (isUsed) numbers.add(list.number);
        else numbers.delete(list.number);
        if (numbers.size === 0) this.#names.delete(name);
      }
    }
    this.#touched.clear();
    return { fresh, dropped };
  }

  #use(list: List): List {
    list.uses += 1;
    if (list.uses === 1) this.#touched.add(list);
    return list;
  }

  #next(): ListNumber {
    this.#last += 1;
    return this.#last;
  }
}

/**
 * Pods to which a rule of egress may lead. Peers that are no selections may have pods among them (a network
 * that has the pods' addresses), so that every pod may be the destination.
 */
function destinations(peers: readonly Peer[] | undefined): readonly PodSelection[] {
  const selections = peers?.flatMap((peer) => (peer.kind === 'pods' ? [peer.selection] : []));
  return selections?.length === peers?.length && selections !== undefined ? selections : EVERY_POD;
}

/** Equal for equal peers, whatever the order in which they were written. */
function peerKey(peer: Peer): string {
  switch (peer.kind) {
    case 'pods':
      return selectionKey(peer.selection);
    case 'network':
      return JSON.stringify([peer.kind, peer.cidr, peer.except.toSorted(compareText)]);
    case 'cidrGroups':
    case 'nodes':
      return JSON.stringify([peer.kind, selectorKey(peer.selector)]);
    case 'domainName':
      return JSON.stringify([peer.kind, peer.pattern]);
  }
}

function selectionKey({ namespaces, pods }: PodSelection): string {
  const where = typeof namespaces === 'string' ? namespaces : selectorKey(namespaces);
  return JSON.stringify(['pods', where, selectorKey(pods)]);
}

function selectorKey(selector: Selector): readonly unknown[] {
  return selector.map(({ key, operator, values }) => [key, operator, values]);
}

function nameKey({ protocol, name }: NamedPortMatch): string {
  return `${protocol ?? ''}/${name}`;
}
