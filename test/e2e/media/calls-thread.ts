/**
 * The thread that makes calls, in the network namespace of the client. A call has two ends: the caller speaks through a
 * relayed port of a TURN server behind the VIP, the far end to and from that port of the VIP. Each end sends a packet
 * of RTP every 20 ms, and counts what the other one sent. Both sockets are connected, so the kernel discards packets
 * that do not come from the VIP.
 */
import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { parentPort, workerData } from 'node:worker_threads';
import { LabError } from '../../lab/errors.ts';
import { enterNamespace } from '../../lab/libc.ts';
import type {
  CallCounts,
  CallRequest,
  CallsIdentity,
  CallsReply,
  DirectionCounts,
} from './calls.ts';
import {
  type Answer,
  allocateRequest,
  CHANNEL_HEADER,
  type Credentials,
  channelData,
  channelRequest,
  isChannelData,
  readAnswer,
} from './turn.ts';

const PACKET_MS = 20;
/** RTP header and 20 ms of G.711. */
const RTP_LENGTH = 172;
const SEQUENCES = 0x1_0000;
const RECEIVE_BUFFER = 1 << 20;
/** First wait for an answer of the relay; the next ones are longer (RFC 8489, 6.2.1). */
const RETRY_MS = 250;
const ATTEMPTS = 7;
const DRAIN_MS = 3000;
/** After a pause of this process, at most so much is sent at once. */
const LARGEST_LAG_MS = 200;

/** One direction of a call. */
interface Direction {
  sent: number;
  received: number;
  /** Highest sequence number received, plus one. */
  next: number;
  duplicates: number;
  /** A bit for each sequence number received. */
  readonly seen: Uint8Array;
}

interface Call {
  readonly id: number;
  readonly family: 4 | 6;
  readonly port: number;
  readonly caller: Socket;
  readonly far: Socket;
  readonly out: Direction;
  readonly back: Direction;
  readonly toRelay: Buffer;
  readonly toFar: Buffer;
  errors: number;
}

if (!parentPort) throw new LabError('THREAD_FAILED', 'this module runs only as a worker thread');
const port = parentPort;
const { namespace, addresses, vips, user, password, turnPort } = workerData as CallsIdentity;
enterNamespace(namespace);

const calls = new Map<number, Call>();
/** The calls by the part of the 20 ms in which they send. */
const phases: Set<Call>[] = Array.from({ length: PACKET_MS }, () => new Set());
const due = phases.map((_, phase) => performance.now() + phase);
let lastId = 0;

port.on('message', ({ id, request }: { id: number; request: CallRequest }) => {
  handle(request).then(
    (value) => port.postMessage({ id, value } satisfies CallsReply),
    (error: unknown) => port.postMessage({ id, error: String(error) } satisfies CallsReply),
  );
});
setInterval(sendDue, 1);

async function handle(request: CallRequest): Promise<readonly CallCounts[]> {
  if (request.kind === 'place') {
    return (await Promise.all(request.families.map(place))).map(countsOf);
  }
  if (request.kind === 'count') return [...calls.values()].map(countsOf);
  const chosen = request.ids.map((id) => calls.get(id)).filter((call) => call !== undefined);
  for (const call of chosen) for (const phase of phases) phase.delete(call);
  const end = performance.now() + (request.drain ? DRAIN_MS : 0);
  while (performance.now() < end && !chosen.every(isComplete)) await sleep(5);
  for (const call of chosen) {
    calls.delete(call.id);
    call.caller.close();
    call.far.close();
  }
  return chosen.map(countsOf);
}

async function place(family: 4 | 6): Promise<Call> {
  const [caller, far] = await Promise.all([open(family), open(family)]);
  const vip = vips[family];
  caller.connect(turnPort, vip);
  await once(caller, 'connect');
  const first = await ask(caller, () => allocateRequest(family));
  const { realm, nonce } = first;
  if (first.error !== 401) throw new Error(`the relay asked for no credentials: ${first.error}`);
  const credentials: Credentials = { user, password, realm, nonce };
  const { relayed, error } = await ask(caller, () => allocateRequest(family, credentials));
  if (relayed === undefined) throw new Error(`the relay refused a port: ${error}`);
  if (relayed.address !== vip) throw new Error(`the relay announced ${relayed.address}`);
  const peer = { address: addresses[family], port: far.address().port };
  const bound = await ask(caller, () => channelRequest(peer, credentials));
  if (bound.error !== undefined) throw new Error(`the relay refused a channel: ${bound.error}`);
  far.connect(relayed.port, vip);
  await once(far, 'connect');

  lastId += 1;
  const call: Call = {
    ...{ id: lastId, family, port: relayed.port, caller, far, errors: 0 },
    out: newDirection(),
    back: newDirection(),
    toRelay: channelData(rtpPacket(lastId)),
    toFar: rtpPacket(lastId),
  };
  for (const socket of [caller, far]) {
    socket.on('error', () => {
      call.errors += 1;
    });
  }
  caller.on('message', (message) => {
    if (isChannelData(message)) receive(call.back, message, CHANNEL_HEADER);
  });
  far.on('message', (message) => receive(call.out, message, 0));
  calls.set(call.id, call);
  phases[call.id % PACKET_MS]?.add(call);
  return call;
}

