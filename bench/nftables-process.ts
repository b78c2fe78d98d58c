/**
 * Loads and changes a cluster in the current network namespace: by Portwide, by netlink messages
 * alone, and by nft.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { NETLINK_NETFILTER } from '../netlink/core/descriptor.ts';
import type { PackedMessages } from '../netlink/core/message.ts';
import { NetlinkSocket } from '../netlink/core/socket.ts';
import { NfTables } from '../netlink/nftables/tables.ts';
import { TransactionWriter } from '../netlink/nftables/transaction.ts';
import { watchNftables } from '../netlink/nftables/watch.ts';
import { NftBackend, type NftBackendOptions } from '../nftables/backend.ts';
import type { MapElement } from '../nftables/element.ts';
import { MAP_NAMES } from '../nftables/maps.ts';
import { NftPlan } from '../nftables/plan.ts';
import { TABLE } from '../nftables/static-chains.ts';
import { tableOperations } from '../nftables/table-operations.ts';
import { tableScript } from '../nftables/table-script.ts';
import { runProgram } from '../process/run-program.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { cluster, NODE } from './cluster.ts';
import { serve } from './jobs.ts';
import { changeTable, compileOptions, createPortwide } from './portwide.ts';
import { withStall } from './processes.ts';
import { type ChangeKind, changeKinds, type LoadOptions, runChanges } from './subject.ts';

export type NftablesJobs = typeof jobs;

/** Milliseconds. */
const NFT_TIMEOUT = 60_000;

const tables = new NfTables('IPv4', TABLE);
const options: NftBackendOptions = {
  ...compileOptions(),
  nodePortSelection: ['primary'],
  resetsTcp: false,
  rejectsOnLocalhost: false,
  serviceCidrs: [],
  usesFlowtable: false,
  onWarning: (...warning: unknown[]) => {
    throw new Error(warning.map(String).join(': '));
  },
};

/** Measures the agent without its sources, and the number of elements in the kernel after the start. */
async function portwide({ services, changes }: LoadOptions) {
  const { subject, start, stall } = await startAgent(services, 0);
  const elements = await countElements();
  const timings = await runChanges(changeKinds, { services, changes }, subject.change);
  await subject.stop();
  return { start, stall, elements, changes: timings };
}

/**
 * Stall and CPU time from the first change until the kernel has all changes; milliseconds, like
 * `minSyncPeriod`.
 */
async function storm({
  services,
  changes,
  minSyncPeriod,
}: LoadOptions & { readonly minSyncPeriod: number }) {
  const { subject } = await startAgent(services, minSyncPeriod);
  const before = process.cpuUsage();
  const { result, stall } = await withStall(() => subject.storm(changes));
  const { user, system } = process.cpuUsage(before);
  await subject.stop();
  return { ...result, stall, cpu: (user + system) / 1000 };
}

/** Starts the agent without its sources; `stall` is the longest stall of the start, in milliseconds. */
async function startAgent(services: number, minSyncPeriod: number) {
  const backend = new NftBackend(tables, options);
  const subject = createPortwide(backend, services, minSyncPeriod);
  const { result: start, stall } = await withStall(() => subject.start());
  watchNftables({
    filteredPortIds: [tables.portId],
    isOwnPortId: () => false,
    onChange: ({ kind }) => fail(`external change of a ${kind}`),
    onOverrun: fail,
  });
  return { subject, start, stall };
}

/**
 * Times only the kernel, with prepared messages, in milliseconds. Writes the same state as text to
 * `script`.
 */
async function netlink({ services, changes, script }: LoadOptions & { readonly script: string }) {
  const table = new RouteTable({ nodeName: NODE, allPortsEnabled: true, onChange: () => {} });
  const plan = new NftPlan(options);
  plan.setNodeAddresses({ addresses: ['127.0.0.1', '192.0.2.1'], primary: ['192.0.2.1'] });
  const updatePlan = () => {
    const { upserts, removals } = table.takeChanges().routes;
    plan.update(
      upserts,
      removals.map(({ id }) => id),
    );
  };
  for (const { service, slice } of cluster(services)) {
    table.upsert(service);
    table.upsert(slice);
  }
  updatePlan();
  const allElements = [...plan.snapshot()].flatMap((each) => each.elements);
  const chains = [...plan.chains()];
  writeFileSync(script, tableScript(chains, allElements, 'IPv4'));
  await tables.transact(tableOperations(chains, [], 'IPv4'));

  const socket = new NetlinkSocket(NETLINK_NETFILTER, { sendBuffer: 256 << 20 });
  const timed = async (packed: PackedMessages) => {
    const started = performance.now();
    const [refusal] = await socket.transaction(async () => packed);
    if (refusal !== undefined) throw refusal.error;
    return performance.now() - started;
  };
  const load = await timed(pack([], allElements));
  const elements = await countElements();
  const make = async (...change: [ChangeKind, number, number]) => {
    changeTable(table, ...change);
    updatePlan();
    const { deletes, adds, cleanup } = plan.diff();
    return await timed(pack([...deletes, ...cleanup], adds));
  };
  const timings = await runChanges(changeKinds, { services, changes }, make);
  await socket.close();
  return { load, elements, changes: timings };
}

/** Times nft with the text in `script` that `netlink` wrote, in milliseconds. */
async function loadText({ script }: { readonly script: string }) {
  const text = readFileSync(script, 'utf8');
  const started = performance.now();
  await runProgram('nft', ['-f', '-'], { input: text, timeout: NFT_TIMEOUT });
  const load = performance.now() - started;
  return { load, elements: await countElements() };
}

function pack(deletes: readonly MapElement[], adds: readonly MapElement[]): PackedMessages {
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

const jobs = { portwide, storm, netlink, nft: loadText };
await serve(jobs);
