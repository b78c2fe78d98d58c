/**
 * Runs in the client's namespace until it is killed: opens connections at a steady rate, one SYN each, which endpoints
 * refuse. Arguments: connections a second, and number of Services.
 */
import koffi from 'koffi';
import { addressBytes } from '../netlink/core/address.ts';
import { SERVICE_PORT, vip } from './cluster.ts';
import { CLIENT_ADDRESS } from './network.ts';

const AF_INET = 2;
const SOCK_RAW = 3;
const IPPROTO_TCP = 6;
const SYN = 0x02;
/** Offset in the TCP header. */
const CHECKSUM = 16;
const FIRST_PORT = 1024;
/** Milliseconds between two batches. */
const PERIOD = 5;

const libc = koffi.load(null);
const socket = libc.func('int socket(int domain, int type, int protocol)');
const sendto = libc.func(
  'int64_t sendto(int fd, const void *bytes, size_t length, int flags, const void *to, uint32_t toLength)',
);

const [rate = 0, services = 0] = process.argv.slice(2).map(Number);
const fd = Number(socket(AF_INET, SOCK_RAW, IPPROTO_TCP));
const packet = Buffer.alloc(20);
packet.writeUInt16BE(SERVICE_PORT, 2);
packet.writeUInt8(5 << 4, 12);
packet.writeUInt8(SYN, 13);
packet.writeUInt16BE(65_535, 14);
const targets = Array.from({ length: services }, (_, index) => {
  const to = Buffer.alloc(16);
  to.writeUInt16LE(AF_INET);
  addressBytes(vip(index)).copy(to, 4);
  return to;
});
const from = addressBytes(CLIENT_ADDRESS);
const started = performance.now();
let sent = 0;
setInterval(() => {
  for (const due = ((performance.now() - started) / 1000) * rate; sent < due; sent++) {
    const to = targets[sent % services] ?? Buffer.alloc(16);
    const port = FIRST_PORT + (Math.floor(sent / services) % (65_536 - FIRST_PORT));
    packet.writeUInt16BE(port, 0);
    packet.writeUInt16BE(checksum(to.subarray(4, 8)), CHECKSUM);
    sendto(fd, packet, packet.length, 0, to, to.length);
  }
}, PERIOD);

/** The TCP checksum, with the pseudo header. The kernel does not track packets with another one. */
function checksum(to: Buffer): number {
  let sum = IPPROTO_TCP + packet.length;
  for (const bytes of [from, to, packet]) {
    for (let at = 0; at < bytes.length; at += 2) {
      if (bytes !== packet || at !== CHECKSUM) sum += bytes.readUInt16BE(at);
    }
  }
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  return ~sum & 0xffff;
}
