/**
 * Consistent hashing: every node sends a client to the same endpoint, without shared state. The client's hash selects a
 * slot of a table, and each slot belongs to one endpoint. The table depends only on the name of the Service and on
 * addresses of endpoints. So all ports and VIPs of a Service send a client to the same endpoint.
 */
import { addressOctets } from '../api/addresses.ts';
import { compareText } from '../api/collections.ts';
import type { HashInput } from '../api/load-balancing.ts';
import type { ObjectKey } from '../api/objects.ts';
import { finish, type Steps } from '../api/steps.ts';
import type { Endpoint } from '../endpoints/select.ts';

/**
 * Number of slots, a prime. It never changes: another number moves nearly all clients. Up to 100 endpoints get shares within
 * 10 % of each other, and at most 5 % of the clients of endpoints that stay move (4.3 % seen). Maglev's algorithm needs
 * four times as many slots for that.
 */
export const SLOTS = 1021;

/** Seed of the clients' hash, the same on all nodes and in all versions. */
export const CLIENT_SEED = 0x706f7274;

const ENDPOINT_SEED = 1;
/** 2^32 divided by the golden ratio, so that neighbouring slots get different bits. */
const SLOT_FACTOR = 0x9e3779b1;

/**
 * The endpoint of each slot. Slots and endpoints prefer each other by rendezvous hashing, and each endpoint has room for
 * its share of the slots. Equal preferences on both sides have exactly one stable matching (Gale and Shapley, 1962),
 * whatever the order of endpoints. Without the limit, shares would differ by a third with 100 endpoints.
 * @param endpoints in any order. Past `SLOTS` endpoints, some have no slot.
 */
export function slotTable(serviceKey: ObjectKey, endpoints: readonly Endpoint[]): Endpoint[] {
  return finish(slotTableSteps(serviceKey, endpoints));
}

/** As `slotTable`, in steps: a table of 1,000 endpoints may take tens of milliseconds. */
export function* slotTableSteps(
  serviceKey: ObjectKey,
  endpoints: readonly Endpoint[],
): Steps<Endpoint[]> {
  const sorted = endpoints
    .toSorted((a, b) => compareText(a.address, b.address) || (a.port ?? 0) - (b.port ?? 0))
    .map((endpoint, index, all) => {
      const isRepeated = all[index - 1]?.address === endpoint.address;
      const name = `${serviceKey} ${endpoint.address}${isRepeated ? ` ${endpoint.port}` : ''}`;
      return { endpoint, hash: jhash(Buffer.from(name), ENDPOINT_SEED) };
    })
    // Which endpoints get one slot more than the others must not follow the addresses.
    .sort((a, b) => a.hash - b.hash)
    .slice(0, SLOTS);
  const owners = yield* matchSlots(Uint32Array.from(sorted, ({ hash }) => hash));
  return Array.from(owners, (owner) => sorted[owner]?.endpoint).filter(
    (each) => each !== undefined,
  );
}

/** The index of the endpoint of each slot. @param hashes of the endpoints, at most `SLOTS`. */
function* matchSlots(hashes: Uint32Array): Steps<Int32Array> {
  const count = hashes.length;
  const owners = new Int32Array(SLOTS).fill(-1);
  if (count === 0) return owners;
  const slotHashes = Uint32Array.from(owners, (_, slot) => mix(Math.imul(slot + 1, SLOT_FACTOR)));
  const rooms = Uint32Array.from(hashes, (_, index) => Math.floor((SLOTS - 1 - index) / count) + 1);
  const slotsOf = Array.from(hashes, (): { slot: number; weight: number }[] => []);
  /** The least weight that an endpoint without room has. Only a slot with more weight gets in, for the slot with that weight. */
  const least = new Float64Array(count).fill(-1);
  const free = Array.from(owners.keys());
  for (let slot = free.pop(); slot !== undefined; slot = free.pop()) {
    yield undefined;
    const slotHash = slotHashes[slot] as number;
    let best = -1;
    let weight = -1;
    for (let index = 0; index < count; index++) {
      const each = mix((hashes[index] as number) ^ slotHash);
      if (each <= weight || each <= (least[index] as number)) continue;
      best = index;
      weight = each;
    }
    const own = slotsOf[best];
    // Never: there are as many places as slots, so some endpoint has room and takes any weight.
    if (own === undefined) throw new RangeError(`no endpoint has room for slot ${slot}`);
    own.push({ slot, weight });
    owners[slot] = best;
    if (own.length < (rooms[best] as number)) continue;
    own.sort((one, other) => other.weight - one.weight);
    const rejected = own.length > (rooms[best] as number) ? own.pop() : undefined;
    if (rejected !== undefined) {
      owners[rejected.slot] = -1;
      free.push(rejected.slot);
    }
    least[best] = own.at(-1)?.weight ?? Number.POSITIVE_INFINITY;
  }
  return owners;
}

