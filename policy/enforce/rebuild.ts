/**
 * Making the table of network policy anew. Table and sets are text for nft, rules are not, so it is not
 * made in one transaction. A guard is made beside the one that is there, and takes over from it in one;
 * and when the table has been made anew beside the guard, that goes:
 *
 *   old table     ████████▌
 *   guard            ·····▐██████████▌      · made, judges nothing yet
 *   new table               ········▐█████
 *
 * Rules that begin to judge in the transaction that adds intervals do not find these for some
 * milliseconds (seen on 6.18), which lets through what they deny and keeps back what they allow. So
 * hooks get their rules in a transaction of their own.
 */
import type { IpFamily } from '../../api/objects.ts';
import { NfTables, type NftStep } from '../../netlink/nftables/tables.ts';
import type { NftCommand } from '../../nft/command.ts';
import type { RuleTable } from '../../nft/table.ts';
import { kernelChains } from '../compile/chains.ts';
import type { PolicySetChain } from '../compile/change.ts';
import type { KernelElement } from '../compile/element.ts';
import {
  COMPLETE,
  type Counts,
  chainRules,
  GUARD_TABLE,
  newTable,
  POLICY_TABLE,
  type PolicyChain,
  type SetName,
  type SkeletonOptions,
  standingChains,
} from '../compile/skeleton.ts';

/** Of one family, by sockets of their own. */
export interface PolicyTables {
  /** `POLICY_TABLE` */
  readonly main: RuleTable;
  /** `GUARD_TABLE`: stands in for that while it is made anew. */
  readonly guard: RuleTable;
}

/** What the table is to hold. */
export interface Content {
  readonly chains: readonly PolicySetChain[];
  readonly elements: ReadonlyMap<SetName, readonly KernelElement[]>;
}

const NO_COUNTS: Counts = new Map();

/** @throws NetlinkError */
export function openPolicyTables(family: IpFamily): PolicyTables {
  return {
    main: new NfTables(family, POLICY_TABLE),
    guard: new NfTables(family, GUARD_TABLE),
  };
}

/** The table that judges packets; the guard where an agent was killed beside it. @throws NetlinkError */
export async function inForce({ main, guard }: PolicyTables): Promise<RuleTable> {
  return !(await isComplete(main)) && (await isComplete(guard)) ? guard : main;
}

/**
 * Has the table hold just this, whatever there is; counters go on. Wherever it is broken off, what was in
 * force is, or this.
 * @throws NftError, NftRefusedError, NetlinkError
 */
export async function rebuild(
  tables: PolicyTables,
  nft: NftCommand,
  options: SkeletonOptions,
  { chains, elements }: Content,
): Promise<void> {
  const { family } = options;
  const made = {
    main: { name: POLICY_TABLE, standing: standingChains(options) },
    // Asked after the one that goes in the same moment, so that no packet that is under way then comes
    // by neither.
    guard: { name: GUARD_TABLE, standing: standingChains(options, 1) },
  };
  const isBase = ({ hook }: PolicyChain) => hook !== undefined;
  /** Makes a table that judges nothing yet. */
  const make = async (which: keyof PolicyTables, counts: Counts) => {
    const { name, standing } = made[which];
    await nft.run(newTable(name, options, standing, counts));
    const profiles = chains.flatMap((chain) => kernelChains(chain, family));
    await tables[which].transact([
      ...[...standing.filter((each) => !isBase(each)), ...profiles].map(fill),
      ...[...elements].map(([set, all]) => ({ action: 'add', set, elements: all }) as const),
    ]);
  };
  /** Has it judge. @param besides is done in the same moment. */
  const judge = async (which: keyof PolicyTables, besides: readonly NftStep[] = []) => {
    const hooks = made[which].standing.filter(isBase);
    const complete = { name: COMPLETE, lines: [] };
    await tables[which].transact([...[...hooks, complete].map(fill), ...besides]);
  };

  const old = await inForce(tables);
  const isReplaced = old === tables.main && (await old.chains()) !== undefined;
  if (isReplaced) await make('guard', NO_COUNTS);
  const counters = (await old.counters()) ?? [];
  if (isReplaced) await judge('guard', [{ action: 'delete-table', table: POLICY_TABLE }]);
  await make('main', new Map(counters.map((counter) => [counter.name, counter])));
  await judge('main');
  await tables.guard.delete();
}

/** Gives a chain just these rules. */
export function fill(chain: PolicyChain): NftStep {
  return { action: 'fill', chain: chainRules(chain) };
}

/** Whether all that was wanted once was written to a table. @throws NetlinkError */
export async function isComplete(tables: RuleTable): Promise<boolean> {
  return (await tables.chains())?.includes(COMPLETE) === true;
}
