/** Links and their addresses: finding, creating and deleting them. */
import {
  type Address,
  type AddressAttrs,
  MessageType,
  RouteScope,
} from 'netlink/dist/rt/structs.js';
import { familyOf } from '../../api/addresses.ts';
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
  orUnsupported,
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

/** An address that the kernel would not add or remove. */
interface RefusedAddress {
  readonly op: 'add' | 'remove';
  readonly address: string;
  readonly error: NetlinkError;
}

/** linux/netlink.h: NLM_F_CREATE | NLM_F_EXCL */
const CREATE = 0x400 | 0x200;
/** NLM_F_CREATE | NLM_F_REPLACE */
const REPLACE = 0x400 | 0x100;
/** An address as `changeAddresses` binds it, and one that holds its place for a moment. */
const HOST_PREFIX: Readonly<Record<IpFamily, number>> = { IPv4: 32, IPv6: 128 };
const PLACEHOLDER_PREFIX = 31;
/** linux/if_link.h */
const IFLA_INFO_KIND = 1;
/**
 * Lifetimes that keep an IPv6 address from being a source (RFC 6724, rule 3). An outgoing device without
 * an address of its own, such as the node's end of a pod's link, would otherwise have the kernel
 * choose by the longest common prefix (rule 8) among the addresses of all devices. IPv4 has no such
 * rule: the kernel takes the first address of the first device whose scope is wide enough
 * (inet_select_addr), so VIPs get the narrowest one.
 */
const DEPRECATED = { ifaPrefered: 0, ifaValid: 0xffffffff };

/**
 * The index of a link.
 * @returns undefined when there is none of that name. @throws NetlinkError
 */
export function findLink(name: string): Promise<number | undefined> {
  return withSocket(NETLINK_ROUTE, (socket) => find(socket, name));
}

/**
 * Creates a dummy link and leaves it down: the addresses on it are local all the same, and nothing
 * is ever sent through it. It answers no ARP (NOARP).
 * @returns its index.
 * @throws UnsupportedError when the kernel has no dummy links; NetlinkError, such as EEXIST.
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
      throw orUnsupported('dummy links', error, EOPNOTSUPP);
    });
    const index = await find(socket, name);
    if (index === undefined) throw new NetlinkError(`link ${name}`, ENODEV);
    return index;
  });
}

/**
 * Deletes a link of any kind that can be deleted, with its addresses.
 * @returns whether there was one of that name. @throws NetlinkError
 */
export function deleteLink(name: string): Promise<boolean> {
  const request = linkRequest(MessageType.DELLINK, { ifname: name });
  return withSocket(NETLINK_ROUTE, async (socket) => {
    const deleted = socket.request(request).then(() => true);
    return (await undefinedOnErrno(deleted, ENODEV)) ?? false;
  });
}

/** An address that a link has. */
export interface BoundAddress {
  readonly address: string;
  readonly family: IpFamily;
  /** Just as `changeAddresses` binds it; to add it would mend it otherwise. */
  readonly isAsBound: boolean;
}

/**
 * The addresses of a link, each once; none when there is no link of this index.
 * @throws NetlinkError
 */
export async function listBoundAddresses(index: number): Promise<readonly BoundAddress[]> {
  const entries = Map.groupBy(await listLinkAddresses(index), ({ address }) => address);
  return [...entries].flatMap(([address, own]) => {
    const [first] = own;
    if (first === undefined) return [];
    const isAsBound = own.some(isHostAddress) && !own.some(isPlaceholder);
    return [{ address, family: first.family, isAsBound }];
  });
}

function isHostAddress({ family, prefixLength, scope, isDeprecated }: LinkAddress): boolean {
  const isNoSource = family === 'IPv4' ? scope === RouteScope.HOST : isDeprecated;
  return isNoSource && prefixLength === HOST_PREFIX[family];
}

/** See `rebind`. */
function isPlaceholder({ family, prefixLength }: LinkAddress): boolean {
  return family === 'IPv4' && prefixLength === PLACEHOLDER_PREFIX;
}

