/** Compares the IPVS table, ipsets and VIPs in the kernel with the applied state, for people. */
import type { ObjectKey } from '../api/objects.ts';
import { IPVS_DEVICE } from '../api/vip-device.ts';
import type { ComparedObject, ComparedState } from '../proxier/compared-object.ts';
import type { ComparisonBuilder } from '../proxier/comparison.ts';
import { vipsOf } from '../services/route.ts';
import { BackgroundSlice } from '../sync/precedence.ts';
import { type ComparisonScope, type KernelItem, type KernelPart, visitItems } from './compare.ts';
import type { ItemView } from './desired-items.ts';
import { itemText, setText } from './item-text.ts';
import { type IpvsItem, itemKey, serviceOf, serviceText } from './items.ts';
import type { IpvsKernel } from './kernel.ts';
import type { IpvsPlan } from './plan.ts';
import { isUsable, kernelName, SET_NAMES, type SetName, setSpec } from './sets.ts';

interface ItemDifference {
  readonly state: ComparedState;
  readonly desired: IpvsItem | undefined;
  readonly actual: readonly KernelItem[];
}

/** Changes nothing. Draining destinations are no differences. @throws NetlinkError */
export async function compareState(
  kernel: IpvsKernel,
  plan: IpvsPlan,
  scope: ComparisonScope,
  result: ComparisonBuilder,
): Promise<void> {
  if (result.service === undefined) {
    await compareContainers(kernel, plan, result);
    await compareAll(kernel, plan, scope, result);
  } else await compareService(kernel, plan, scope, result, result.service);
}

async function compareAll(
  kernel: IpvsKernel,
  plan: IpvsPlan,
  scope: ComparisonScope,
  result: ComparisonBuilder,
): Promise<void> {
  const differences: ItemDifference[] = [];
  await visitItems(kernel, plan.desired.applied(), scope, (state, desired, actual) => {
    if (state === 'ok') result.addUnchanged(1);
    else differences.push({ state, desired, actual });
  });
  if (differences.length === 0) return;
  const owners = await itemOwners(plan, differences, result.signal);
  const slice = new BackgroundSlice(result.signal);
  for (const difference of differences) {
    addItem(result, kernel, difference, owners(difference.desired ?? difference.actual[0]));
    if (slice.isOver()) await slice.yield();
  }
}

/** Reads the sets and destinations that the Service has, besides all IPVS services and VIPs. */
async function compareService(
  kernel: IpvsKernel,
  plan: IpvsPlan,
  scope: ComparisonScope,
  result: ComparisonBuilder,
  service: ObjectKey,
): Promise<void> {
  const applied = plan.desired.applied();
  const items = new Map<string, IpvsItem>();
  const slice = new BackgroundSlice(result.signal);
  for (const { route, items: own } of plan.routes()) {
    if (slice.isOver()) await slice.yield();
    if (route.serviceKey !== service) continue;
    for (const item of own) {
      const key = itemKey(item);
      const written = applied.get(key);
      if (written !== undefined) items.set(key, written);
    }
  }
  const all = [...items.values()];
  const part: KernelPart = {
    sets: new Set(all.flatMap((item): SetName[] => (item.kind === 'entry' ? [item.set] : []))),
    services: new Set(all.flatMap((item) => serviceOf(item) ?? [])),
  };
  const view: ItemView = {
    items: () => all,
    has: (key) => applied.has(key),
    undesiredParts: (item) => applied.undesiredParts(item),
  };
  const differences: ItemDifference[] = [];
  await visitItems(
    kernel,
    view,
    scope,
    (state, desired, actual) => differences.push({ state, desired, actual }),
    part,
  );
  const owners = await itemOwners(plan, differences, result.signal);
  for (const difference of differences) {
    const isOwn = difference.desired !== undefined || owners(difference.actual[0]) === service;
    if (isOwn) addItem(result, kernel, difference, service);
  }
}

