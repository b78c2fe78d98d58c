/** Encodes VIPs, allowed sources and endpoints as keys and data of the maps of table `portwide`. */
import { getOrCreate } from '../api/collections.ts';
import type { Protocol } from '../api/objects.ts';
import type { PortRange } from '../api/ports.ts';
import type { Endpoint } from '../endpoints/select.ts';
import { addressBytes, writeAddress } from '../netlink/core/address.ts';
import { writeU32 } from '../netlink/core/host-order.ts';
import type { NftElement } from '../netlink/nftables/types.ts';
import { cidrBounds, hostCidr, portField, portKey } from '../nft/keys.ts';
import type { AllowedSources } from '../traffic/plan.ts';
import type { MapElement } from './element.ts';
import type { MapName } from './maps.ts';

/** An endpoint as DNAT data: the address, and the port unless the packet keeps its destination port. */
export function endpointData({ address, port }: Endpoint): Buffer {
  const bytes = addressBytes(address);
  return port === undefined ? bytes : Buffer.concat([bytes, portField(port)]);
}

/**
 * Elements that map a key and an index to each endpoint, with indexes from `first`. All elements share one buffer,
 * because a full sync may build 100,000 elements.
 */
export function endpointElements(
  key: Buffer,
  first: number,
  endpoints: readonly Endpoint[],
): { readonly key: Buffer; readonly data: Buffer }[] {
  const [some] = endpoints;
  if (some === undefined) return [];
  const keyLength = key.length + 4;
  const size = keyLength + endpointData(some).length;
  const bytes = Buffer.allocUnsafe(size * endpoints.length).fill(0);
  return endpoints.map(({ address, port }, index) => {
    const start = index * size;
    bytes.set(key, start);
    // `numgen` returns a number in host byte order.
    writeU32(bytes, first + index, start + key.length);
    const end = writeAddress(bytes, address, start + keyLength);
    if (port !== undefined) bytes.writeUInt16BE(port, end);
    return {
      key: bytes.subarray(start, start + keyLength),
      data: bytes.subarray(start + keyLength, start + size),
    };
  });
}

/** The keys of ranges. @param prefix the part of the keys before protocol and port. */
export function rangeKeys(prefix: Buffer, ranges: readonly PortRange[]): NftElement[] {
  const keyOf = (protocol: Protocol, port: number) =>
    Buffer.concat([prefix, portKey(protocol, port)]);
  return ranges.map(({ protocol, from, to }) => ({
    key: keyOf(protocol, from),
    keyEnd: keyOf(protocol, to),
  }));
}

/** The key of the port-range Service that has a slot of a VIP. */
export function slotKey(address: Buffer, slot: number): Buffer {
  const key = Buffer.concat([address, Buffer.alloc(4)]);
  // `numgen` returns a number in host byte order.
  writeU32(key, slot, address.length);
  return key;
}

/** The elements that let the sources of a VIP in. @param keys the parts of the keys before the source. */
export function allowedSourceElements(
  map: MapName,
  keys: readonly NftElement[],
  { ranges, ownVips }: AllowedSources,
): MapElement[] {
  const rangeBounds = getOrCreate(boundsOfRanges, ranges, () => outermost(ranges.map(cidrBounds)));
  const own = ownVips.map((vip) => cidrBounds(hostCidr(vip)));
  const bounds = own.length === 0 ? rangeBounds : outermost([...rangeBounds, ...own]);
  return bounds.flatMap(([first, last]) =>
    keys.map(({ key, keyEnd = key }) => ({
      map,
      key: Buffer.concat([key, first]),
      keyEnd: Buffer.concat([keyEnd, last]),
    })),
  );
}

/** First and last address of a CIDR. */
type Bounds = ReturnType<typeof cidrBounds>;

/** Bounds of source ranges, which all ports of a Service share. */
const boundsOfRanges = new WeakMap<readonly string[], readonly Bounds[]>();

/** Removes CIDRs that another CIDR contains: the kernel refuses overlapping ranges in a set. */
function outermost(cidrs: readonly Bounds[]): Bounds[] {
  const sorted = cidrs.toSorted(
    ([a, lastOfA], [b, lastOfB]) => a.compare(b) || lastOfB.compare(lastOfA),
  );
  const kept: Bounds[] = [];
  for (const each of sorted) {
    const before = kept.at(-1)?.[1];
    if (before === undefined || before.compare(each[1]) < 0) kept.push(each);
  }
  return kept;
}
