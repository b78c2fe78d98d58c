/** Runs iptables-save, iptables-restore and iptables. */
import { Readable } from 'node:stream';
import type { IpFamily } from '../api/objects.ts';
import type { IptablesVariant } from '../config/mode-values.ts';
import { UserError } from '../process/errors.ts';
import {
  ProgramError,
  ProgramTimeoutError,
  readProgram,
  runProgram,
  VERSION_TIMEOUT,
} from '../process/run-program.ts';
import type { Table } from './chains.ts';
import { type RuleSpec, ruleText } from './rule.ts';
import { parseSaved } from './saved.ts';

export {
  IPTABLES_VARIANTS as VARIANTS,
  type IptablesVariant as Variant,
} from '../config/mode-values.ts';

/**
 * Waits for the xtables lock (iptables-legacy only) without a time limit, unlike kube-proxy. With a
 * limit, iptables-legacy-restore 1.8 leaves an alarm armed. If the alarm fires while the command
 * waits for input, the command treats the interrupted read as the end of the input. A big table
 * that takes longer to read then fails to load.
 */
export const LOCK_WAIT = ['-w'];

/**
 * Milliseconds after which a command counts as hung and is killed. iptables-nft-restore takes
 * minutes for the rules of 10,000 Services. Reading these rules takes less than half as long.
 * iptables-legacy-restore also waits for the xtables lock, which another restore may hold.
 *
 * A killed restore leaves each table unchanged, or in the state of one of the COMMITs in the input.
 * For each COMMIT, iptables-legacy replaces the table by one system call, and iptables-nft sends one
 * transaction, which the kernel applies completely or not at all.
 */
export const IPTABLES_TIMEOUTS = {
  read: 5 * 60_000,
  write: 10 * 60_000,
  version: VERSION_TIMEOUT,
};

/** An iptables command failed. For a restore, contains the input line that the command reported. */
export class IptablesError extends Error {
  override readonly name = 'IptablesError';
  readonly command: string;
  readonly stderr: string;
  /** The rejected input line, if the command reported its number. */
  readonly line: string | undefined;
  /** The table of that line. */
  readonly table: string | undefined;

  constructor(
    command: string,
    stderr: string,
    place: Partial<InputLine> | undefined,
    cause: unknown,
  ) {
    const at = place?.line === undefined ? '' : ` at "${place.line}"`;
    super(`${command} failed${at}: ${stderr.trim() || String(cause)}`, { cause });
    this.command = command;
    this.stderr = stderr;
    this.line = place?.line;
    this.table = place?.table;
  }
}

/** Whether an iptables command failed because it is not installed. */
export function isMissing(error: unknown): boolean {
  const cause = error instanceof IptablesError ? error.cause : error;
  return cause instanceof ProgramError && cause.code === 'ENOENT';
}

/** A line of `iptables-restore` input, and the table of the line. */
export interface InputLine {
  readonly line: string;
  readonly table: string;
}

/** libxtables warns of an extension that the kernel lacks, and only the write of the rule fails. */
const MISSING_MATCH = /Extension (\S+) revision \d+ not supported, missing kernel module/;

/** The kernel lacks a match of iptables rules. */
class MissingMatchError extends UserError {
  override readonly name = 'MissingMatchError';

  constructor(match: string) {
    super(`the kernel has no iptables match ${match}: load the kernel module xt_${match}`);
  }
}

export type Iptables = ReturnType<typeof iptablesCommands>;

/** Name of the command, for example `iptables-nft`. */
export function iptablesCommand(family: IpFamily, variant: IptablesVariant): string {
  return `${family === 'IPv4' ? 'iptables' : 'ip6tables'}-${variant}`;
}

/**
 * The iptables commands of one family and variant, run without a shell.
 * @param timeouts for tests.
 * @throws (rejections) IptablesError; ProgramTimeoutError, which names the hung command.
 */
