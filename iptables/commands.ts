/** Runs iptables-save, iptables-restore and iptables. */
import { Readable } from 'node:stream';
import type { IpFamily } from '../api/objects.ts';
import type { IptablesVariant } from '../config/mode-values.ts';
import {
  ProgramError,
  ProgramTimeoutError,
  readProgram,
  runProgram,
  VERSION_TIMEOUT,
} from '../process/run-program.ts';
import type { Table } from './chains.ts';
import { parseSaved } from './saved.ts';

export {
  IPTABLES_VARIANTS as VARIANTS,
  type IptablesVariant as Variant,
} from '../config/mode-values.ts';

/**
 * Waits for the xtables lock. Without a number of seconds, unlike kube-proxy: with one,
 * iptables-legacy-restore 1.8 leaves an alarm behind that, going off while it waits for input, it
 * takes for the end of the input. A big table, read for longer than that, then fails to load.
 */
export const LOCK_WAIT = ['-w'];

/**
 * Milliseconds after which a command counts as hung and is killed. iptables-nft-restore takes minutes for the rules of 10,000 Services, and waits for the xtables lock
 * first, which another such restore may hold. To read them takes it less than half as long. A restore
 * that is killed leaves each table as it was, or as it is after one of the input's COMMITs: legacy
 * replaces a table by one system call, and nft sends one transaction, which the kernel makes or drops as
 * a whole.
 */
export const IPTABLES_TIMEOUTS = {
  read: 5 * 60_000,
  write: 10 * 60_000,
  version: VERSION_TIMEOUT,
};

/** A command of iptables failed; for a restore, with the line of the input that it named. */
export class IptablesError extends Error {
  override readonly name = 'IptablesError';
  readonly command: string;
  readonly stderr: string;
  /** The rejected line of the input, when the command told its number. */
  readonly line: string | undefined;
  /** The table that it was for. */
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

/** A line of the input for `iptables-restore`, and the table in whose part it stands. */
export interface InputLine {
  readonly line: string;
  readonly table: string;
}

export type Iptables = ReturnType<typeof iptablesCommands>;

/** `iptables-nft` and the like. */
export function iptablesCommand(family: IpFamily, variant: IptablesVariant): string {
  return `${family === 'IPv4' ? 'iptables' : 'ip6tables'}-${variant}`;
}

/**
 * The commands of one family and variant. Each runs without a shell.
 * @param timeouts for tests; ProgramTimeoutError says which command took longer.
 * @throws (rejections) IptablesError, ProgramTimeoutError
 */
export function iptablesCommands(
  family: IpFamily,
  variant: IptablesVariant,
  timeouts = IPTABLES_TIMEOUTS,
) {
  const command = iptablesCommand(family, variant);
  const [saveName, restoreName] = [`${command}-save`, `${command}-restore`];
  const saveTable = (table: Table, discardsOutput = false) =>
    asIptablesErrors(
      saveName,
      runProgram(saveName, ['-t', table], { timeout: timeouts.read, discardsOutput }),
    );
  return {
    family,
    variant,
    /** Reads all tables in one go: each run of iptables-nft-save reads them all anyway. */
    save: () => asIptablesErrors(saveName, readProgram(saveName, [], timeouts.read, parseSaved)),
    /** One table as `iptables-save` prints it. For one that is small. */
    saveTable: (table: Table) => saveTable(table),
    /** @throws IptablesError when the kernel has no such table. */
    probe: async (table: Table) => void (await saveTable(table, true)),
    /** Loads `input` without flushing the rest; all of a table or nothing of it. */
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
    /** The first rule of `input`, made of `-C` lines, that is not there. */
    async check(input: string): Promise<InputLine | undefined> {
      try {
        await this.restore([input]);
        return undefined;
      } catch (error) {
        // A line that was named is a rule that is not there; anything else is no answer.
        if (!(error instanceof IptablesError) || error.line === undefined) throw error;
        return { line: error.line, table: error.table ?? '' };
      }
    },
    /** First line of `--version`. */
    version: () =>
      asIptablesErrors(command, runProgram(command, ['--version'], { timeout: timeouts.version })),
  };
}

/** Has a failure be an IptablesError. */
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

/** @param number of a line, counted from 1. */
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
