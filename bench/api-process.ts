/**
 * Runs only the Kubernetes source and the route table, in the current network namespace. Prints a
 * JSON report after the first lists. For each line on standard input, prints another report, on the
 * time since the previous report.
 */
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { createInterface } from 'node:readline';
import { RouteTable } from '../proxier/route-table.ts';
import { RETRY_CLOCK } from '../sources/kubernetes/backoff.ts';
import { servingResources } from '../sources/kubernetes/resources.ts';
import { KubernetesSource } from '../sources/kubernetes/source.ts';

export type ListReport = ReturnType<typeof report>;

const table = new RouteTable({ nodeName: 'node', allPortsEnabled: true, onChange: () => {} });
const delay = monitorEventLoopDelay({ resolution: 1 });
let cpu = process.cpuUsage();
let started = performance.now();

/** Time and CPU in seconds, the longest event loop stall in milliseconds, resident memory in MiB. */
const report = () => {
  const { user, system } = process.cpuUsage(cpu);
  const seconds = (performance.now() - started) / 1000;
  return {
    seconds,
    cpu: (user + system) / 1e6,
    stall: delay.max / 1e6,
    memory: process.memoryUsage.rss() / 2 ** 20,
  };
};
const reset = () => {
  delay.reset();
  cpu = process.cpuUsage();
  started = performance.now();
};

const source = new KubernetesSource({
  master: process.argv[2],
  resources: servingResources('node'),
  sink: table,
  onProblem: (problem) => {
    throw problem;
  },
  log: { info: () => {}, warn: () => {} },
  // Without delays, so that the source lists again at once after a 410.
  backoff: { ...RETRY_CLOCK, delay: async () => {} },
});
delay.enable();
reset();
await source.start();
process.stdout.write(`${JSON.stringify(report())}\n`);
reset();
for await (const _ of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(report())}\n`);
  reset();
}
await source.stop();
