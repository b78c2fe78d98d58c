/**
 * Addresses and network interfaces (links) of the node, over rtnetlink. Uses the messages, structs
 * and attributes of the npm package `netlink`, but not its socket, which aborts the process on an
 * overrun.
 */
import ipaddr from 'ipaddr.js';
import type { LinkAttrs } from 'netlink/dist/rt/ifla.js';
import {
  __LENGTH_Address,
  __LENGTH_Link,
  type Address,
  type AddressAttrs,
  formatAddressMessage,
  formatLinkMessage,
  type Link,
  MessageType,
  parseAddress,
  parseAddressMessage,
  parseLink,
} from 'netlink/dist/rt/structs.js';
import { AttrStream, putU32 } from 'netlink/dist/structs.js';
import type { IpFamily } from '../../api/objects.ts';
import { type AddressFormatter, addressFormatter, ipFamilyOf } from '../core/address.ts';
import { readAttributes } from '../core/attribute.ts';
import { NETLINK_ROUTE } from '../core/descriptor.ts';
import { MalformedMessage } from '../core/error.ts';
import type { NetlinkMessage, NetlinkRequest } from '../core/message.ts';
import { type NetlinkSocket, withSocket } from '../core/socket.ts';
import { readText } from '../core/text.ts';

/** An IP address of the node. */
export interface NodeAddress {
  /** Canonical text, as from `canonicalAddress` of api/addresses.ts. */
  readonly address: string;
  readonly family: IpFamily;
  readonly prefixLength: number;
  readonly interfaceIndex: number;
  readonly interfaceName: string;
}

/** An IP address of one interface. */
export interface LinkAddress extends Pick<NodeAddress, 'address' | 'family' | 'prefixLength'> {
  /** RT_SCOPE_ value of linux/rtnetlink.h. */
  readonly scope: number;
  /**
   * Whether the preferred lifetime is over (IFA_F_DEPRECATED). IPv6 prefers any other address as
   * source address.
   */
  readonly isDeprecated: boolean;
}

/**
 * Interfaces and addresses of the node, read by two dumps. A change between the dumps may be
 * missing.
 */
export interface NodeLinks {
  /** Interface names by index. */
  readonly names: ReadonlyMap<number, string>;
  /** Sorted by interface, family and text. */
  readonly addresses: readonly NodeAddress[];
}

/** Attribute of a link (linux/if_link.h). */
const IFLA_IFNAME = 3;
/** RTEXT_FILTER_SKIP_STATS: statistics are most of a link message and expensive to collect. */
export const SKIP_STATS: LinkAttrs = { extMask: putU32(1 << 3) };

/**
 * Lists all addresses of the node, on interfaces that are up or down.
 * @throws NetlinkError
 */
export async function listAddresses(): Promise<readonly NodeAddress[]> {
  return (await listLinks()).addresses;
}

/** Lists interfaces and addresses of the node. @throws NetlinkError */
export function listLinks(): Promise<NodeLinks> {
  return withSocket(NETLINK_ROUTE, async (socket) => {
    // Dump addresses before interfaces: an interface that is missing afterwards was deleted with
    // its addresses.
    const found = await dumpAddresses(socket);
    const names = new Map(
      await socket.dump(linkRequest(MessageType.GETLINK, SKIP_STATS), readLink),
    );
    const addresses: NodeAddress[] = [];
    for (const { address, family, prefixLength, interfaceIndex } of found) {
      const interfaceName = names.get(interfaceIndex);
      if (interfaceName === undefined) continue;
      addresses.push({ address, family, prefixLength, interfaceIndex, interfaceName });
    }
    return { names, addresses: addresses.sort(compareAddresses) };
  });
}

/**
 * Lists the addresses of one interface; none if the index does not exist.
 * @throws NetlinkError
 */
export function listLinkAddresses(index: number): Promise<readonly LinkAddress[]> {
  return withSocket(NETLINK_ROUTE, (socket) => dumpAddresses(socket, index));
}

