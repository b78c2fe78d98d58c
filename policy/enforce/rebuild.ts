/**
 * Replaces the policy table without a moment in which no table enforces. A staging table bridges the time between the old
 * table and the new table:
 *
 *   old table        ████████▌
 *   staging table       ·····▐██████████▌      · filled, without rules in its base chains
 *   new table                  ········▐█████  █ enforces
 *
 * A later transaction adds the rules of base chains. If the transaction that adds interval elements
 * also added the rules that look them up, lookups would miss the elements for some milliseconds
 * (seen on Linux 6.18). Packets that a policy denies would pass, and allowed packets would be
 * dropped.
 */
import type { IpFamily } from '../../api/objects.ts';
import { NfTables, type NftElement, type NftOperation } from '../../netlink/nftables/tables.ts';
import type { RuleTable } from '../../nft/table.ts';
import { kernelChains } from '../compile/chains.ts';
import type { PolicySetChain } from '../compile/change.ts';
import {
  COMMIT_MARKER,
  type CounterValues,
  LEGACY_NAMES,
  type NftSetName,
  nftChainRules,
  POLICY_TABLE,
  type PolicyTableOptions,
  policyDeclarations,
  STAGING_TABLE,
  staticChains,
  type TableChain,
} from '../compile/policy-table.ts';

/** The tables of one family, each with its own netlink socket. */
export interface PolicyTables {
  /** `POLICY_TABLE` */
  readonly main: RuleTable;
  /** `STAGING_TABLE`: enforces while `main` is replaced. */
  readonly staging: RuleTable;
  /**
   * `LEGACY_NAMES.stagingTable`: left by an agent of an earlier release that was killed in a
   * rebuild.
   */
  readonly legacyStaging: RuleTable;
}

/** The desired chains and elements of the policy table. */
export interface TableContent {
  readonly chains: readonly PolicySetChain[];
  readonly elements: ReadonlyMap<NftSetName, readonly NftElement[]>;
  /** The elements of `dns-resolvers` at this moment. They would expire in a table that is still being written. */
  readonly resolvers: () => readonly NftElement[];
}

const ZERO_COUNTERS: CounterValues = new Map();

/** Opens the tables of one family. The tables need not exist. @throws NetlinkError */
export function openPolicyTables(family: IpFamily): PolicyTables {
  return {
    main: new NfTables(family, POLICY_TABLE),
    staging: new NfTables(family, STAGING_TABLE),
    legacyStaging: new NfTables(family, LEGACY_NAMES.stagingTable),
  };
}

/**
 * The table that enforces: the main table, or a staging table if an agent was killed during a
 * rebuild.
 * @returns the main table if no table is complete.
 * @throws NetlinkError
 */
export async function activeTable(tables: PolicyTables): Promise<RuleTable> {
  for (const table of [tables.main, tables.staging, tables.legacyStaging]) {
    if (await isComplete(table)) return table;
  }
  return tables.main;
}

/**
 * Replaces the policy table, whatever the old table contains. Counters keep their values, but
 * packets that the staging table denies during the rebuild are not counted. If the rebuild is
 * interrupted at any point, either the old content or the new content is enforced.
 * @throws NftRefusedError, NetlinkError
 */
export async function rebuild(
  tables: PolicyTables,
  options: PolicyTableOptions,
  { chains, elements, resolvers }: TableContent,
): Promise<void> {
  const { family } = options;
  const layouts = {
    main: staticChains(options),
    // Base chains of the staging table run after the base chains that they replace. So a packet in
    // flight during the switch traverses at least one of the two tables.
    staging: staticChains(options, 1),
  };
  const isBase = ({ base }: TableChain) => base !== undefined;
  /** Creates and fills a table whose base chains are still empty. */
  const fillTable = async (which: keyof typeof layouts, counters: CounterValues) => {
    const fixed = layouts[which];
    const policySetChains = chains.flatMap((chain) => kernelChains(chain, family));
    await tables[which].transact([
      {
        action: 'declare',
        replacesTable: true,
        declarations: policyDeclarations(options, fixed, counters),
      },
      ...[...fixed.filter((each) => !isBase(each)), ...policySetChains].map(replaceChainRules),
      ...[...elements].map(([set, all]) => ({ action: 'add', set, elements: all }) as const),
    ]);
  };
  /**
   * Adds the rules of base chains, the commit marker, and the resolvers.
   * @param also Further operations of the transaction.
   */
  const commit = async (which: keyof typeof layouts, also: readonly NftOperation[] = []) => {
    const baseChains = layouts[which].filter(isBase);
    const marker = { name: COMMIT_MARKER, rules: [] };
    await tables[which].transact([
      ...[...baseChains, marker].map(replaceChainRules),
      { action: 'add', set: 'dns-resolvers', elements: resolvers() },
      ...also,
    ]);
  };

  const old = await activeTable(tables);
  const needsStaging = old === tables.main && (await old.chains()) !== undefined;
  if (needsStaging) await fillTable('staging', ZERO_COUNTERS);
  const counters = (await old.counters()) ?? [];
  if (needsStaging) await commit('staging', [{ action: 'delete-table', table: POLICY_TABLE }]);
  await fillTable('main', new Map(counters.map((counter) => [counter.name, counter])));
  await commit('main');
  await tables.staging.delete();
  await tables.legacyStaging.delete();
}

/** The operation that creates a chain, or replaces its rules. */
export function replaceChainRules(chain: TableChain): NftOperation {
  return { action: 'fill', chain: nftChainRules(chain) };
}

/**
 * Whether a table has a commit marker, which shows that it was completely written.
 * @throws NetlinkError
 */
async function isComplete(table: RuleTable): Promise<boolean> {
  const chains = (await table.chains()) ?? [];
  return chains.includes(COMMIT_MARKER) || chains.includes(LEGACY_NAMES.commitMarker);
}
