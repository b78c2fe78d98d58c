/** CIDRGroups, and the address ranges of peer lists with networks. */
import { isDeepStrictEqual } from 'node:util';
import { familyOf } from '../../api/addresses.ts';
import { getOrCreate } from '../../api/collections.ts';
import { IP_FAMILIES, type IpFamily, type ObjectKey } from '../../api/objects.ts';
import type { CidrGroup } from '../../api/policy-objects.ts';
import type { PortRange } from '../../api/ports.ts';
import { type AddressRange, cidrRange, mergeRanges, subtractRanges } from './ranges.ts';
import type { ListChanges, PeerList, RuleList } from './rule-lists.ts';
import { matches } from './selectors.ts';

/** The members of a list that are ranges of addresses or ports. */
export interface ListRanges {
  /** Merged lists of ranges (`ranges.ts`). */
  readonly networks: Readonly<Record<IpFamily, readonly AddressRange[]>>;
  readonly ports: readonly PortRange[];
}

const NO_NETWORKS: ListRanges['networks'] = { IPv4: [], IPv6: [] };

export class PeerNetworks {
  readonly #groups = new Map<ObjectKey, CidrGroup>();
  /** Lists that select CIDRGroups. */
  readonly #listsWithGroups = new Set<PeerList>();
  /** Cache of the ranges of peer lists. */
  readonly #networks = new Map<PeerList, ListRanges['networks']>();

  /** @returns lists that selected the group before, or select it now; none if the group is as before. */
  upsert(group: CidrGroup): readonly PeerList[] {
    const before = this.#groups.get(group.key);
    if (isDeepStrictEqual(before, group)) return [];
    this.#groups.set(group.key, group);
    return this.#invalidate([before, group]);
  }

  /** @returns lists that selected the group. */
  remove(key: ObjectKey): readonly PeerList[] {
    const before = this.#groups.get(key);
    this.#groups.delete(key);
    return this.#invalidate([before]);
  }

  applyListChanges({ added, removed }: ListChanges): void {
    for (const list of added) {
      if (list.kind === 'peers' && list.cidrGroups.length > 0) this.#listsWithGroups.add(list);
    }
    for (const list of removed) {
      if (list.kind !== 'peers') continue;
      this.#listsWithGroups.delete(list);
      this.#networks.delete(list);
    }
  }

  rangesOf(list: RuleList): ListRanges {
    if (list.kind === 'ports') return { networks: NO_NETWORKS, ports: list.ranges };
    if (!list.sets.includes('networks')) return { networks: NO_NETWORKS, ports: [] };
    return {
      networks: getOrCreate(this.#networks, list, () => this.#computeRanges(list)),
      ports: [],
    };
  }

  #computeRanges({ networks, cidrGroups: groups }: PeerList): ListRanges['networks'] {
    const ranges: Record<IpFamily, AddressRange[]> = { IPv4: [], IPv6: [] };
    for (const { cidr, except } of networks) {
      ranges[familyOf(cidr)].push(...subtractRanges(cidrRange(cidr), except.map(cidrRange)));
    }
    for (const { labels, cidrs } of groups.length === 0 ? [] : this.#groups.values()) {
      if (!groups.some((selector) => matches(selector, labels))) continue;
      for (const cidr of cidrs) ranges[familyOf(cidr)].push(cidrRange(cidr));
    }
    for (const family of IP_FAMILIES) ranges[family] = mergeRanges(ranges[family]);
    return ranges;
  }

  #invalidate(groups: readonly (CidrGroup | undefined)[]): PeerList[] {
    const lists = [...this.#listsWithGroups].filter((list) =>
      list.cidrGroups.some((selector) =>
        groups.some((group) => group !== undefined && matches(selector, group.labels)),
      ),
    );
    for (const list of lists) this.#networks.delete(list);
    return lists;
  }
}
