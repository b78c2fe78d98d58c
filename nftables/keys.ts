/** Endpoints as keys and values of the maps of table `portwide`. */
import type { Endpoint } from '../endpoints/select.ts';
import { addressBytes, writeAddress } from '../netlink/core/address.ts';
import { writeU32 } from '../netlink/core/host-order.ts';
import { portField } from '../nft/keys.ts';

/** An endpoint, as packets are translated to it. */
export function endpointData({ address, port }: Endpoint): Buffer {
  const bytes = addressBytes(address);
  return port === undefined ? bytes : Buffer.concat([bytes, portField(port)]);
}

/**
 * What maps a key and a number to each of these endpoints, counted from `first`. All are in one piece
 * of memory, for loads make 100,000 of them.
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
    // What `numgen` draws has the byte order of the host.
    writeU32(bytes, first + index, start + key.length);
    const end = writeAddress(bytes, address, start + keyLength);
    if (port !== undefined) bytes.writeUInt16BE(port, end);
    return {
      key: bytes.subarray(start, start + keyLength),
      data: bytes.subarray(start + keyLength, start + size),
    };
  });
}
