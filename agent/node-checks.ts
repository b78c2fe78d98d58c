/** Runs `portwide check` for the status API. */
import { setPriority } from 'node:os';
import type { FlagTexts } from '../config/flags.ts';
import { flagOf } from '../config/setting.ts';
import { ProgramError, runProgram } from '../process/run-program.ts';
import type { NodeCheck, NodeChecks } from '../status/api/checks.ts';
import { systemTimers } from '../sync/timers.ts';
import { keepAnswer } from './kept-answer.ts';

/** Milliseconds for all checks. Some read the API server or large rulesets of other programs. */
const TIMEOUT = 60_000;
/** Milliseconds for which an answer is kept: a check starts programs and lists Services. */
const MIN_AGE = 30_000;
/** Characters that the command may print, and checks in an answer. */
const MAX_OUTPUT = 4 * 1024 * 1024;
const MAX_CHECKS = 200;
/** Priority of the process: programs that serve clients come first. */
const NICE = 10;
/** Flags that `portwide check` does not have. */
const OTHER_FLAGS = new Set(['cleanup', 'initOnly', 'writeConfigTo']);
/** Exit status of `portwide check` if a check is `fail`. */
const FAILED = 1;

/** What the command prints with `--output=json`. */
type Output = Pick<NodeChecks, 'status' | 'checks'>;

/** The arguments of `portwide check` for an agent with these flags. */
export function checkArguments(texts: FlagTexts): string[] {
  const flags = Object.entries(texts).flatMap(([name, text]) =>
    text === undefined || OTHER_FLAGS.has(name) ? [] : [`${flagOf(name)}=${text}`],
  );
  return ['check', '--output=json', ...flags];
}

/**
 * Runs the checks in a process of its own: they block no sync, and their memory is free afterwards.
 * @param texts unparsed flags of the agent.
 * @throws ProgramTimeoutError, ProgramError; SyntaxError if the command prints no JSON.
 */
export async function runChecks(texts: FlagTexts): Promise<string> {
  const [program, ...self] = [process.execPath, ...process.execArgv, process.argv[1] ?? ''];
  try {
    return await runProgram(program, [...self, ...checkArguments(texts)], {
      timeout: TIMEOUT,
      maxBuffer: MAX_OUTPUT,
      onStart: (pid) => setPriority(pid, NICE),
    });
  } catch (error) {
    if (error instanceof ProgramError && error.exitCode === FAILED) return String(error.stdout);
    throw error;
  }
}

/**
 * Checks of this node on demand. An answer is kept for `MIN_AGE`.
 * @param run prints the checks as JSON.
 * @param now milliseconds since 1970.
 * @param elapsed milliseconds of a monotonic clock.
 */
export function nodeChecks(
  run: () => Promise<string>,
  now: () => number = Date.now,
  elapsed = systemTimers.now,
): () => Promise<NodeChecks> {
  const read = async () => answerOf(JSON.parse(await run()) as Output, now());
  return keepAnswer(read, MIN_AGE, elapsed);
}

const ORDER: readonly NodeCheck['status'][] = ['fail', 'warn', 'ok'];

/** The worst checks come first, so that none of them is left out. */
function answerOf({ status, checks }: Output, now: number): NodeChecks {
  const sorted = ORDER.flatMap((each) => checks.filter((check) => check.status === each));
  return {
    at: new Date(now).toISOString(),
    status,
    checks: sorted.slice(0, MAX_CHECKS),
    omitted: Math.max(0, checks.length - MAX_CHECKS),
  };
}
