/**
 * Times the pure half of network policy: objects in, changes for the kernel out. Results go to
 * standard output as Markdown.
 */
import { parseArgs } from 'node:util';
import type { Pod, Policy, PolicyRule } from '../api/policy-objects.ts';
import { PolicyModel } from '../policy/model.ts';
import type { PolicyChange } from '../policy/shape.ts';

const USAGE = `Usage: node --expose-gc bench/policy-model.ts [--pods 10000] [--policies 1000] [--local 110] [--unique]

  --unique  each pod has a label that no other has, as those of a StatefulSet`;

const { values } = parseArgs({
  options: {
    pods: { type: 'string', default: '10000' },
    policies: { type: 'string', default: '1000' },
    local: { type: 'string', default: '110' },
    unique: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});
if (values.help) {
  console.log(USAGE);
  process.exit();
}
const [pods, policies, local] = [values.pods, values.policies, values.local].map(Number) as [
  number,
  number,
  number,
];
const NAMESPACES = 50;
const APPS = 20;

function pod(index: number, fields: Partial<Pod> = {}): Pod {
  const namespace = `team-${index % NAMESPACES}`;
  const name = `pod-${index}`;
  const app = `app-${Math.floor(index / NAMESPACES) % APPS}`;
  const address = [10, index >> 16, (index >> 8) & 255, index & 255];
  return {
    kind: 'Pod',
    key: `${namespace}/${name}`,
    namespace,
    name,
    creationTimestamp: '2026-01-01T00:00:00Z',
    labels: values.unique ? { app, 'pod-name': name } : { app },
    addresses: [address.join('.'), `fd00::${index.toString(16)}`],
    nodeName: index % Math.ceil(pods / local) === 0 ? 'here' : 'there',
    hostNetwork: false,
    finished: false,
    namedPorts: [{ name: 'web', protocol: 'TCP', port: 8080 }],
    ...fields,
  };
}

const app = (index: number) => [
  { key: 'app', operator: 'In' as const, values: [`app-${index % APPS}`] },
];

/** Each isolates one app of a namespace, in both directions, with peers of all sorts. */
function policy(index: number, port = 80): Policy {
  const namespace = `team-${index % NAMESPACES}`;
  const name = `policy-${index}`;
  const number = Math.floor(index / NAMESPACES);
  const rule = (fields: Partial<PolicyRule>): PolicyRule => ({
    path: 'spec.ingress[0]',
    name: '',
    action: 'Allow',
    peers: undefined,
    ports: [{ protocol: 'TCP', first: port, last: port + (index % 3) }],
    ...fields,
  });
  const team = [
    { key: 'team', operator: 'In' as const, values: [`team-${(index * 7) % NAMESPACES}`] },
  ];
  return {
    kind: 'NetworkPolicy',
    key: `${namespace}/${name}`,
    namespace,
    name,
    uid: '',
    tier: 'NetworkPolicy',
    priority: 0,
    subject: { namespaces: namespace, pods: app(number) },
    ingress: [
      rule({
        peers: [{ kind: 'pods', selection: { namespaces: namespace, pods: app(number + 1) } }],
      }),
      rule({ peers: [{ kind: 'pods', selection: { namespaces: team, pods: app(number + 2) } }] }),
      rule({ ports: [{ protocol: 'TCP', name: 'web' }] }),
    ],
    egress: [
      rule({ peers: [{ kind: 'pods', selection: { namespaces: team, pods: [] } }] }),
      rule({ peers: [{ kind: 'network', cidr: `172.${index % 32}.0.0/16`, except: [] }] }),
    ],
    faults: [],
  };
}

function countOf(changes: readonly PolicyChange[]): number {
  return changes.reduce(
    (sum, { prepare, remove, add, discard }) =>
      sum + prepare.length + remove.length + add.length + discard.length,
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
const model = new PolicyModel({ nodeName: 'here', onChange: () => {} });
const start = performance.now();
for (let index = 0; index < NAMESPACES; index++) {
  const name = `team-${index}`;
  model.upsert({ kind: 'Namespace', key: name, name, labels: { team: name } });
}
for (const each of objects.pods) model.upsert(each);
for (const each of written) model.upsert(each);
const loaded = performance.now() - start;
const first = model.takeChanges();
const taken = performance.now() - start - loaded;
const chains = first[0]?.chains.length ?? 0;
const elements = countOf(first);
first.length = 0;
const memory = heap() - before;
console.log(`${pods} pods, ${local} of them here, ${policies} NetworkPolicies, both families:\n`);
console.log(`| all at once | |\n|---|---|`);
console.log(`| objects handed over | ${loaded.toFixed(0)} ms |`);
console.log(`| first changes: ${chains} chains, ${elements} elements | ${taken.toFixed(0)} ms |`);
console.log(`| heap of the model | ${memory.toFixed(1)} MiB |\n`);

console.log('| one change, ms | median | 99 % | most | elements |\n|---|---|---|---|---|');

function measure(title: string, runs: number, change: (run: number) => void): void {
  const times: number[] = [];
  let most = 0;
  for (let run = 0; run < runs; run++) {
    const begin = performance.now();
    change(run);
    const changes = model.takeChanges();
    times.push(performance.now() - begin);
    most = Math.max(most, countOf(changes));
  }
  times.sort((a, b) => a - b);
  const at = (share: number) => (times[Math.floor((times.length - 1) * share)] ?? 0).toFixed(3);
  console.log(`| ${title} | ${at(0.5)} | ${at(0.99)} | ${at(1)} | ${most} |`);
}

const extra = (run: number) => pods + run * NAMESPACES * APPS;
const RUNS = 500;
measure('pod added here', RUNS, (run) => model.upsert(pod(extra(run), { nodeName: 'here' })));
measure('pod gone here', RUNS, (run) => model.remove('Pod', pod(extra(run)).key));
measure('pod added elsewhere', RUNS, (run) => model.upsert(pod(extra(run), { nodeName: 'there' })));
measure('pod gone elsewhere', RUNS, (run) => model.remove('Pod', pod(extra(run)).key));
measure('pod added here, with labels of its own', RUNS, (run) =>
  model.upsert(pod(extra(run), { nodeName: 'here', labels: { app: 'app-1', own: `${run}` } })),
);
measure('pod relabelled here', RUNS, (run) =>
  model.upsert(pod(extra(run), { nodeName: 'here', labels: { app: 'app-2', own: `${run}` } })),
);
measure('policy changed', RUNS, (run) => model.upsert(policy(run % policies, 90 + (run % 7))));
measure('policy gone', RUNS, (run) => model.remove('NetworkPolicy', policy(run).key));
measure('policy added', RUNS, (run) => model.upsert(policy(run)));
measure('namespace relabelled', 50, (run) => {
  const name = `team-${run % NAMESPACES}`;
  model.upsert({ kind: 'Namespace', key: name, name, labels: { team: `team-${run + 1}` } });
});
