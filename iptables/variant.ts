/** Reads which iptables rules the node has, and detects the variant (nft or legacy) that it uses. */
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import { addressFamily } from '../netlink/core/address.ts';
import { listChainNames } from '../netlink/nftables/chain-names.ts';
import { listTables } from '../netlink/nftables/tables.ts';
import { legacyChainNames, legacyTables } from '../netlink/xtables/legacy-chains.ts';
import { ProgramError, runProgram } from '../process/run-program.ts';
import { hasKubeletChain, SERVICES, type Table } from './chains.ts';
import { IPTABLES_TIMEOUTS, iptablesCommand, VARIANTS, type Variant } from './commands.ts';
import { TABLES } from './ruleset.ts';

/**
 * Detects the variant that the node uses, from the rules of both families, as iptables-wrapper does. It is the variant
 * with the kubelet's chains in table mangle, otherwise the variant with more rules in table nat. iptables-nft does not
 * show rules of iptables-legacy, and vice versa.
 * @throws ProgramTimeoutError, NetlinkError
 */
export async function detectVariant(): Promise<Variant> {
  for (const variant of VARIANTS) {
    const hasKubelet = (chains: ChainNames) => hasKubeletChain(chains.get('mangle') ?? []);
    if (await isAnyFamily(variant, hasKubelet)) return variant;
  }
  return variantWithMoreRules({ nft: await saved('nft'), legacy: await saved('legacy') });
}

/** @param nat table nat of each variant, as `iptables-save` prints it; undefined: cannot be read. */
export function variantWithMoreRules(nat: Readonly<Record<Variant, string | undefined>>): Variant {
  return countRules(nat.legacy) > countRules(nat.nft) ? 'legacy' : 'nft';
}

/**
 * Whether this variant has Service rules of kube-proxy or Portwide.
 * @throws NetlinkError
 */
export async function hasServiceRules(variant: Variant): Promise<boolean> {
  return await isAnyFamily(variant, (chains) => chains.get('nat')?.includes(SERVICES) === true);
}

async function isAnyFamily(
  variant: Variant,
  test: (chains: ChainNames) => boolean,
): Promise<boolean> {
  for (const family of IP_FAMILIES) if (test(await chainNames(family, variant))) return true;
  return false;
}

/** Names of chains by table. */
export type ChainNames = ReadonlyMap<Table, readonly string[]>;

/**
 * The chains in the tables that exist. Asks the kernel, and runs no program: iptables may be missing, and reading the
 * rules of 10,000 Services takes it minutes.
 * @throws NetlinkError
 */
export async function chainNames(family: IpFamily, variant: Variant): Promise<ChainNames> {
  const found = new Map<Table, readonly string[]>();
  if (variant === 'nft') {
    const tables = await listChainNames(addressFamily(family));
    for (const table of TABLES) {
      const names = tables.get(table);
      if (names !== undefined) found.set(table, names);
    }
    return found;
  }
  for (const table of await iptablesTables(family, variant)) {
    found.set(table, await legacyChainNames(family, table));
  }
  return found;
}

/**
 * Tables in which a variant may have rules. Reading other tables would create them.
 * @param tables those to look for; default: the tables of Portwide.
 */
export async function iptablesTables<T extends string = Table>(
  family: IpFamily,
  variant: Variant,
  tables: readonly (T | Table)[] = TABLES,
): Promise<(T | Table)[]> {
  const names =
    variant === 'nft'
      ? (await listTables())
          .filter((table) => table.family === addressFamily(family))
          .map(({ name }) => name)
      : await legacyTables(family);
  return tables.filter((table) => names.includes(table));
}

/**
 * A table as `iptables-save` prints it.
 * @throws ProgramTimeoutError; ProgramError with code ENOENT if the command does not exist.
 */
export async function savedTable(
  family: IpFamily,
  variant: Variant,
  table: string,
): Promise<string> {
  const limits = { timeout: IPTABLES_TIMEOUTS.read, maxBuffer: 2 ** 30 };
  return await runProgram(`${iptablesCommand(family, variant)}-save`, ['-t', table], limits);
}

/** Table nat of both families. */
async function saved(variant: Variant): Promise<string | undefined> {
  const table = 'nat';
  const texts: string[] = [];
  for (const family of IP_FAMILIES) {
    // iptables-legacy-save creates the table that it reads, and loads the table's kernel module.
    const used = variant === 'nft' ? [table] : await legacyTables(family).catch(() => ['']);
    if (!used.includes(table)) continue;
    // Ignore the variant if its command is missing or fails on this node. Report a timeout, which
    // does not prove that the variant is unused.
    const text = await savedTable(family, variant, table).catch((error: unknown) => {
      if (error instanceof ProgramError) return undefined;
      throw error;
    });
    if (text !== undefined) texts.push(text);
  }
  return texts.length === 0 ? undefined : texts.join('\n');
}

function countRules(text: string | undefined): number {
  return text?.match(/^-A /gm)?.length ?? 0;
}
