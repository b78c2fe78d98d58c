/** Compiles the port ranges of a Route on one VIP; `range-chains.ts` shows the lookups of a packet. */
import type { PortRange } from '../api/ports.ts';
import type { RouteMatch } from '../services/route.ts';
import type { ChainOptions, NftChain } from './chains.ts';
import type { CompiledNftPlan, VipSharing } from './compile.ts';
import type { MapElement } from './element.ts';
import { rangeKeys, slotKey } from './keys.ts';
import { type MapName, rangeSet } from './maps.ts';
import { rangeChains, rangePartOf } from './range-chains.ts';

/** How a Route has a VIP that no other Route has. */
export function notShared(kind: RouteMatch['kind']): VipSharing {
  if (kind === 'ranges') return { slot: 1, sharesWithAllPorts: false, lastSlot: 1 };
  return { slot: 0, sharesWithAllPorts: false };
}

/** The port ranges of a Route on a VIP, and the elements that lead packets to them. */
export function compileRanges(
  address: Buffer,
  ranges: readonly PortRange[],
  { slot, sharesWithAllPorts, lastSlot }: VipSharing,
  hasAffinity: boolean,
  options: ChainOptions,
): CompiledNftPlan {
  const part = rangePartOf(address);
  const elements: MapElement[] = rangeKeys(slotKey(address, slot), ranges).map((range) => ({
    map: rangeSet(part),
    ...range,
  }));
  elements.push({ map: 'service-range-ips', key: address });
  if (lastSlot === undefined) return { elements, chains: [] };
  const { services, untranslated, affinity } = rangeChains(part, lastSlot, options);
  const led: [MapName, NftChain][] = [
    ['range-vips', services],
    ['no-endpoint-range-vips', untranslated],
  ];
  if (hasAffinity || sharesWithAllPorts) led.push(['affinity-update-range-vips', affinity]);
  for (const [map, { name }] of led)
    elements.push({ map, key: address, data: { kind: 'goto', chain: name } });
  return { elements, chains: led.map(([, chain]) => chain) };
}
