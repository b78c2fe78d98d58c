/** Diffs the kernel state of the ipvs mode against the desired items. */
import type { IpvsDestinationState, IpvsService } from '../netlink/ipvs/ipvs.ts';
import { TimeSlice } from '../sync/time-slice.ts';
import type { DesiredItems } from './desired-items.ts';
import {
  destinationText,
  type EntryItem,
  entryText,
  type IpvsItem,
  isOwnService,
  itemKey,
  sameConfig,
  sameEntry,
  serviceOf,
  serviceText,
} from './items.ts';
import type { IpvsKernel } from './kernel.ts';
import { isRanged, KernelPorts } from './port-ranges.ts';
import { SET_NAMES } from './sets.ts';

/** Kernel state that a full sync leaves untouched. */
export interface ComparisonScope {
  isExcluded(address: string): boolean;
  /** Whether Portwide allocated the mark. fwmark services with other marks belong to other programs. */
  isOwnMark(mark: number): boolean;
  isDraining(service: string, key: string): boolean;
}

type KernelState = Awaited<ReturnType<typeof readKernel>>;

/**
 * Diffs the kernel against the desired items.
 * @returns items that the kernel lacks or holds with another value, and items that are not desired.
 */
export async function compareWithKernel(
  kernel: IpvsKernel,
  desired: DesiredItems,
  scope: ComparisonScope,
): Promise<{ adds: IpvsItem[]; removes: IpvsItem[] }> {
  const state = await readKernel(kernel, desired, scope);
  const slice = new TimeSlice();
  const adds: IpvsItem[] = [];
  for (const item of desired.items()) {
    if (!isInKernel(item, state)) adds.push(item);
    if (slice.isOver()) await slice.yield();
  }
  const removes: IpvsItem[] = [];
  const removeUnlessDesired = (item: IpvsItem) => {
    const key = itemKey(item);
    if (desired.has(key) || scope.isDraining(serviceOf(item) ?? '', key)) return;
    removes.push(item);
  };
  for (const item of state.entries.values()) {
    removeUnlessDesired(item);
    if (slice.isOver()) await slice.yield();
  }
  for (const item of state.ports.items()) {
    removes.push(...desired.undesiredParts(item));
    if (slice.isOver()) await slice.yield();
  }
  for (const { service, state: destination } of state.destinations.values()) {
    removeUnlessDesired({ kind: 'destination', service: service.key, destination });
    if (slice.isOver()) await slice.yield();
  }
  for (const { key, ...config } of state.services.values()) {
    removeUnlessDesired({ kind: 'service', service: key, config });
  }
  for (const address of state.addresses.keys()) {
    if (!scope.isExcluded(address)) removeUnlessDesired({ kind: 'address', address });
  }
  return { adds, removes };
}

async function readKernel(kernel: IpvsKernel, desired: DesiredItems, scope: ComparisonScope) {
  const slice = new TimeSlice();
  const entries = new Map<string, EntryItem>();
  const ports = new KernelPorts();
  for (const set of SET_NAMES) {
    // No time slice is needed: the netlink socket yields to the event loop.
    await kernel.visitEntries(set, (entry) => {
      if (isRanged(set)) ports.add(set, entry);
      else entries.set(entryText(set, entry), { kind: 'entry', set, entry });
    });
  }
  const services = new Map<string, IpvsService>();
  const destinations = new Map<string, { service: IpvsService; state: IpvsDestinationState }>();
  for (const service of await kernel.services()) {
    const { key } = service;
    const text = serviceText(key);
    if (!desired.has(text) && !isOwnService(key, scope.isOwnMark, scope.isExcluded)) continue;
    services.set(text, service);
    for (const state of await kernel.destinations(key)) {
      destinations.set(destinationText(key, state), { service, state });
    }
    if (slice.isOver()) await slice.yield();
  }
  const bound = await kernel.addresses();
  const addresses = new Map(bound.map((each) => [each.address, each]));
  return { entries, ports, services, destinations, addresses };
}

function isInKernel(item: IpvsItem, state: KernelState): boolean {
  const key = itemKey(item);
  switch (item.kind) {
    case 'service': {
      const service = state.services.get(key);
      return service !== undefined && sameConfig(service, item.config);
    }
    case 'destination': {
      const found = state.destinations.get(key)?.state;
      return found !== undefined && found.weight === 1 && found.masquerade;
    }
    case 'entry': {
      if (isRanged(item.set)) return state.ports.has(item);
      const found = state.entries.get(key);
      return found !== undefined && sameEntry(found.entry, item.entry);
    }
    case 'address':
      // kube-proxy binds VIPs without scope host, so the kernel may choose them as source addresses. Binding such a
      // VIP again corrects the scope.
      return state.addresses.get(item.address)?.isUpToDate === true;
  }
}
