import { familyOf } from '../../api/addresses.ts';
import { getOrCreate } from '../../api/collections.ts';
import { IP_FAMILIES, type IpFamily, type ObjectKey } from '../../api/objects.ts';
import type { CidrGroup } from '../../api/policy-objects.ts';
import type { ListChanges, PeerList } from './lists.ts';
import { cidrRange, cutOut, normal, type Range } from './ranges.ts';
import { matches } from './selectors.ts';

/** Normal lists of ranges (`ranges.ts`). */
export type FamilyRanges = Readonly<Record<IpFamily, readonly Range[]>>;

export const NO_RANGES: FamilyRanges = { IPv4: [], IPv6: [] };

/** Groups of CIDRs, and the addresses of lists that have networks. */
export class Networks {
  readonly #groups = new Map<ObjectKey, CidrGroup>();
  /** Lists that select groups. */
  readonly #selecting = new Set<PeerList>();
  /** Those that were worked out. */
  readonly #ranges = new Map<PeerList, FamilyRanges>();

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
      this.#ranges.delete(list);
    }
  }

  of(list: PeerList): FamilyRanges {
    if (!list.sets.includes('networks')) return NO_RANGES;
    return getOrCreate(this.#ranges, list, () => this.#join(list));
  }

  #join({ networks, groups }: PeerList): FamilyRanges {
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
    for (const list of lists) this.#ranges.delete(list);
    return lists;
  }
}
