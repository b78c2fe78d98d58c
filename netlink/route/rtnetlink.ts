/**
 * Addresses and links of the node, over rtnetlink. Messages, structs and attributes are those of the package `netlink`;
 * its socket, which aborts the process on an overrun, is not used.
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
  /** RT_SCOPE_HOST and others. */
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

/** linux/if_link.h, of a link's attributes. */
const IFLA_IFNAME = 3;
/** RTEXT_FILTER_SKIP_STATS: statistics are most of what a link has to say, and costly to gather. */
export const SKIP_STATS: LinkAttrs = { extMask: putU32(1 << 3) };

/**
 * All addresses of the node, on links that are up or down.
 * @throws NetlinkError
 */
export async function listAddresses(): Promise<readonly NodeAddress[]> {
  return (await listLinks()).addresses;
}

/** @throws NetlinkError */
export function listLinks(): Promise<NodeLinks> {
  return withSocket(NETLINK_ROUTE, async (socket) => {
    // Addresses first: one whose link is not there afterwards has gone with it.
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
 * The addresses of one link; none when there is no link of this index.
 * @throws NetlinkError
 */
export function listLinkAddresses(index: number): Promise<readonly LinkAddress[]> {
  return withSocket(NETLINK_ROUTE, (socket) => dumpAddresses(socket, index));
}

type FoundAddress = LinkAddress & Pick<NodeAddress, 'interfaceIndex'>;

/** @param link index; default: of all links. */
function dumpAddresses(socket: NetlinkSocket, link?: number): Promise<FoundAddress[]> {
  const format = addressFormatter();
  return socket.dump(addressRequest(MessageType.GETADDR, {}, {}), (message) =>
    link === undefined || addressLinkIndex(message) === link
      ? readAddress(message, format)
      : undefined,
  );
}

/** A request about addresses. */
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

/** A request about a link. */
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

/** The index of the link whose address a message is about; undefined for other messages. */
export function addressLinkIndex({ type, payload }: NetlinkMessage): number | undefined {
  const isOfAddress = type === MessageType.NEWADDR || type === MessageType.DELADDR;
  return isOfAddress
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
  // On a point-to-point link `address` is the other end; IPv6 elsewhere has no `local`.
  const bytes = attrs.local ?? attrs.address;
  if (family === undefined || bytes === undefined) return undefined;
  const address = format(bytes, 0, bytes.length);
  // No canonical text exists for it, so no VIP can be meant by it.
  if (family === 'IPv6' && ipaddr.IPv6.parse(address).isIPv4MappedAddress()) return undefined;
  const { prefixlen: prefixLength = 0, index: interfaceIndex = 0, scope = 0 } = data;
  const isDeprecated = data.flags?.deprecated === true;
  return { address, family, prefixLength, interfaceIndex, scope, isDeprecated };
}

/** @returns index and name. */
export function readLink({ type, payload }: NetlinkMessage): [number, string] | undefined {
  if (type !== MessageType.NEWLINK) return undefined;
  // Of the attributes only the name: the package refuses those of a kernel that has more to say of one.
  const name = readAttributes(payload, __LENGTH_Link).get(IFLA_IFNAME);
  const { index = 0 } = parsed('link', () => parseLink(payload.subarray(0, __LENGTH_Link)));
  return name && [index, readText(name)];
}

/** The package throws errors of no type of their own. @throws MalformedMessage */
function parsed<T>(what: string, parse: () => T): T {
  try {
    return parse();
  } catch (error) {
    throw new MalformedMessage(`${what}: ${(error as Error).message}`, { cause: error });
  }
}

function compareAddresses(a: NodeAddress, b: NodeAddress): number {
  if (a.interfaceIndex !== b.interfaceIndex) return a.interfaceIndex - b.interfaceIndex;
  const [left, right] = [`${a.family} ${a.address}`, `${b.family} ${b.address}`];
  if (left === right) return a.prefixLength - b.prefixLength;
  return left < right ? -1 : 1;
}
