/** Writes the whole table over netlink, where nothing of an existing one stays. */
import type { IpFamily } from '../api/objects.ts';
import type { NftOperation } from '../netlink/nftables/types.ts';
import type { NftChain } from './chains.ts';
import type { MapElement } from './element.ts';
import { changesOf } from './element-changes.ts';
import { chainRuleOperations, tableDeclarations } from './static-chains.ts';

/** Operations that replace the table, if there is one. */
export function tableOperations(
  chains: readonly NftChain[],
  elements: readonly MapElement[],
  family: IpFamily,
): NftOperation[] {
  const declarations = tableDeclarations(chains, family);
  return [
    { action: 'declare', replacesTable: true, declarations },
    ...chainRuleOperations(chains),
    ...changesOf('add', elements),
  ];
}
