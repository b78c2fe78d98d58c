/** Runs one job in the namespace that it was started in, and prints its report as JSON. */
import { readFileSync, writeFileSync } from 'node:fs';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { NETLINK_NETFILTER } from '../netlink/core/descriptor.ts';
import type { PackedMessages } from '../netlink/core/message.ts';
import { NetlinkSocket } from '../netlink/core/socket.ts';
import { NfTables } from '../netlink/nftables/tables.ts';
import { TransactionWriter } from '../netlink/nftables/transaction.ts';
import { watchNftables } from '../netlink/nftables/watch.ts';
import { nftCommand, nftProcessIds } from '../nft/command.ts';
import { NftBackend, type NftOptions } from '../nftables/backend.ts';
import type { Element } from '../nftables/element.ts';
import { MAP_NAMES } from '../nftables/maps.ts';
import { NftPlan } from '../nftables/plan.ts';
import { declarations, fills, TABLE } from '../nftables/skeleton.ts';
import { tableScript } from '../nftables/text.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { allPortsMember, cluster, member, NODE } from './cluster.ts';
import {
  CHANGE_KINDS,
  type ChangeKind,
  type KernelReport,
  type NftablesJob,
  type NftablesReport,
  type NftReport,
  type StormReport,
} from './nftables-jobs.ts';
import { compileOptions, createPortwide, type PortwideSubject } from './portwide.ts';
import type { Timing } from './subject.ts';

type Job<Kind extends NftablesJob['kind']> = Extract<NftablesJob, { kind: Kind }>;

const nft = nftCommand();
const tables = new NfTables('IPv4', TABLE);
const options: NftOptions = {
  ...compileOptions(),
  nodePortSelection: ['primary'],
  resetsTcp: false,
  rejectsOnLocalhost: false,
  serviceCidrs: [],
};

async function portwide({ services, changes }: Job<'portwide'>): Promise<NftablesReport> {
  const { subject, start, stall } = await startAgent(services, 0);
  const elements = await countElements();
  const numbers = changedServices(services, changes);
  const timings: Record<ChangeKind, Timing[]> = {
    replace: [],
    add: [],
    addAllPorts: [],
    remove: [],
  };
  for (let round = 0; round < changes; round++) {
    timings.replace.push(await subject.replaceEndpoint(numbers.changed, round));
    timings.add.push(await subject.add(numbers.fresh + round));
    timings.addAllPorts.push(await subject.addAllPorts(numbers.allPorts + round));
    timings.remove.push(await subject.remove(numbers.fresh + round));
  }
  await subject.stop();
  return { start, stall, elements, changes: timings };
}

async function storm({ services, changes, minSyncPeriod }: Job<'storm'>): Promise<StormReport> {
  const { subject } = await startAgent(services, minSyncPeriod);
  const delay = monitorEventLoopDelay({ resolution: 1 });
  delay.enable();
  const before = process.cpuUsage();
  const report = await subject.storm(changes);
  const { user, system } = process.cpuUsage(before);
  delay.disable();
  await subject.stop();
  return { ...report, stall: delay.max / 1e6, cpu: (user + system) / 1000 };
}

/** As `portwide run` does it, but for the source. */
async function startAgent(
  services: number,
  minSyncPeriod: number,
): Promise<{ subject: PortwideSubject; start: Timing; stall: number }> {
  const backend = new NftBackend(tables, nft, options);
  const subject = createPortwide(backend, services, minSyncPeriod);
  const delay = monitorEventLoopDelay({ resolution: 1 });
  delay.enable();
  const start = await subject.start();
  delay.disable();
  watchNftables({
    silencedPorts: [tables.port],
    isOwn: (port) => nftProcessIds.has(port),
    onChange: ({ kind }) => fail(`somebody changed a ${kind}`),
    onOverrun: fail,
  });
  return { subject, start, stall: delay.max / 1e6 };
}