async function open(family: 4 | 6): Promise<Socket> {
  const socket = createSocket({
    type: family === 4 ? 'udp4' : 'udp6',
    recvBufferSize: RECEIVE_BUFFER,
  });
  socket.bind(0, addresses[family]);
  await once(socket, 'listening');
  return socket;
}

/** Sends a request until it is answered. */
async function ask(
  socket: Socket,
  next: () => { readonly transaction: string; readonly message: Buffer },
): Promise<Answer> {
  const { transaction, message } = next();
  const answer = Promise.withResolvers<Answer>();
  const onMessage = (received: Buffer) => {
    const read = readAnswer(received);
    if (read?.transaction === transaction) answer.resolve(read);
  };
  // A relay that is gone: the next attempt may reach another one.
  const onError = () => undefined;
  socket.on('message', onMessage).on('error', onError);
  try {
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      socket.send(message);
      const timer = new AbortController();
      const timeout = sleep(RETRY_MS * 2 ** Math.min(attempt, 4), undefined, {
        signal: timer.signal,
      }).catch(() => undefined);
      const result = await Promise.race([answer.promise, timeout]);
      timer.abort();
      if (result !== undefined) return result;
    }
  } finally {
    socket.off('message', onMessage).off('error', onError);
  }
  throw new Error('no relay answered');
}

function rtpPacket(source: number): Buffer {
  const packet = Buffer.alloc(RTP_LENGTH, 0xd5);
  packet[0] = 0x80;
  packet[1] = 8;
  packet.writeUInt32BE(source, 8);
  return packet;
}

function sendDue(): void {
  const now = performance.now();
  for (const [phase, members] of phases.entries()) {
    let at = Math.max(due[phase] ?? now, now - LARGEST_LAG_MS);
    for (; at <= now; at += PACKET_MS) {
      for (const call of members) {
        send(call.caller, call.toRelay, CHANNEL_HEADER, call.out);
        send(call.far, call.toFar, 0, call.back);
      }
    }
    due[phase] = at;
  }
}

function send(socket: Socket, template: Buffer, offset: number, direction: Direction): void {
  // A copy: the kernel may take it later.
  const packet = Buffer.from(template);
  packet.writeUInt16BE(direction.sent % SEQUENCES, offset + 2);
  packet.writeUInt32BE((direction.sent * 160) >>> 0, offset + 4);
  direction.sent += 1;
  socket.send(packet);
}

function receive(direction: Direction, message: Buffer, offset: number): void {
  if (message.length !== offset + RTP_LENGTH) return;
  const sequence = message.readUInt16BE(offset + 2);
  const [at, bit] = [sequence >> 3, 1 << (sequence & 7)];
  const byte = direction.seen[at] ?? 0;
  // Calls are shorter than the 21 minutes after which numbers repeat.
  if ((byte & bit) !== 0) {
    direction.duplicates += 1;
    return;
  }
  direction.seen[at] = byte | bit;
  direction.received += 1;
  if (sequence >= direction.next) direction.next = sequence + 1;
}

function isComplete({ out, back }: Call): boolean {
  return out.received >= out.sent && back.received >= back.sent;
}

function countsOf({ id, family, port: owned, out, back, errors }: Call): CallCounts {
  return { id, family, port: owned, out: numbersOf(out), back: numbersOf(back), errors };
}

function newDirection(): Direction {
  return { sent: 0, received: 0, next: 0, duplicates: 0, seen: new Uint8Array(SEQUENCES / 8) };
}

function numbersOf({ sent, received, next, duplicates }: Direction): DirectionCounts {
  return { sent, received, next, duplicates };
}
