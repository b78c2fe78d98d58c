/** Writes a ruleset to the kernel, and detects drift. */
import type { Log } from '../process/log.ts';
import { ProgramTimeoutError } from '../process/run-program.ts';
import type { ComparisonBuilder } from '../proxier/comparison.ts';
import { isOwnChain } from './chains.ts';
import type { InputLine, Iptables } from './commands.ts';
import { IptablesError } from './commands.ts';
import { compareRuleset } from './compare-rules.ts';
import { DEPTH } from './compile.ts';
import { checkInput, isEmpty, NFT_CHAINS_PER_TRANSACTION, restoreChunks } from './restore.ts';
import { type Ruleset, TABLES, type TableChange } from './ruleset.ts';

export type RulesetWriter = ReturnType<typeof rulesetWriter>;

/** @param onWarning logs chains that cannot be removed. */
export function rulesetWriter(iptables: Iptables, ruleset: Ruleset, onWarning: Log['warn']) {
  const perTransaction = iptables.variant === 'nft' ? NFT_CHAINS_PER_TRANSACTION : Infinity;

  /**
   * @returns the number of chains and shared changes written.
   * @throws IptablesError; the change then stays pending.
   */
  const write = async (change: TableChange): Promise<number> => {
    if (isEmpty(change)) return 0;
    await iptables.restore(restoreChunks(change, perTransaction));
    ruleset.markWritten(change);
    return change.write.size + change.remove.length + change.shared.length;
  };

  /**
   * Like `write`, but skips removals of chains to which a rule of another program jumps. Such
   * removals must not block other changes.
   */
  const writeSkippingBlocked = async (change: TableChange): Promise<number> => {
    try {
      return await write(change);
    } catch (error) {
      const blocked = blockedRemovals(error, change.remove);
      if (blocked.length === 0) throw error;
      // Do not retry before the next full sync.
      ruleset.markWritten({ ...change, write: new Map(), remove: blocked });
      const remove = change.remove.filter((name) => !blocked.includes(name));
      // Flush the blocked chains. Their rules must not send packets to deleted pods, nor block the
      // removal of chains that they jump to.
      const emptied = blocked.map(
        (name) => [name, { text: '', depth: DEPTH.mark, ruleCount: 0 }] as const,
      );
      const rest = { ...change, remove, write: new Map([...change.write, ...emptied]) };
      const written = await writeSkippingBlocked(rest);
      // Warn after the other changes were written. If the other changes had failed too, the removals
      // would not be the cause.
      const hint = 'delete the rules of other programs that jump to these chains';
      onWarning(
        { table: change.table, chains: blocked, hint, err: error },
        'cannot remove iptables chains that are in use',
      );
      return written;
    }
  };

  return {
    /**
     * Diffs all tables against the kernel at once, because the desired state may change meanwhile.
     */
    async diff(): Promise<TableChange[]> {
      const saved = await iptables.save();
      return [...saved].map(([table, rules]) => ruleset.diff(table, rules));
    },
    write,
    writeSkippingBlocked,
    /** Compares all tables with the kernel. Changes nothing. @throws IptablesError */
    async compare(result: ComparisonBuilder): Promise<void> {
      await compareRuleset(ruleset, await iptables.save(), result);
    },
    /**
     * Finds a missing canary or jump to Portwide's chains.
     * @returns a description for the log; undefined if nothing is missing.
     */
    async findDrift(): Promise<string | undefined> {
      const missing = await iptables.check(checkInput(TABLES, ruleset.shared()));
      return missing === undefined ? undefined : driftText(missing);
    },
  };
}

/** Number of rules that a change writes. */
export function writtenRuleCount({ write, shared }: TableChange): number {
  let rules = 0;
  for (const { ruleCount } of write.values()) rules += ruleCount;
  for (const { insert, append } of shared) rules += insert.length + append.length;
  return rules;
}

/**
 * Describes a missing rule, for example `chain KUBE-PROXY-CANARY of table nat` or `jump from INPUT
 * to KUBE-SERVICES in table filter`.
 */
function driftText({ line, table }: InputLine): string {
  const [, chain = '', target = ''] = /^-C (\S+).* -j (\S+)/.exec(line) ?? [];
  if (isOwnChain(chain)) return `chain ${chain} of table ${table}`;
  if (target.startsWith('KUBE-')) return `jump from ${chain} to ${target} in table ${table}`;
  return `rule of chain ${chain} in table ${table}`;
}

/**
 * Removals that may have caused a restore to fail: the removal in the line that the error names, or
 * all removals if the error names no line. None after a timeout: a retry would hang again.
 */
function blockedRemovals(error: unknown, removals: readonly string[]): readonly string[] {
  if (error instanceof ProgramTimeoutError) return [];
  const line = error instanceof IptablesError ? error.line : undefined;
  if (line === undefined) return removals;
  return removals.filter((name) => line === `-X ${name}`);
}
