/** Rules of other programs for traces of a running agent: little enough that no sync waits while they are parsed. */
import { IP_FAMILIES } from '../../api/objects.ts';
import { isOwnChain } from '../../iptables/chains.ts';
import { iptablesCommand, VARIANTS } from '../../iptables/commands.ts';
import { iptablesTables } from '../../iptables/variant.ts';
import { listTables } from '../../netlink/nftables/tables.ts';
import { FOREIGN_TABLES, iptablesChains } from '../../preflight/iptables-rules.ts';
import { nftChains } from '../../preflight/nft-rules.ts';
import type { BaseChain } from '../../preflight/packet-walk.ts';
import { ProgramError, readProgram, runProgram } from '../../process/run-program.ts';
import { BackgroundSlice } from '../../sync/precedence.ts';
import { nftFamily, OWN_TABLES } from './rule-facts.ts';

/** Milliseconds for one program. */
const TIMEOUT = 10_000;
/** Lines of other programs in one table of iptables. */
const MAX_LINES = 5000;
/** Characters of JSON for one table of nft, about 700 rules; they are parsed in one go, in less than 8 ms. */
const MAX_JSON = 200_000;

/**
 * The base chains of other programs.
 * @throws RangeError if a table has too many rules; ProgramTimeoutError, ProgramError.
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
  for (const { family, name } of await listTables()) {
    const table = `${FAMILY_NAMES.get(family)} ${name}`;
    if (!FAMILY_NAMES.has(family) || OWN_TABLES.includes(name) || read.has(table)) continue;
    chains.push(...nftChains(await readTable(table)));
  }
  return chains;
}

/** Values of NFPROTO_ (linux/netfilter.h). */
const FAMILY_NAMES: ReadonlyMap<number, string> = new Map([
  [1, 'inet'],
  [2, 'ip'],
  [5, 'netdev'],
  [7, 'bridge'],
  [10, 'ip6'],
]);

/** Lines of chains that Portwide does not own. @returns undefined if the command is not installed. */
async function readForeignLines(command: string, table: string): Promise<string | undefined> {
  const keep = async (lines: AsyncIterable<string>) => {
    const kept: string[] = [];
    const slice = new BackgroundSlice();
    for await (const line of lines) {
      if (slice.isOver()) await slice.yield();
      const [, chain] = /^(?::|-A )(\S+)/.exec(line) ?? [];
      if (chain === undefined || isOwnChain(chain)) continue;
      if (kept.push(line) > MAX_LINES) throw tooMany(`table ${table} of ${command}`);
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

async function readTable(table: string): Promise<string> {
  const limits = { timeout: TIMEOUT, maxBuffer: MAX_JSON };
  try {
    return await runProgram(
      'nft',
      ['--json', '--terse', 'list', 'table', ...table.split(' ')],
      limits,
    );
  } catch (error) {
    if (error instanceof ProgramError && error.isMaxBuffer) throw tooMany(`table ${table}`);
    throw error;
  }
}

function tooMany(where: string): RangeError {
  return new RangeError(`${where} has too many rules; trace with --live, or run portwide check`);
}
