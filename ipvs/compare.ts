/** Diffs the kernel state of the ipvs mode against the desired items. */
import type { IpvsDestinationState } from '../netlink/ipvs/ipvs.ts';
import type { ComparedState } from '../proxier/compared-object.ts';
import { TimeSlice } from '../sync/time-slice.ts';
import type { ItemView } from './desired-items.ts';
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
import { SET_NAMES, type SetName } from './sets.ts';

/** Kernel state that a full sync leaves untouched. */
export interface ComparisonScope {
  isExcluded(address: string): boolean;
  /** Whether Portwide allocated the mark. fwmark services with other marks belong to other programs. */
  isOwnMark(mark: number): boolean;
  isDraining(service: string, key: string): boolean;
}

type ServiceItem = Extract<KernelItem, { kind: 'service' }>;
type DestinationItem = Extract<KernelItem, { kind: 'destination' }>;
type KernelState = Awaited<ReturnType<typeof readKernel>>;

/** An item as the kernel has it. */
export type KernelItem =
  | Exclude<IpvsItem, { kind: 'destination' | 'address' }>
  | (Extract<IpvsItem, { kind: 'destination' }> & { readonly state: IpvsDestinationState })
  | (Extract<IpvsItem, { kind: 'address' }> & { readonly isUpToDate: boolean });

/**
 * Receives an item that the kernel has or should have.
 * @param actual what the kernel has of it; several entries of a desired range of ports.
 */
export type ItemVisitor = (
  state: ComparedState,
  desired: IpvsItem | undefined,
  actual: readonly KernelItem[],
) => void;

/** The part of the kernel state to read; undefined: all of it. */
export interface KernelPart {
  readonly sets: ReadonlySet<SetName>;
  /** Keys of IPVS services. */
  readonly services: ReadonlySet<string>;
}

/**
 * Diffs the kernel against the desired items.
 * @returns items that the kernel lacks or holds with another value, and items that are not desired.
 */
export async function compareWithKernel(
  kernel: IpvsKernel,
  desired: ItemView,
  scope: ComparisonScope,
): Promise<{ adds: IpvsItem[]; removes: IpvsItem[] }> {
  const adds: IpvsItem[] = [];
  const removes: IpvsItem[] = [];
  await visitItems(kernel, desired, scope, (state, item, actual) => {
    if (item === undefined) removes.push(...actual);
    else if (state !== 'ok') adds.push(item);
  });
  return { adds, removes };
}

/** Compares all desired items, then finds items in the kernel that are not desired. */
export async function visitItems(
  kernel: IpvsKernel,
  desired: ItemView,
  scope: ComparisonScope,
  visit: ItemVisitor,
  part?: KernelPart,
): Promise<void> {
  const state = await readKernel(kernel, desired, scope, part);
  const slice = new TimeSlice();
  for (const item of desired.items()) {
    if (isInKernel(item, state)) visit('ok', item, []);
    else {
      const actual = kernelItems(item, state);
      visit(actual.length === 0 ? 'missing' : 'changed', item, actual);
    }
    if (slice.isOver()) await slice.yield();
  }
  const visitUnlessDesired = (item: KernelItem) => {
    const key = itemKey(item);
    if (desired.has(key) || scope.isDraining(serviceOf(item) ?? '', key)) return;
    visit('unexpected', undefined, [item]);
  };
  for (const item of state.entries.values()) {
    visitUnlessDesired(item);
    if (slice.isOver()) await slice.yield();
  }
  for (const item of state.ports.items()) {
    for (const undesired of desired.undesiredParts(item)) {
      visit('unexpected', undefined, [undesired]);
    }
    if (slice.isOver()) await slice.yield();
  }
  for (const destination of state.destinations.values()) {
    visitUnlessDesired(destination);
    if (slice.isOver()) await slice.yield();
  }
  for (const service of state.services.values()) visitUnlessDesired(service);
  for (const address of state.addresses.values()) {
    if (!scope.isExcluded(address.address)) visitUnlessDesired(address);
  }
}

async function readKernel(
  kernel: IpvsKernel,
  desired: ItemView,
  scope: ComparisonScope,
  part: KernelPart | undefined,
) {
  const slice = new TimeSlice();
  const entries = new Map<string, EntryItem>();
  const ports = new KernelPorts();
  for (const set of SET_NAMES) {
    if (part?.sets.has(set) === false) continue;
    // No time slice is needed: the netlink socket yields to the event loop.
    await kernel.visitEntries(set, (entry) => {
      if (isRanged(set)) ports.add(set, entry);
      else entries.set(entryText(set, entry), { kind: 'entry', set, entry });
    });
  }
  const services = new Map<string, ServiceItem>();
  const destinations = new Map<string, DestinationItem>();
  for (const { key, ...config } of await kernel.services()) {
    const text = serviceText(key);
    if (part?.services.has(text) === false) continue;
    if (!desired.has(text) && !isOwnService(key, scope.isOwnMark, scope.isExcluded)) continue;
    services.set(text, { kind: 'service', service: key, config });
    for (const state of await kernel.destinations(key)) {
      destinations.set(destinationText(key, state), {
        kind: 'destination',
        service: key,
        destination: state,
        state,
      });
    }
    if (slice.isOver()) await slice.yield();
  }
  const bound = await kernel.addresses();
  const addresses = new Map(
    bound.map(({ address, isUpToDate }) => [
      address,
      { kind: 'address' as const, address, isUpToDate },
    ]),
  );
  return { entries, ports, services, destinations, addresses };
}

/** What the kernel has of a desired item. */
function kernelItems(item: IpvsItem, state: KernelState): KernelItem[] {
  const key = itemKey(item);
  switch (item.kind) {
    case 'service':
      return [state.services.get(key) ?? []].flat();
    case 'destination':
      return [state.destinations.get(key) ?? []].flat();
    case 'entry':
      return isRanged(item.set) ? state.ports.within(item) : [state.entries.get(key) ?? []].flat();
    case 'address':
      return [state.addresses.get(key) ?? []].flat();
  }
}

function isInKernel(item: IpvsItem, state: KernelState): boolean {
  const key = itemKey(item);
  switch (item.kind) {
    case 'service': {
      const service = state.services.get(key);
      return service !== undefined && sameConfig(service.config, item.config);
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
