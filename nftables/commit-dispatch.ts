/** The transactions of a full sync that change chains and dispatch elements. */
import type { IpFamily } from '../api/objects.ts';
import { EMLINK, EOPNOTSUPP } from '../netlink/core/error.ts';
import {
  type NftElementChange,
  type NftOperation,
  NftRefusedError,
} from '../netlink/nftables/tables.ts';
import type { RuleTable } from '../nft/table.ts';
import type { NftChain } from './chains.ts';
import { changesOf } from './element-changes.ts';
import type { KernelElements } from './kernel-elements.ts';
import { isDispatchMap } from './maps.ts';
import { chainRuleOperations } from './static-chains.ts';
import { existingObjects, neededObjects, withoutObjects } from './unknown-objects.ts';

/**
 * EOPNOTSUPP: a chain with DNAT would be reached from another hook than nat prerouting and output. EMLINK: jumps would be
 * nested too deeply. The kernel checks all base chains of the table when a transaction ends.
 */
const REFUSED_PATHS: readonly number[] = [EOPNOTSUPP, EMLINK];

/**
 * Fills the chains that are not in use, then fills the others and changes dispatch elements in one transaction. If chains
 * or elements of another program make the kernel refuse this, it does all in one transaction, which also flushes unknown
 * chains and deletes stale dispatch elements. It does not start with that: unknown chains and stale elements may be those
 * of an earlier agent, and serve packets until the new elements exist.
 *
 * @param isInUse Packets pass the chain already.
 * @param changes of dispatch elements.
 * @param kernel loses the stale elements that were deleted.
 * @returns the number of deleted stale elements.
 * @throws NftRefusedError, NetlinkError
 */
export async function commitDispatch(
  tables: RuleTable,
  chains: readonly NftChain[],
  isInUse: (chain: NftChain) => boolean,
  changes: readonly NftElementChange[],
  kernel: KernelElements,
  family: IpFamily,
): Promise<number> {
  try {
    await tables.transact(chainRuleOperations(chains.filter((chain) => !isInUse(chain))));
    await tables.transact([...chainRuleOperations(chains.filter(isInUse)), ...changes]);
    return 0;
  } catch (error) {
    if (!(error instanceof NftRefusedError) || !REFUSED_PATHS.includes(error.errno)) throw error;
  }
  const unknown = withoutObjects(await existingObjects(tables), neededObjects(chains));
  const stale = [...kernel.stale(family)].filter(({ map }) => isDispatchMap(map));
  await tables.transact([
    ...unknown.chains.map(flushed),
    ...chainRuleOperations(chains),
    ...changesOf('delete', stale),
    ...changes,
  ]);
  for (const element of stale) kernel.delete(element);
  return stale.length;
}

function flushed(name: string): NftOperation {
  return { action: 'fill', chain: { name, rules: [] } };
}
