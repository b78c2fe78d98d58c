/** Runs in a namespace of the bench: an agent with Services that have the most ranges, and an ordinary Service. */
import { readFileSync } from 'node:fs';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import type { ApiObject, EndpointSlice, SliceEndpoint } from '../api/objects.ts';
import { iptablesBackend } from '../iptables/backend.ts';
import { iptablesCommands } from '../iptables/commands.ts';
import { IpvsKernel } from '../ipvs/kernel.ts';
import type { Backend } from '../proxier/backend.ts';
import { FamilyProxier } from '../proxier/family-proxier.ts';
import { Proxier } from '../proxier/proxier.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { systemTimers } from '../sync/timers.ts';
import { endpoint, podAt, service, slice } from '../test/fixtures.ts';
import { NODE } from './cluster.ts';
import { openIpvs } from './ipvs-process.ts';
import { serve } from './jobs.ts';
import { nftablesBackend } from './owned-process.ts';
import { compileOptions } from './portwide.ts';

export type RangesJobs = typeof jobs;

export const MODES = ['nftables', 'iptables-nft', 'iptables-legacy', 'ipvs'] as const;
export type RangesMode = (typeof MODES)[number];
export const PHASES = ['idle', 'create', 'change', 'delete', 'idle again'] as const;

/** What the agent does in one phase. */
export interface Phase {
  readonly seconds: number;
  /** Seconds of kernel time. */
  readonly cpu: number;
  /** Milliseconds of each ordinary change. */
  readonly latencies: readonly number[];
}

export interface RangesLoad {
  readonly mode: RangesMode;
  readonly services: number;
  readonly ranges: number;
  /** Ports of each range. */
  readonly ports: number;
  /** More than 1: pods own the ports, in so many slices. */
  readonly slices: number;
  readonly namespaces: number;
  /** Minimum interval between updates, in milliseconds. The default of the agent would hide what is measured. */
  readonly period: number;
}

/** Milliseconds between two ordinary changes, and of a phase without load. */
const [PAUSE, IDLE] = [10, 2000];
/** Milliseconds, as in `LiveWatch`. */
const TURN = 5;
/** The longest delay that a timer supports, in milliseconds. */
const NEVER = 2 ** 31 - 1;

const address = (first: number, index: number) =>
  `10.${first}.${(index >> 8) & 255}.${index & 255}`;

/** Endpoints of one EndpointSlice, as in a cluster. */
const PER_SLICE = 100;

/** Service number `index`, with its EndpointSlices and Pods. @param shift 1: with other ports, or other pods. */
function* objects(
  { ranges, ports: size, slices, namespaces }: RangesLoad,
  index: number,
  shift: number,
): Iterable<ApiObject> {
  const namespace = `tenant-${index % namespaces}`;
  const name = `media-${index}`;
  const at = { namespace, name, clusterIPs: [address(97, index)] };
  if (slices === 1) {
    const first = 20_000 + shift;
    const list = Array.from({ length: ranges }, (_, position) => {
      const from = first + (size + 1) * position;
      return size > 1 ? `${from}-${from + size - 1}/UDP` : `${from}/UDP`;
    });
    yield service({ ...at, portsAnnotation: list.join() });
    yield sliceOf(namespace, name, 0, [endpoint(address(129, index))]);
    return;
  }
  yield service({
    ...at,
    ownedPortsAnnotation: `1-${slices}/UDP`,
    portsPerPodAnnotation: '1',
  });
  for (let first = 0; first < slices; first += PER_SLICE) {
    const owners = Array.from({ length: Math.min(PER_SLICE, slices - first) }, (_, position) => {
      const ordinal = first + position;
      const owner = `11.${(2 * index + shift) & 255}.${ordinal >> 8}.${ordinal & 255}`;
      return endpoint(owner, { ordinal, nodeName: 'node-b' });
    });
    yield sliceOf(namespace, name, first, owners);
    for (const owner of owners) yield podAt(owner.address, namespace);
  }
}

function sliceOf(
  namespace: string,
  service: string,
  number: number,
  endpoints: readonly SliceEndpoint[],
): EndpointSlice {
  const name = `${service}-${number}`;
  return slice(endpoints, {
    key: `${namespace}/${name}`,
    namespace,
    name,
    serviceKey: `${namespace}/${service}`,
  });
}

/** Kernel time of this process and its finished commands, in seconds. */
function kernelTime(): number {
  const fields = readFileSync('/proc/self/stat', 'utf8').split(') ')[1]?.split(' ') ?? [];
  return (Number(fields[12]) + Number(fields[14])) / 100;
}

