/** Runs in a namespace of the bench: loads and changes owned ports, and times packets through them. */
import { readFileSync, writeFileSync } from 'node:fs';
import koffi from 'koffi';
import { NfTables } from '../netlink/nftables/tables.ts';
import { nftCommand } from '../nft/command.ts';
import { NftBackend, type NftBackendOptions } from '../nftables/backend.ts';
import { NftPlan } from '../nftables/plan.ts';
import { TABLE } from '../nftables/static-chains.ts';
import { tableScript } from '../nftables/table-script.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { endpoint, service, servicePort, slice } from '../test/fixtures.ts';
import { NODE } from './cluster.ts';
import { serve } from './jobs.ts';
import { compileOptions } from './portwide.ts';
import { withStall } from './processes.ts';

export type OwnedJobs = typeof jobs;

/** Services and slices of each. */
export interface OwnedLoad {
  readonly services: number;
  readonly slices: number;
}

/** Slices that are ranges, and slices that one exact lookup finds. */
export const RANGES = { portsPerPod: 100, first: 20_000 };
export const EXACT = { portsPerPod: 128, first: 20_480 };
const nft = nftCommand();
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
const nodeAddresses = { addresses: ['192.0.2.1'], primary: ['192.0.2.1'] };

const text = (value: number) =>
  [value >>> 24, (value >>> 16) & 255, (value >>> 8) & 255, value & 255].join('.');
export const ownedVip = (index: number) => text(0x0a600001 + index);
export const owner = (index: number, ordinal: number) => text(0x0a800001 + index * 200 + ordinal);

/** Service number `index` whose ports pods own. @param moved ordinal of a pod that has another address now. */
function ownedObjects(index: number, slices: number, moved?: number, shape = RANGES) {
  const name = `media-${index}`;
  const { first, portsPerPod } = shape;
  const last = first + slices * portsPerPod - 1;
  return {
    service: service({
      name,
      clusterIPs: [ownedVip(index)],
      ownedPortsAnnotation: `${first}-${last}/UDP`,
      portsPerPodAnnotation: String(portsPerPod),
    }),
    slice: slice(
      Array.from({ length: slices }, (_, ordinal) =>
        endpoint(owner(index, ordinal === moved ? slices + 1 : ordinal), {
          ordinal,
          nodeName: 'node-b',
        }),
      ),
      { name: `${name}-1`, serviceKey: `default/${name}` },
    ),
  };
}

function newTable(): RouteTable {
  return new RouteTable({ nodeName: NODE, allPortsEnabled: true, onChange: () => {} });
}

function fill(table: RouteTable, { services, slices }: OwnedLoad): void {
  for (let index = 0; index < services; index++) {
    const objects = ownedObjects(index, slices);
    table.upsert(objects.service);
    table.upsert(objects.slice);
  }
}

/** Writes the table as a script for nft. */
async function script({ path, ...load }: OwnedLoad & { readonly path: string }) {
  const table = newTable();
  fill(table, load);
  const plan = new NftPlan(options);
  plan.setNodeAddresses(nodeAddresses);
  plan.update(table.takeChanges().routes.upserts, []);
  const elements = [...plan.snapshot()].flatMap((each) => each.elements);
  writeFileSync(path, tableScript(plan.chains(), elements, 'IPv4'));
  return elements.length;
}

/** Milliseconds of `nft -f`. */
async function loadText({ path }: { readonly path: string }) {
  const content = readFileSync(path, 'utf8');
  const started = performance.now();
  await nft.run(content);
  return performance.now() - started;
}

/** Milliseconds from the objects to the kernel, and of single changes: a pod is replaced by another address. */
async function agent({ changes, ...load }: OwnedLoad & { readonly changes: number }) {
  const tables = new NfTables('IPv4', TABLE);
  const backend = new NftBackend(tables, nft, options);
  backend.setNodeAddresses(nodeAddresses);
  const table = newTable();
  const sync = async (full: boolean) => {
    const { upserts, removals } = table.takeChanges().routes;
    backend.update(
      upserts,
      removals.map(({ id }) => id),
    );
    await backend.apply(full);
  };
  const timed = async (make: () => void, full: boolean) => {
    const started = performance.now();
    make();
    await sync(full);
    return performance.now() - started;
  };
  const { result: start, stall } = await withStall(() => timed(() => fill(table, load), true));
  const times: number[] = [];
  for (let change = 0; change < changes; change++) {
    const index = (change * 7) % load.services;
    const moved = (change * 13) % load.slices;
    for (const to of [moved, undefined]) {
      const objects = ownedObjects(index, load.slices, to);
      times.push(await timed(() => table.upsert(objects.slice), false));
    }
  }
  await backend.close();
  return { start, stall, times };
}

