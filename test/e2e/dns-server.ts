/** Runs `portwide dns` on a host of the lab, and `dig` as its client. */
import { kill } from 'node:process';
import type { ResultPromise } from 'execa';
import { type Host, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import type { LogLine } from './agent.ts';

/** Long enough for slow machines; a server that exits is detected at once. */
const START_MS = 60_000;

export interface DnsProcess {
  readonly process: ResultPromise;
  readonly log: readonly LogLine[];
  logged(message: string): LogLine[];
  /** Sends SIGTERM only. */
  terminate(): void;
  /**
   * Sends SIGTERM.
   * @returns the exit status.
   */
  stop(): Promise<number | undefined>;
}

/**
 * Starts a server and waits for a log message. Without `--lameduck` it exits at once on SIGTERM.
 */
export async function startDns(
  host: Host,
  flags: readonly string[],
  until = 'serving',
): Promise<DnsProcess> {
  const process = host.spawn(PORTWIDE, ['dns', '--lameduck=0s', ...flags]);
  const log: LogLine[] = [];
  let rest = '';
  process.stdout?.setEncoding('utf8').on('data', (chunk: string) => {
    const lines = (rest + chunk).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) log.push(JSON.parse(line) as LogLine);
  });
  let errors = '';
  process.stderr?.on('data', (chunk) => {
    errors += String(chunk);
  });
  const logged = (message: string) => log.filter(({ msg }) => msg === message);
  let ended: string | undefined;
  process.then(
    () => {
      ended = errors;
    },
    (error: Error) => {
      ended = `${error.message} ${errors}`;
    },
  );
  const isThere = () => ended !== undefined || logged(until).length > 0;
  await waitFor(`the DNS server logged "${until}"`, isThere, START_MS);
  if (ended !== undefined) throw new Error(`the DNS server exited: ${ended}`);
  // Not execa's kill(), which sends SIGKILL 5 s later.
  const terminate = () => {
    if (process.pid !== undefined) kill(process.pid, 'SIGTERM');
  };
  return {
    process,
    terminate,
    log,
    logged,
    stop: async () => {
      terminate();
      await process.catch(() => undefined);
      return process.nodeChildProcess.exitCode ?? undefined;
    },
  };
}

/** Parsed output of dig. */
export interface DigResult {
  readonly status: string;
  /** For example `qr aa rd`. */
  readonly flags: string;
  readonly transport: string;
  /** Bytes of the whole message. */
  readonly size: number;
  readonly opt: string | undefined;
  readonly question: string | undefined;
  /** `NAME TTL CLASS TYPE DATA`, with single spaces. */
  readonly answer: readonly string[];
  readonly authority: readonly string[];
  readonly additional: readonly string[];
}

/**
 * Queries with dig from a host; fails without a response.
 * @param query for example `@10.0.0.1 name A +tcp`.
 */
export async function dig(host: Host, query: string): Promise<DigResult> {
  const args = query.split(' ');
  const { stdout } = await host.exec('dig', [
    '+tries=2',
    '+timeout=10',
    '+noall',
    ...SHOWN,
    ...args,
  ]);
  return readDig(stdout);
}

const SHOWN = ['comments', 'question', 'answer', 'authority', 'additional', 'stats'].map(
  (each) => `+${each}`,
);

function readDig(text: string): DigResult {
  const section = (name: string): string[] => {
    const [, lines = ''] =
      new RegExp(`^;; ${name} SECTION:\n((?:.+\n)*)`, 'm').exec(`${text}\n`) ?? [];
    return lines
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => line.replaceAll(/\s+/g, ' '));
  };
  const [question] = section('QUESTION');
  const found = (expression: RegExp) => expression.exec(text)?.[1];
  return {
    status: found(/status: (\w+)/) ?? '',
    flags: found(/^;; flags: ([a-z ]*);/m) ?? '',
    transport: found(/^;; SERVER: .* \((\w+)\)$/m) ?? '',
    size: Number(found(/^;; MSG SIZE {2}rcvd: (\d+)$/m)),
    opt: found(/^; (EDNS: .*)$/m),
    question: question?.slice(1),
    answer: section('ANSWER'),
    authority: section('AUTHORITY'),
    additional: section('ADDITIONAL'),
  };
}