/** Spreads the bits of a number (the end of MurmurHash3). */
function mix(value: number): number {
  let bits = value ^ (value >>> 16);
  bits = Math.imul(bits, 0x85ebca6b);
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35);
  return (bits ^ (bits >>> 16)) >>> 0;
}

/** The slot of a client, as expression `jhash` of nf_tables computes it. @param port source port. */
export function clientSlot(input: HashInput, address: string, port: number): number {
  // A register has four bytes, and nf_tables loads a port into the first two.
  const portBytes = input === 'client-address' ? [] : [port >>> 8, port & 0xff, 0, 0];
  const hash = jhash(Uint8Array.from([...addressOctets(address), ...portBytes]), CLIENT_SEED);
  // reciprocal_scale of linux/kernel.h.
  return Math.floor((hash * SLOTS) / 2 ** 32);
}

/**
 * The kernel's jhash (linux/jhash.h; Bob Jenkins' lookup3) of a little-endian machine. Big-endian kernels hash IPv6
 * addresses differently.
 */
function jhash(key: Uint8Array, seed: number): number {
  const { length } = key;
  let a = (0xdeadbeef + length + seed) | 0;
  let b = a;
  let c = a;
  const word = (at: number) =>
    (key[at] ?? 0) |
    ((key[at + 1] ?? 0) << 8) |
    ((key[at + 2] ?? 0) << 16) |
    ((key[at + 3] ?? 0) << 24);
  let at = 0;
  for (; length - at > 12; at += 12) {
    a = (a + word(at)) | 0;
    b = (b + word(at + 4)) | 0;
    c = (c + word(at + 8)) | 0;
    a = ((a - c) ^ rotate(c, 4)) | 0;
    c = (c + b) | 0;
    b = ((b - a) ^ rotate(a, 6)) | 0;
    a = (a + c) | 0;
    c = ((c - b) ^ rotate(b, 8)) | 0;
    b = (b + a) | 0;
    a = ((a - c) ^ rotate(c, 16)) | 0;
    c = (c + b) | 0;
    b = ((b - a) ^ rotate(a, 19)) | 0;
    a = (a + c) | 0;
    c = ((c - b) ^ rotate(b, 4)) | 0;
    b = (b + a) | 0;
  }
  if (at === length) return c >>> 0;
  a = (a + word(at)) | 0;
  b = (b + word(at + 4)) | 0;
  c = (c + word(at + 8)) | 0;
  c = ((c ^ b) - rotate(b, 14)) | 0;
  a = ((a ^ c) - rotate(c, 11)) | 0;
  b = ((b ^ a) - rotate(a, 25)) | 0;
  c = ((c ^ b) - rotate(b, 16)) | 0;
  a = ((a ^ c) - rotate(c, 4)) | 0;
  b = ((b ^ a) - rotate(a, 14)) | 0;
  c = ((c ^ b) - rotate(b, 24)) | 0;
  return c >>> 0;
}

function rotate(value: number, bits: number): number {
  return (value << bits) | (value >>> (32 - bits));
}
