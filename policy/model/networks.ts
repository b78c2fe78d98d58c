/** Groups of CIDRs, and the addresses of lists that have networks. */
import { familyOf } from '../../api/addresses.ts';
import { getOrCreate } from '../../api/collections.ts';
import { IP_FAMILIES, type IpFamily, type ObjectKey } from '../../api/objects.ts';
import type { CidrGroup } from '../../api/policy-objects.ts';
import type { PortRange } from '../../api/ports.ts';
import type { List, ListChanges, PeerList } from './lists.ts';
import { cidrRange, cutOut, normal, type Range } from './ranges.ts';
import { matches } from './selectors.ts';

/** Members of a list that are ranges. */
export interface ListRanges {
  /** Normal lists of ranges (`ranges.ts`). */
  readonly networks: Readonly<Record<IpFamily, readonly Range[]>>;
  readonly ports: readonly PortRange[];
}

const NO_NETWORKS: ListRanges['networks'] = { IPv4: [], IPv6: [] };

export class Networks {
  readonly #groups = new Map<ObjectKey, CidrGroup>();
  /** Lists that select groups. */
  readonly #selecting = new Set<PeerList>();
  /** Computed so far. */
  readonly #networks = new Map<PeerList, ListRanges['networks']>();

  /** @returns the lists that the group was in, or is now. */
  upsert(group: CidrGroup): readonly PeerList[] {
    const before = this.#groups.get(group.key);
    this.#groups.set(group.key, group);
    return this.#forget([before, group]);
  }

  /** @returns the lists that the group was in. */
  remove(key: ObjectKey): readonly PeerList[] {
    const before = this.#groups.get(key);
    this.#groups.delete(key);
    return this.#forget([before]);
  }

  change({ fresh, dropped }: ListChanges): void {
    for (const list of fresh) {
      if (list.kind === 'peers' && list.groups.length > 0) this.#selecting.add(list);
    }
    for (const list of dropped) {
      if (list.kind !== 'peers') continue;
      this.#selecting.delete(list);
      this.#networks.delete(list);
    }
  }

  rangesOf(list: List): ListRanges {
    if (list.kind === 'ports') return { networks: NO_NETWORKS, ports: list.ranges };
    if (!list.sets.includes('networks')) return { networks: NO_NETWORKS, ports: [] };
    return { networks: getOrCreate(this.#networks, list, () => this.#join(list)), ports: [] };
  }

  #join({ networks, groups }: PeerList): ListRanges['networks'] {
    const ranges: Record<IpFamily, Range[]> = { IPv4: [], IPv6: [] };
    for (const { cidr, except } of networks) {
      ranges[familyOf(cidr)].push(...cutOut(cidrRange(cidr), except.map(cidrRange)));
    }
    for (const { labels, cidrs } of groups.length === 0 ? [] : this.#groups.values()) {
      if (!groups.some((selector) => matches(selector, labels))) continue;
      for (const cidr of cidrs) ranges[familyOf(cidr)].push(cidrRange(cidr));
    }
    for (const family of IP_FAMILIES) ranges[family] = normal(ranges[family]);
    return ranges;
  }

  #forget(groups: readonly (CidrGroup | undefined)[]): PeerList[] {
    const lists = [...this.#selecting].filter((list) =>
      list.groups.some((selector) =>
        groups.some((group) => group !== undefined && matches(selector, group.labels)),
      ),
    );
    for (const list of lists) this.#networks.delete(list);
    return lists;
  }
}
