/** Creates, deletes and finds network interfaces (links), and changes their addresses. */
import {
  type Address,
  type AddressAttrs,
  MessageType,
  RouteScope,
} from 'netlink/dist/rt/structs.js';
import { ADDRESS_BITS, familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import { addressBytes, addressFamily } from '../core/address.ts';
import { encodeAttributes } from '../core/attribute.ts';
import { sendAll } from '../core/batches.ts';
import { NETLINK_ROUTE } from '../core/descriptor.ts';
import {
  EADDRNOTAVAIL,
  EEXIST,
  ENODEV,
  ENXIO,
  EOPNOTSUPP,
  NetlinkError,
  toUnsupportedError,
  undefinedOnErrno,
} from '../core/error.ts';
import type { NetlinkRequest } from '../core/message.ts';
import { type NetlinkSocket, withSocket } from '../core/socket.ts';
import {
  addressRequest,
  type LinkAddress,
  linkRequest,
  listLinkAddresses,
  readLink,
  SKIP_STATS,
} from './rtnetlink.ts';

/** An address that the kernel refused to add or remove. */
interface RefusedAddress {
  readonly op: 'add' | 'remove';
  readonly address: string;
  readonly error: NetlinkError;
}

/** linux/netlink.h: NLM_F_CREATE | NLM_F_EXCL */
const CREATE = 0x400 | 0x200;
/** NLM_F_CREATE | NLM_F_REPLACE */
const REPLACE = 0x400 | 0x100;
/** Prefix length of the temporary placeholder of an address that `changeAddresses` adds. */
const PLACEHOLDER_PREFIX = 31;
/** linux/if_link.h */
const IFLA_INFO_KIND = 1;
/**
 * Lifetimes that prevent an IPv6 address from being chosen as a source address (RFC 6724, rule 3).
 * The host end of a pod's veth pair has no address. For such an outgoing interface, the kernel
 * would otherwise choose by longest common prefix (rule 8) among the addresses of all interfaces.
 * IPv4 has no such rule: the kernel takes the first address of the first interface with a
 * sufficient scope (inet_select_addr), so VIPs get the narrowest scope.
 */
const DEPRECATED = { ifaPrefered: 0, ifaValid: 0xffffffff };

/**
 * Finds a network interface by name.
 * @returns its index; undefined if no interface has this name.
 * @throws NetlinkError
 */
export function findLink(name: string): Promise<number | undefined> {
  return withSocket(NETLINK_ROUTE, (socket) => find(socket, name));
}

/**
 * Creates a dummy interface and leaves it down: its addresses are local nevertheless, and nothing
 * is ever sent through it. It does not answer ARP (NOARP).
 * @returns its index.
 * @throws UnsupportedError if the kernel has no dummy interfaces; NetlinkError, such as EEXIST.
 */
export function createDummy(name: string): Promise<number> {
  const linkinfo = encodeAttributes([{ type: IFLA_INFO_KIND, value: Buffer.from('dummy') }]);
  const request = linkRequest(
    MessageType.NEWLINK,
    { ifname: name, linkinfo },
    { flags: { noarp: true }, change: { noarp: true } },
    CREATE,
  );
  return withSocket(NETLINK_ROUTE, async (socket) => {
    await socket.request(request).catch((error: unknown) => {
      throw toUnsupportedError('dummy interfaces', error, EOPNOTSUPP);
    });
    const index = await find(socket, name);
    if (index === undefined) throw new NetlinkError(`network interface ${name}`, ENODEV);
    return index;
  });
}

/**
 * Deletes a virtual network interface with its addresses.
 * @returns whether it existed.
 * @throws NetlinkError
 */
export function deleteLink(name: string): Promise<boolean> {
  const request = linkRequest(MessageType.DELLINK, { ifname: name });
  return withSocket(NETLINK_ROUTE, async (socket) => {
    const deleted = socket.request(request).then(() => true);
    return (await undefinedOnErrno(deleted, ENODEV)) ?? false;
  });
}

/** An address of an interface. */
export interface BoundAddress {
  readonly address: string;
  readonly family: IpFamily;
  /**
   * Whether the address has the scope, lifetime and prefix length that `changeAddresses` sets. If
   * false, `changeAddresses` corrects them when it adds the address again.
   */
  readonly isUpToDate: boolean;
}

/**
 * Lists the addresses of an interface without duplicates; none if the index does not exist.
 * @throws NetlinkError
 */
export async function listBoundAddresses(index: number): Promise<readonly BoundAddress[]> {
  const entries = Map.groupBy(await listLinkAddresses(index), ({ address }) => address);
  return [...entries].flatMap(([address, duplicates]) => {
    const [first] = duplicates;
    if (first === undefined) return [];
    const isUpToDate = duplicates.some(isHostAddress) && !duplicates.some(isPlaceholder);
    return [{ address, family: first.family, isUpToDate }];
  });
}

function isHostAddress({ family, prefixLength, scope, isDeprecated }: LinkAddress): boolean {
  const isExcludedAsSource = family === 'IPv4' ? scope === RouteScope.HOST : isDeprecated;
  return isExcludedAsSource && prefixLength === ADDRESS_BITS[family];
}

/** See `narrowScope`. */
function isPlaceholder({ family, prefixLength }: LinkAddress): boolean {
  return family === 'IPv4' && prefixLength === PLACEHOLDER_PREFIX;
}

/**
 * Adds host addresses (/32, /128) to an interface, then removes addresses. Packets to an added
 * address reach the node, but the kernel does not choose the address as a source address. Adding an
 * existing address corrects its scope or lifetime without losing packets. Removing a missing
 * address is not an error.
 * @param adds Addresses to add, canonical text.
 * @param removes Addresses to remove, canonical text.
 * @returns the refused addresses; all others were applied. ENODEV: the interface does not exist.
 * EACCES, EOPNOTSUPP: IPv6 is disabled on the interface or missing in the kernel.
 * @throws NetlinkError if the outcome of a send is unknown.
 */
export async function changeAddresses(
  index: number,
  adds: readonly string[],
  removes: readonly string[],
): Promise<RefusedAddress[]> {
  const changes = [
    ...adds.map((address) => ({ op: 'add' as const, address })),
    ...removes.map((address) => ({ op: 'remove' as const, address })),
  ];
  return await withSocket(NETLINK_ROUTE, async (socket) => {
    const refused: RefusedAddress[] = [];
    /**
     * IPv4 addresses that exist already; their scope may need a correction. Existing IPv6 addresses
     * were replaced.
     */
    const existing: string[] = [];
    const request = ({ op, address }: (typeof changes)[number]) =>
      op === 'add' ? addRequest(index, address) : removeRequest(index, address);
    for (const { item, error } of await sendAll(socket, changes, request)) {
      const { op, address } = item;
      if (op === 'add' && error.errno === EEXIST) {
        if (familyOf(address) === 'IPv4') existing.push(address);
      } else if (op === 'add' || !isMissing(error)) refused.push({ ...item, error });
    }
    // Placeholders of the same /31 must not exist together: one would become a secondary address of
    // the other.
    for (const group of Map.groupBy(existing, isOdd).values()) {
      refused.push(...(await narrowScope(socket, index, group)));
    }
    return refused;
  });
}

/**
 * Sets the narrow scope on existing IPv4 addresses. The kernel can replace every property of an
 * address except the scope (`inet_rtm_newaddr`), so the address is removed and added. Meanwhile a
 * placeholder, the same address with another prefix length, keeps it local: `fib_del_ifaddr` keeps
 * the local route while the interface has such an address. If the agent is killed in between, a
 * later call removes the placeholder.
 */
async function narrowScope(
  socket: NetlinkSocket,
  index: number,
  addresses: readonly string[],
): Promise<RefusedAddress[]> {
  const refused: RefusedAddress[] = [];
  let remaining = addresses;
  for (const [request, accepted] of [
    [addPlaceholder, EEXIST],
    [removeExactRequest, EADDRNOTAVAIL],
    [addRequest, EEXIST],
    [removePlaceholder, EADDRNOTAVAIL],
  ] as const) {
    const failed = new Set<string>();
    for (const { item, error } of await sendAll(socket, remaining, (each) =>
      request(index, each),
    )) {
      if (error.errno === accepted) continue;
      failed.add(item);
      refused.push({ op: 'add', address: item, error });
    }
    remaining = remaining.filter((address) => !failed.has(address));
  }
  return refused;
}

function isOdd(address: string): boolean {
  return ((addressBytes(address).at(-1) ?? 0) & 1) === 1;
}

function addRequest(index: number, address: string): NetlinkRequest {
  const data = { prefixlen: ADDRESS_BITS[familyOf(address)] };
  // Skip duplicate address detection, which never finishes on an interface that is down.
  const attrs = { ...localAndPeer(address), flags: { nodad: true } as const };
  // For an existing IPv4 address see `narrowScope`.
  return familyOf(address) === 'IPv4'
    ? change(index, address, { ...data, scope: RouteScope.HOST }, attrs, CREATE)
    : change(index, address, data, { ...attrs, cacheInfo: DEPRECATED }, REPLACE);
}

/**
 * Removes an IPv6 address with prefix length 128, or an IPv4 address with any prefix length. If the
 * IPv4 address has several prefix lengths, the kernel removes only the first.
 */
function removeRequest(index: number, address: string): NetlinkRequest {
  if (familyOf(address) === 'IPv6') return removeExactRequest(index, address);
  return change(index, address, {}, { local: addressBytes(address) });
}

function removeExactRequest(index: number, address: string): NetlinkRequest {
  return change(
    index,
    address,
    { prefixlen: ADDRESS_BITS[familyOf(address)] },
    localAndPeer(address),
  );
}

function addPlaceholder(index: number, address: string): NetlinkRequest {
  const data = { prefixlen: PLACEHOLDER_PREFIX, scope: RouteScope.HOST };
  // Add no route to the prefix. Otherwise the route would appear if another program set the
  // interface up.
  const attrs = { ...localAndPeer(address), flags: { noprefixroute: true } as const };
  return change(index, address, data, attrs, CREATE);
}

function removePlaceholder(index: number, address: string): NetlinkRequest {
  return change(index, address, { prefixlen: PLACEHOLDER_PREFIX }, localAndPeer(address));
}

function localAndPeer(address: string): AddressAttrs {
  const bytes = addressBytes(address);
  return { local: bytes, address: bytes };
}

/** Encodes a change of an address. @param flags To add or replace it. Default: remove it. */
function change(
  index: number,
  address: string,
  data: Address,
  attrs: AddressAttrs,
  flags?: number,
): NetlinkRequest {
  const type = flags === undefined ? MessageType.DELADDR : MessageType.NEWADDR;
  const family = addressFamily(familyOf(address));
  return addressRequest(type, { ...data, family, index }, attrs, flags);
}

/**
 * Whether an address to remove is already missing. This includes an interface or kernel without
 * IPv6.
 */
function isMissing({ errno }: NetlinkError): boolean {
  return errno === EADDRNOTAVAIL || errno === ENXIO || errno === EOPNOTSUPP;
}

function find(socket: NetlinkSocket, name: string): Promise<number | undefined> {
  const request = linkRequest(MessageType.GETLINK, { ifname: name, ...SKIP_STATS });
  return undefinedOnErrno(
    socket.get(request, (message) => readLink(message)?.[0]),
    ENODEV,
  );
}
