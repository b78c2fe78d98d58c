import { setImmediate as nextTurn } from 'node:timers/promises';
import { pino } from 'pino';
import { createMetricSources } from '../../agent/metric-sources.ts';
import { createObserver } from '../../agent/observer.ts';
import type { IpFamily, Protocol } from '../../api/objects.ts';
import { createMetrics, initFamilyCounters } from '../../metrics/metrics.ts';
import {
  type ConfigChanges,
  NO_CONFIG_CHANGES,
  type RemainingState,
} from '../../metrics/portwide.ts';
import type { ApplyReport, Backend, BackendStats } from '../../proxier/backend.ts';
import { FamilyProxier } from '../../proxier/family-proxier.ts';
import { Proxier } from '../../proxier/proxier.ts';
import { type RefusalChanges, RouteTable } from '../../proxier/route-table.ts';
import { FakeTimers } from '../sync/fake-timers.ts';
import { Scrape } from './scrape.ts';

/** A backend whose results the test sets. */
class FakeBackend implements Backend {
  readonly family: IpFamily;
  report: ApplyReport = { written: 1 };
  error: Error | undefined;
  lost: string | undefined;
  has: BackendStats = {};
  rejections: readonly (readonly [Protocol, number])[] = [];
  /** Milliseconds that an `apply` takes. */
  takes = 0;
  clock = 0;

  constructor(family: IpFamily) {
    this.family = family;
  }

  setNodeAddresses(): void {}
  update(): void {}

  async apply(): Promise<ApplyReport> {
    this.clock += this.takes;
    if (this.error !== undefined) throw this.error;
    return this.report;
  }

  async findDrift(): Promise<string | undefined> {
    return this.lost;
  }

  stats(): BackendStats {
    return this.has;
  }

  async localhostRejections(): Promise<ReadonlyMap<Protocol, number>> {
    return new Map(this.rejections);
  }

  async close(): Promise<void> {}
}

export interface LogLine {
  readonly level: number;
  readonly msg: string;
  readonly [field: string]: unknown;
}

/**
 * An agent without kernel and source: the real proxier, observer and metrics with fake backends.
 */
export function fakeAgent(options: { conntrackMs?: number; deletedEntries?: number } = {}) {
  const timers = new FakeTimers();
  const backends = [new FakeBackend('IPv4'), new FakeBackend('IPv6')] as const;
  const table = new RouteTable({
    nodeName: 'node-a',
    allPortsEnabled: true,
    onChange: () => proxier.request(),
  });
  const remaining: RemainingState[] = [];
  const config: { changes: ConfigChanges } = { changes: NO_CONFIG_CHANGES };
  const numbers = createMetricSources(table, { remaining: () => remaining }, () => config.changes);
  numbers.register(backends, { listeners: () => [['IPv4', 3]] });
  const metrics = createMetrics(numbers, '1.2.3', [
    { name: 'AllPorts', stage: 'BETA', isEnabled: true },
    { name: 'ComponentFlagz', stage: 'BETA', isEnabled: false },
  ]);
  for (const { family } of backends) initFamilyCounters(metrics, family);
  const log: LogLine[] = [];
  const refusalChanges: RefusalChanges[] = [];
  const families = backends.map((backend) => {
    const deleteStale = async () => {
      backend.clock += options.conntrackMs ?? 0;
      return options.deletedEntries ?? 0;
    };
    return new FamilyProxier(backend, { deleteStale }, { now: () => backend.clock });
  });
  const proxier = new Proxier({
    table,
    families,
    minSyncPeriod: 1000,
    syncPeriod: 30_000,
    timers,
    observer: createObserver({
      log: pino({ base: null, level: 'debug' }, { write: (line) => log.push(JSON.parse(line)) }),
      metrics,
      health: {
        queued: () => {},
        updated: () => {},
        servicesChanged: () => {},
        setNodeAddresses: () => {},
      },
      localhostNodePorts: { update: () => {} },
      onRefusals: (changes) => refusalChanges.push(changes),
      onFirstSync: () => {},
      now: () => timers.now(),
    }),
  });
  /** Advances the clock and runs everything that becomes due. */
  const pass = async (milliseconds: number) => {
    timers.advance(milliseconds);
    for (let turn = 0; turn < 10; turn++) await nextTurn();
  };
  const start = async () => {
    for (const kind of ['Service', 'EndpointSlice', 'Node'] as const) table.synced(kind);
    proxier.setNodeAddresses(['192.0.2.1', '2001:db8::1']);
    await pass(0);
    await pass(5000);
  };
  const scrape = async () => new Scrape(await metrics.registry.metrics());
  return { backends, table, remaining, config, metrics, log, refusalChanges, pass, start, scrape };
}