/** Programs an owned and an ordinary Service, and keeps the rules. */
async function program({ shape }: { readonly shape: typeof RANGES }) {
  const tables = new NfTables('IPv4', TABLE);
  const backend = new NftBackend(tables, nft, options);
  backend.setNodeAddresses(nodeAddresses);
  const table = newTable();
  const owned = ownedObjects(0, 10, undefined, shape);
  table.upsert(owned.service);
  table.upsert(owned.slice);
  const ordinary = { name: 'ordinary', clusterIPs: [ownedVip(1)] };
  const ports = [{ name: '', protocol: 'UDP' as const, port: shape.first }];
  table.upsert(
    service({ ...ordinary, ports: [servicePort({ protocol: 'UDP', port: shape.first })] }),
  );
  const serviceKey = 'default/ordinary';
  table.upsert(slice([endpoint(owner(1, 0))], { name: 'ordinary-1', serviceKey, ports }));
  backend.update(table.takeChanges().routes.upserts, []);
  await backend.apply(true);
  await backend.close();
}

const libc = koffi.load(null);
const socket = libc.func('int socket(int domain, int type, int protocol)');
const bind = libc.func('int bind(int fd, const void *address, uint32_t length)');
const sendto = libc.func(
  'int64_t sendto(int fd, const void *bytes, size_t length, int flags, const void *to, uint32_t to_length)',
);
const [AF_INET, SOCK_DGRAM] = [2, 2];

/** An address and the first of several ports. */
export interface Peer {
  readonly address: string;
  readonly port: number;
  /** Ports that packets come from or go to, in turn. */
  readonly ports: number;
}

/** Packets in a batch, at least; the average takes the cost of the clock away. */
const BATCH = 200;
/** Length of an RTP packet of 20 ms of G.711. */
const packet = Buffer.alloc(172);

/**
 * Microseconds of one packet from each source to its target, by batch. The kernel carries the packet through node and
 * veth links to the other end within the call of sendto(), on one core: the time is CPU time.
 */
async function stream({
  from,
  to,
  batches,
}: {
  readonly from: readonly Peer[];
  readonly to: readonly Peer[];
  readonly batches: number;
}) {
  const streams = from.map((source, at) => {
    const target = to[at] ?? source;
    const sockets = Array.from({ length: source.ports }, (_, index) => openSocket(source, index));
    const addresses = Array.from({ length: target.ports }, (_, index) => sockaddr(target, index));
    return { sockets, addresses, packets: Math.max(BATCH, source.ports, target.ports) };
  });
  const times: number[][] = streams.map(() => []);
  for (let batch = -2; batch < batches; batch++) {
    for (const [at, { sockets, addresses, packets }] of streams.entries()) {
      const started = performance.now();
      for (let sent = 0; sent < packets; sent++) {
        const address = addresses[sent % addresses.length];
        sendto(sockets[sent % sockets.length], packet, packet.length, 0, address, 16);
      }
      const each = ((performance.now() - started) * 1000) / packets;
      if (batch >= 0) times[at]?.push(each);
    }
  }
  return times;
}

function openSocket(source: Peer, index: number): number {
  const descriptor = Number(socket(AF_INET, SOCK_DGRAM, 0));
  if (bind(descriptor, sockaddr(source, index), 16) !== 0)
    throw new Error(`cannot bind port ${source.port + index} of ${source.address}`);
  return descriptor;
}

function sockaddr({ address, port }: Peer, index: number): Buffer {
  const bytes = Buffer.alloc(16);
  bytes.writeUInt16LE(AF_INET, 0);
  bytes.writeUInt16BE(port + index, 2);
  bytes.set(address.split('.').map(Number), 4);
  return bytes;
}

const jobs = { script, nft: loadText, agent, program, stream };
if (import.meta.main) await serve(jobs);
