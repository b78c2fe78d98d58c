/** Encodes and decodes IPVS messages. */
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import { type AddressFormatter, addressFamily, ipFamilyOf, writeAddress } from '../core/address.ts';
import { type Attribute, readAttributes, requiredAttribute } from '../core/attribute.ts';
import { MalformedMessage } from '../core/error.ts';
import { readU16, readU32, u16, u32 } from '../core/host-order.ts';
import { encodeNumber } from '../core/network-order.ts';
import { protocolNumbers, protocolOf } from '../core/protocol.ts';
import { nulTerminated, readText } from '../core/text.ts';
import { genetlinkPayload, readGenetlink } from './genetlink.ts';
import type {
  IpvsChange,
  IpvsDestination,
  IpvsDestinationKey,
  IpvsDestinationState,
  IpvsService,
  IpvsServiceConfig,
  IpvsServiceKey,
  IpvsTimeouts,
} from './objects.ts';

/** All constants in this file are from linux/ip_vs.h unless noted otherwise. */
const IPVS_CMD_GET_SERVICE = 4;
const IPVS_CMD_GET_DEST = 8;
const IPVS_CMD_SET_CONFIG = 12;
const commands: Readonly<Record<IpvsChange['op'], number>> = {
  'add-service': 1,
  'edit-service': 2,
  'delete-service': 3,
  'add-destination': 5,
  'edit-destination': 6,
  'delete-destination': 7,
};

const IPVS_CMD_ATTR_SERVICE = 1;
const IPVS_CMD_ATTR_DEST = 2;
const IPVS_CMD_ATTR_TIMEOUT_TCP = 4;
const IPVS_CMD_ATTR_TIMEOUT_TCP_FIN = 5;
const IPVS_CMD_ATTR_TIMEOUT_UDP = 6;

const IPVS_SVC_ATTR_AF = 1;
const IPVS_SVC_ATTR_PROTOCOL = 2;
const IPVS_SVC_ATTR_ADDR = 3;
const IPVS_SVC_ATTR_PORT = 4;
const IPVS_SVC_ATTR_FWMARK = 5;
const IPVS_SVC_ATTR_SCHED_NAME = 6;
/** struct ip_vs_flags: u32 flags, u32 mask. */
const IPVS_SVC_ATTR_FLAGS = 7;
const IPVS_SVC_ATTR_TIMEOUT = 8;
const IPVS_SVC_ATTR_NETMASK = 9;

const IP_VS_SVC_F_PERSISTENT = 1;
/**
 * Internal to the kernel. A service sent with this flag is not hashed, never found and never freed.
 */
const IP_VS_SVC_F_HASHED = 2;

const IPVS_DEST_ATTR_ADDR = 1;
const IPVS_DEST_ATTR_PORT = 2;
const IPVS_DEST_ATTR_FWD_METHOD = 3;
const IPVS_DEST_ATTR_WEIGHT = 4;
const IPVS_DEST_ATTR_U_THRESH = 5;
const IPVS_DEST_ATTR_L_THRESH = 6;
const IPVS_DEST_ATTR_ACTIVE_CONNS = 7;
const IPVS_DEST_ATTR_INACT_CONNS = 8;
const IPVS_DEST_ATTR_PERSIST_CONNS = 9;
const IPVS_DEST_ATTR_ADDR_FAMILY = 11;

const IP_VS_CONN_F_MASQ = 0;

/** union nf_inet_addr of linux/netfilter.h: 16 bytes. IPv4 uses the first 4. */
const ADDRESS = 16;

/**
 * The payload of a change.
 * @throws RangeError for fwmark 0, an address whose family is not the family of the service, or a
 * number out of range.
 */
export function changePayload(change: IpvsChange): Buffer {
  const { key } = change;
  const service = keyAttributes(key);
  if ('config' in change) service.push(...configAttributes(key.family, change.config));
  const attributes: Attribute[] = [{ type: IPVS_CMD_ATTR_SERVICE, value: service }];
  if ('destination' in change) {
    const value = destinationKeyAttributes(key.family, change.destination);
    if (change.op !== 'delete-destination') {
      value.push(...destinationAttributes(change.destination));
    }
    attributes.push({ type: IPVS_CMD_ATTR_DEST, value });
  }
  return genetlinkPayload(commands[change.op], attributes);
}

/** The payload of a dump of all services. The kernel cannot dump a single family. */
export function servicesPayload(): Buffer {
  return genetlinkPayload(IPVS_CMD_GET_SERVICE, []);
}

