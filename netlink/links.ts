import { familyOf } from '../api/addresses.ts';
import { addressBytes, addressFamily } from './address.ts';
import { type Attribute, encodeAttributes } from './attribute.ts';
import { sendAll, type Weighted } from './batches.ts';
import { NETLINK_ROUTE } from './descriptor.ts';
import {
  EADDRNOTAVAIL,
  EEXIST,
  ENODEV,
  ENXIO,
  EOPNOTSUPP,
  hasErrno,
  NetlinkError,
  UnsupportedError,
} from './error.ts';
import { u32, writeU32 } from './host.ts';
import type { Request } from './message.ts';
import {
  IFA_ADDRESS,
  IFA_LOCAL,
  IFADDRMSG,
  IFLA_IFNAME,
  linkPayload,
  RTM_DELADDR,
  RTM_GETLINK,
  RTM_NEWADDR,
  RTM_NEWLINK,
  readLink,
  withoutStatistics,
} from './rtnetlink.ts';
import { Slices } from './slices.ts';
import { NetlinkSocket } from './socket.ts';

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
/** linux/if_link.h */
const IFLA_LINKINFO = 18;
const IFLA_INFO_KIND = 1;
/** linux/if.h */
const IFF_NOARP = 0x80;
/** linux/if_addr.h. Without duplicate address detection, which a link that is down cannot finish. */
const IFA_FLAGS = 8;
const IFA_F_NODAD = 0x02;
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

/**
 * Adds, then removes host addresses (/32, /128) of a link, for packets that arrive: the kernel does not
 * choose them as source addresses of the node. To add one that the link has, or to remove one that
 * it has not, is no error. An IPv6 address that the link has is made so too. An IPv4 address keeps its
 * scope: that cannot be replaced, and without the address for a moment, packets to it would be lost.
 * @param adds Canonical text.
 * @param removes Canonical text.
 * @returns the refused ones, in order; the others are done. ENODEV: there is no such link;
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
  const messages: Weighted[] = [];
  const slices = new Slices();
  for (const { op, address } of changes) {
    messages.push({ request: addressRequest(op, index, address), weight: 1 });
    if (slices.isOver()) await slices.turn();
  }
  return await withSocket(async (socket) => {
    const refused: RefusedAddress[] = [];
    for (const { index: position, error } of await sendAll(socket, messages)) {
      const change = changes[position];
      if (change !== undefined && !isDone(change.op, error)) refused.push({ ...change, error });
    }
    return refused;
  });
}

function addressRequest(op: 'add' | 'remove', index: number, address: string): Request {
  const bytes = addressBytes(address);
  const header = Buffer.alloc(IFADDRMSG);
  header.writeUInt8(addressFamily(familyOf(address)), 0);
  header.writeUInt8(bytes.length * 8, 1);
  header.writeUInt8(familyOf(address) === 'IPv4' ? RT_SCOPE_HOST : RT_SCOPE_UNIVERSE, 3);
  writeU32(header, index, 4);
  const attributes: Attribute[] = [
    { type: IFA_LOCAL, value: bytes },
    { type: IFA_ADDRESS, value: bytes },
  ];
  if (op === 'add') {
    attributes.push({ type: IFA_FLAGS, value: u32(IFA_F_NODAD) });
    if (familyOf(address) === 'IPv6') attributes.push({ type: IFA_CACHEINFO, value: deprecated() });
  }
  return {
    type: op === 'add' ? RTM_NEWADDR : RTM_DELADDR,
    flags: op === 'add' ? REPLACE : 0,
    payload: Buffer.concat([header, encodeAttributes(attributes)]),
  };
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

/** Whether an address is as wanted in spite of the error. */
function isDone(op: 'add' | 'remove', { errno }: NetlinkError): boolean {
  if (op === 'add') return errno === EEXIST;
  // The link, or the kernel, has no IPv6 at all.
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
