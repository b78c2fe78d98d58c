/** Lists of peers and of ports. Rules with equal peers, or equal ports, share one list. */
import { compareText, getOrCreate } from '../../api/collections.ts';
import type {
  LabelSelector,
  PodSelection,
  PolicyPeer,
  PortMatch,
} from '../../api/policy-objects.ts';
import { normalizeRanges, type PortRange } from '../../api/ports.ts';
import type { Direction, ListId, PeerSetName, PortSetName } from './terms.ts';

type NetworkPeer = Extract<PolicyPeer, { kind: 'network' }>;
type NamedPortMatch = Extract<PortMatch, { name: string }>;

interface SharedList {
  readonly number: ListId;
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
  readonly nodes: readonly LabelSelector[];
  readonly networks: readonly NetworkPeer[];
  readonly groups: readonly LabelSelector[];
  readonly names: readonly string[];
  /** Where its members are. */
  readonly sets: readonly PeerSetName[];
}

/** Ports that rules share. */
export interface PortList extends SharedList {
  readonly kind: 'ports';
  readonly ranges: readonly PortRange[];
  readonly names: readonly NamedPortMatch[];
  /** Named ports of this node's pods count, instead of those of `selections`. */
  readonly isLocal: boolean;
  readonly sets: readonly PortSetName[];
}

export type RuleList = PeerList | PortList;

const EVERY_POD: readonly PodSelection[] = [{ namespaces: [], pods: [] }];

/** Lists that came into use, or went out of use, since the last `settle()`. */
export interface ListChanges {
  readonly added: readonly RuleList[];
  readonly removed: readonly RuleList[];
}

/** Lists by their content. A list keeps its number while a rule uses it; no other list gets that number later. */
export class RuleLists {
  readonly #byKey = new Map<string, RuleList>();
  /** Lists whose use count became 1 or 0 since the last `settle()`. */
  readonly #changed = new Set<RuleList>();
  readonly #listsByDomainName = new Map<string, Set<ListId>>();
  #lastId = 0;

  /** Patterns of domain names, and the lists that each belongs to. */
  get listsByDomainName(): ReadonlyMap<string, ReadonlySet<ListId>> {
    return this.#listsByDomainName;
  }

  /** The list of these peers. The caller releases it. */
  peers(peers: readonly PolicyPeer[]): PeerList {
    const entries = new Map(peers.map((peer) => [peerKey(peer), peer]));
    const key = `peers ${[...entries.keys()].sort(compareText).join()}`;
    const list = getOrCreate<string, RuleList>(this.#byKey, key, () => {
      const of = <K extends PolicyPeer['kind']>(kind: K) =>
        [...entries.values()].filter((peer) => peer.kind === kind) as Extract<
          PolicyPeer,
          { kind: K }
        >[];
      const content = {
        selections: of('pods').map(({ selection }) => selection),
        nodes: of('nodes').map(({ selector }) => selector),
        networks: of('network'),
        groups: of('cidrGroups').map(({ selector }) => selector),
        names: of('domainName').map(({ pattern }) => pattern),
      };
      const sets: PeerSetName[] = [];
      if (content.selections.length + content.nodes.length > 0) sets.push('peers');
      if (content.networks.length + content.groups.length > 0) sets.push('networks');
      if (content.names.length > 0) sets.push('learned');
      return {
        kind: 'peers',
        number: this.#nextId(),
        key,
        ...content,
        sets,
        uses: 0,
        isLive: false,
      };
    });
    return this.#acquire(list) as PeerList;
  }

  /**
   * The list of these ports. The caller releases it.
   * @param peers Of the rule: named ports are looked for in pods that these select.
   */
  ports(
    direction: Direction,
    peers: readonly PolicyPeer[] | undefined,
    ports: readonly PortMatch[],
  ): PortList {
    const ranges = normalizeRanges(
      ports
        .filter((port) => 'first' in port)
        .map(({ protocol, first, last }) => ({ protocol, from: first, to: last })),
    );
    const named = ports.filter((port): port is NamedPortMatch => 'name' in port);
    const names = [...new Map(named.map((port) => [namedPortKey(port), port])).values()].sort(
      (a, b) => compareText(namedPortKey(a), namedPortKey(b)),
    );
    // A named port is a port of the destination: for ingress a pod of this node.
    const isLocal = names.length > 0 && direction === 'ingress';
    const selections = names.length === 0 || isLocal ? [] : destinationSelections(peers);
    const scopeKey = isLocal ? 'local' : selections.map(selectionKey).sort(compareText);
    const key = `ports ${JSON.stringify([ranges, names.map(namedPortKey), scopeKey])}`;
    const list = getOrCreate<string, RuleList>(this.#byKey, key, () => {
      const sets: PortSetName[] = [];
      if (ranges.length > 0) sets.push('ports');
      if (names.length > 0) sets.push('named-ports');
      return {
        kind: 'ports',
        number: this.#nextId(),
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
    return this.#acquire(list) as PortList;
  }

  release(list: RuleList): void {
    list.uses -= 1;
    if (list.uses === 0) this.#changed.add(list);
  }

  /** Forgets lists that are no longer used, and returns what changed since the last call. */
  takeChanges(): ListChanges {
    const [fresh, dropped]: [RuleList[], RuleList[]] = [[], []];
    for (const list of this.#changed) {
      const isUsed = list.uses > 0;
      if (!isUsed) this.#byKey.delete(list.key);
      if (isUsed === list.isLive) continue;
      list.isLive = isUsed;
      (isUsed ? fresh : dropped).push(list);
      for (const name of list.kind === 'peers' ? list.names : []) {
        const numbers = getOrCreate(this.#listsByDomainName, name, () => new Set());
        if (isUsed) numbers.add(list.number);
        else numbers.delete(list.number);
        if (numbers.size === 0) this.#listsByDomainName.delete(name);
      }
    }
    this.#changed.clear();
    return { added: fresh, removed: dropped };
  }

  #acquire(list: RuleList): RuleList {
    list.uses += 1;
    if (list.uses === 1) this.#changed.add(list);
    return list;
  }

  #nextId(): ListId {
    this.#lastId += 1;
    return this.#lastId;
  }
}

/**
 * Pods to which a rule of egress may lead. Peers that are no selections may have pods among them (a network
 * that has the pods' addresses), so that every pod may be the destination.
 */
function destinationSelections(peers: readonly PolicyPeer[] | undefined): readonly PodSelection[] {
  const selections = peers?.flatMap((peer) => (peer.kind === 'pods' ? [peer.selection] : []));
  return selections?.length === peers?.length && selections !== undefined ? selections : EVERY_POD;
}

/** Equal for equal peers, whatever the order in which they were written. */
function peerKey(peer: PolicyPeer): string {
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

function selectorKey(selector: LabelSelector): readonly unknown[] {
  return selector.map(({ key, operator, values }) => [key, operator, values]);
}

function namedPortKey({ protocol, name }: NamedPortMatch): string {
  return `${protocol ?? ''}/${name}`;
}
