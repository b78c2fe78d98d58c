/**
 * Minimal SCTP that shows where a packet arrives: an INIT, and the INIT ACK that answers it. The
 * kernel here has no SCTP sockets, but its conntrack and NAT check SCTP packets. They are therefore
 * valid (RFC 9260): checksum, verification tags and mandatory fields.
 */
import { randomInt } from 'node:crypto';
import type { Socket } from 'node:dgram';
import { isPortUnreachable, listenForErrors, onError } from './icmp.ts';
import type { HostIdentity, ProbeRequest } from './messages.ts';
import type { Family, ProbeOutcome, ServerReply } from './outcomes.ts';
import { crc32c, familyOf, IPPROTO, plainAddress, transportPart } from './packets.ts';
import { openRaw, sendRaw } from './raw.ts';

export const INIT = 1;
export const INIT_ACK = 2;
const STATE_COOKIE = 7;
const COMMON_HEADER = 12;
const INIT_LENGTH = 20;

interface InitPacket {
  readonly type: number;
  readonly sourcePort: number;
  readonly port: number;
  readonly verificationTag: number;
  readonly initiateTag: number;
  /** INIT ACK only: name of the answering host. */
  readonly cookie: string;
}

/** Sends one INIT and waits for the INIT ACK. */
export function probeSctp(request: ProbeRequest): Promise<ProbeOutcome> {
  const { address, port, timeoutMs, localAddress } = request;
  const family = familyOf(address);
  listenForErrors(family);
  const since = performance.now();
  const localPort = request.localPort ?? randomInt(32768, 61000);
  const initiateTag = randomInt(1, 2 ** 32 - 1);
  return new Promise((resolve) => {
    const socket = openRaw(family, IPPROTO.sctp, localAddress);
    const finish = (outcome: ProbeOutcome) => {
      clearTimeout(timer);
      cancelError();
      socket.close();
      resolve(outcome);
    };
    const timer = setTimeout(() => finish({ outcome: 'timeout' }), timeoutMs);
    const flow = {
      protocol: IPPROTO.sctp,
      localPort,
      remoteAddress: address,
      remotePort: port,
    };
    const cancelError = onError(flow, since, (icmp) => {
      const { type, code } = icmp;
      if (isPortUnreachable(icmp)) finish({ outcome: 'refused', by: 'icmp' });
      else finish({ outcome: 'error', code: `ICMP_${type}_${code}` });
    });
    socket.on('message', (bytes: Buffer, { address: sender }) => {
      const packet = parseInit(transportPart(bytes, family));
      if (packet?.type !== INIT_ACK || packet.verificationTag !== initiateTag) return;
      if (plainAddress(sender) !== address || packet.sourcePort !== port) return;
      finish({ outcome: 'answered', reply: JSON.parse(packet.cookie) as ServerReply, localPort });
    });
    const init = { type: INIT, sourcePort: localPort, port, verificationTag: 0, initiateTag };
    sendRaw(socket, formatInit({ ...init, cookie: '' }), IPPROTO.sctp, address);
  });
}

const servedPorts = new Set<number>();
let everyPort = false;
let listeners: Socket[] = [];

/** Answers INITs to these ports of the host's addresses, or to every port. */
export function serveSctp(host: HostIdentity, ports: readonly number[] | 'every'): void {
  if (ports === 'every') everyPort = true;
  else for (const port of ports) servedPorts.add(port);
  if (listeners.length > 0) return;
  listeners = ([4, 6] as const).flatMap((family) =>
    host.addresses[family].map((address) => listen(host.name, family, address)),
  );
}

/** Stops answering on these ports, and closes the socket when none is left. */
export function stopServingSctp(ports: readonly number[] | 'every' | undefined): void {
  if (ports === 'every') everyPort = false;
  else if (ports === undefined) servedPorts.clear();
  else for (const port of ports) servedPorts.delete(port);
  if (everyPort || servedPorts.size > 0) return;
  for (const socket of listeners) socket.close();
  listeners = [];
}

function listen(host: string, family: Family, localAddress: string): Socket {
  const socket = openRaw(family, IPPROTO.sctp, localAddress);
  socket.on('message', (bytes: Buffer, { address }) => {
    const init = parseInit(transportPart(bytes, family));
    if (init?.type !== INIT || !(everyPort || servedPorts.has(init.port))) return;
    const remoteAddress = plainAddress(address);
    const reply: ServerReply = {
      host,
      protocol: 'SCTP',
      localAddress,
      localPort: init.port,
      remoteAddress,
      remotePort: init.sourcePort,
    };
    const answer = formatInit({
      type: INIT_ACK,
      sourcePort: init.port,
      port: init.sourcePort,
      verificationTag: init.initiateTag,
      initiateTag: randomInt(1, 2 ** 32 - 1),
      cookie: JSON.stringify(reply),
    });
    sendRaw(socket, answer, IPPROTO.sctp, remoteAddress);
  });
  return socket;
}

export function formatInit(packet: InitPacket): Buffer {
  const cookie = Buffer.from(packet.cookie);
  const cookieLength = packet.type === INIT_ACK ? 4 + cookie.length : 0;
  const padded = Math.ceil(cookieLength / 4) * 4;
  const bytes = Buffer.alloc(COMMON_HEADER + INIT_LENGTH + padded);
  bytes.writeUInt16BE(packet.sourcePort, 0);
  bytes.writeUInt16BE(packet.port, 2);
  bytes.writeUInt32BE(packet.verificationTag, 4);
  bytes.writeUInt8(packet.type, 12);
  bytes.writeUInt16BE(INIT_LENGTH + cookieLength, 14);
  bytes.writeUInt32BE(packet.initiateTag, 16);
  bytes.writeUInt32BE(65536, 20); // receiver window
  bytes.writeUInt16BE(1, 24); // outbound streams
  bytes.writeUInt16BE(1, 26); // inbound streams
  bytes.writeUInt32BE(1, 28); // initial TSN
  if (cookieLength > 0) {
    bytes.writeUInt16BE(STATE_COOKIE, 32);
    bytes.writeUInt16BE(cookieLength, 34);
    bytes.set(cookie, 36);
  }
  bytes.writeUInt32LE(crc32c(bytes), 8);
  return bytes;
}

export function parseInit(bytes: Buffer): InitPacket | undefined {
  if (bytes.length < COMMON_HEADER + INIT_LENGTH) return undefined;
  const checked = Buffer.from(bytes);
  checked.writeUInt32LE(0, 8);
  if (crc32c(checked) !== bytes.readUInt32LE(8)) return undefined;
  const hasCookie = bytes.length >= 36 && bytes.readUInt16BE(32) === STATE_COOKIE;
  return {
    type: bytes.readUInt8(12),
    sourcePort: bytes.readUInt16BE(0),
    port: bytes.readUInt16BE(2),
    verificationTag: bytes.readUInt32BE(4),
    initiateTag: bytes.readUInt32BE(16),
    cookie: hasCookie ? bytes.toString('utf8', 36, 32 + bytes.readUInt16BE(34)) : '',
  };
}