/**
 * Adds, then removes host addresses (/32, /128) of a link, for packets that arrive: the kernel does not
 * choose them as source addresses of the node. To add one that the link has, or to remove one that
 * it has not, is no error. One that the link has is made so too, and packets to it are not lost meanwhile.
 * @param adds Canonical text.
 * @param removes Canonical text.
 * @returns the refused ones; the others are done. ENODEV: there is no such link;
 * EACCES, EOPNOTSUPP: IPv6 is disabled on it, or missing.
 * @throws NetlinkError when the fate of a send is not known.
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
    /** Of IPv4: an IPv6 address that is there was replaced. */
    const present: string[] = [];
    const request = ({ op, address }: (typeof changes)[number]) =>
      op === 'add' ? addRequest(index, address) : removeRequest(index, address);
    for (const { item, error } of await sendAll(socket, changes, request)) {
      const { op, address } = item;
      if (op === 'add' && error.errno === EEXIST) {
        if (familyOf(address) === 'IPv4') present.push(address);
      } else if (op === 'add' || !isGone(error)) refused.push({ ...item, error });
    }
    // No two of a group share the prefix of their stand-ins: one would come to depend on the other.
    for (const group of Map.groupBy(present, isOdd).values()) {
      refused.push(...(await narrowScope(socket, index, group)));
    }
    return refused;
  });
}

/**
 * Gives IPv4 addresses that a link has the narrow scope. The kernel replaces everything of an address but the scope
 * (`inet_rtm_newaddr`), so each is removed and added. Meanwhile another entry of the same address, told apart by
 * its prefix length, keeps it local: `fib_del_ifaddr` leaves the local route while the device has one.
 * An agent that is killed in between leaves that entry; a later call removes it.
 */
async function narrowScope(
  socket: NetlinkSocket,
  index: number,
  addresses: readonly string[],
): Promise<RefusedAddress[]> {
  const refused: RefusedAddress[] = [];
  let left = addresses;
  for (const [request, accepted] of [
    [addPlaceholder, EEXIST],
    [removeExactRequest, EADDRNOTAVAIL],
    [addRequest, EEXIST],
    [removePlaceholder, EADDRNOTAVAIL],
  ] as const) {
    const failed = new Set<string>();
    for (const { item, error } of await sendAll(socket, left, (each) => request(index, each))) {
      if (error.errno === accepted) continue;
      failed.add(item);
      refused.push({ op: 'add', address: item, error });
    }
    left = left.filter((address) => !failed.has(address));
  }
  return refused;
}

function isOdd(address: string): boolean {
  return ((addressBytes(address).at(-1) ?? 0) & 1) === 1;
}

function addRequest(index: number, address: string): NetlinkRequest {
  const data = { prefixlen: HOST_PREFIX[familyOf(address)] };
  // Without duplicate address detection, which a link that is down cannot finish.
  const attrs = { ...both(address), flags: { nodad: true } as const };
  // See `rebind` for an IPv4 address that is there.
  return familyOf(address) === 'IPv4'
    ? change(index, address, { ...data, scope: RouteScope.HOST }, attrs, CREATE)
    : change(index, address, data, { ...attrs, cacheInfo: DEPRECATED }, REPLACE);
}

/** An IPv4 address with whatever prefix length; of several entries, one. */
function removeRequest(index: number, address: string): NetlinkRequest {
  if (familyOf(address) === 'IPv6') return removeExactRequest(index, address);
  return change(index, address, {}, { local: addressBytes(address) });
}

function removeExactRequest(index: number, address: string): NetlinkRequest {
  return change(index, address, { prefixlen: HOST_PREFIX[familyOf(address)] }, both(address));
}

function addPlaceholder(index: number, address: string): NetlinkRequest {
  const data = { prefixlen: PLACEHOLDER_PREFIX, scope: RouteScope.HOST };
  // No route to the prefix, as there would be if somebody set the link up.
  const attrs = { ...both(address), flags: { noprefixroute: true } as const };
  return change(index, address, data, attrs, CREATE);
}

function removePlaceholder(index: number, address: string): NetlinkRequest {
  return change(index, address, { prefixlen: PLACEHOLDER_PREFIX }, both(address));
}

function both(address: string): AddressAttrs {
  const bytes = addressBytes(address);
  return { local: bytes, address: bytes };
}

/** @param flags to add or replace; default: the address is removed. */
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

/** Whether an address that is to be removed is not there: the link, or the kernel, may have no IPv6 at all. */
function isGone({ errno }: NetlinkError): boolean {
  return errno === EADDRNOTAVAIL || errno === ENXIO || errno === EOPNOTSUPP;
}

function find(socket: NetlinkSocket, name: string): Promise<number | undefined> {
  const request = linkRequest(MessageType.GETLINK, { ifname: name, ...SKIP_STATS });
  return undefinedOnErrno(
    socket.get(request, (message) => readLink(message)?.[0]),
    ENODEV,
  );
}