type FoundAddress = LinkAddress & Pick<NodeAddress, 'interfaceIndex'>;

/** @param link Interface index. Default: all interfaces. */
function dumpAddresses(socket: NetlinkSocket, link?: number): Promise<FoundAddress[]> {
  const format = addressFormatter();
  return socket.dump(addressRequest(MessageType.GETADDR, {}, {}), (message) =>
    link === undefined || addressLinkIndex(message) === link
      ? readAddress(message, format)
      : undefined,
  );
}

/** Encodes an address request. */
export function addressRequest(
  type: MessageType,
  data: Address,
  attrs: AddressAttrs,
  flags = 0,
): NetlinkRequest {
  const out = new AttrStream();
  formatAddressMessage({ kind: 'address', data, attrs }, out);
  return { type, flags, payload: Buffer.concat(out.bufs) };
}

/** Encodes a link request. */
export function linkRequest(
  type: MessageType,
  attrs: LinkAttrs,
  data: Link = {},
  flags = 0,
): NetlinkRequest {
  const out = new AttrStream();
  formatLinkMessage({ kind: 'link', data, attrs }, out);
  return { type, flags, payload: Buffer.concat(out.bufs) };
}

/** The interface index in an address message; undefined for other messages. */
export function addressLinkIndex({ type, payload }: NetlinkMessage): number | undefined {
  const isAddressMessage = type === MessageType.NEWADDR || type === MessageType.DELADDR;
  return isAddressMessage
    ? parsed('address', () => parseAddress(payload.subarray(0, __LENGTH_Address)).index)
    : undefined;
}

function readAddress(
  { type, payload }: NetlinkMessage,
  format: AddressFormatter,
): FoundAddress | undefined {
  if (type !== MessageType.NEWADDR) return undefined;
  const { data, attrs } = parsed('address', () => parseAddressMessage(payload));
  const family = ipFamilyOf(data.family);
  // On a point-to-point link `address` is the peer. On other links IPv6 has no `local`.
  const bytes = attrs.local ?? attrs.address;
  if (family === undefined || bytes === undefined) return undefined;
  const address = format(bytes, 0, bytes.length);
  // An IPv4-mapped address has no canonical text, so it cannot be a VIP.
  if (family === 'IPv6' && ipaddr.IPv6.parse(address).isIPv4MappedAddress()) return undefined;
  const { prefixlen: prefixLength = 0, index: interfaceIndex = 0, scope = 0 } = data;
  const isDeprecated = data.flags?.deprecated === true;
  return { address, family, prefixLength, interfaceIndex, scope, isDeprecated };
}

/** @returns interface index and name; undefined for another kind of message. */
export function readLink({ type, payload }: NetlinkMessage): [number, string] | undefined {
  if (type !== MessageType.NEWLINK) return undefined;
  // Of the attributes, read only the name: the package fails on attributes that a newer kernel has
  // extended.
  const name = readAttributes(payload, __LENGTH_Link).get(IFLA_IFNAME);
  const { index = 0 } = parsed('link', () => parseLink(payload.subarray(0, __LENGTH_Link)));
  return name && [index, readText(name)];
}

/** Converts the untyped errors of the npm package. @throws MalformedMessage */
function parsed<T>(what: string, parse: () => T): T {
  try {
    return parse();
  } catch (error) {
    throw new MalformedMessage(`rtnetlink ${what} message: ${(error as Error).message}`, {
      cause: error,
    });
  }
}

function compareAddresses(a: NodeAddress, b: NodeAddress): number {
  if (a.interfaceIndex !== b.interfaceIndex) return a.interfaceIndex - b.interfaceIndex;
  const [left, right] = [`${a.family} ${a.address}`, `${b.family} ${b.address}`];
  if (left === right) return a.prefixLength - b.prefixLength;
  return left < right ? -1 : 1;
}
