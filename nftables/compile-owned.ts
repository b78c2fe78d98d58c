/** Compiles plans with ports owned by pods to map elements and chains; `owned-chains.ts` shows the path of a packet. */
import type { Protocol } from '../api/objects.ts';
import type { PortRange } from '../api/ports.ts';
import type { Steps } from '../api/steps.ts';
import { addressBytes } from '../netlink/core/address.ts';
import type { NftElement, NftVerdict } from '../netlink/nftables/types.ts';
import { portField, portKey } from '../nft/keys.ts';
import {
  needsHairpin,
  type OwnedPlan,
  type SliceTranslation,
  type TrafficPlan,
} from '../traffic/plan.ts';
import {
  type ChainOptions,
  type NftChain,
  REJECT_CHAIN,
  SOURCE_RANGE_SETS,
  sourceRangesChain,
} from './chains.ts';
import type { CompiledNftPlan, VipSharing } from './compile.ts';
import { compileRanges, notShared } from './compile-ranges.ts';
import type { MapElement } from './element.ts';
import { exactSliceChains } from './exact-slice-chains.ts';
import { allowedSourceElements, rangeKeys, slotKey } from './keys.ts';
import { EXACT_SIZES, exactMap, fieldWidth, type MapName, sliceMap } from './maps.ts';
import {
  ownedBaseChains,
  partChains,
  partOf,
  rejectAllowedChain,
  restrictedBaseChains,
  trackedChain,
} from './owned-chains.ts';

const ACCEPT: NftVerdict = { kind: 'accept' };