const BACKENDS: Readonly<Record<RangesMode, () => Backend | Promise<Backend>>> = {
  nftables: nftablesBackend,
  'iptables-nft': () => iptablesBackend(iptablesCommands('IPv4', 'nft'), compileOptions()),
  'iptables-legacy': () => iptablesBackend(iptablesCommands('IPv4', 'legacy'), compileOptions()),
  ipvs: async () =>
    await openIpvs(await IpvsKernel.open('IPv4'), iptablesCommands('IPv4', 'legacy')),
};

async function agent(load: RangesLoad): Promise<Readonly<Record<(typeof PHASES)[number], Phase>>> {
  const { mode, services } = load;
  const family = new FamilyProxier(await BACKENDS[mode](), { deleteStale: async () => 0 });
  const table = new RouteTable({
    nodeName: NODE,
    allPortsEnabled: true,
    onChange: () => proxier.request(),
  });
  const waiters = new Map<number, () => void>();
  let settle = () => {};
  const onDone = (triggerTimes: readonly number[]) => {
    for (const time of triggerTimes) {
      waiters.get(time)?.();
      waiters.delete(time);
    }
    if (!table.hasChanges && !family.hasChanges) settle();
  };
  const failed = Promise.withResolvers<never>();
  const proxier = new Proxier({
    table,
    families: [family],
    minSyncPeriod: load.period,
    syncPeriod: NEVER,
    timers: systemTimers,
    observer: {
      refusals: ({ raised: [first] }) => {
        if (first !== undefined) failed.reject(new Error(JSON.stringify(first)));
      },
      nodeAddresses: () => {},
      queued: () => {},
      unchanged: (_family, triggerTimes) => onDone(triggerTimes),
      driftDetected: () => {},
      checkFailed: () => {},
      checked: () => {},
      synced: ({ triggerTimes }) => onDone(triggerTimes),
      syncFailed: (_family, error) => failed.reject(error),
    },
  });
  const settled = () =>
    new Promise<void>((resolve) => {
      settle = resolve;
    });

  table.upsert(service({ name: 'ordinary' }));
  let last = 0;
  /** Gives the ordinary Service another endpoint, and waits until the kernel has it. */
  const ordinaryChange = async () => {
    // The agent ignores changes from before its start.
    const time = Math.max(Date.now(), last + 1);
    last = time;
    const inForce = new Promise<void>((resolve) => waiters.set(time, resolve));
    const started = performance.now();
    table.upsert({
      ...slice([endpoint(address(128, time % 200))], {
        name: 'ordinary-1',
        serviceKey: 'default/ordinary',
      }),
      triggerTime: time,
    });
    await Promise.race([inForce, failed.promise]);
    return performance.now() - started;
  };
  const first = settled();
  for (const kind of ['Service', 'EndpointSlice', 'Node'] as const) table.synced(kind);
  proxier.setNodeAddresses(['192.0.2.1']);
  await first;

  const phase = async (work: () => Promise<void>): Promise<Phase> => {
    const [started, before] = [performance.now(), kernelTime()];
    let isOver = false;
    const working = work().finally(() => {
      isOver = true;
    });
    const latencies: number[] = [];
    while (!isOver) {
      latencies.push(await ordinaryChange());
      await sleep(PAUSE);
    }
    await working;
    const seconds = (performance.now() - started) / 1000;
    return { seconds, cpu: kernelTime() - before, latencies };
  };
  /** Passes in objects of each Service, in short turns as a watch does, and waits until the kernel has all. */
  const forAll = (shift: number, change: (object: ApiObject) => void) => async () => {
    let turnEnd = performance.now() + TURN;
    for (let index = 0; index < services; index++) {
      for (const object of objects(load, index, shift)) {
        change(object);
        if (performance.now() < turnEnd) continue;
        await nextTurn();
        turnEnd = performance.now() + TURN;
      }
      if (load.slices > 1) table.synced('Pod', `tenant-${index % load.namespaces}`);
    }
    await settled();
  };
  const upsert = (object: ApiObject) => table.upsert(object);
  const remove = (object: ApiObject) => table.remove(object.kind, object.key);
  const idle = async () => await sleep(IDLE);
  const report = {
    idle: await phase(idle),
    create: await phase(forAll(0, upsert)),
    change: await phase(forAll(1, upsert)),
    delete: await phase(forAll(1, remove)),
    'idle again': await phase(idle),
  };
  await proxier.stop();
  return report;
}

const jobs = { agent };
if (import.meta.main) await serve(jobs);
