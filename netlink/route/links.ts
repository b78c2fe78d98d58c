import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import { addressBytes, addressFamily } from '../core/address.ts';
import { type Attribute, encodeAttributes } from '../core/attribute.ts';
import { sendAll, type Weighted } from '../core/batches.ts';
import { NETLINK_ROUTE } from '../core/descriptor.ts';
import {
  EADDRNOTAVAIL,
  EEXIST,
  ENODEV,
  ENXIO,
  EOPNOTSUPP,
  hasErrno,
  NetlinkError,
  UnsupportedError,
} from '../core/error.ts';
import { u32, writeU32 } from '../core/host.ts';
import type { Request } from '../core/message.ts';
import { NetlinkSocket } from '../core/socket.ts';
import {
  IFA_ADDRESS,
  IFA_LOCAL,
  IFADDRMSG,
  IFLA_IFNAME,
  type LinkAddress,
  linkPayload,
  listLinkAddresses,
  RTM_DELADDR,
  RTM_GETLINK,
  RTM_NEWADDR,
  RTM_NEWLINK,
  readLink,
  withoutStatistics,
} from './rtnetlink.ts';

/** An address that the kernel would not add or remove. */
export interface RefusedAddress {
  readonly op: 'add' | 'remove';
  readonly address: string;
  readonly error: NetlinkError;
}

/** linux/rtnetlink.h */
const RTM_DELLINK = 17;
/** linux/netlink.h: NLM_F_CREATE | NLM_F_EXCL */
const CREATE = 0x400 | 0x200;
/** NLM_F_CREATE | NLM_F_REPLACE */
const REPLACE = 0x400 | 0x100;
/** An address as `changeAddresses` binds it, and one that holds its place for a moment. */
const HOST_PREFIX: Readonly<Record<IpFamily, number>> = { IPv4: 32, IPv6: 128 };
const STAND_IN_PREFIX = 31;
/** linux/if_link.h */
const IFLA_LINKINFO = 18;
const IFLA_INFO_KIND = 1;
/** linux/if.h */
const IFF_NOARP = 0x80;
/** linux/if_addr.h. Without duplicate address detection, which a link that is down cannot finish. */
const IFA_FLAGS = 8;
const IFA_F_NODAD = 0x02;
/** No route to the prefix, as there would be if somebody set the link up. */
const IFA_F_NOPREFIXROUTE = 0x200;
/** struct ifa_cacheinfo: u32 preferred lifetime, u32 valid lifetime, in seconds, u32 created, u32 updated. */
const IFA_CACHEINFO = 6;
const CACHEINFO = 16;
const FOR_EVER = 0xffffffff;
/** linux/rtnetlink.h */
const RT_SCOPE_UNIVERSE = 0;
const RT_SCOPE_HOST = 254;

/**
 * The index of a link.
 * @returns undefined when there is none of that name. @throws NetlinkError
 */
export function findLink(name: string): Promise<number | undefined> {
  return withSocket((socket) => find(socket, name));
}

/**
 * Creates a dummy link and leaves it down: the addresses on it are local all the same, and nothing
 * is ever sent through it. It answers no ARP (NOARP).
 * @returns its index.
 * @throws UnsupportedError when the kernel has no dummy links; NetlinkError, such as EEXIST.
 */
