/** Parses the IP, UDP and TCP headers of DNS packets. */

/**
 * Address and port as a binary string: 4 or 16 bytes of address and 2 of port, one character each.
 */
export type SocketAddress = string;

/** The payload of a packet. `data` is a view of the packet. */
export type TransportPayload = Datagram | TcpSegment;

interface Payload {
  readonly source: SocketAddress;
  readonly destination: SocketAddress;
  readonly data: Buffer;
}

interface Datagram extends Payload {
  readonly protocol: 'UDP';
}

export interface TcpSegment extends Payload {
  readonly protocol: 'TCP';
  /** Sequence number of the first byte of `data`, or of the SYN. */
  readonly sequence: number;
  readonly syn: boolean;
  readonly rst: boolean;
}

const IPPROTO_TCP = 6;
const IPPROTO_UDP = 17;
const PORTS = 4;
const UDP_HEADER = 8;
const TCP_HEADER = 20;
const SYN = 0x02;
const RST = 0x04;

/**
 * Parses a packet that begins with the IP header. The kernel has already reassembled fragments
 * (nf_defrag), and conntrack has verified the checksums of tracked packets.
 * @returns undefined for protocols other than UDP and TCP, fragments, and inconsistent lengths.
 */
export function readPacket(packet: Buffer): TransportPayload | undefined {
  const version = (packet[0] ?? 0) >> 4;
  if (version === 4) return readIpv4(packet);
  return version === 6 ? readIpv6(packet) : undefined;
}

const IPV4_HEADER = 20;
/** Mask of the IPv4 fragment field: more-fragments flag and offset. */
const FRAGMENT = 0x3fff;

function readIpv4(packet: Buffer): TransportPayload | undefined {
  if (packet.length < IPV4_HEADER) return undefined;
  const header = (packet.readUInt8(0) & 0x0f) * 4;
  const total = packet.readUInt16BE(2);
  if (header < IPV4_HEADER || total > packet.length || header > total) return undefined;
  if ((packet.readUInt16BE(6) & FRAGMENT) !== 0) return undefined;
  const addresses = { source: latin1(packet, 12, 4), destination: latin1(packet, 16, 4) };
  return readTransport(packet.readUInt8(9), packet.subarray(header, total), addresses);
}

const IPV6_HEADER = 40;
/** Hop-by-hop options, routing and destination options share one format (RFC 8200). */
const EXTENSIONS = new Set([0, 43, 60]);

function readIpv6(packet: Buffer): TransportPayload | undefined {
  if (packet.length < IPV6_HEADER) return undefined;
  const total = IPV6_HEADER + packet.readUInt16BE(4);
  if (total > packet.length) return undefined;
  let protocol = packet.readUInt8(6);
  let start = IPV6_HEADER;
  while (EXTENSIONS.has(protocol)) {
    if (start + 8 > total) return undefined;
    protocol = packet.readUInt8(start);
    start += (packet.readUInt8(start + 1) + 1) * 8;
  }
  const addresses = { source: latin1(packet, 8, 16), destination: latin1(packet, 24, 16) };
  return readTransport(protocol, packet.subarray(start, total), addresses);
}

function readTransport(
  protocol: number,
  bytes: Buffer,
  addresses: { readonly source: string; readonly destination: string },
): TransportPayload | undefined {
  if (bytes.length < PORTS) return undefined;
  const source = addresses.source + latin1(bytes, 0, 2);
  const destination = addresses.destination + latin1(bytes, 2, 2);
  if (protocol === IPPROTO_UDP) {
    if (bytes.length < UDP_HEADER) return undefined;
    const length = bytes.readUInt16BE(4);
    if (length < UDP_HEADER || length > bytes.length) return undefined;
    return { protocol: 'UDP', source, destination, data: bytes.subarray(UDP_HEADER, length) };
  }
  if (protocol !== IPPROTO_TCP || bytes.length < TCP_HEADER) return undefined;
  const header = (bytes.readUInt8(12) >> 4) * 4;
  if (header < TCP_HEADER || header > bytes.length) return undefined;
  const flags = bytes.readUInt8(13);
  return {
    protocol: 'TCP',
    source,
    destination,
    data: bytes.subarray(header),
    sequence: bytes.readUInt32BE(4),
    syn: (flags & SYN) !== 0,
    rst: (flags & RST) !== 0,
  };
}

function latin1(bytes: Buffer, start: number, length: number): string {
  return bytes.toString('latin1', start, start + length);
}