export function iptablesCommands(
  family: IpFamily,
  variant: IptablesVariant,
  timeouts = IPTABLES_TIMEOUTS,
) {
  const command = iptablesCommand(family, variant);
  const [saveName, restoreName] = [`${command}-save`, `${command}-restore`];
  const saveTable = (table: Table, returns: 'stdout' | 'stderr' = 'stdout') =>
    asIptablesErrors(
      saveName,
      runProgram(saveName, ['-t', table], { timeout: timeouts.read, returns }),
    );
  return {
    family,
    variant,
    /** Reads all tables with one command, because iptables-nft-save always reads all of them. */
    save: () => asIptablesErrors(saveName, readProgram(saveName, [], timeouts.read, parseSaved)),
    /** One table as `iptables-save` prints it; for small tables only. */
    saveTable: (table: Table) => saveTable(table),
    /** @throws IptablesError if the kernel has no such table. */
    probe: async (table: Table) => void (await saveTable(table, 'stderr')),
    /**
     * Asks the kernel for the matches of a rule. Changes nothing. A command that fails for another reason says nothing about
     * them: a family left out because of it would stay without rules.
     * @throws MissingMatchError
     */
    async probeRule(table: Table, rule: RuleSpec): Promise<void> {
      const chain = 'PORTWIDE-PROBE';
      const input = `*${table}\n:${chain} - [0:0]\n${ruleText(chain, rule)}\nCOMMIT\n`;
      const args = ['--noflush', '--test', ...LOCK_WAIT];
      const program = runProgram(restoreName, args, {
        input,
        timeout: timeouts.write,
        returns: 'stderr',
      });
      const warnings = await asIptablesErrors(restoreName, program, [input]).catch((error) => {
        if (error instanceof IptablesError) return '';
        throw error;
      });
      const missing = MISSING_MATCH.exec(warnings);
      if (missing?.[1] !== undefined) throw new MissingMatchError(missing[1]);
    },
    /**
     * Loads `input` without flushing other chains. Each transaction, up to a COMMIT, is written
     * completely or not at all.
     */
    async restore(input: Iterable<string>) {
      await asIptablesErrors(
        restoreName,
        runProgram(restoreName, ['--noflush', ...LOCK_WAIT], {
          input: Readable.from(input),
          timeout: timeouts.write,
        }),
        input,
      );
    },
    /**
     * Finds the first rule that does not exist. `input` consists of `-C` lines. undefined: all
     * rules exist.
     */
    async check(input: string): Promise<InputLine | undefined> {
      try {
        await this.restore([input]);
        return undefined;
      } catch (error) {
        // A reported line is a missing rule. Any other error does not tell whether a rule is
        // missing.
        if (!(error instanceof IptablesError) || error.line === undefined) throw error;
        return { line: error.line, table: error.table ?? '' };
      }
    },
    /** Output of `--version`. */
    version: () =>
      asIptablesErrors(command, runProgram(command, ['--version'], { timeout: timeouts.version })),
  };
}

/** Converts errors to IptablesError, except timeouts. */
async function asIptablesErrors<T>(
  command: string,
  work: Promise<T>,
  input?: Iterable<string>,
): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw error instanceof ProgramTimeoutError ? error : asIptablesError(command, error, input);
  }
}

function asIptablesError(
  command: string,
  error: unknown,
  input: Iterable<string> = [],
): IptablesError {
  const stderr = error instanceof ProgramError ? String(error.stderr ?? '') : '';
  const number = /line:? (\d+)/i.exec(stderr)?.[1];
  const place = number === undefined ? undefined : locateLine(input, Number(number));
  return new IptablesError(command, stderr, place, error);
}

/**
 * Finds a line of restore input.
 * @param number line number, starting at 1.
 */
export function locateLine(input: Iterable<string>, number: number): InputLine | undefined {
  let left = number;
  let rest = '';
  let table = '';
  for (const piece of input) {
    const lines = (rest + piece).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) {
      if (line.startsWith('*')) table = line.slice(1);
      left -= 1;
      if (left === 0) return { line, table };
    }
  }
  return undefined;
}
