/** Samples the time series of the status API. */
import { SAMPLE_INTERVAL, type Sample } from '../status/series.ts';
import { callPeriodically, systemTimers } from '../sync/timers.ts';
import type { AgentContext } from './context.ts';
import { readSysctl } from './node-setup.ts';

type SampledContext = Pick<AgentContext, 'table' | 'status'>;

/** Adds a sample every `SAMPLE_INTERVAL`, which takes less than a millisecond. @returns a function that stops this. */
export function recordSeries(context: SampledContext): () => void {
  const add = async () => context.status.series.add(await readSample(context), Date.now());
  void add();
  return callPeriodically(systemTimers, SAMPLE_INTERVAL, () => void add());
}

async function readSample({ table, status: { syncs } }: SampledContext): Promise<Sample> {
  const { user, system } = process.cpuUsage();
  const entries = await readSysctl('net.netfilter.nf_conntrack_count').catch(() => undefined);
  return {
    syncs: syncs.ended,
    syncSeconds: syncs.takeLongestSync(),
    conntrackEntries: entries === undefined ? undefined : Number(entries),
    services: table.serviceCounts.total,
    endpoints: table.routeCounts.endpoints,
    cpuSeconds: (user + system) / 1e6,
    memory: process.memoryUsage.rss(),
  };
}