/** As `compileSteps`, for a plan with owned ports. A step is one slice. */
export function* compileOwnedSteps(
  plan: TrafficPlan,
  owned: OwnedPlan,
  sharing: ReadonlyMap<string, VipSharing>,
  options: ChainOptions,
): Steps<CompiledNftPlan> {
  const elements: MapElement[] = [];
  const chains = new Set<NftChain>();
  const add = (map: MapName, element: NftElement) => elements.push({ map, ...element });
  const goTo = (chain: NftChain): NftVerdict => {
    chains.add(chain);
    return { kind: 'goto', chain: chain.name };
  };

  const ranges = plan.match.kind === 'ranges' ? plan.match.ranges : [];
  /** VIPs with loadBalancerSourceRanges and owned UDP ports. */
  const restricted = new Set<string>();
  for (const { vip, sources, healthCheckPort } of plan.vips) {
    const address = addressBytes(vip);
    const shared = sharing.get(vip) ?? notShared('ranges');
    const key = slotKey(address, shared.slot);
    const translated = (): NftVerdict => {
      // UDP packets to a slice with an owner do not come here: they are not tracked.
      if (ranges.every(({ protocol }) => protocol === 'UDP')) return ACCEPT;
      const tracked = trackedChain(partOf(address), options);
      return goTo(sources ? sourceRangesChain(tracked, 'slices', shared.slot, options) : tracked);
    };
    const rejected: NftVerdict = sources
      ? goTo(rejectAllowedChain(options))
      : { kind: 'goto', chain: REJECT_CHAIN };
    add('range-services', { key, data: translated() });
    add('no-endpoint-range-services', { key, data: rejected });
    if (shared.sharesWithAllPorts) add('affinity-update-range-services', { key, data: ACCEPT });
    const compiled = compileRanges(address, ranges, shared, false, options);
    elements.push(...compiled.elements);
    for (const chain of compiled.chains) chains.add(chain);
    if (sources) {
      const keys = rangeKeys(address, ranges);
      elements.push(...allowedSourceElements(SOURCE_RANGE_SETS.slices, keys, sources));
      if (vip === owned.speaker?.vip) {
        add('owned-restricted-vips', { key: address });
        restricted.add(vip);
      }
    }
    if (healthCheckPort > 0) {
      add('health-check-node-ports', { key: Buffer.concat([address, portField(healthCheckPort)]) });
    }
  }

  const known = new Set<string>();
  const once = (key: string): boolean => {
    if (known.has(key)) return false;
    known.add(key);
    return true;
  };
  const addSlice = (map: Parameters<typeof sliceMap>[0], slice: SliceTranslation) => {
    const { ports, becomes } = slice;
    const address = addressBytes(slice.address);
    const part = partOf(address);
    const key = sliceKey(address, ports.protocol, ports.from);
    const keyEnd = sliceKey(address, ports.protocol, ports.to);
    elements.push({ map: sliceMap(map, part), key, keyEnd, data: addressBytes(becomes) });
    if (map === 'udp-owner-vips')
      elements.push({ map: sliceMap('udp-owner-ports', part), key, keyEnd });
  };
  const exactSize = EXACT_SIZES.find((size) => size === owned.portsPerPod);
  /** Whether one lookup finds the slice, see `exact-slice-chains.ts`. */
  const isExact = ({ from, to }: PortRange) =>
    exactSize !== undefined && from % exactSize === 0 && to - from + 1 === exactSize;
  const startsExact = ({ from }: PortRange) => exactSize !== undefined && from % exactSize === 0;
  const hasExactSlices = (range: PortRange) =>
    startsExact(range) && range.to - range.from + 1 >= owned.portsPerPod;
  const addExact = (map: Parameters<typeof exactMap>[0], slice: SliceTranslation) => {
    if (exactSize === undefined) return;
    const key = sliceKey(addressBytes(slice.address), 'UDP', slice.ports.from);
    add(exactMap(map, exactSize), { key, data: addressBytes(slice.becomes) });
    if (map === 'udp-owner-vips') add(exactMap('udp-owner-ports', exactSize), { key });
  };
  /** Leads packets to or from the addresses of a part to a chain. */
  const jump = (map: MapName, part: number, chain: NftChain) => {
    const key = Buffer.alloc(fieldWidth('address', options.family));
    key.writeUInt8(part, key.length - 1);
    chains.add(chain);
    add(map, { key, data: { kind: 'jump', chain: chain.name } });
  };
  /** Has UDP packets to and from an address looked up. */
  const addAddress = (address: string) => {
    if (once(address)) add('owned-addresses', { key: addressBytes(address) });
  };
  /** Leads UDP packets to and from an address to the chains of its part. Each address counts, see `changedOwners`. */
  const addRanges = (address: string) => {
    addAddress(address);
    if (!once(`ranges ${address}`)) return;
    const part = partOf(addressBytes(address));
    const { destinations, sources, speakers } = partChains(part, options);
    jump('owned-destinations', part, destinations);
    jump('owned-sources', part, sources);
    jump('owned-speakers', part, speakers);
  };
  for (const slice of owned.inbound) {
    yield undefined;
    const { address, ports, becomes, node } = slice;
    if (ports.protocol === 'UDP') {
      if (restricted.has(address)) addSlice('restricted-udp-owners', slice);
      else if (isExact(ports)) addExact('udp-owners', slice);
      else addSlice('udp-owners', slice);
      continue;
    }
    addSlice(node === 'this' ? 'tracked-owners' : 'remote-owners', slice);
    const isRemote = node === 'other' && { isRemote: true as const };
    const endpoint = { address: becomes, port: undefined, ...isRemote };
    if (!needsHairpin(plan, endpoint) || !once(`hairpin ${becomes}`)) continue;
    const bytes = addressBytes(becomes);
    add('hairpin-connections', { key: Buffer.concat([bytes, bytes]) });
  }
  for (const slice of owned.outbound) {
    yield undefined;
    if (isExact(slice.ports)) {
      addExact('udp-owner-vips', slice);
      addAddress(slice.address);
    } else {
      addSlice('udp-owner-vips', slice);
      addRanges(slice.address);
    }
  }
  if (owned.speaker !== undefined) {
    const { vip, ports } = owned.speaker;
    // The chains that slices may need: without owners, too, chains must look up the VIPs.
    const udp = ranges.filter(({ protocol }) => protocol === 'UDP');
    const hasExact = udp.some(hasExactSlices);
    const hasRanges = !hasExact || owned.hasParts || !udp.every(startsExact);
    for (const each of plan.vips) {
      add('owned-vips', { key: addressBytes(each.vip) });
      if (hasRanges) addRanges(each.vip);
      else addAddress(each.vip);
    }
    const bytes = addressBytes(vip);
    if (restricted.has(vip)) {
      const part = partOf(bytes);
      jump('owned-restricted', part, partChains(part, options).restricted);
      for (const chain of restrictedBaseChains(options)) chains.add(chain);
    }
    for (const { from, to } of ports) {
      const [key, keyEnd] = [sliceKey(bytes, 'UDP', from), sliceKey(bytes, 'UDP', to)];
      add('udp-vip-ports', { key, keyEnd });
    }
    if (hasRanges) for (const chain of ownedBaseChains(options)) chains.add(chain);
    if (exactSize !== undefined && hasExact)
      for (const chain of exactSliceChains(exactSize, options)) chains.add(chain);
  }
  return { elements, chains: [...chains] };
}

/** A key of the maps of slices: address and UDP port, or address, protocol and port. */
function sliceKey(address: Buffer, protocol: Protocol, port: number): Buffer {
  return Buffer.concat([address, protocol === 'UDP' ? portField(port) : portKey(protocol, port)]);
}
