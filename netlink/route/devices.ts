/** Lists the network interfaces of the node with their types, and watches them. */
import { __LENGTH_Link, MessageType, MulticastGroups } from 'netlink/dist/rt/structs.js';
import { readAttributes } from '../core/attribute.ts';
import { NETLINK_ROUTE } from '../core/descriptor.ts';
import { readU16, readU32 } from '../core/host-order.ts';
import type { NetlinkMessage } from '../core/message.ts';
import { NetlinkSocket, withSocket } from '../core/socket.ts';
import { readText } from '../core/text.ts';
import { linkRequest, readLink, SKIP_STATS } from './rtnetlink.ts';

/** A network interface. */
export interface Device {
  readonly index: number;
  readonly name: string;
  /** ARPHRD_ of linux/if_arp.h: 1 is Ethernet. */
  readonly type: number;
  /** `veth`, `bridge`, `vxlan` and so on; undefined for most hardware. */
  readonly kind: string | undefined;
  /** Whether it is a port of a bridge, bond or VRF. */
  readonly isEnslaved: boolean;
  readonly mtu: number;
}

/** struct ifinfomsg and attributes of linux/if_link.h. */
const TYPE_OFFSET = 2;
const IFLA_MTU = 4;
const IFLA_MASTER = 10;
const IFLA_LINKINFO = 18;
const IFLA_INFO_KIND = 1;

/** @throws NetlinkError */
export function listDevices(): Promise<readonly Device[]> {
  return withSocket(NETLINK_ROUTE, (socket) =>
    socket.dump(linkRequest(MessageType.GETLINK, SKIP_STATS), readDevice),
  );
}

/** Calls `onChange` for each change of an interface. @throws NetlinkError if the watch cannot start. */
export function watchDevices(onChange: () => void): { close(): Promise<void> } {
  const socket = new NetlinkSocket(NETLINK_ROUTE, { receiveBuffer: 1 << 20 });
  socket.subscribe([MulticastGroups.LINK], onChange, onChange);
  return { close: () => socket.close() };
}

/** @returns undefined for another kind of message. @throws MalformedMessage */
function readDevice(message: NetlinkMessage): Device | undefined {
  const [index, name] = readLink(message) ?? [];
  if (index === undefined || name === undefined) return undefined;
  const { payload } = message;
  const attributes = readAttributes(payload, __LENGTH_Link);
  const info = attributes.get(IFLA_LINKINFO);
  const kind = info && readAttributes(info, 0).get(IFLA_INFO_KIND);
  const mtu = attributes.get(IFLA_MTU);
  return {
    index,
    name,
    type: readU16(payload, TYPE_OFFSET),
    kind: kind && readText(kind),
    isEnslaved: attributes.has(IFLA_MASTER),
    mtu: mtu === undefined ? 0 : readU32(mtu, 0),
  };
}
