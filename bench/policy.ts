/**
 * Times network policy on this machine's kernel. Results go to standard output as Markdown,
 * progress to standard error.
 */
import { manifestOf } from '../test/e2e/policy-random/manifests.ts';
import { AGENT_ROWS, type AgentRun, measureAgent } from './agents.ts';
import { apiNode } from './api-objects.ts';
import { IN_NAMESPACES, numberFlag, printHead, runBench, runsFlag } from './harness.ts';
import { jobsOf, type Report } from './jobs.ts';
import { CLIENT_ADDRESS, withNetwork } from './network.ts';
import { connectBare, echo } from './packets.ts';
import { type ClusterSize, HERE, policyCluster } from './policy-cluster.ts';
import type { PolicyChangeKind, PolicyJobs } from './policy-process.ts';
import { median, percentiles, printRow, printRows, type TableRow } from './table.ts';

const LEGEND = `Pods have labels of one of 20 apps in one of 50 namespaces, two addresses and a named port. Each policy isolates one
app of a namespace in both directions, with three ingress and two egress rules: pods of its own and of other
namespaces, a network, a named port. Both families. Values are medians, with minimum and maximum; for changes and
packets, p50 and p99 of all. A change is timed from the delivered object until both families have it in the kernel.
"Objects to kernel" is without the source; "whole agent" runs from the start of the process, in nftables mode
without Services, with an API server (a fake, on the same machine) to list from.`;

const run = jobsOf<PolicyJobs>('policy-process.ts');
type PolicyReport = Report<PolicyJobs, 'start'>;

/** Number of changes of each kind, in one run. */
const CHANGES = 50;

/** State of the node when packets are measured: no rules, connection tracking, network policy. */
const PACKET_PATHS = ['bare', 'conntrack', 'policy'] as const;

/** Microseconds. */
interface PacketCost {
  /** connect() that the endpoint refuses. */
  readonly opening: number[];
  /** A packet of an established connection, and its reply. */
  readonly established: number[];
}

class Measured {
  readonly starts: PolicyReport[] = [];
  readonly restarts: PolicyReport[] = [];
  readonly agents: AgentRun[] = [];
  readonly packets: Readonly<Record<(typeof PACKET_PATHS)[number], PacketCost>> = {
    bare: { opening: [], established: [] },
    conntrack: { opening: [], established: [] },
    policy: { opening: [], established: [] },
  };
}

async function measure(size: ClusterSize, runs: number): Promise<Measured> {
  const all = new Measured();
  const { starts, restarts, agents, packets } = all;
  for (let round = 1; round <= runs; round++) {
    await withNetwork(async ({ node }) => {
      starts.push(await run(node, 'start', { size, changes: 0 }));
      restarts.push(await run(node, 'start', { size, changes: CHANGES }));
    });
    await withNetwork(async (network) => {
      for (const path of PACKET_PATHS) {
        if (path === 'conntrack') await run(network.node, 'conntrack', {});
        if (path === 'policy') await run(network.node, 'load', { size, address: CLIENT_ADDRESS });
        const { bare = [] } = await connectBare(network);
        packets[path].opening.push(...bare.flat());
        packets[path].established.push(...(await echo(network)).flat());
      }
    });
    // The whole agent until both families are enforced, and then idle.
    const objects = [...policyCluster(size).map(manifestOf), apiNode(HERE)];
    const flags = ['--network-policy', '--proxy-mode=nftables'];
    agents.push(await measureAgent(objects, flags, 'enforcing network policies'));
    console.error(
      `policy, run ${round} of ${runs}: start ${starts.at(-1)?.start.toFixed(2)} s, one pod added ` +
        `${median(restarts.at(-1)?.changes.added ?? []).toFixed(2)} ms, whole agent ` +
        `${agents.at(-1)?.seconds.toFixed(2)} s`,
    );
  }
  return all;
}

const START_ROWS: readonly TableRow<PolicyReport>[] = [
  ['objects to kernel, s', ({ start }) => start, 2],
  ['– compute desired state, s', ({ compile }) => compile, 2],
  ['– longest stall of the event loop, ms', ({ stall }) => stall, 0],
  ['– elements in the kernel', ({ elements }) => elements, 0],
  ['– policy set chains', ({ chains }) => chains, 0],
  ['– heap after the start, MiB', ({ heap }) => heap, 0],
];

const CHANGE_ROWS: readonly (readonly [PolicyChangeKind, string])[] = [
  ['added', 'one pod added on the node'],
  ['relabelled', 'one pod of the node relabelled'],
  ['gone', 'one pod of the node removed'],
  ['elsewhere', 'one pod added elsewhere'],
  ['policy', 'one policy changed'],
];

const PACKET_ROWS = [
  ['opening', 'new connection'],
  ['established', 'packet and answer of an established connection'],
] as const;

function printAll({ starts, restarts, agents, packets }: Measured): void {
  printRows(starts, START_ROWS);
  printRows(restarts, [['restart, objects to kernel, s', ({ start }) => start, 2]]);
  printRows(agents, [['whole agent, start to enforced, s', ({ seconds }) => seconds, 2]]);
  printRows(agents, AGENT_ROWS);
  for (const [kind, what] of CHANGE_ROWS) {
    const all = restarts.flatMap(({ changes }) => changes[kind]);
    printRow(`${what}, ms`, percentiles(all, 2));
  }
  for (const [kind, what] of PACKET_ROWS) {
    const { policy, conntrack, bare } = packets;
    printRow(`${what}, policy on, µs`, percentiles(policy[kind], 1));
    printRow('– off, with conntrack, µs', percentiles(conntrack[kind], 1));
    printRow('– off, without conntrack, µs', percentiles(bare[kind], 1));
    const ratio = median(policy[kind]) / median(conntrack[kind]);
    printRow('– on to off, with conntrack', `${ratio.toFixed(2)}×`);
  }
}

await runBench({
  name: 'policy',
  where: IN_NAMESPACES,
  flags: {
    runs: runsFlag('3', { quick: '2' }),
    policies: numberFlag(
      'number of NetworkPolicies; the cluster has ten times as many pods',
      '1000',
      { quick: '100' },
    ),
  },
  run: async ({ runs, policies }) => {
    const size = { pods: 10 * policies, policies, local: 110 };
    const counts = `${policies} NetworkPolicies, ${size.pods} pods in the cluster, ${size.local} on the node.`;
    printHead(`${counts} ${LEGEND}`);
    console.log('| what | |\n|---|---:|');
    printAll(await measure(size, runs));
  },
});
