/**
 * Starts Portwide or loads kube-proxy's rules in the current network namespace, and changes
 * Services.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { execa } from 'execa';
import { iptablesBackend } from '../iptables/backend.ts';
import { type Iptables, iptablesCommands, type Variant } from '../iptables/commands.ts';
import { serve } from './jobs.ts';
import { createKubeProxy } from './kube-proxy-subject.ts';
import { compileOptions, createPortwide } from './portwide.ts';
import { withStall } from './processes.ts';
import { type LoadOptions, runChanges, type Subject } from './subject.ts';
import { LIMIT } from './table.ts';

/** Whose rules are loaded: Portwide's, or the rules that kube-proxy would write. */
export type RulesetKind = 'portwide' | 'kube-proxy';

/** One start, with the changes after it. */
export interface Job extends LoadOptions {
  readonly ruleset: RulesetKind;
  readonly variant: Variant;
  /**
   * Loads kube-proxy's rules in several transactions. The time of that load does not represent
   * kube-proxy.
   */
  readonly inParts: boolean;
}

export type IptablesJobs = typeof jobs;

/** Input of each iptables-restore, while recording; undefined: not recording. */
let record: string[][] | undefined;

function recorded(commands: Iptables): Iptables {
  return {
    ...commands,
    restore: (input) => {
      if (record === undefined) return commands.restore(input);
      const pieces = [...input];
      record.push(pieces);
      return commands.restore(pieces);
    },
  };
}

/** @returns null if the start exceeded its limit. */
async function start(job: Job) {
  const { ruleset, variant, services, inParts } = job;
  const iptables = iptablesCommands('IPv4', variant);
  const subject =
    ruleset === 'portwide'
      ? createPortwide(iptablesBackend(recorded(iptables), compileOptions()), services)
      : createKubeProxy(variant, services, inParts);
  const { result: timing, stall } = await withStall(() =>
    // execa kills running commands when their parent exits.
    Promise.race([subject.start(), sleep(LIMIT * 1000, null, { ref: false })]),
  );
  if (timing === null) return null;
  const changes = job.changes > 0 ? await makeChanges(subject, job, iptables) : undefined;
  await subject.stop();
  return {
    start: timing,
    stall,
    /** Peak resident memory in MiB. */
    memory: process.resourceUsage().maxRSS / 1024,
    changes,
  };
}

/** Changes Services in the middle of the cluster, and counts the rules that new Services add. */
async function makeChanges(subject: Subject, job: Job, iptables: Iptables) {
  const first = await subject.change('replace', 0, 0);
  const { replace, add, remove } = await runChanges(
    ['replace', 'add', 'remove'],
    job,
    (kind, index, spare) => subject.change(kind, index, spare),
  );
  /**
   * Seconds of the commands alone, with the input of the `replace` change; undefined for
   * kube-proxy's rules.
   */
  const alone = job.ruleset === 'portwide' ? await replaceAlone(subject, iptables, job) : undefined;

  const before = await countRules(job.variant);
  await subject.change('add', job.services + job.changes + 1);
  const withOrdinary = await countRules(job.variant);
  // 256 VIPs after the cluster's all-ports Service, as in a dispatch tree that has grown.
  const hasAllPorts = job.ruleset === 'portwide';
  if (hasAllPorts) await subject.change('addAllPorts', job.services + 256);
  const allPorts = hasAllPorts ? (await countRules(job.variant)) - withOrdinary : undefined;
  // Rules in all tables, and the rules added by one more Service. kube-proxy has no all-ports
  // Services.
  const rules = { total: before, ordinary: withOrdinary - before, allPorts };
  return { first, replace, add, remove, alone, rules };
}

/** Times only the commands that replace an endpoint and restore it. */
async function replaceAlone(
  subject: Subject,
  iptables: Iptables,
  { services, changes }: Job,
): Promise<number[]> {
  const middle = Math.floor(services / 2);
  const inputOf = async (spare: number) => {
    const inputs: string[][] = [];
    record = inputs;
    await subject.change('replace', middle, spare);
    record = undefined;
    return inputs;
  };
  await inputOf(0);
  const replacements = [await inputOf(1), await inputOf(0)];
  const seconds: number[] = [];
  for (let round = 0; round < changes; round++) {
    for (const inputs of replacements) {
      const started = performance.now();
      for (const input of inputs) await iptables.restore(input);
      seconds.push((performance.now() - started) / 1000);
    }
  }
  return seconds;
}

/** Number of rules in the output of iptables-save, in all tables. */
async function countRules(variant: Variant): Promise<number> {
  let rules = 0;
  const lines = execa(`iptables-${variant}-save`, { buffer: false }).iterable();
  for await (const line of lines) if (line.startsWith('-A ')) rules++;
  return rules;
}

const jobs = { start };
await serve(jobs);