/**
 * The payload of a dump of the destinations of a service.
 * @throws RangeError as `changePayload`.
 */
export function destinationsPayload(key: IpvsServiceKey): Buffer {
  const attributes = [{ type: IPVS_CMD_ATTR_SERVICE, value: keyAttributes(key) }];
  return genetlinkPayload(IPVS_CMD_GET_DEST, attributes);
}

export function setTimeoutsPayload({ tcp, tcpFin, udp }: IpvsTimeouts): Buffer {
  return genetlinkPayload(IPVS_CMD_SET_CONFIG, [
    { type: IPVS_CMD_ATTR_TIMEOUT_TCP, value: u32(tcp) },
    { type: IPVS_CMD_ATTR_TIMEOUT_TCP_FIN, value: u32(tcpFin) },
    { type: IPVS_CMD_ATTR_TIMEOUT_UDP, value: u32(udp) },
  ]);
}

function keyAttributes(key: IpvsServiceKey): Attribute[] {
  const family = { type: IPVS_SVC_ATTR_AF, value: u16(addressFamily(key.family)) };
  if (key.kind === 'mark') {
    // The kernel treats fwmark 0 as no fwmark, and would create a service on TCP port 0 of address
    // 0.
    if (key.mark === 0) throw new RangeError('the fwmark of an IPVS service must not be 0');
    return [family, { type: IPVS_SVC_ATTR_FWMARK, value: u32(key.mark) }];
  }
  return [
    family,
    { type: IPVS_SVC_ATTR_PROTOCOL, value: u16(protocolNumbers[key.protocol]) },
    { type: IPVS_SVC_ATTR_ADDR, value: unionAddress(key.family, key.address) },
    { type: IPVS_SVC_ATTR_PORT, value: encodeNumber(key.port, 2) },
  ];
}

/** All attributes are mandatory (ip_vs_genl_parse_service in net/netfilter/ipvs/ip_vs_ctl.c). */
function configAttributes(family: IpFamily, config: IpvsServiceConfig): Attribute[] {
  const { scheduler, schedulerFlags, persistenceSeconds } = config;
  const persistent = persistenceSeconds === 0 ? 0 : IP_VS_SVC_F_PERSISTENT;
  const flags = (schedulerFlagsOf(schedulerFlags) | persistent) >>> 0;
  return [
    { type: IPVS_SVC_ATTR_SCHED_NAME, value: nulTerminated(scheduler) },
    // Full mask: otherwise an edited service would keep its old flags.
    { type: IPVS_SVC_ATTR_FLAGS, value: Buffer.concat([u32(flags), u32(0xffffffff)]) },
    { type: IPVS_SVC_ATTR_TIMEOUT, value: u32(persistenceSeconds) },
    // Full netmask. IPv4: a netmask of all ones, so byte order does not matter. IPv6: a prefix
    // length.
    { type: IPVS_SVC_ATTR_NETMASK, value: u32(family === 'IPv4' ? 0xffffffff : 128) },
  ];
}

/** Removes the flags that `schedulerFlags` cannot set. */
function schedulerFlagsOf(flags: number): number {
  return (flags & ~(IP_VS_SVC_F_PERSISTENT | IP_VS_SVC_F_HASHED)) >>> 0;
}

function destinationKeyAttributes(
  family: IpFamily,
  { address, port }: IpvsDestinationKey,
): Attribute[] {
  return [
    { type: IPVS_DEST_ATTR_ADDR_FAMILY, value: u16(addressFamily(family)) },
    { type: IPVS_DEST_ATTR_ADDR, value: unionAddress(family, address) },
    { type: IPVS_DEST_ATTR_PORT, value: encodeNumber(port, 2) },
  ];
}

/** All attributes are mandatory (ip_vs_genl_parse_dest). A threshold of 0 means no threshold. */
function destinationAttributes({ weight }: IpvsDestination): Attribute[] {
  return [
    { type: IPVS_DEST_ATTR_FWD_METHOD, value: u32(IP_VS_CONN_F_MASQ) },
    { type: IPVS_DEST_ATTR_WEIGHT, value: u32(weight) },
    { type: IPVS_DEST_ATTR_U_THRESH, value: u32(0) },
    { type: IPVS_DEST_ATTR_L_THRESH, value: u32(0) },
  ];
}

