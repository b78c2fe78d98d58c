/** All measurements of the nftables mode at one size. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { type AgentRun, measureAgent } from './api-jobs.ts';
import { runScript } from './jobs.ts';
import { type Network, withNetwork } from './network.ts';
import type {
  KernelReport,
  NftablesJob,
  NftablesReport,
  NftReport,
  StormReport,
} from './nftables-jobs.ts';
import { connectTo, directTarget, serviceTarget } from './packets.ts';

const PROCESS = fileURLToPath(new URL('nftables-process.ts', import.meta.url));
/** Of each kind, in one run. */
const CHANGES = 50;
/** Endpoints that change in one second. */
const STORM = 1000;
/** Milliseconds. */
const SETTLE = 3000;
/** Least milliseconds between two syncs: the default, and kube-proxy's. */
const MIN_SYNC_PERIODS = [100, 1000] as const;

/** What new connections were measured to; microseconds of each. */
export const TARGETS = ['first', 'last', 'random', 'direct', 'bare'] as const;
export type Connections = Readonly<Record<(typeof TARGETS)[number], readonly number[]>>;

export interface NftablesMeasured {
  readonly agents: readonly AgentRun[];
  readonly starts: readonly NftablesReport[];
  readonly restarts: readonly NftablesReport[];
  readonly kernel: readonly KernelReport[];
  readonly nft: readonly NftReport[];
  /** By least sync period; none where there are too few Services. */
  readonly storms: ReadonlyMap<number, readonly StormReport[]>;
  readonly connections: Connections;
}

/** Measures `runs` times, what is compared in turns. */
export async function measureNftables(
  services: number,
  runs: number,
  progress: (text: string) => void,
): Promise<NftablesMeasured> {
  const agents: AgentRun[] = [];
  const starts: NftablesReport[] = [];
  const restarts: NftablesReport[] = [];
  const kernel: KernelReport[] = [];
  const nft: NftReport[] = [];
  const storms = new Map<number, StormReport[]>();
  const connections = { first: [], last: [], random: [], direct: [], bare: [] } as Record<
    (typeof TARGETS)[number],
    number[]
  >;
  const directory = mkdtempSync(join(tmpdir(), 'portwide-bench-'));
  const script = join(directory, 'table.nft');
  const run = <Report>(network: Network, job: NftablesJob) =>
    runScript(network.node, PROCESS, job) as Promise<Report>;
  try {
    for (let round = 1; round <= runs; round++) {
      const say = (text: string) => progress(`run ${round} of ${runs}: ${text}`);
      await withSettledNetwork(async (network) => {
        const job = { kind: 'netlink', services, changes: CHANGES, script } as const;
        kernel.push(await run<KernelReport>(network, job));
      });
      await withSettledNetwork(async (network) => {
        nft.push(await run<NftReport>(network, { kind: 'nft', script }));
      });
      await withSettledNetwork(async (network) => {
        const job = { kind: 'portwide', services } as const;
        const [bare = []] = await connectTo(network, [directTarget()]);
        starts.push(await run<NftablesReport>(network, { ...job, changes: 0 }));
        const random = Math.floor(Math.random() * services);
        const [first = [], last = [], other = [], direct = []] = await connectTo(network, [
          ...[0, services - 1, random].map(serviceTarget),
          directTarget(),
        ]);
        const all = { first, last, random: other, direct, bare };
        for (const target of TARGETS) connections[target].push(...all[target].flat());
        restarts.push(await run<NftablesReport>(network, { ...job, changes: CHANGES }));
      });
      checkElements([...kernel.slice(-1), ...nft.slice(-1), ...starts.slice(-1)]);
      const load = starts.at(-1)?.start.total.toFixed(2);
      const text = ((nft.at(-1)?.load ?? 0) / 1000).toFixed(2);
      say(`start ${load} s, nft alone ${text} s`);
      for (const minSyncPeriod of services < STORM ? [] : MIN_SYNC_PERIODS) {
        await withSettledNetwork(async (network) => {
          const job = { kind: 'storm', services, changes: STORM, minSyncPeriod } as const;
          const report = await run<StormReport>(network, job);
          storms.set(minSyncPeriod, [...(storms.get(minSyncPeriod) ?? []), report]);
        });
      }
      const agent = await measureAgent(services, ['--proxy-mode=nftables']);
      agents.push(agent);
      say(`whole agent ${agent.seconds.toFixed(2)} s, ${agent.peak.toFixed()} MiB`);
    }
  } finally {
    rmSync(directory, { recursive: true });
  }
  return { agents, starts, restarts, kernel, nft, storms, connections };
}

/** The kernel takes down a namespace that was deleted after it is gone, and has the locks meanwhile. */
async function withSettledNetwork(use: (network: Network) => Promise<void>): Promise<void> {
  await sleep(SETTLE);
  await withNetwork(use);
}

/** What is compared must have loaded the same. */
function checkElements(reports: readonly { readonly elements: number }[]): void {
  const counts = new Set(reports.map(({ elements }) => elements));
  if (counts.size !== 1) throw new Error(`elements in the kernel: ${[...counts].join(', ')}`);
}
