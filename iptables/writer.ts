/** Brings a ruleset into the kernel, and finds out what the kernel lacks. */
import { ProgramTimeoutError } from '../process/run-program.ts';
import { isOwnChain } from './chains.ts';
import type { InputLine, Iptables } from './commands.ts';
import { IptablesError } from './commands.ts';
import { DEPTH } from './compile.ts';
import { checkInput, isEmpty, NFT_CHAINS_PER_TRANSACTION, restoreChunks } from './restore.ts';
import { type Ruleset, TABLES, type TableChange } from './ruleset.ts';

export type RulesetWriter = ReturnType<typeof rulesetWriter>;

/** @param onWarning is told of chains that could not be removed. */
export function rulesetWriter(
  iptables: Iptables,
  ruleset: Ruleset,
  onWarning: (message: string) => void,
) {
  const perTransaction = iptables.variant === 'nft' ? NFT_CHAINS_PER_TRANSACTION : Infinity;

  /** @returns how much was written. @throws IptablesError; nothing was written then. */
  const write = async (change: TableChange): Promise<number> => {
    if (isEmpty(change)) return 0;
    await iptables.restore(restoreChunks(change, perTransaction));
    ruleset.markWritten(change);
    return change.write.size + change.remove.length + change.shared.length;
  };

  /**
   * A rule of somebody else that jumps to a chain of ours keeps it from being removed. That must
   * not keep everything else from being written, nor other chains from being removed.
   */
  const writeSkippingBlocked = async (change: TableChange): Promise<number> => {
    try {
      return await write(change);
    } catch (error) {
      const left = blockedRemovals(error, change.remove);
      if (left.length === 0) throw error;
      // Until the next comparison with the kernel.
      ruleset.markWritten({ ...change, write: new Map(), remove: left });
      const remove = change.remove.filter((name) => !left.includes(name));
      // Emptied all the same: it must not lead to pods that went, nor hold the chains it jumps to.
      const emptied = left.map((name) => [name, { text: '', depth: DEPTH.mark, size: 0 }] as const);
      const rest = { ...change, remove, write: new Map([...change.write, ...emptied]) };
      const written = await writeSkippingBlocked(rest);
      // Not before: where the rest fails too, the removals are not to blame.
      onWarning(`table ${change.table} keeps ${left.join(', ')}: ${String(error)}`);
      return written;
    }
  };

  return {
    /** What the kernel lacks; all of it at once, for what is wanted may change meanwhile. */
    async diff(): Promise<TableChange[]> {
      const saved = await iptables.save();
      return [...saved].map(([table, rules]) => ruleset.diff(table, rules));
    },
    write,
    writeTolerant: writeSkippingBlocked,
    /** Which canary or jump to our chains is missing, in words; undefined: none is. */
    async findDrift(): Promise<string | undefined> {
      const missing = await iptables.check(checkInput(TABLES, ruleset.shared()));
      return missing === undefined ? undefined : driftText(missing);
    },
  };
}

/** How many rules a change brings. */
export function writtenRuleCount({ write, shared }: TableChange): number {
  let rules = 0;
  for (const { size } of write.values()) rules += size;
  for (const { insert, append } of shared) rules += insert.length + append.length;
  return rules;
}

/** `chain KUBE-PROXY-CANARY of table nat`, `jump from INPUT to KUBE-SERVICES in table filter` */
function driftText({ line, table }: InputLine): string {
  const [, chain = '', target = ''] = /^-C (\S+).* -j (\S+)/.exec(line) ?? [];
  if (isOwnChain(chain)) return `chain ${chain} of table ${table}`;
  if (target.startsWith('KUBE-')) return `jump from ${chain} to ${target} in table ${table}`;
  return `rule of chain ${chain} in table ${table}`;
}

/**
 * The removals that a failed restore is to blame on: the one it names, or any. One that hung was not
 * refused, and would hang again.
 */
function blockedRemovals(error: unknown, removals: readonly string[]): readonly string[] {
  if (error instanceof ProgramTimeoutError) return [];
  const line = error instanceof IptablesError ? error.line : undefined;
  if (line === undefined) return removals;
  return removals.filter((name) => line === `-X ${name}`);
}
