/** The agent without its sources: objects go into a RouteTable, and the Proxier takes them to the kernel. */
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { IptablesOptions } from '../iptables/backend.ts';
import type { Backend } from '../proxier/backend.ts';
import { FamilyProxier, type SyncReport } from '../proxier/family-proxier.ts';
import { Proxier } from '../proxier/proxier.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { systemTimers } from '../proxier/runner.ts';
import { allPortsMember, cluster, grownMember, type Member, member, POD_CIDR } from './cluster.ts';
import type { Subject, Timing } from './subject.ts';

/** Services handed over before the event loop gets a turn, as a source does after each page. */
const SERVICES_PER_TURN = 250;
/** The longest that a timer can wait. */
const NEVER = 2 ** 31 - 1;

/** What the others are not asked for. */
export interface PortwideSubject extends Subject {
  readonly addAllPorts: NonNullable<Subject['addAllPorts']>;
  /** Gives Service number `index` endpoints besides its own; see `grownMember`. */
  grow(index: number, spares: number): Promise<Timing>;
}

/** An agent for `services` ordinary Services and one on every port. */
export function createPortwide(backend: Backend, services: number): PortwideSubject {
  const members = cluster(services);
  let heard: PromiseWithResolvers<SyncReport> = Promise.withResolvers();
  const table = new RouteTable({
    nodeName: 'node-a',
    allPortsEnabled: true,
    onChange: () => proxier.request(),
  });
  const proxier = new Proxier({
    table,
    families: [new FamilyProxier(backend, { forget: async () => 0 })],
    minSyncPeriod: 0,
    syncPeriod: NEVER,
    timers: systemTimers,
    observer: {
      refusals: () => {},
      nodeFacts: () => {},
      queued: () => {},
      unchanged: () => {},
      rulesLost: () => {},
      checkFailed: () => {},
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
  const upsert = ({ service, slice }: Member) => {
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
    replaceEndpoint: (index, spare) => timed(() => table.upsert(member(index, spare).slice)),
    grow: (index, spares) => timed(() => table.upsert(grownMember(index, spares).slice)),
    add: (index) => timed(() => upsert(member(index))),
    addAllPorts: (index) => timed(() => upsert(allPortsMember(index))),
    remove: (index) =>
      timed(() => {
        const { service, slice } = member(index);
        table.remove('Service', service.key);
        table.remove('EndpointSlice', slice.key);
      }),
    stop: () => proxier.stop(),
  };
}

/** What `portwide run --cluster-cidr …` compiles with. */
export function compileOptions(): IptablesOptions {
  return {
    family: 'IPv4',
    masqueradeAll: false,
    masqueradeBit: 14,
    localDetector: { kind: 'cidr', cidr: POD_CIDR },
    nodePortSelection: 'all',
    localhostNodePorts: true,
    dropInvalid: true,
    randomFully: true,
    onWarning: (message) => {
      throw new Error(message);
    },
  };
}