function unionAddress(family: IpFamily, address: string): Buffer {
  // The kernel would read the first 4 bytes of an IPv6 address as an IPv4 address.
  if (familyOf(address) !== family) throw new RangeError(`${address} is not an ${family} address`);
  const bytes = Buffer.allocUnsafe(ADDRESS).fill(0);
  writeAddress(bytes, address, 0);
  return bytes;
}

/**
 * Reads a service of a dump. Ignores statistics, persistence engines and the persistence netmask.
 * @returns undefined for a protocol other than TCP, UDP and SCTP.
 * @throws MalformedMessage
 */
export function readService(payload: Buffer, format: AddressFormatter): IpvsService | undefined {
  const service = nested(payload, IPVS_CMD_ATTR_SERVICE);
  const key = readKey(service, format);
  if (key === undefined) return undefined;
  const flags = readU32(field(service, IPVS_SVC_ATTR_FLAGS, 8), 0);
  const timeout = readU32(field(service, IPVS_SVC_ATTR_TIMEOUT, 4), 0);
  return {
    key,
    scheduler: readText(field(service, IPVS_SVC_ATTR_SCHED_NAME, 1)),
    schedulerFlags: schedulerFlagsOf(flags),
    persistenceSeconds: (flags & IP_VS_SVC_F_PERSISTENT) === 0 ? 0 : timeout,
  };
}

function readKey(
  service: ReadonlyMap<number, Buffer>,
  format: AddressFormatter,
): IpvsServiceKey | undefined {
  const family = readFamily(field(service, IPVS_SVC_ATTR_AF, 2));
  const mark = service.get(IPVS_SVC_ATTR_FWMARK);
  // The kernel sends either the fwmark or the address.
  if (mark !== undefined) {
    return { family, kind: 'mark', mark: readU32(field(service, IPVS_SVC_ATTR_FWMARK, 4), 0) };
  }
  const protocol = protocolOf(readU16(field(service, IPVS_SVC_ATTR_PROTOCOL, 2), 0));
  const address = readUnion(family, field(service, IPVS_SVC_ATTR_ADDR, ADDRESS), format);
  const port = field(service, IPVS_SVC_ATTR_PORT, 2).readUInt16BE();
  return protocol && { family, kind: 'address', protocol, address, port };
}

/**
 * Reads a destination of a dump.
 * @param family Family of the service. A tunnel destination may have the other family:
 * IPVS_DEST_ATTR_ADDR_FAMILY contains it.
 * @throws MalformedMessage
 */
export function readDestination(
  payload: Buffer,
  family: IpFamily,
  format: AddressFormatter,
): IpvsDestinationState {
  const destination = nested(payload, IPVS_CMD_ATTR_DEST);
  const number = (type: number) => readU32(field(destination, type, 4), 0);
  // Kernels before 3.18 do not send this attribute.
  const ownFamily = destination.get(IPVS_DEST_ATTR_ADDR_FAMILY);
  const bytes = field(destination, IPVS_DEST_ATTR_ADDR, ADDRESS);
  return {
    address: readUnion(ownFamily === undefined ? family : readFamily(ownFamily), bytes, format),
    port: field(destination, IPVS_DEST_ATTR_PORT, 2).readUInt16BE(),
    weight: number(IPVS_DEST_ATTR_WEIGHT),
    masquerade: number(IPVS_DEST_ATTR_FWD_METHOD) === IP_VS_CONN_F_MASQ,
    activeConnections: number(IPVS_DEST_ATTR_ACTIVE_CONNS),
    inactiveConnections: number(IPVS_DEST_ATTR_INACT_CONNS),
    persistentConnections: number(IPVS_DEST_ATTR_PERSIST_CONNS),
  };
}

function nested(payload: Buffer, type: number): Map<number, Buffer> {
  return readAttributes(field(readGenetlink(payload), type, 0), 0);
}

function field(attributes: ReadonlyMap<number, Buffer>, type: number, size: number): Buffer {
  return requiredAttribute(attributes, 'IPVS', type, size);
}

function readFamily(bytes: Buffer): IpFamily {
  const number = bytes.length < 2 ? 0 : readU16(bytes, 0);
  const family = ipFamilyOf(number);
  if (family === undefined) throw new MalformedMessage(`IPVS address has unknown family ${number}`);
  return family;
}

function readUnion(family: IpFamily, bytes: Buffer, format: AddressFormatter): string {
  return format(bytes, 0, family === 'IPv4' ? 4 : ADDRESS);
}
