/** Rules of other programs for traces of a running agent: little enough that no sync waits while they are parsed. */
import { IP_FAMILIES } from '../../api/objects.ts';
import { isOwnChain } from '../../iptables/chains.ts';
import { iptablesCommand, VARIANTS } from '../../iptables/commands.ts';
import { iptablesTables } from '../../iptables/variant.ts';
import { FOREIGN_TABLES, iptablesChains } from '../../preflight/iptables-rules.ts';
import type { BaseChain } from '../../preflight/packet-walk.ts';
import { ProgramError, readProgram } from '../../process/run-program.ts';
import { BackgroundSlice } from '../../sync/precedence.ts';
import { nftFamily, readNftChains, tooManyRules } from './rule-facts.ts';

/** Milliseconds for one program. */
const TIMEOUT = 10_000;
/** Rules of other programs in one table of iptables. */
const MAX_LINES = 5000;
/** Rules in one table of nf_tables. Each may have an anonymous set, which is read by a dump of its own. */
const MAX_NFT_RULES = 2000;

/**
 * The base chains of other programs.
 * @throws RangeError if a table has too many rules; ProgramTimeoutError, ProgramError, NetlinkError.
 */
export async function readBoundedChains(): Promise<readonly BaseChain[]> {
  const chains: BaseChain[] = [];
  const read = new Set<string>();
  for (const variant of VARIANTS) {
    for (const family of IP_FAMILIES) {
      const command = `${iptablesCommand(family, variant)}-save`;
      for (const table of await iptablesTables(family, variant, FOREIGN_TABLES)) {
        const name = `${nftFamily(family)} ${table}`;
        const saved = await readForeignLines(command, table);
        if (saved === undefined) continue;
        chains.push(...iptablesChains(table, saved, `${name} (iptables-${variant})`));
        if (variant === 'nft') read.add(name);
      }
    }
  }
  return [...chains, ...(await readNftChains(read, MAX_NFT_RULES))];
}

/** Lines of chains that Portwide does not own. @returns undefined if the command is not installed. */
async function readForeignLines(command: string, table: string): Promise<string | undefined> {
  const keep = async (lines: AsyncIterable<string>) => {
    const kept: string[] = [];
    const slice = new BackgroundSlice();
    for await (const line of lines) {
      if (slice.isOver()) await slice.yield();
      const [, chain] = /^(?::|-A )(\S+)/.exec(line) ?? [];
      if (chain === undefined || isOwnChain(chain)) continue;
      if (kept.push(line) > MAX_LINES) throw tooManyRules(`table ${table} of ${command}`);
    }
    return kept.join('\n');
  };
  try {
    return await readProgram(command, ['-t', table], TIMEOUT, keep);
  } catch (error) {
    if (error instanceof ProgramError && error.code === 'ENOENT') return undefined;
    throw error;
  }
}