export function createDummy(name: string): Promise<number> {
  const kind = { type: IFLA_INFO_KIND, value: Buffer.from('dummy') };
  const attributes = [linkName(name), { type: IFLA_LINKINFO, value: [kind] }];
  const payload = linkPayload(attributes, IFF_NOARP);
  return withSocket(async (socket) => {
    try {
      await socket.request({ type: RTM_NEWLINK, flags: CREATE, payload });
    } catch (error) {
      if (!hasErrno(error, EOPNOTSUPP)) throw error;
      throw new UnsupportedError('dummy links', { cause: error });
    }
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
  const payload = linkPayload([linkName(name)]);
  return withSocket(async (socket) => {
    const deleted = socket.request({ type: RTM_DELLINK, payload }).then(() => true);
    return (await existing(deleted)) ?? false;
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
    const isAsBound = own.some(isHostAddress) && !own.some(isStandIn);
    return [{ address, family: first.family, isAsBound }];
  });
}

function isHostAddress({ family, prefixLength, scope, isDeprecated }: LinkAddress): boolean {
  const isNoSource = family === 'IPv4' ? scope === RT_SCOPE_HOST : isDeprecated;
  return isNoSource && prefixLength === HOST_PREFIX[family];
}

/** See `rebind`. */
function isStandIn({ family, prefixLength }: LinkAddress): boolean {
  return family === 'IPv4' && prefixLength === STAND_IN_PREFIX;
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
  return await withSocket(async (socket) => {
    const refused: RefusedAddress[] = [];
    /** Of IPv4: an IPv6 address that is there was replaced. */
    const present: string[] = [];
    const request = ({ op, address }: (typeof changes)[number]) =>
      op === 'add' ? bind(index, address) : unbind(index, address);
    for (const [change, error] of await sendEach(socket, changes, request)) {
      const { op, address } = change;
      if (op === 'add' && error.errno === EEXIST) {
        if (familyOf(address) === 'IPv4') present.push(address);
      } else if (op === 'add' || !isGone(error)) refused.push({ ...change, error });
    }
    // No two of a group share the prefix of their stand-ins: one would come to depend on the other.
    for (const group of Map.groupBy(present, isOdd).values()) {
      refused.push(...(await rebind(socket, index, group)));
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
async function rebind(
  socket: NetlinkSocket,
  index: number,
  addresses: readonly string[],
): Promise<RefusedAddress[]> {
  const refused: RefusedAddress[] = [];
  let left = addresses;
  for (const [request, accepted] of [
    [bindStandIn, EEXIST],
    [unbindExact, EADDRNOTAVAIL],
    [bind, EEXIST],
    [unbindStandIn, EADDRNOTAVAIL],
  ] as const) {
    const failed = new Set<string>();
    for (const [address, error] of await sendEach(socket, left, (each) => request(index, each))) {
      if (error.errno === accepted) continue;
      failed.add(address);
      refused.push({ op: 'add', address, error });
    }
    left = left.filter((address) => !failed.has(address));
  }
  return refused;
}

function isOdd(address: string): boolean {
  return ((addressBytes(address).at(-1) ?? 0) & 1) === 1;
}

/**
 * Sends a request for each item, in order.
 * @returns the items whose request was refused, in order, and why.
 */
async function sendEach<T>(
  socket: NetlinkSocket,
  items: readonly T[],
  request: (item: T) => Request,
): Promise<[item: T, error: NetlinkError][]> {
  const refused: [T, NetlinkError][] = [];
  for (const { index, error } of await sendAll(socket, messagesFor(items, request))) {
    const item = items[index];
    if (item !== undefined) refused.push([item, error]);
  }
  return refused;
}

function* messagesFor<T>(items: readonly T[], request: (item: T) => Request): Iterable<Weighted> {
  for (const item of items) yield { request: request(item), weight: 1 };
}

function bind(index: number, address: string): Request {
  const family = familyOf(address);
  const attributes = [...addressAttributes(address), { type: IFA_FLAGS, value: u32(IFA_F_NODAD) }];
  const payload = (scope: number, more: readonly Attribute[]) =>
    addressPayload(index, address, HOST_PREFIX[family], [...attributes, ...more], scope);
  // See `rebind` for an IPv4 address that is there.
  return family === 'IPv4'
    ? { type: RTM_NEWADDR, flags: CREATE, payload: payload(RT_SCOPE_HOST, []) }
    : {
        type: RTM_NEWADDR,
        flags: REPLACE,
        payload: payload(RT_SCOPE_UNIVERSE, [{ type: IFA_CACHEINFO, value: deprecated() }]),
      };
}

/** An IPv4 address with whatever prefix length; of several entries, one. */
function unbind(index: number, address: string): Request {
  if (familyOf(address) === 'IPv6') return unbindExact(index, address);
  const attributes = [{ type: IFA_LOCAL, value: addressBytes(address) }];
  return { type: RTM_DELADDR, payload: addressPayload(index, address, 0, attributes) };
}

function unbindExact(index: number, address: string): Request {
  const prefix = HOST_PREFIX[familyOf(address)];
  const payload = addressPayload(index, address, prefix, addressAttributes(address));
  return { type: RTM_DELADDR, payload };
}

function bindStandIn(index: number, address: string): Request {
  const attributes = [
    ...addressAttributes(address),
    { type: IFA_FLAGS, value: u32(IFA_F_NOPREFIXROUTE) },
  ];
  const payload = addressPayload(index, address, STAND_IN_PREFIX, attributes, RT_SCOPE_HOST);
  return { type: RTM_NEWADDR, flags: CREATE, payload };
}

function unbindStandIn(index: number, address: string): Request {
  const payload = addressPayload(index, address, STAND_IN_PREFIX, addressAttributes(address));
  return { type: RTM_DELADDR, payload };
}

function addressAttributes(address: string): Attribute[] {
  const value = addressBytes(address);
  return [
    { type: IFA_LOCAL, value },
    { type: IFA_ADDRESS, value },
  ];
}

/** A struct ifaddrmsg, then attributes. */
function addressPayload(
  index: number,
  address: string,
  prefixLength: number,
  attributes: readonly Attribute[],
  scope = RT_SCOPE_UNIVERSE,
): Buffer {
  const header = Buffer.alloc(IFADDRMSG);
  header.writeUInt8(addressFamily(familyOf(address)), 0);
  header.writeUInt8(prefixLength, 1);
  header.writeUInt8(scope, 3);
  writeU32(header, index, 4);
  return Buffer.concat([header, encodeAttributes(attributes)]);
}

/**
 * Lifetimes that keep an IPv6 address from being a source (RFC 6724, rule 3). An outgoing device without
 * an address of its own, such as the node's end of a pod's link, would otherwise have the kernel
 * choose by the longest common prefix (rule 8) among the addresses of all devices. IPv4 has no such
 * rule: the kernel takes the first address of the first device whose scope is wide enough
 * (inet_select_addr), so VIPs get the narrowest one.
 */
function deprecated(): Buffer {
  const info = Buffer.alloc(CACHEINFO);
  writeU32(info, 0, 0);
  writeU32(info, FOR_EVER, 4);
  return info;
}

/** Whether an address that is to be removed is not there: the link, or the kernel, may have no IPv6 at all. */
function isGone({ errno }: NetlinkError): boolean {
  return errno === EADDRNOTAVAIL || errno === ENXIO || errno === EOPNOTSUPP;
}

function find(socket: NetlinkSocket, name: string): Promise<number | undefined> {
  const payload = linkPayload([linkName(name), withoutStatistics]);
  const request = { type: RTM_GETLINK, payload };
  return existing(socket.get(request, (message) => readLink(message)?.[0]));
}

/** undefined when the kernel says that there is no such link. */
async function existing<T>(work: Promise<T>): Promise<T | undefined> {
  try {
    return await work;
  } catch (error) {
    if (hasErrno(error, ENODEV)) return undefined;
    throw error;
  }
}

function linkName(name: string): Attribute {
  return { type: IFLA_IFNAME, value: Buffer.from(`${name}\0`) };
}

async function withSocket<T>(use: (socket: NetlinkSocket) => Promise<T>): Promise<T> {
  const socket = new NetlinkSocket(NETLINK_ROUTE);
  try {
    return await use(socket);
  } finally {
    await socket.close();
  }
}
