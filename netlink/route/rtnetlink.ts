import ipaddr from 'ipaddr.js';
import type { IpFamily } from '../../api/objects.ts';
import { AF_INET, AF_INET6, addressFormatter } from '../core/address.ts';
import { type Attribute, encodeAttributes, readAttributes } from '../core/attribute.ts';
import { NETLINK_ROUTE } from '../core/descriptor.ts';
import { MalformedMessage } from '../core/error.ts';
import { readI32, readU32, u32, writeU32 } from '../core/host.ts';
import type { Message } from '../core/message.ts';
import { NetlinkSocket } from '../core/socket.ts';

/** An address that the node has. */
export interface NodeAddress {
  /** As `canonicalAddress` of api/addresses.ts gives it. */
  readonly address: string;
  readonly family: IpFamily;
  readonly prefixLength: number;
  readonly interfaceIndex: number;
  readonly interfaceName: string;
}

/** An address of one link. */
export interface LinkAddress extends Pick<NodeAddress, 'address' | 'family' | 'prefixLength'> {
  /** linux/rtnetlink.h: RT_SCOPE_HOST and others. */
  readonly scope: number;
  /** Its preferred lifetime is over (IFA_F_DEPRECATED): IPv6 prefers any other as a source address. */
  readonly isDeprecated: boolean;
}

/** The state of links and addresses, at one time as far as the kernel allows. */
export interface NodeLinks {
  /** Names by index. */
  readonly names: ReadonlyMap<number, string>;
  /** Sorted by interface, family and text. */
  readonly addresses: readonly NodeAddress[];
}

/** linux/rtnetlink.h */
export const RTM_NEWLINK = 16;
export const RTM_GETLINK = 18;
export const RTM_NEWADDR = 20;
export const RTM_DELADDR = 21;
const RTM_GETADDR = 22;
/** linux/if_addr.h; struct ifaddrmsg: u8 family, u8 prefix length, u8 flags, u8 scope, u32 index. */
export const IFADDRMSG = 8;
export const IFA_ADDRESS = 1;
export const IFA_LOCAL = 2;
const IFA_F_DEPRECATED = 0x20;
/** linux/if_link.h; struct ifinfomsg: u8 family, u8 padding, u16 type, i32 index, u32 flags, u32 change. */
export const IFINFOMSG = 16;
export const IFLA_IFNAME = 3;
const IFLA_EXT_MASK = 29;
const RTEXT_FILTER_SKIP_STATS = 1 << 3;

/** Of a request for links: statistics are most of what a link has to say, and costly to gather. */
export const withoutStatistics: Attribute = {
  type: IFLA_EXT_MASK,
  value: u32(RTEXT_FILTER_SKIP_STATS),
};

/**
 * All addresses of the node, on links that are up or down.
 * @throws NetlinkError
 */
export async function listAddresses(): Promise<readonly NodeAddress[]> {
  return (await listLinks()).addresses;
}

/** @throws NetlinkError */
export async function listLinks(): Promise<NodeLinks> {
  const socket = new NetlinkSocket(NETLINK_ROUTE);
  try {
    return await dumpLinks(socket);
  } finally {
    await socket.close();
  }
}

/**
 * The addresses of one link; none when there is no link of this index.
 * @throws NetlinkError
 */
export async function listLinkAddresses(index: number): Promise<readonly LinkAddress[]> {
  const socket = new NetlinkSocket(NETLINK_ROUTE);
  const format = addressFormatter();
  try {
    return await socket.dump(
      { type: RTM_GETADDR, payload: Buffer.alloc(IFADDRMSG) },
      (message): LinkAddress | undefined => {
        if (addressLink(message) !== index) return undefined;
        const found = readAddress(message, format);
        if (found === undefined) return undefined;
        const { address, family, prefixLength } = found;
        const isDeprecated = (message.payload.readUInt8(2) & IFA_F_DEPRECATED) !== 0;
        return { address, family, prefixLength, scope: message.payload.readUInt8(3), isDeprecated };
      },
    );
  } finally {
    await socket.close();
  }
}

async function dumpLinks(socket: NetlinkSocket): Promise<NodeLinks> {
  const format = addressFormatter();
  // Addresses first: one whose link is not there afterwards has gone with it.
  const found = await socket.dump(
    { type: RTM_GETADDR, payload: Buffer.alloc(IFADDRMSG) },
    (message) => readAddress(message, format),
  );
  const links = await socket.dump(
    { type: RTM_GETLINK, payload: linkPayload([withoutStatistics]) },
    readLink,
  );
  const names = new Map(links);
  const addresses: NodeAddress[] = [];
  for (const address of found) {
    const interfaceName = names.get(address.interfaceIndex);
    if (interfaceName !== undefined) addresses.push({ ...address, interfaceName });
  }
  return { names, addresses: addresses.sort(compare) };
}

/** The index of the link whose address a message is about; undefined for other messages. */
export function addressLink({ type, payload }: Message): number | undefined {
  if (type !== RTM_NEWADDR && type !== RTM_DELADDR) return undefined;
  return payload.length < IFADDRMSG ? undefined : readU32(payload, 4);
}

function readAddress(
  { type, payload }: Message,
  format: ReturnType<typeof addressFormatter>,
): Omit<NodeAddress, 'interfaceName'> | undefined {
  if (type !== RTM_NEWADDR) return undefined;
  if (payload.length < IFADDRMSG) throw new MalformedMessage('address without a header');
  const afFamily = payload.readUInt8(0);
  if (afFamily !== AF_INET && afFamily !== AF_INET6) return undefined;
  const attributes = readAttributes(payload, IFADDRMSG);
  // On a point-to-point link IFA_ADDRESS is the other end; IPv6 elsewhere has no IFA_LOCAL.
  const bytes = attributes.get(IFA_LOCAL) ?? attributes.get(IFA_ADDRESS);
  if (bytes === undefined) return undefined;
  const family = afFamily === AF_INET ? 'IPv4' : 'IPv6';
  const address = format(bytes, 0, bytes.length);
  // No canonical text exists for it, so no VIP can be meant by it.
  if (family === 'IPv6' && ipaddr.IPv6.parse(address).isIPv4MappedAddress()) return undefined;
  return {
    address,
    family,
    prefixLength: payload.readUInt8(1),
    interfaceIndex: readU32(payload, 4),
  };
}

/** A struct ifinfomsg that sets the given flags and leaves all others alone, then attributes. */
export function linkPayload(attributes: readonly Attribute[], setFlags = 0): Buffer {
  const header = Buffer.alloc(IFINFOMSG);
  writeU32(header, setFlags, 8);
  writeU32(header, setFlags, 12);
  return Buffer.concat([header, encodeAttributes(attributes)]);
}

/** @returns index and name. */
export function readLink({ type, payload }: Message): [number, string] | undefined {
  if (type !== RTM_NEWLINK) return undefined;
  if (payload.length < IFINFOMSG) throw new MalformedMessage('link without a header');
  const name = readAttributes(payload, IFINFOMSG).get(IFLA_IFNAME);
  if (name === undefined) return undefined;
  return [readI32(payload, 4), name.toString('utf8').replace(/\0.*$/su, '')];
}

function compare(a: NodeAddress, b: NodeAddress): number {
  if (a.interfaceIndex !== b.interfaceIndex) return a.interfaceIndex - b.interfaceIndex;
  const [left, right] = [`${a.family} ${a.address}`, `${b.family} ${b.address}`];
  if (left === right) return a.prefixLength - b.prefixLength;
  return left < right ? -1 : 1;
}
