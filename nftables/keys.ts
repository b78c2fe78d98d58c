/** Encodes endpoints as keys and data of the maps of table `portwide`. */
import type { Endpoint } from '../endpoints/select.ts';
import { addressBytes, writeAddress } from '../netlink/core/address.ts';
import { writeU32 } from '../netlink/core/host-order.ts';
import { portField } from '../nft/keys.ts';

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
