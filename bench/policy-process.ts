/** Enforces the policies of a cluster in the current network namespace, and changes them. */
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import type { PolicyObject } from '../api/policy-objects.ts';
import { NftMonitor } from '../nft/monitor.ts';
import { AppliedState } from '../policy/compile/applied-state.ts';
import { Enforcer } from '../policy/enforce/enforcer.ts';
import { PolicyKernel } from '../policy/enforce/kernel.ts';
import { PolicyModel } from '../policy/model/model.ts';
import { runProgram } from '../process/run-program.ts';
import { systemTimers } from '../sync/timers.ts';
import { POD_CIDR } from './cluster.ts';
import { serve } from './jobs.ts';
import {
  type ClusterSize,
  clusterPod,
  clusterPolicy,
  HERE,
  NAMESPACES,
  policyCluster,
} from './policy-cluster.ts';

/** Objects delivered before the event loop gets a turn, as a source does after each page. */
const OBJECTS_PER_TURN = 500;

interface Requests {
  /** `changes`: number of changes of each kind after the start. */
  readonly start: { readonly size: ClusterSize; readonly changes: number };
  readonly load: { readonly size: ClusterSize; readonly address: string };
}
type Job<Kind extends keyof Requests> = Requests[Kind];

export type PolicyChangeKind = 'added' | 'relabelled' | 'gone' | 'elsewhere' | 'policy';

export type PolicyJobs = typeof jobs;

/** Network policy of an agent, without the sources and without DNS snooping. */
function createAgent() {
  /** Families whose kernel state lacks changes. */
  const pendingFamilies = new Set<IpFamily>();
  /** Families whose current run began after the last change. */
  const runningFamilies = new Set<IpFamily>();
  /** Resolves when no family is pending. */
  let allApplied = Promise.withResolvers<void>();
  let compiled = 0;
  const end = (family: IpFamily) => {
    if (runningFamilies.delete(family)) pendingFamilies.delete(family);
    if (pendingFamilies.size === 0) allApplied.resolve();
  };
  const model = new PolicyModel({ nodeName: HERE });
  const applied = new AppliedState(model);
  const kernel = new PolicyKernel({
    families: IP_FAMILIES,
    onWarning: (_, message) => allApplied.reject(new Error(message)),
  });
  const enforcer = new Enforcer({
    kernel,
    source: {
      takeChanges: () => applied.takeChanges(),
      snapshot: (family) => applied.snapshot(family),
      fqdnContent: () => ({ elements: [], entries: [] }),
    },
    timers: systemTimers,
    monitor: new NftMonitor(systemTimers),
    observer: {
      started: (family) => runningFamilies.add(family),
      unchanged: end,
      compiled: () => {
        compiled ||= performance.now();
      },
      applied: end,
      failed: (_, error) => allApplied.reject(error),
      driftDetected: (_, what) => allApplied.reject(new Error(what)),
      missedChanges: () => {},
      watchFailed: (error) => allApplied.reject(error),
    },
  });
  const change = (make: (model: PolicyModel) => void) => {
    make(model);
    if (pendingFamilies.size === 0) allApplied = Promise.withResolvers();
    for (const family of IP_FAMILIES) pendingFamilies.add(family);
    runningFamilies.clear();
    enforcer.changed();
  };
  const inKernel = () => allApplied.promise;
  return { model, applied, kernel, enforcer, change, inKernel, compiledAt: () => compiled };
}

type PolicyAgent = ReturnType<typeof createAgent>;

async function load(agent: PolicyAgent, objects: readonly PolicyObject[]): Promise<void> {
  for (let at = 0; at < objects.length; at += OBJECTS_PER_TURN) {
    for (const object of objects.slice(at, at + OBJECTS_PER_TURN))
      agent.change((model) => model.upsert(object));
    await nextTurn();
  }
  await agent.model.precompute();
  agent.enforcer.start();
  await agent.inKernel();
}

/** Values for both families together: seconds and MiB; stalls and changes in milliseconds. */
async function start({ size, changes }: Job<'start'>) {
  const objects = policyCluster(size);
  const agent = createAgent();
  const { applied, kernel, enforcer } = agent;
  const delay = monitorEventLoopDelay({ resolution: 1 });
  delay.enable();
  const started = performance.now();
  await load(agent, objects);
  const total = (performance.now() - started) / 1000;
  delay.disable();
  objects.length = 0;
  const heap = heapUsed();
  const timings: Record<PolicyChangeKind, number[]> = {
    added: [],
    relabelled: [],
    gone: [],
    elsewhere: [],
    policy: [],
  };
  const timed = async (kind: PolicyChangeKind, change: (model: PolicyModel) => void) => {
    const began = performance.now();
    agent.change(change);
    await agent.inKernel();
    timings[kind].push(performance.now() - began);
    await nextTurn();
  };
  // Change only policies that apply to pods of the node. Most policies of the cluster do not.
  const step = Math.ceil(size.pods / size.local);
  for (let round = 0; round < changes; round++) {
    const pod = clusterPod(size.pods + round, size, { nodeName: HERE });
    const peer = clusterPod(size.pods + round * step + NAMESPACES, size);
    const policy = clusterPolicy((round * step) % size.policies, 90 + round);
    await timed('added', (model) => model.upsert(pod));
    await timed('relabelled', (model) =>
      model.upsert({ ...pod, labels: { app: `app-${round % 7}` } }),
    );
    await timed('gone', (model) => model.remove('Pod', pod.key));
    await timed('elsewhere', (model) => model.upsert(peer));
    await timed('policy', (model) => model.upsert(policy));
  }
  const sizes = IP_FAMILIES.flatMap((family) => [...kernel.setSizes(family).values()]);
  const elements = sizes.reduce((sum, count) => sum + count, 0);
  const chains = IP_FAMILIES.reduce(
    (sum, family) => sum + applied.snapshot(family).chains.length,
    0,
  );
  await enforcer.stop();
  await kernel.close();
  const compile = (agent.compiledAt() - started) / 1000;
  return {
    start: total,
    compile,
    stall: delay.max / 1e6,
    elements,
    chains,
    heap,
    changes: timings,
  };
}

/**
 * Enforces policies for the client's pod, allows its egress to the endpoints, and leaves the rules
 * in place.
 */
async function loadFor({ size, address }: Job<'load'>): Promise<null> {
  const agent = createAgent();
  const client = clusterPod(0, size, {
    name: 'client',
    key: 'team-0/client',
    addresses: [address],
  });
  const policy = clusterPolicy(0);
  const [first] = policy.egress ?? [];
  if (first === undefined) throw new Error('the policy has no egress rules');
  const rule = {
    ...first,
    peers: [{ kind: 'network' as const, cidr: POD_CIDR, except: [] }],
    ports: undefined,
  };
  await load(agent, [
    ...policyCluster(size),
    client,
    { ...policy, key: 'team-0/endpoints', name: 'endpoints', ingress: undefined, egress: [rule] },
  ]);
  await agent.enforcer.stop();
  await agent.kernel.close();
  return null;
}

/** Turns on connection tracking, as every proxy mode does, and nothing else. */
async function conntrack(_: object): Promise<null> {
  const input = `table ip bench {
    chain forward {
      type filter hook forward priority 0; policy accept;
      ct state established,related accept
    }
  }
  `;
  await runProgram('nft', ['-f', '-'], { input, timeout: 60_000 });
  return null;
}

/** Size of the heap after a garbage collection, in MiB. */
function heapUsed(): number {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  collect();
  return process.memoryUsage().heapUsed / 2 ** 20;
}

const jobs = { start, load: loadFor, conntrack };
await serve(jobs);
