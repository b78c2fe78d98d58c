/** What is measured inside a network namespace, each in a process of its own. */
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import type { Variant } from '../iptables/commands.ts';
import type { Timing } from './subject.ts';

/** Whose rules: Portwide's, or those that kube-proxy would write. */
export type Shape = 'portwide' | 'kube-proxy';

/** One start, and what happens then. */
export interface Job {
  readonly shape: Shape;
  readonly variant: Variant;
  readonly services: number;
  /** How often each kind of change is made after the start; 0 for none. */
  readonly changes: number;
  /** Loads kube-proxy's rules in several transactions; how long that takes says nothing of kube-proxy. */
  readonly inParts: boolean;
  /** Seconds that the start may take. */
  readonly limit: number;
}

/** Rules in all tables, and those that one more Service adds. */
export interface RuleCounts {
  readonly total: number;
  readonly ordinary: number;
  /** undefined: the shape has none. */
  readonly allPorts: number | undefined;
}

export interface Changes {
  /** The first change after the start. */
  readonly first: Timing;
  readonly replace: readonly Timing[];
  readonly add: readonly Timing[];
  readonly remove: readonly Timing[];
  /** Seconds of the commands alone, with the input that `replace` gives them; undefined for kube-proxy's. */
  readonly alone: readonly number[] | undefined;
  readonly rules: RuleCounts;
}

export interface Report {
  readonly start: Timing;
  /** Longest time in which the event loop did not turn, in milliseconds. */
  readonly stall: number;
  /** Peak resident memory in MiB. */
  readonly memory: number;
  readonly changes: Changes | undefined;
}

const PROCESS = fileURLToPath(new URL('job-process.ts', import.meta.url));

/** @returns undefined when the start took longer than its limit. */
export async function runJob(namespace: string, job: Job): Promise<Report | undefined> {
  return (await runScript(namespace, PROCESS, job)) as Report | undefined;
}

/** Runs a script of this benchmark in a namespace; it prints its result as JSON, or nothing. */
export async function runScript(
  namespace: string,
  script: string,
  request: unknown,
): Promise<unknown> {
  const args = ['netns', 'exec', namespace, process.execPath, script, JSON.stringify(request)];
  const { stdout } = await execa('ip', args);
  return stdout === '' ? undefined : JSON.parse(stdout);
}
