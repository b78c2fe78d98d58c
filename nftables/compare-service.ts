/** Compares the elements of one Service with the kernel, without reading all elements. */
import type { IpFamily, ObjectKey } from '../api/objects.ts';
import { addressBytes } from '../netlink/core/address.ts';
import { elementKeyText, hasSameData } from '../nft/element.ts';
import { portField } from '../nft/keys.ts';
import type { NftReader } from '../nft/table.ts';
import type { ComparedState } from '../proxier/compared-object.ts';
import { type Route, vipsOf } from '../services/route.ts';
import { BackgroundSlice } from '../sync/precedence.ts';
import { type NftChain, withJumpTargets } from './chains.ts';
import { elementFromTexts, elementId, type MapElement } from './element.ts';
import { isIntervalMap } from './intervals.ts';
import { KernelElements } from './kernel-elements.ts';
import {
  EXACT_SIZES,
  exactMap,
  fieldWidth,
  isDispatchMap,
  isExactMap,
  isOwnerMap,
  MAP_NAMES,
  type MapName,
  mapSpec,
} from './maps.ts';
import type { NftPlan, PlannedRoute } from './plan.ts';
import { onDemandMapsOf } from './static-chains.ts';

/**
 * Elements to read one by one from a map, at most. A dump of 30,000 elements takes as long as about
 * 500 single reads.
 */
const MAX_SINGLE_READS = 500;

/** Adds an element to the result. */
export type ElementAdder = (
  state: ComparedState,
  desired: MapElement | undefined,
  actual: MapElement | undefined,
  service: ObjectKey | undefined,
) => void;

/**
 * Compares the elements that the Service needs. Also finds unexpected elements: in the dispatch maps at
 * the keys of the Service, at vacant slices, and in its interval maps, such as further allowed sources. A
 * comparison of all Services finds others, such as an endpoint with an index that no rule selects.
 * @param signal stops the comparison.
 * @returns the dispatch chains of the Service, with their jump targets.
 * @throws NetlinkError; the reason of the signal.
 */
export async function compareServiceElements(
  tables: NftReader,
  plan: NftPlan,
  family: IpFamily,
  service: ObjectKey,
  add: ElementAdder,
  signal: AbortSignal | undefined,
): Promise<NftChain[]> {
  const desired = new Map<string, MapElement>();
  const chains = new Map<string, NftChain>();
  const vips = new Set<string>();
  const owners = new Set<string>();
  for (const route of plan.applied(({ route: { serviceKey } }) => serviceKey === service)) {
    for (const element of route.elements) desired.set(elementId(element), element);
    for (const chain of route.chains.flatMap(withJumpTargets)) chains.set(chain.name, chain);
    for (const vip of vipsOf(route.planned.route)) vips.add(vip);
    for (const owner of ownersOf(route.planned.route)) owners.add(owner);
  }
  const ofOthers = new Set<string>();
  const sharesKeys = ({ route }: PlannedRoute) =>
    route.serviceKey !== service &&
    (vipsOf(route).some((vip) => vips.has(vip)) ||
      ownersOf(route).some((owner) => owners.has(owner)));
  for (const { elements } of plan.applied(sharesKeys)) {
    for (const element of elements) ofOthers.add(elementId(element));
  }
  const byMap = Map.groupBy(desired.values(), ({ map }) => map);
  const slice = new BackgroundSlice(signal);
  for (const map of [...MAP_NAMES, ...onDemandMapsOf(chains.values())]) {
    const own = byMap.get(map) ?? [];
    // Maps in which a dump finds all elements at the addresses of the Service.
    const isByAddress = isIntervalMap(map) || isExactMap(map);
    const probed = isByAddress
      ? vacantSlices(map, own, desired.values(), MAX_SINGLE_READS - own.length)
      : probes(map, own, [...desired.values()]);
    const isUnexpected = (element: MapElement) =>
      !desired.has(elementId(element)) && !ofOthers.has(elementId(element));
    const reads = own.length + (probed?.length ?? 0);
    if (probed === undefined || (isIntervalMap(map) ? own.length > 0 : reads > MAX_SINGLE_READS)) {
      const kernel = await KernelElements.readExisting(tables, [map]);
      for (const element of own) {
        const [state, data = ''] = kernel.take(element);
        const actual = elementFromTexts(map, elementKeyText(element), data, family);
        add(state, element, state === 'missing' ? undefined : actual, service);
        if (slice.isOver()) await slice.yield();
      }
      const first = isOwnerMap(map) ? owners : vips;
      const keys = new Set(isByAddress ? addressKeys(first) : probed?.map(elementKeyText));
      const width = isByAddress ? fieldWidth('address', family) : undefined;
      for (const [, key, data] of kernel.staleTexts()) {
        if (slice.isOver()) await slice.yield();
        if (!keys.has(key.slice(0, width))) continue;
        const element = elementFromTexts(map, key, data, family);
        if (isUnexpected(element)) add('unexpected', undefined, element, service);
      }
      continue;
    }
    for (const element of own) {
      if (slice.isOver()) await slice.yield();
      const found = await tables.findElement(map, element.key);
      const actual = found && { map, ...found };
      const changed = actual !== undefined && !hasSameData(actual, element) ? 'changed' : 'ok';
      add(actual === undefined ? 'missing' : changed, element, actual, service);
    }
    for (const { key } of probed) {
      if (slice.isOver()) await slice.yield();
      const found = await tables.findElement(map, key);
      if (found !== undefined && isUnexpected({ map, ...found })) {
        add('unexpected', undefined, { map, ...found }, service);
      }
    }
  }
  return [...chains.values()];
}

