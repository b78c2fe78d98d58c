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
import { NfTables, type NftOperation } from '../../netlink/nftables/tables.ts';
import type { NftCommand } from '../../nft/command.ts';
import type { RuleTable } from '../../nft/table.ts';
import { kernelChains } from '../compile/chains.ts';
import type { PolicySetChain } from '../compile/change.ts';
import type { KernelElement } from '../compile/element.ts';
import {
  COMMIT_MARKER,
  type CounterValues,
  type NftSetName,
  nftChainRules,
  POLICY_TABLE,
  type PolicyTableOptions,
  policyTableScript,
  STAGING_TABLE,
  staticChains,
  type TableChain,
} from '../compile/policy-table.ts';

/** Of one family, by sockets of their own. */
export interface PolicyTables {
  /** `POLICY_TABLE` */
  readonly main: RuleTable;
  /** `GUARD_TABLE`: stands in for that while it is made anew. */
  readonly guard: RuleTable;
}

/** What the table is to hold. */
export interface TableContent {
  readonly chains: readonly PolicySetChain[];
  readonly elements: ReadonlyMap<NftSetName, readonly KernelElement[]>;
}

const NO_COUNTS: CounterValues = new Map();

/** @throws NetlinkError */
export function openPolicyTables(family: IpFamily): PolicyTables {
  return {
    main: new NfTables(family, POLICY_TABLE),
    guard: new NfTables(family, STAGING_TABLE),
  };
}

/** The table that judges packets; the guard where an agent was killed beside it. @throws NetlinkError */
export async function activeTable({ main, guard }: PolicyTables): Promise<RuleTable> {
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
  options: PolicyTableOptions,
  { chains, elements }: TableContent,
): Promise<void> {
  const { family } = options;
  const made = {
    main: { name: POLICY_TABLE, standing: staticChains(options) },
    // Asked after the one that goes in the same moment, so that no packet that is under way then comes
    // by neither.
    guard: { name: STAGING_TABLE, standing: staticChains(options, 1) },
  };
  const isBase = ({ hook }: TableChain) => hook !== undefined;
  /** Makes a table that judges nothing yet. */
  const make = async (which: keyof PolicyTables, counts: CounterValues) => {
    const { name, standing } = made[which];
    await nft.run(policyTableScript(name, options, standing, counts));
    const profiles = chains.flatMap((chain) => kernelChains(chain, family));
    await tables[which].transact([
      ...[...standing.filter((each) => !isBase(each)), ...profiles].map(fill),
      ...[...elements].map(([set, all]) => ({ action: 'add', set, elements: all }) as const),
    ]);
  };
  /** Has it judge. @param besides is done in the same moment. */
  const judge = async (which: keyof PolicyTables, besides: readonly NftOperation[] = []) => {
    const hooks = made[which].standing.filter(isBase);
    const complete = { name: COMMIT_MARKER, lines: [] };
    await tables[which].transact([...[...hooks, complete].map(fill), ...besides]);
  };

  const old = await activeTable(tables);
  const isReplaced = old === tables.main && (await old.chains()) !== undefined;
  if (isReplaced) await make('guard', NO_COUNTS);
  const counters = (await old.counters()) ?? [];
  if (isReplaced) await judge('guard', [{ action: 'delete-table', table: POLICY_TABLE }]);
  await make('main', new Map(counters.map((counter) => [counter.name, counter])));
  await judge('main');
  await tables.guard.delete();
}

/** Gives a chain just these rules. */
export function fill(chain: TableChain): NftOperation {
  return { action: 'fill', chain: nftChainRules(chain) };
}

/** Whether all that was wanted once was written to a table. @throws NetlinkError */
export async function isComplete(tables: RuleTable): Promise<boolean> {
  return (await tables.chains())?.includes(COMMIT_MARKER) === true;
}
