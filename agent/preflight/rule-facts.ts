/** Rules of other programs, for `portwide check`. Reads only tables that exist. */
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import { VARIANTS, type Variant } from '../../iptables/commands.ts';
import { hasServiceRules, iptablesTables, savedTable } from '../../iptables/variant.ts';
import { TRACE_TABLE } from '../../netlink/nftables/trace-table.ts';
import { TABLE } from '../../nftables/static-chains.ts';
import { POLICY_TABLES } from '../../policy/compile/policy-table.ts';
import type { RuleCounts } from '../../preflight/iptables.ts';
import { FOREIGN_TABLES, iptablesChains } from '../../preflight/iptables-rules.ts';
import { type NftBaseChain, nftBaseChains, nftChains } from '../../preflight/nft-rules.ts';
import type { BaseChain } from '../../preflight/packet-walk.ts';
import { ProgramError, runProgram } from '../../process/run-program.ts';
import { FLOWS_TABLE } from '../../status/traffic/refusal-log.ts';
import { KUBE_PROXY_TABLE } from '../../takeover/nft-tables.ts';

/** Milliseconds and bytes for one call of nft. Elements of sets are not printed, so only rules take space. */
const NFT_LIMITS = { timeout: 60_000, maxBuffer: 64 * 1024 * 1024 };
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
}

/** Variants with rules of kube-proxy or Portwide. */
export async function readServiceRules(): Promise<Variant[]> {
  const found: Variant[] = [];
  for (const variant of VARIANTS) if (await hasServiceRules(variant)) found.push(variant);
  return found;
}

/** Reads the tables of both variants; a variant whose command is not installed is left out. */
export async function readIptables(): Promise<IptablesFacts> {
  const chains: BaseChain[] = [];
  const counts = { nft: 0, legacy: 0 };
  const read = new Set<string>();
  for (const variant of VARIANTS) {
    for (const family of IP_FAMILIES) {
      for (const table of await iptablesTables(family, variant, FOREIGN_TABLES)) {
        const saved = await savedTable(family, variant, table).catch(undefinedIfMissing);
        if (saved === undefined) continue;
        const name = `${nftFamily(family)} ${table}`;
        chains.push(...iptablesChains(table, saved, `${name} (iptables-${variant})`));
        counts[variant] += saved.match(/^-A /gm)?.length ?? 0;
        if (variant === 'nft') read.add(name);
      }
    }
  }
  return { chains, counts, read };
}

function undefinedIfMissing(error: unknown): undefined {
  if (error instanceof ProgramError && error.code === 'ENOENT') return undefined;
  throw error;
}

/** The family of a table of iptables-nft. */
export function nftFamily(family: IpFamily): 'ip' | 'ip6' {
  return family === 'IPv4' ? 'ip' : 'ip6';
}

/** The base chains of other programs in nf_tables, except tables that iptables-nft has read. */
export async function readNftChains(read: ReadonlySet<string>): Promise<BaseChain[]> {
  const output = await nft('list', 'chains');
  const tables = new Map<string, NftBaseChain>();
  for (const chain of nftBaseChains(output)) {
    const name = `${chain.family} ${chain.table}`;
    const isForeign =
      ['ip', 'ip6', 'inet', 'netdev', 'bridge'].includes(chain.family) &&
      !OWN_TABLES.includes(chain.table);
    if (isForeign && !read.has(name)) tables.set(name, chain);
  }
  const chains: BaseChain[] = [];
  for (const { family, table } of tables.values()) {
    chains.push(...nftChains(await nft('list', 'table', family, table)));
  }
  return chains;
}

function nft(...command: readonly string[]): Promise<string> {
  return runProgram('nft', ['--json', '--terse', ...command], NFT_LIMITS);
}
