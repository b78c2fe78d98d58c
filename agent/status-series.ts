/** Samples the time series of the status API. */
import { readFileSync } from 'node:fs';
import { residentMemory } from '../process/free-memory.ts';
import { SAMPLE_INTERVAL, type Sample } from '../status/series.ts';
import { callPeriodically, systemTimers } from '../sync/timers.ts';
import type { AgentContext } from './context.ts';

type SampledContext = Pick<AgentContext, 'table' | 'status'>;

/** Adds a sample every `SAMPLE_INTERVAL`, which takes less than a millisecond. @returns a function that stops this. */
export function recordSeries(context: SampledContext): () => void {
  const add = () => context.status.series.add(readSample(context), Date.now());
  add();
  return callPeriodically(systemTimers, SAMPLE_INTERVAL, add);
}

function readSample({ table, status: { syncs } }: SampledContext): Sample {
  const { user, system } = process.cpuUsage();
  return {
    syncs: syncs.ended,
    syncSeconds: syncs.takeLongestSync(),
    conntrackEntries: conntrackEntries(),
    services: table.serviceCount,
    endpoints: table.routeCounts.endpoints,
    cpuSeconds: (user + system) / 1e6,
    memory: residentMemory(),
  };
}

/** undefined without conntrack. A file of the kernel is read at once; the thread pool would take 0.5 ms more. */
function conntrackEntries(): number | undefined {
  try {
    return Number(readFileSync('/proc/sys/net/netfilter/nf_conntrack_count', 'utf8'));
  } catch {
    return undefined;
  }
}
