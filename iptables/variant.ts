/** Detects the iptables variant (nft or legacy) that the node uses. */
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import { addressFamily } from '../netlink/core/address.ts';
import { listTables } from '../netlink/nftables/tables.ts';
import { ProgramError, runProgram } from '../process/run-program.ts';
import { SERVICES, type Table } from './chains.ts';
import { IPTABLES_TIMEOUTS, iptablesCommand, type Variant } from './commands.ts';
import { TABLES } from './ruleset.ts';

/** Rules of one table in both variants, as `iptables-save` prints them; undefined: cannot be read. */
export type VariantRules = Readonly<Record<Variant, string | undefined>>;

/**
 * The variant that the node uses, chosen as by iptables-wrapper: the variant with the kubelet's
 * chains in table mangle, otherwise the variant with more rules in table nat. iptables-nft does not
 * show rules of iptables-legacy, and vice versa.
 */
export function chooseVariant(mangle: VariantRules, nat: VariantRules): Variant {
  if (hasKubelet(mangle.nft ?? '')) return 'nft';
  if (hasKubelet(mangle.legacy ?? '')) return 'legacy';
  return countRules(nat.legacy) > countRules(nat.nft) ? 'legacy' : 'nft';
}

/**
 * Detects the variant from the rules of both families.
 * @throws ProgramTimeoutError
 */
export async function detectVariant(): Promise<Variant> {
  const mangle = { nft: await saved('nft', 'mangle'), legacy: await saved('legacy', 'mangle') };
  const nat = { nft: await saved('nft', 'nat'), legacy: await saved('legacy', 'nat') };
  return chooseVariant(mangle, nat);
}

/**
 * Whether this variant has Service rules of kube-proxy or Portwide.
 * @throws ProgramTimeoutError
 */
export async function hasServiceRules(variant: Variant): Promise<boolean> {
  return (await saved(variant, 'nat'))?.includes(`\n:${SERVICES} `) ?? false;
}

/** Chains that the kubelet creates in table mangle. */
const KUBELET_CHAINS = /^:(KUBE-IPTABLES-HINT|KUBE-KUBELET-CANARY) /m;

/**
 * Whether a kubelet uses this variant.
 * @param savedMangle output of `iptables-save -t mangle`.
 */
export function hasKubelet(savedMangle: string): boolean {
  return KUBELET_CHAINS.test(savedMangle);
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

async function legacyTables(family: IpFamily): Promise<string[]> {
  const file = `/proc/net/${family === 'IPv4' ? 'ip' : 'ip6'}_tables_names`;
  return existsSync(file) ? (await readFile(file, 'utf8')).split('\n') : [];
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

async function saved(variant: Variant, table: Table): Promise<string | undefined> {
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
