/** Peer lists and port lists. Rules with equal peers, or equal ports, share one list. */
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
  readonly id: ListId;
  readonly key: string;
  /** Pods that are peers, or whose named ports are members. */
  readonly selections: readonly PodSelection[];
  refCount: number;
  /** Whether `takeChanges()` has reported the list as added, and not as removed since then. */
  isLive: boolean;
}

/** Peers of one or more rules. */
export interface PeerList extends SharedList {
  readonly kind: 'peers';
  readonly nodes: readonly LabelSelector[];
  readonly networks: readonly NetworkPeer[];
  readonly cidrGroups: readonly LabelSelector[];
  readonly domainNames: readonly string[];
  /** The nft sets that contain the members. */
  readonly sets: readonly PeerSetName[];
}

/** Ports of one or more rules. */
export interface PortList extends SharedList {
  readonly kind: 'ports';
  readonly ranges: readonly PortRange[];
  readonly namedPorts: readonly NamedPortMatch[];
  /** Whether named ports refer to this node's pods (ingress) instead of `selections` (egress). */
  readonly isLocal: boolean;
  readonly sets: readonly PortSetName[];
}

export type RuleList = PeerList | PortList;

const EVERY_POD: readonly PodSelection[] = [{ namespaces: [], pods: [] }];

/** Lists that came into use or fell out of use since the last `takeChanges()`. */
export interface ListChanges {
  readonly added: readonly RuleList[];
  readonly removed: readonly RuleList[];
}

/** Reference-counted lists by content. The id of a list is never reused. */
export class RuleLists {
  readonly #byKey = new Map<string, RuleList>();
  /** Lists whose reference count became 1 or 0 since the last `takeChanges()`. */
  readonly #changed = new Set<RuleList>();
  readonly #listsByDomainName = new Map<string, Set<ListId>>();
  #lastId = 0;

  /** Ids of the peer lists that contain a domain name pattern, by pattern. A live map. */
  get listsByDomainName(): ReadonlyMap<string, ReadonlySet<ListId>> {
    return this.#listsByDomainName;
  }

  /** Returns the list with these peers. The caller must release it. */
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
        cidrGroups: of('cidrGroups').map(({ selector }) => selector),
        domainNames: of('domainName').map(({ pattern }) => pattern),
      };
      const sets: PeerSetName[] = [];
      if (content.selections.length + content.nodes.length > 0) sets.push('peers');
      if (content.networks.length + content.cidrGroups.length > 0) sets.push('networks');
      if (content.domainNames.length > 0) sets.push('fqdn-peers');
      return {
        kind: 'peers',
        id: this.#nextId(),
        key,
        ...content,
        sets,
        refCount: 0,
        isLive: false,
      };
    });
    return this.#acquire(list) as PeerList;
  }

  /**
   * Returns the list with these ports. The caller must release it.
   * @param peers Peers of the rule. For egress, named ports are ports of the pods that the peers
   * select.
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
    const matches = ports.filter((port): port is NamedPortMatch => 'name' in port);
    const namedPorts = [
      ...new Map(matches.map((port) => [namedPortKey(port), port])).values(),
    ].sort((a, b) => compareText(namedPortKey(a), namedPortKey(b)));
    // A named port is a port of the destination pod. For ingress this is a pod of this node.
    const isLocal = namedPorts.length > 0 && direction === 'ingress';
    const selections = namedPorts.length === 0 || isLocal ? [] : destinationSelections(peers);
    const scopeKey = isLocal ? 'local' : selections.map(selectionKey).sort(compareText);
    const key = `ports ${JSON.stringify([ranges, namedPorts.map(namedPortKey), scopeKey])}`;
    const list = getOrCreate<string, RuleList>(this.#byKey, key, () => {
      const sets: PortSetName[] = [];
      if (ranges.length > 0) sets.push('ports');
      if (namedPorts.length > 0) sets.push('named-ports');
      return {
        kind: 'ports',
        id: this.#nextId(),
        key,
        ranges,
        namedPorts,
        isLocal,
        selections,
        sets,
        refCount: 0,
        isLive: false,
      };
    });
    return this.#acquire(list) as PortList;
  }

  release(list: RuleList): void {
    list.refCount -= 1;
    if (list.refCount === 0) this.#changed.add(list);
  }

  /** Drops unused lists and returns the changes since the last call. */
  takeChanges(): ListChanges {
    const [added, removed]: [RuleList[], RuleList[]] = [[], []];
    for (const list of this.#changed) {
      const isUsed = list.refCount > 0;
      if (!isUsed) this.#byKey.delete(list.key);
      if (isUsed === list.isLive) continue;
      list.isLive = isUsed;
      (isUsed ? added : removed).push(list);
      for (const name of list.kind === 'peers' ? list.domainNames : []) {
        const ids = getOrCreate(this.#listsByDomainName, name, () => new Set());
        if (isUsed) ids.add(list.id);
        else ids.delete(list.id);
        if (ids.size === 0) this.#listsByDomainName.delete(name);
      }
    }
    this.#changed.clear();
    return { added, removed };
  }

  #acquire(list: RuleList): RuleList {
    list.refCount += 1;
    if (list.refCount === 1) this.#changed.add(list);
    return list;
  }

  #nextId(): ListId {
    this.#lastId += 1;
    return this.#lastId;
  }
}

/**
 * Possible destination pods of an egress rule. If a peer is not a pod selection, every pod is
 * possible: a CIDR may contain pod addresses.
 */
function destinationSelections(peers: readonly PolicyPeer[] | undefined): readonly PodSelection[] {
  const selections = peers?.flatMap((peer) => (peer.kind === 'pods' ? [peer.selection] : []));
  return selections?.length === peers?.length && selections !== undefined ? selections : EVERY_POD;
}

/** A key that is equal for equal peers. */
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