/** Compares the ipsets and the device of the VIPs, without their content. */
async function compareContainers(
  kernel: IpvsKernel,
  plan: IpvsPlan,
  result: ComparisonBuilder,
): Promise<void> {
  const headers = await kernel.setHeaders();
  for (const set of SET_NAMES) {
    const spec = setSpec(set, kernel.family, plan.desired.countOf(set));
    const header = headers.get(spec.name);
    const wrong = header === undefined ? 'missing' : 'changed';
    result.add(header !== undefined && isUsable(header, spec) ? 'ok' : wrong, () => ({
      type: 'ipset',
      in: 'ipsets',
      desired: setText(spec),
      actual: header === undefined ? null : setText(header),
      service: null,
    }));
  }
  const hasDevice = await kernel.hasDevice();
  result.add(hasDevice ? 'ok' : 'missing', () => ({
    type: 'device',
    in: 'links',
    desired: IPVS_DEVICE,
    actual: hasDevice ? IPVS_DEVICE : null,
    service: null,
  }));
}

const TYPES: Readonly<Record<IpvsItem['kind'], string>> = {
  service: 'IPVS service',
  destination: 'IPVS destination',
  entry: 'ipset entry',
  address: 'address',
};

function addItem(
  result: ComparisonBuilder,
  { family }: IpvsKernel,
  { state, desired, actual }: ItemDifference,
  service: ObjectKey | undefined,
): void {
  const [found] = actual;
  const item = desired ?? found;
  if (item === undefined) return;
  result.add(state, (): Omit<ComparedObject, 'state'> => {
    const text = desired === undefined ? null : itemText(desired, family);
    const texts = actual.map((each) => itemText(each, family));
    return {
      type: TYPES[item.kind],
      in: containerOf(item, family),
      desired: text,
      // An item that is as it should be was not read again.
      actual: state === 'ok' ? text : texts.join('\n') || null,
      service: service ?? null,
    };
  });
}

function containerOf(item: IpvsItem | KernelItem, family: IpvsKernel['family']): string {
  switch (item.kind) {
    case 'service':
      return 'IPVS';
    case 'destination':
      return serviceText(item.service);
    case 'entry':
      return kernelName(item.set, family);
    case 'address':
      return IPVS_DEVICE;
  }
}

/**
 * Finds the Service of each item that differs: the Service that needs the item, or else the Service
 * with the IPVS service, mark or VIP in the item.
 * @throws the reason of the signal.
 */
async function itemOwners(
  plan: IpvsPlan,
  differences: readonly ItemDifference[],
  signal: AbortSignal | undefined,
): Promise<(item: IpvsItem | undefined) => ObjectKey | undefined> {
  const differing = differences.filter(({ state }) => state !== 'ok');
  const needed = new Set(differing.flatMap(({ desired }) => (desired ? [itemKey(desired)] : [])));
  const byKey = new Map<string, ObjectKey>();
  /** null: several Services have the VIP. */
  const byVip = new Map<string, ObjectKey | null>();
  const slice = new BackgroundSlice(signal);
  for (const { route, items } of differing.length === 0 ? [] : plan.routes()) {
    for (const vip of vipsOf(route)) {
      const known = byVip.get(vip) ?? route.serviceKey;
      byVip.set(vip, known === route.serviceKey && byVip.get(vip) !== null ? known : null);
    }
    for (const item of needed.size === 0 ? [] : items) {
      const key = itemKey(item);
      if (needed.has(key)) byKey.set(key, route.serviceKey);
      if (slice.isOver()) await slice.yield();
    }
    if (slice.isOver()) await slice.yield();
  }
  return (item) => {
    if (item === undefined) return undefined;
    return (
      byKey.get(itemKey(item)) ??
      plan.serviceKey(namedService(item) ?? '') ??
      byVip.get(vipIn(item) ?? '') ??
      undefined
    );
  };
}

/** Key of the IPVS service that an item belongs to, or that has its VIP and port or its mark. */
function namedService(item: IpvsItem): string | undefined {
  if (item.kind !== 'entry') return serviceOf(item);
  const { ip, protocol, port, mark } = item.entry;
  if (mark !== undefined) return `FWM ${mark}`;
  return port === undefined ? undefined : `${protocol} ${ip}:${port}`;
}

function vipIn(item: IpvsItem): string | undefined {
  return item.kind === 'address' ? item.address : item.kind === 'entry' ? item.entry.ip : undefined;
}