/** Keys of the Service in dispatch maps with keys of the same kind, where it needs no element. */
function probes(
  map: MapName,
  own: readonly MapElement[],
  desired: readonly MapElement[],
): MapElement[] {
  if (!isDispatchMap(map)) return [];
  const kind = mapSpec(map).key.join();
  const known = new Set(own.map(elementKeyText));
  const found = new Map<string, MapElement>();
  for (const element of desired) {
    const isSameKind =
      isDispatchMap(element.map) &&
      !isIntervalMap(element.map) &&
      mapSpec(element.map).key.join() === kind;
    const text = elementKeyText(element);
    if (isSameKind && !known.has(text)) found.set(text, { map, key: element.key });
  }
  return [...found.values()];
}

/**
 * Keys of the Service in a map of owners of exact slices where it needs no element.
 * @returns undefined if there are more than `limit`.
 */
function vacantSlices(
  map: MapName,
  own: readonly MapElement[],
  desired: Iterable<MapElement>,
  limit: number,
): MapElement[] | undefined {
  const size = EXACT_SIZES.find((each) => map === exactMap('udp-owners', each));
  if (size === undefined) return [];
  const known = new Set(own.map(elementKeyText));
  const vacant: MapElement[] = [];
  for (const { map: each, key, keyEnd = key } of desired) {
    if (each !== 'udp-vip-ports') continue;
    const at = key.length - fieldWidth('port', 'IPv4');
    const last = keyEnd.readUInt16BE(at) + 1 - size;
    for (let port = Math.ceil(key.readUInt16BE(at) / size) * size; port <= last; port += size) {
      const slice = { map, key: Buffer.concat([key.subarray(0, at), portField(port)]) };
      if (known.has(elementKeyText(slice))) continue;
      if (vacant.length >= limit) return undefined;
      vacant.push(slice);
    }
  }
  return vacant;
}

function addressKeys(addresses: Iterable<string>): string[] {
  return [...addresses].map((address) => addressBytes(address).toString('latin1'));
}

function ownersOf({ owned }: Route): readonly string[] {
  return owned?.owners.map(({ address }) => address) ?? [];
}
