/** Rules of other programs, for `portwide check`. Reads only tables that exist. */
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import { VARIANTS, type Variant } from '../../iptables/commands.ts';
import { hasServiceRules, iptablesTables, savedTable } from '../../iptables/variant.ts';
import { readRuleset } from '../../netlink/nftables/rule-list.ts';
import { listTables } from '../../netlink/nftables/tables.ts';
import { TRACE_TABLE } from '../../netlink/nftables/trace-table.ts';
import { FAMILY_NAMES } from '../../netlink/nftables/types.ts';
import { TABLE } from '../../nftables/static-chains.ts';
import { POLICY_TABLES } from '../../policy/compile/policy-table.ts';
import type { RuleCounts } from '../../preflight/iptables.ts';
import { FOREIGN_TABLES, iptablesChains } from '../../preflight/iptables-rules.ts';
import { nftChains, nftWalkRules } from '../../preflight/nft-rules.ts';
import type { BaseChain } from '../../preflight/packet-walk.ts';
import { ProgramError } from '../../process/run-program.ts';
import { FLOWS_TABLE } from '../../status/traffic/refusal-log.ts';
import { KUBE_PROXY_TABLE } from '../../takeover/nft-tables.ts';

/** Tables of Portwide, also while a client looks, and of kube-proxy. */
export const OWN_TABLES: readonly string[] = [
  TABLE,
  KUBE_PROXY_TABLE,
  TRACE_TABLE,
  FLOWS_TABLE,
  ...POLICY_TABLES,
];

interface IptablesFacts {
  readonly chains: readonly BaseChain[];
  readonly counts: RuleCounts;
  /** Tables that were read, as `ip filter`. */
  readonly read: ReadonlySet<string>;
  /** Variants with tables whose command is not installed. */
  readonly unread: ReadonlySet<Variant>;
}

/** Variants with rules of kube-proxy or Portwide. */
export async function readServiceRules(): Promise<Variant[]> {
  const found: Variant[] = [];
  for (const variant of VARIANTS) if (await hasServiceRules(variant)) found.push(variant);
  return found;
}

/** Reads the tables of both variants, whose commands may be missing. */
export async function readIptables(): Promise<IptablesFacts> {
  const chains: BaseChain[] = [];
  const counts = { nft: 0, legacy: 0 };
  const read = new Set<string>();
  const unread = new Set<Variant>();
  for (const variant of VARIANTS) {
    for (const family of IP_FAMILIES) {
      for (const table of await iptablesTables(family, variant, FOREIGN_TABLES)) {
        const saved = await savedTable(family, variant, table).catch(undefinedIfMissing);
        if (saved === undefined) {
          unread.add(variant);
          continue;
        }
        const name = `${nftFamily(family)} ${table}`;
        chains.push(...iptablesChains(table, saved, `${name} (iptables-${variant})`));
        counts[variant] += saved.match(/^-A /gm)?.length ?? 0;
        if (variant === 'nft') read.add(name);
      }
    }
  }
  return { chains, counts, read, unread };
}

function undefinedIfMissing(error: unknown): undefined {
  if (error instanceof ProgramError && error.code === 'ENOENT') return undefined;
  throw error;
}

/** The family of a table of iptables-nft. */
export function nftFamily(family: IpFamily): 'ip' | 'ip6' {
  return family === 'IPv4' ? 'ip' : 'ip6';
}

/**
 * The base chains of other programs in nf_tables, except tables that iptables-nft has read.
 * @param maxRules of one table.
 * @throws RangeError if a table has more rules; NetlinkError.
 */
export async function readNftChains(
  read: ReadonlySet<string>,
  maxRules = Number.POSITIVE_INFINITY,
): Promise<BaseChain[]> {
  const chains: BaseChain[] = [];
  for (const table of await listTables()) {
    const name = `${FAMILY_NAMES[table.family]} ${table.name}`;
    if (!FAMILIES.has(table.family) || OWN_TABLES.includes(table.name) || read.has(name)) continue;
    const listed = await readRuleset(table, nftWalkRules, maxRules);
    if (listed === undefined) throw tooManyRules(`table ${name}`);
    chains.push(...nftChains(table, listed));
  }
  return chains;
}

/** NFPROTO_ of inet, ip, netdev, bridge and ip6. */
const FAMILIES: ReadonlySet<number> = new Set([1, 2, 5, 7, 10]);

export function tooManyRules(where: string): RangeError {
  return new RangeError(`${where} has too many rules; trace with --live, or run portwide check`);
}
