/** Reads a capture of tcpdump: who spoke with a host, address by address and port by port. */
import ipaddr from 'ipaddr.js';

const FILE_HEADER = 24;
const RECORD_HEADER = 16;
const ETHERNET = 14;
const MAGIC = 0xa1b2_c3d4;
const UDP = 17;
const NEXT_HEADER_FRAGMENT = 44;

/** What a host sent and received, as its wire showed it. */
export interface Wire {
  /** UDP packets by `address port` of the far end. */
  readonly sent: ReadonlyMap<string, number>;
  readonly received: ReadonlyMap<string, number>;
  /** Other packets and fragments, which this does not look into, by protocol number and source. */
  readonly others: ReadonlyMap<string, number>;
}

/** Packets of all far ends. */
export function packetsOf(seen: ReadonlyMap<string, number>): number {
  return [...seen.values()].reduce((total, count) => total + count, 0);
}

/**
 * Summarizes a capture file of little-endian machines. A last packet that is not all in the file yet does not count.
 *
 * @param own addresses of the host on whose interface the packets were captured
 * @throws RangeError if the file is no such capture
 */
export function readCapture(file: Buffer, own: readonly string[]): Wire {
  if (file.readUInt32LE(0) !== MAGIC) throw new RangeError('not a capture of tcpdump');
  const sent = new Map<string, number>();
  const received = new Map<string, number>();
  const others = new Map<string, number>();
  const isOwn = new Set(own);
  // Text of addresses costs more than all else here.
  const names = new Map<string, string>();
  const nameOf = (bytes: Buffer) => {
    const key = bytes.toString('latin1');
    const known = names.get(key);
    if (known !== undefined) return known;
    const name = ipaddr.fromByteArray([...bytes]).toString();
    names.set(key, name);
    return name;
  };
  const count = (tally: Map<string, number>, key: string) =>
    tally.set(key, (tally.get(key) ?? 0) + 1);
  for (let at = FILE_HEADER; at + RECORD_HEADER <= file.length; ) {
    const length = file.readUInt32LE(at + 8);
    if (at + RECORD_HEADER + length > file.length) break;
    const packet = file.subarray(at + RECORD_HEADER + ETHERNET, at + RECORD_HEADER + length);
    at += RECORD_HEADER + length;
    const { source, destination, protocol, payload } = headersOf(packet);
    const from = nameOf(source);
    if (protocol !== UDP || payload === undefined) count(others, `${protocol} ${from}`);
    else if (isOwn.has(from)) count(sent, `${nameOf(destination)} ${payload.readUInt16BE(2)}`);
    else count(received, `${from} ${payload.readUInt16BE(0)}`);
  }
  return { sent, received, others };
}

function headersOf(packet: Buffer) {
  if ((packet[0] ?? 0) >> 4 === 6) {
    const protocol = packet[6] ?? 0;
    return {
      source: packet.subarray(8, 24),
      destination: packet.subarray(24, 40),
      protocol,
      payload: protocol === NEXT_HEADER_FRAGMENT ? undefined : packet.subarray(40),
    };
  }
  const isFragment = (packet.readUInt16BE(6) & 0x3fff) !== 0;
  return {
    source: packet.subarray(12, 16),
    destination: packet.subarray(16, 20),
    protocol: packet[9] ?? 0,
    payload: isFragment ? undefined : packet.subarray(((packet[0] ?? 0) & 0xf) * 4),
  };
}
