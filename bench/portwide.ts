/**
 * The agent without its sources: objects go to a RouteTable, and the Proxier applies them to the
 * kernel.
 */
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import type { IptablesOptions } from '../iptables/backend.ts';
import type { Backend } from '../proxier/backend.ts';
import { FamilyProxier, type SyncReport } from '../proxier/family-proxier.ts';
import { Proxier } from '../proxier/proxier.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { systemTimers } from '../sync/timers.ts';
import {
  allPortsObjects,
  cluster,
  NODE,
  POD_CIDR,
  type ServiceObjects,
  serviceObjects,
  serviceObjectsWithSpares,
} from './cluster.ts';
import type { ChangeKind, Subject, SyncTiming } from './subject.ts';

/** Services delivered before the event loop gets a turn, as a source does after each page. */
const SERVICES_PER_TURN = 250;
/** Duration of a storm in milliseconds. */
const STORM = 1000;
/** The longest delay that a timer supports, in milliseconds. */
const NEVER = 2 ** 31 - 1;

/** Operations that only Portwide is measured with. */
export interface PortwideSubject extends Subject {
  /** Gives Service number `index` additional endpoints; see `serviceObjectsWithSpares`. */
  grow(index: number, spares: number): Promise<SyncTiming>;
  /** Replaces one endpoint of each of `changes` Services within a second. */
  storm(changes: number): Promise<Storm>;
}

/** Result of a storm of changes; milliseconds. */
export interface Storm {
  /** From the last change until the kernel has all changes. */
  readonly settled: number;
  /** For each change, from its delivery until the kernel has it. */
  readonly latencies: readonly number[];
  readonly syncs: number;
}

/**
 * An agent for `services` ordinary Services and one all-ports Service.
 * @param minSyncPeriod milliseconds; see `Proxier`.
 */
export function createPortwide(
  backend: Backend,
  services: number,
  minSyncPeriod = 0,
): PortwideSubject {
  const members = cluster(services);
  let synced: PromiseWithResolvers<SyncReport> = Promise.withResolvers();
  let onSync = (_: SyncReport) => {};
  const table = new RouteTable({
    nodeName: NODE,
    allPortsEnabled: true,
    onChange: () => proxier.request(),
  });
  const proxier = new Proxier({
    table,
    families: [new FamilyProxier(backend, { deleteStale: async () => 0 })],
    minSyncPeriod,
    syncPeriod: NEVER,
    timers: systemTimers,
    observer: {
      refusals: () => {},
      nodeAddresses: () => {},
      queued: () => {},
      unchanged: () => {},
      driftDetected: () => {},
      checkFailed: () => {},
      checked: () => {},
      synced: (report) => {
        synced.resolve(report);
        onSync(report);
      },
      syncFailed: (_family, error) => synced.reject(error),
    },
  });

  const timed = async (handOver: () => void | Promise<void>): Promise<SyncTiming> => {
    synced = Promise.withResolvers();
    const started = performance.now();
    await handOver();
    const { seconds, written } = await synced.promise;
    return { total: (performance.now() - started) / 1000, load: seconds, written };
  };
  const upsert = ({ service, slice }: ServiceObjects) => {
    table.upsert(service);
    table.upsert(slice);
  };

  return {
    start: () =>
      timed(async () => {
        for (let at = 0; at < members.length; at += SERVICES_PER_TURN) {
          members.slice(at, at + SERVICES_PER_TURN).forEach(upsert);
          await nextTurn();
        }
        for (const kind of ['Service', 'EndpointSlice', 'Node'] as const) table.synced(kind);
        proxier.setNodeAddresses(['127.0.0.1', '192.0.2.1']);
      }),
    change: (kind, index, spare) => timed(() => changeTable(table, kind, index, spare)),
    grow: (index, spares) =>
      timed(() => table.upsert(serviceObjectsWithSpares(index, spares).slice)),
    storm: async (changes) => {
      const latencies: number[] = [];
      let syncs = 0;
      const over = Promise.withResolvers<void>();
      onSync = ({ triggerTimes }) => {
        syncs += 1;
        for (const time of triggerTimes) latencies.push(Date.now() - time);
        if (latencies.length === changes) over.resolve();
      };
      const step = Math.floor(services / changes);
      const started = performance.now();
      for (let made = 0; made < changes; await sleep(1)) {
        const due = Math.min(changes, ((performance.now() - started) * changes) / STORM);
        for (; made < due; made++) {
          table.upsert({ ...serviceObjects(made * step, made).slice, triggerTime: Date.now() });
        }
      }
      const last = performance.now();
      await over.promise;
      return { settled: performance.now() - last, latencies, syncs };
    },
    stop: () => proxier.stop(),
  };
}

/** Makes a change as a source would deliver it; see `Subject`. */
export function changeTable(
  table: RouteTable,
  kind: ChangeKind,
  index: number,
  spare?: number,
): void {
  const last = kind === 'replace' ? spare : undefined;
  const { service, slice } =
    kind === 'addAllPorts' ? allPortsObjects(index) : serviceObjects(index, last);
  if (kind === 'remove') {
    table.remove('Service', service.key);
    table.remove('EndpointSlice', slice.key);
    return;
  }
  if (kind !== 'replace') table.upsert(service);
  table.upsert(slice);
}

/** Compile options of `portwide run --cluster-cidr …`. */
export function compileOptions(): IptablesOptions {
  return {
    family: 'IPv4',
    masqueradeAll: false,
    masqueradeBit: 14,
    localDetector: { kind: 'cidr', cidr: POD_CIDR },
    nodePortSelection: ['all'],
    resetsTcp: false,
    localhostNodePorts: true,
    dropInvalid: true,
    randomFully: true,
    onWarning: (_details: object, message: string) => {
      throw new Error(message);
    },
  };
}
