/** Finds objects in table `portwide` that the plan does not have. */
import { NFT_SET_FLAGS } from '../netlink/nftables/tables.ts';
import type { RuleTable } from '../nft/table.ts';
import type { NftChain } from './chains.ts';
import { FLOWTABLE, FLOWTABLE_SETS } from './flowtable.ts';
import { MAP_NAMES } from './maps.ts';
import { affinityMapsOf, countersOf, needsFlowtable, onDemandMapsOf } from './static-chains.ts';

/** Names of chains, maps and sets, counters, and flowtables. */
export interface ObjectNames {
  readonly chains: readonly string[];
  readonly sets: readonly string[];
  readonly counters: readonly string[];
  readonly flowtables: readonly string[];
}

/** The objects that these chains need, with all maps and sets. */
export function neededObjects(chains: readonly NftChain[]): ObjectNames {
  const hasFlowtable = needsFlowtable(chains);
  return {
    chains: chains.map(({ name }) => name),
    sets: [
      ...MAP_NAMES,
      ...onDemandMapsOf(chains),
      ...affinityMapsOf(chains),
      ...(hasFlowtable ? FLOWTABLE_SETS : []),
    ],
    counters: [...countersOf(chains)],
    flowtables: hasFlowtable ? [FLOWTABLE] : [],
  };
}

/** The objects in the table; none if there is no table. @throws NetlinkError */
export async function existingObjects(
  tables: Pick<RuleTable, 'chains' | 'sets' | 'counters' | 'flowtables'>,
): Promise<ObjectNames> {
  return {
    chains: (await tables.chains()) ?? [],
    // The kernel removes an anonymous set together with its rule.
    sets: ((await tables.sets()) ?? [])
      .filter(({ flags }) => (flags & NFT_SET_FLAGS.anonymous) === 0)
      .map(({ name }) => name),
    counters: ((await tables.counters()) ?? []).map(({ name }) => name),
    flowtables: ((await tables.flowtables()) ?? []).map(({ name }) => name),
  };
}

/** The objects of `all` that `others` lacks. */
export function withoutObjects(all: ObjectNames, others: ObjectNames): ObjectNames {
  const without = (names: readonly string[], known: readonly string[]) => {
    const set = new Set(known);
    return names.filter((name) => !set.has(name));
  };
  return {
    chains: without(all.chains, others.chains),
    sets: without(all.sets, others.sets),
    counters: without(all.counters, others.counters),
    flowtables: without(all.flowtables, others.flowtables),
  };
}
