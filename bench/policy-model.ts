/**
 * Times the pure part of network policy, from objects to changes for the kernel. Results go to
 * standard output as Markdown.
 */
import type { Pod } from '../api/policy-objects.ts';
import { AppliedState } from '../policy/compile/applied-state.ts';
import type { PolicyChange } from '../policy/compile/change.ts';
import { PolicyModel } from '../policy/model/model.ts';
import { numberFlag, oneOf, readFlags } from './harness.ts';
import {
  APPS,
  type ClusterSize,
  clusterPod,
  clusterPolicy,
  HERE,
  NAMESPACES,
  teamNamespace,
} from './policy-cluster.ts';
import { median, percentile } from './table.ts';

const { pods, policies, local, labels } = readFlags({
  name: 'policy-model',
  where: 'With node --expose-gc, the heap is measured after a garbage collection.',
  flags: {
    pods: numberFlag('number of pods in the cluster', '10000'),
    policies: numberFlag('number of NetworkPolicies', '1000'),
    local: numberFlag('number of pods on the node', '110'),
    labels: {
      help: 'pod labels: shared by the pods of an app, or unique as in a StatefulSet',
      read: oneOf(['shared', 'unique']),
      normal: 'shared',
      presets: {},
    },
  },
});
const size: ClusterSize = { pods, policies, local, unique: labels === 'unique' };
const pod = (index: number, fields: Partial<Pod> = {}) => clusterPod(index, size, fields);
const policy = clusterPolicy;

function countOf(changes: readonly PolicyChange[]): number {
  return changes.reduce(
    (sum, { prepare, remove, add, cleanup }) =>
      sum + prepare.length + remove.length + add.length + cleanup.length,
    0,
  );
}

function heap(): number {
  globalThis.gc?.();
  return process.memoryUsage().heapUsed / 2 ** 20;
}

const objects = { pods: Array.from({ length: pods }, (_, index) => pod(index)) };
const written = Array.from({ length: policies }, (_, index) => policy(index));
const before = heap();
const model = new PolicyModel({ nodeName: HERE });
const applied = new AppliedState(model);
const start = performance.now();
for (let index = 0; index < NAMESPACES; index++) {
  model.upsert(teamNamespace(index));
}
for (const each of objects.pods) model.upsert(each);
for (const each of written) model.upsert(each);
const loaded = performance.now() - start;
const first = applied.takeChanges();
const compileMs = performance.now() - start - loaded;
const chains = first[0]?.chains.length ?? 0;
const elements = countOf(first);
first.length = 0;
const memory = heap() - before;
console.log(`${pods} pods, ${local} of them here, ${policies} NetworkPolicies, both families:\n`);
console.log(`| all at once | |\n|---|---|`);
console.log(`| objects handed over | ${loaded.toFixed(0)} ms |`);
console.log(
  `| first changes: ${chains} chains, ${elements} elements | ${compileMs.toFixed(0)} ms |`,
);
console.log(`| heap of the model | ${memory.toFixed(1)} MiB |\n`);

console.log('| one change, ms | median | 99 % | most | elements |\n|---|---|---|---|---|');

function measure(title: string, runs: number, change: (run: number) => void): void {
  const times: number[] = [];
  let most = 0;
  for (let run = 0; run < runs; run++) {
    const begin = performance.now();
    change(run);
    const changes = applied.takeChanges();
    times.push(performance.now() - begin);
    most = Math.max(most, countOf(changes));
  }
  const at = (percent: number) => percentile(times, percent).toFixed(3);
  console.log(`| ${title} | ${median(times).toFixed(3)} | ${at(99)} | ${at(100)} | ${most} |`);
}

const extra = (run: number) => pods + run * NAMESPACES * APPS;
const RUNS = 500;
measure('pod added here', RUNS, (run) => model.upsert(pod(extra(run), { nodeName: HERE })));
measure('pod removed here', RUNS, (run) => model.remove('Pod', pod(extra(run)).key));
measure('pod added elsewhere', RUNS, (run) => model.upsert(pod(extra(run), { nodeName: 'there' })));
measure('pod removed elsewhere', RUNS, (run) => model.remove('Pod', pod(extra(run)).key));
measure('pod added here, with unique labels', RUNS, (run) =>
  model.upsert(pod(extra(run), { nodeName: HERE, labels: { app: 'app-1', own: `${run}` } })),
);
measure('pod relabelled here', RUNS, (run) =>
  model.upsert(pod(extra(run), { nodeName: HERE, labels: { app: 'app-2', own: `${run}` } })),
);
measure('policy changed', RUNS, (run) => model.upsert(policy(run % policies, 90 + (run % 7))));
measure('policy removed', RUNS, (run) => model.remove('NetworkPolicy', policy(run).key));
measure('policy added', RUNS, (run) => model.upsert(policy(run)));
measure('namespace relabelled', 50, (run) => {
  model.upsert(teamNamespace(run % NAMESPACES, run + 1));
});
