/** Sends datagrams with spoofed source addresses. */
import { readFileSync } from 'node:fs';
import koffi from 'koffi';
import { addressBytes } from '../../../netlink/core/address.ts';
import { serveCalls } from '../../child.ts';
import { type Flow, udpPacket } from './packets.ts';

const AF_INET = 2;
const AF_INET6 = 10;
const AF_PACKET = 17;
const SOCK_DGRAM = 2;
const SOCK_RAW = 3;
const IPPROTO_RAW = 255;
const ETH_P_IP = 0x0800;
/** MAC address of the node on the interface of each pod. */
const GATEWAY_MAC = Buffer.from('eeeeeeeeeeee', 'hex');

const libc = koffi.load('libc.so.6');
const socket = libc.func('int socket(int domain, int type, int protocol)');
const sendto = libc.func(
  'intptr_t sendto(int fd, void *bytes, size_t length, int flags, void *address, uint32_t size)',
);

function send(fd: number, packet: Buffer, address: Buffer): void {
  const sent = sendto(fd, packet, packet.length, 0, address, address.length);
  if (sent !== packet.length) throw new Error(`sendto: errno ${koffi.errno()}`);
}

const HOPS = 64;

function spoofed(flow: Flow, data: Uint8Array): Buffer {
  const packet = udpPacket(flow, Buffer.from(data));
  if (flow.from.includes(':')) {
    packet.writeUInt8(HOPS, 7);
    return packet;
  }
  packet.writeUInt8(HOPS, 8);
  let sum = 0;
  for (let at = 0; at < 20; at += 2) sum += packet.readUInt16BE(at);
  sum = (sum & 0xffff) + (sum >>> 16);
  packet.writeUInt16BE(~((sum & 0xffff) + (sum >>> 16)) & 0xffff, 10);
  return packet;
}

const functions = {
  /** Sends by the routes of the host. */
  send(flow: Flow, data: Uint8Array): void {
    const isIpv6 = flow.to.includes(':');
    // struct sockaddr_in, struct sockaddr_in6
    const address = Buffer.alloc(isIpv6 ? 28 : 16);
    address.writeUInt16LE(isIpv6 ? AF_INET6 : AF_INET, 0);
    address.set(addressBytes(flow.to), isIpv6 ? 8 : 4);
    const family = isIpv6 ? AF_INET6 : AF_INET;
    send(socket(family, SOCK_RAW, IPPROTO_RAW), spoofed(flow, data), address);
  },

  /** Sends a frame to the node, even if the destination is the pod itself. */
  sendFrame(flow: Flow, data: Uint8Array): void {
    const address = Buffer.alloc(20);
    address.writeUInt16LE(AF_PACKET, 0);
    address.writeUInt16BE(ETH_P_IP, 2);
    address.writeInt32LE(Number(readFileSync('/sys/class/net/eth0/ifindex', 'utf8')), 4);
    address.writeUInt8(GATEWAY_MAC.length, 11);
    GATEWAY_MAC.copy(address, 12);
    send(socket(AF_PACKET, SOCK_DGRAM, 0), spoofed(flow, data), address);
  },
};

export type SpooferFunctions = typeof functions;

serveCalls(functions);
