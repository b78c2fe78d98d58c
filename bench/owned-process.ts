/** Runs in a namespace of the bench: loads and changes owned ports. */
import { readFileSync, writeFileSync } from 'node:fs';
import { NfTables } from '../netlink/nftables/tables.ts';
import { listDevices } from '../netlink/route/devices.ts';
import { NftBackend, type NftBackendOptions } from '../nftables/backend.ts';
import { FlowtableDevices } from '../nftables/flowtable-devices.ts';
import { NftPlan } from '../nftables/plan.ts';
import { TABLE } from '../nftables/static-chains.ts';
import { tableScript } from '../nftables/table-script.ts';
import { runProgram } from '../process/run-program.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { systemTimers } from '../sync/timers.ts';
import { endpoint, service, servicePort, slice, upsertWithPods } from '../test/fixtures.ts';
import { waitFor } from '../test/lab/wait.ts';
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

/** A backend of mode nftables for the current network namespace. */
export function nftablesBackend(): NftBackend {
  return new NftBackend(new NfTables('IPv4', TABLE), options);
}

function newTable(): RouteTable {
  return new RouteTable({ nodeName: NODE, allPortsEnabled: true, onChange: () => {} });
}

function fill(table: RouteTable, { services, slices }: OwnedLoad): void {
  for (let index = 0; index < services; index++) {
    const objects = ownedObjects(index, slices);
    table.upsert(objects.service);
    upsertWithPods(table, objects.slice);
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

/** Milliseconds. */
const NFT_TIMEOUT = 60_000;

/** Milliseconds of `nft -f`. */
async function loadText({ path }: { readonly path: string }) {
  const content = readFileSync(path, 'utf8');
  const started = performance.now();
  await runProgram('nft', ['-f', '-'], { input: content, timeout: NFT_TIMEOUT });
  return performance.now() - started;
}

/** Milliseconds from the objects to the kernel, and of single changes: a pod is replaced by another address. */
async function agent({ changes, ...load }: OwnedLoad & { readonly changes: number }) {
  const backend = nftablesBackend();
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
      times.push(await timed(() => upsertWithPods(table, objects.slice), false));
    }
  }
  await backend.close();
  return { start, stall, times };
}

/** Programs an owned and an ordinary Service, and keeps the rules. */
async function program({
  shape,
  usesFlowtable = false,
}: {
  readonly shape: typeof RANGES;
  readonly usesFlowtable?: boolean;
}) {
  const tables = new NfTables('IPv4', TABLE);
  const flowtableDevices = usesFlowtable ? newFlowtableDevices(tables) : undefined;
  const backend = new NftBackend(tables, { ...options, usesFlowtable, flowtableDevices });
  backend.setNodeAddresses(nodeAddresses);
  const table = newTable();
  const owned = ownedObjects(0, 10, undefined, shape);
  table.upsert(owned.service);
  upsertWithPods(table, owned.slice);
  const ordinary = { name: 'ordinary', clusterIPs: [ownedVip(1)] };
  const ports = [{ name: '', protocol: 'UDP' as const, port: shape.first }];
  table.upsert(
    service({ ...ordinary, ports: [servicePort({ protocol: 'UDP', port: shape.first })] }),
  );
  const serviceKey = 'default/ordinary';
  table.upsert(slice([endpoint(owner(1, 0))], { name: 'ordinary-1', serviceKey, ports }));
  backend.update(table.takeChanges().routes.upserts, []);
  await backend.apply(true);
  if (flowtableDevices !== undefined)
    await waitFor('the flowtable has interfaces', () => flowtableDevices.interfaces);
  await flowtableDevices?.stop();
  await backend.close();
}

function newFlowtableDevices(tables: NfTables): FlowtableDevices {
  const { onWarning } = options;
  return new FlowtableDevices({
    tables: [tables],
    listDevices,
    onWarning,
    onDeleted: onWarning,
    timers: systemTimers,
  });
}

const jobs = { script, nft: loadText, agent, program };
if (import.meta.main) await serve(jobs);