async function netlink({ services, changes, script }: Job<'netlink'>): Promise<KernelReport> {
  const table = new RouteTable({ nodeName: NODE, allPortsEnabled: true, onChange: () => {} });
  const plan = new NftPlan(options);
  plan.setFacts({ addresses: ['127.0.0.1', '192.0.2.1'], primary: ['192.0.2.1'] });
  const upsert = ({ service, slice }: ReturnType<typeof member>) => {
    table.upsert(service);
    table.upsert(slice);
  };
  const hand = () => {
    const { upserts, removals } = table.takeChanges().routes;
    plan.update(
      upserts,
      removals.map(({ id }) => id),
    );
  };
  cluster(services).forEach(upsert);
  hand();
  const wanted = [...plan.takeAll()].flatMap((each) => each.elements);
  const chains = [...plan.chains()];
  writeFileSync(script, tableScript(chains, wanted, 'IPv4'));
  await nft.run(declarations(chains, 'IPv4'));
  await tables.transact(fills(chains));

  const socket = new NetlinkSocket(NETLINK_NETFILTER, { sendBuffer: 256 << 20 });
  const timed = async (packed: PackedMessages) => {
    const started = performance.now();
    const [refusal] = await socket.transaction(async () => packed);
    if (refusal !== undefined) throw refusal.error;
    return performance.now() - started;
  };
  const load = await timed(pack([], wanted));
  const elements = await countElements();
  const numbers = changedServices(services, changes);
  const timings: Record<ChangeKind, number[]> = {
    replace: [],
    add: [],
    addAllPorts: [],
    remove: [],
  };
  const make: Readonly<Record<ChangeKind, (round: number) => void>> = {
    replace: (round) => table.upsert(member(numbers.changed, round).slice),
    add: (round) => upsert(member(numbers.fresh + round)),
    addAllPorts: (round) => upsert(allPortsMember(numbers.allPorts + round)),
    remove: (round) => {
      const { service, slice } = member(numbers.fresh + round);
      table.remove('Service', service.key);
      table.remove('EndpointSlice', slice.key);
    },
  };
  for (let round = 0; round < changes; round++) {
    for (const kind of CHANGE_KINDS) {
      make[kind](round);
      hand();
      const { deletes, adds, afterwards } = plan.take();
      timings[kind].push(await timed(pack([...deletes, ...afterwards], adds)));
    }
  }
  await socket.close();
  return { load, elements, changes: timings };
}

async function loadText({ script }: Job<'nft'>): Promise<NftReport> {
  const text = readFileSync(script, 'utf8');
  const started = performance.now();
  await nft.run(text);
  const load = performance.now() - started;
  return { load, elements: await countElements() };
}

/** Numbers of Services that are changed, and that come: the cluster has those up to and with `services`. */
function changedServices(
  services: number,
  changes: number,
): { readonly changed: number; readonly fresh: number; readonly allPorts: number } {
  const fresh = services + 1;
  return { changed: Math.floor(services / 2), fresh, allPorts: fresh + changes };
}

function pack(deletes: readonly Element[], adds: readonly Element[]): PackedMessages {
  const writer = new TransactionWriter(NFPROTO_IPV4, TABLE);
  for (const element of deletes) writer.write('delete', element.map, element);
  for (const element of adds) writer.write('add', element.map, element);
  return writer.finish();
}

const NFPROTO_IPV4 = 2;

async function countElements(): Promise<number> {
  let total = 0;
  for (const map of MAP_NAMES) {
    let count = 0;
    const visit = () => {
      count += 1;
    };
    const restart = () => {
      count = 0;
    };
    await tables.visitElements(map, visit, restart);
    total += count;
  }
  return total;
}

function fail(reason: unknown): never {
  throw reason instanceof Error ? reason : new Error(String(reason));
}

function run(job: NftablesJob): Promise<unknown> {
  switch (job.kind) {
    case 'portwide':
      return portwide(job);
    case 'storm':
      return storm(job);
    case 'netlink':
      return netlink(job);
    case 'nft':
      return loadText(job);
  }
}

const report = await run(JSON.parse(process.argv[2] ?? '') as NftablesJob);
process.stdout.write(JSON.stringify(report), () => process.exit());
