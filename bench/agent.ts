/** The agent without its sources: objects go into a RouteTable, and the Proxier takes them to the kernel. */
import { performance } from 'node:perf_hooks';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { type IptablesOptions, iptablesBackend } from '../iptables/backend.ts';
import { iptablesCommands, type Variant } from '../iptables/commands.ts';
import { FamilyProxier, type SyncReport } from '../proxier/family-proxier.ts';
import { Proxier } from '../proxier/proxier.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { systemTimers } from '../proxier/runner.ts';
import { type Member, POD_CIDR } from './cluster.ts';

/** Objects handed over before the event loop gets a turn, as a source does after each page. */
const OBJECTS_PER_TURN = 500;
const NEVER = 2 ** 31 - 1;

/** One sync as an observer of the whole agent sees it. */
export interface Timing {
  /** From the first object handed over until the kernel has the rules. */
  readonly total: number;
  /** The part of it after everything was resolved and compiled. */
  readonly load: number;
  /** Chains written or removed. */
  readonly written: number;
}

export interface Agent {
  /** Hands over a whole cluster and waits for the sync; seconds. */
  start(members: readonly Member[]): Promise<Timing>;
  /** Makes a change and waits for the sync that takes it to the kernel; seconds. */
  change(make: (table: RouteTable) => void): Promise<Timing>;
  stop(): Promise<void>;
}

export function createAgent(variant: Variant): Agent {
  let heard: PromiseWithResolvers<SyncReport> = Promise.withResolvers();
  const table = new RouteTable({
    nodeName: 'node-a',
    allPortsEnabled: true,
    onChange: () => proxier.request(),
  });
  const backend = iptablesBackend(iptablesCommands('IPv4', variant), options());
  const proxier = new Proxier({
    table,
    families: [new FamilyProxier(backend, { forget: async () => 0 })],
    minSyncPeriod: 0,
    syncPeriod: NEVER,
    timers: systemTimers,
    observer: {
      refusals: () => {},
      rulesLost: () => {},
      synced: (report) => heard.resolve(report),
      syncFailed: (_family, error) => heard.reject(error),
    },
  });

  const timed = async (handOver: () => void | Promise<void>): Promise<Timing> => {
    heard = Promise.withResolvers();
    const started = performance.now();
    await handOver();
    const { seconds, written } = await heard.promise;
    return { total: (performance.now() - started) / 1000, load: seconds, written };
  };

  return {
    start: (members) =>
      timed(async () => {
        let handed = 0;
        for (const { service, slice } of members) {
          table.upsert(service);
          table.upsert(slice);
          handed += 2;
          if (handed % OBJECTS_PER_TURN === 0) await nextTurn();
        }
        for (const kind of ['Service', 'EndpointSlice', 'Node'] as const) table.synced(kind);
        proxier.setNodeAddresses(['127.0.0.1', '192.0.2.1']);
      }),
    change: (make) => timed(() => make(table)),
    stop: () => proxier.stop(),
  };
}

/** What `portwide run --cluster-cidr …` compiles with. */
function options(): IptablesOptions {
  return {
    family: 'IPv4',
    masqueradeAll: false,
    masqueradeBit: 14,
    localDetector: { kind: 'cidr', cidr: POD_CIDR },
    nodePortSelection: 'all',
    localhostNodePorts: true,
    dropInvalid: true,
    randomFully: true,
    onWarning: (message) => console.error(message),
  };
}
