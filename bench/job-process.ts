/** Runs one job in the namespace that it was started in; prints its report as JSON, nothing when late. */
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { execa } from 'execa';
import { iptablesBackend } from '../iptables/backend.ts';
import { type Iptables, iptablesCommands } from '../iptables/commands.ts';
import type { Changes, Job, Report } from './jobs.ts';
import { createKubeProxy } from './kube-proxy.ts';
import { compileOptions, createPortwide } from './portwide.ts';
import type { Subject, Timing } from './subject.ts';

const job = JSON.parse(process.argv[2] ?? '') as Job;
const iptables = iptablesCommands('IPv4', job.variant);
/** What the commands are given, while that is recorded. */
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

async function run(): Promise<Report> {
  const { shape, variant, services, inParts } = job;
  const isPortwide = shape === 'portwide';
  const subject = isPortwide
    ? createPortwide(iptablesBackend(recorded(iptables), compileOptions()), services)
    : createKubeProxy(variant, services, inParts);
  const delay = monitorEventLoopDelay({ resolution: 1 });
  // execa ends commands that still run when their parent exits.
  const late = setTimeout(() => process.exit(), job.limit * 1000);
  delay.enable();
  const start = await subject.start();
  delay.disable();
  clearTimeout(late);
  const changes = job.changes > 0 ? await makeChanges(subject) : undefined;
  await subject.stop();
  const memory = process.resourceUsage().maxRSS / 1024;
  return { start, stall: delay.max / 1e6, memory, changes };
}

/** Changes Services in the middle of the cluster, and counts what new ones add. */
async function makeChanges(subject: Subject): Promise<Changes> {
  const middle = Math.floor(job.services / 2);
  // The cluster has numbers up to and with `services`.
  const fresh = job.services + 1;
  const first = await subject.replaceEndpoint(0, 0);
  const replace: Timing[] = [];
  const add: Timing[] = [];
  const remove: Timing[] = [];
  for (let round = 0; round < job.changes; round++) {
    replace.push(await subject.replaceEndpoint(middle, round + 1));
    add.push(await subject.add(fresh + round));
    remove.push(await subject.remove(fresh + round));
  }
  const alone =
    job.shape === 'portwide' ? await replaceAlone(subject, middle, job.changes) : undefined;

  const before = await countRules();
  await subject.add(fresh + job.changes);
  const withOrdinary = await countRules();
  const rules = { total: before, ordinary: withOrdinary - before };
  if (subject.addAllPorts === undefined) {
    return { first, replace, add, remove, alone, rules: { ...rules, allPorts: undefined } };
  }
  // 256 VIPs after the all-ports Service of the cluster: as in a tree that has grown.
  await subject.addAllPorts(job.services + 256);
  const allPorts = (await countRules()) - withOrdinary;
  return { first, replace, add, remove, alone, rules: { ...rules, allPorts } };
}

/** Times the commands alone that replace an endpoint, and replace it back. */
async function replaceAlone(subject: Subject, index: number, times: number): Promise<number[]> {
  const inputOf = async (spare: number) => {
    const inputs: string[][] = [];
    record = inputs;
    await subject.replaceEndpoint(index, spare);
    record = undefined;
    return inputs;
  };
  await inputOf(0);
  const ways = [await inputOf(1), await inputOf(0)];
  const seconds: number[] = [];
  for (let round = 0; round < times; round++) {
    for (const way of ways) {
      const started = performance.now();
      for (const input of way) await iptables.restore(input);
      seconds.push((performance.now() - started) / 1000);
    }
  }
  return seconds;
}

/** Rules that iptables-save shows, in all tables. */
async function countRules(): Promise<number> {
  let rules = 0;
  const lines = execa(`iptables-${job.variant}-save`, { buffer: false }).iterable();
  for await (const line of lines) if (line.startsWith('-A ')) rules++;
  return rules;
}

process.stdout.write(JSON.stringify(await run()));
