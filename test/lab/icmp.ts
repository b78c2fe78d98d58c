import type { Family } from './outcomes.ts';
import { addressAt, familyOf, IPPROTO, transportPart } from './packets.ts';
import { openRaw } from './raw.ts';

/** A flow of this host, as quoted by an ICMP error. */
export interface Flow {
  readonly protocol: number;
  readonly localPort: number;
  readonly remoteAddress: string;
  readonly remotePort: number;
}

/** An ICMP or ICMPv6 error. */
export interface IcmpError {
  readonly family: Family;
  readonly type: number;
  readonly code: number;
}

const MOST_REMEMBERED = 4096;
const DESTINATION_UNREACHABLE = { 4: 3, 6: 1 };
const PORT_UNREACHABLE = { 4: 3, 6: 4 };

/** Errors that arrived before a listener was registered, oldest first. */
const remembered = new Map<string, { readonly error: IcmpError; readonly at: number }>();
const listeners = new Map<string, (error: IcmpError) => void>();
const opened = new Set<Family>();

/**
 * Starts to receive ICMP errors of a family, once per thread. A TCP socket gets ECONNREFUSED for
 * both a reset and an ICMP error, and the kernel delays the latter by a second for local
 * connections. A raw ICMP socket receives errors at once.
 */
export function listenForErrors(family: Family): void {
  if (opened.has(family)) return;
  opened.add(family);
  const socket = openRaw(family, family === 4 ? IPPROTO.icmp : IPPROTO.icmpv6);
  socket.on('message', (packet: Buffer) => record(transportPart(packet, family), family));
  socket.unref();
}

/**
 * Calls `listener` with the error of a flow that arrived since `since` (performance.now()) or
 * arrives later.
 * @returns a function that removes the listener
 */
export function onError(
  flow: Flow,
  since: number,
  listener: (error: IcmpError) => void,
): () => void {
  const key = keyOf(flow);
  const recorded = remembered.get(key);
  remembered.delete(key);
  if (recorded && recorded.at >= since) {
    listener(recorded.error);
    return () => undefined;
  }
  listeners.set(key, listener);
  return () => listeners.delete(key);
}

/** Whether an error is the port unreachable that REJECT sends. */
export function isPortUnreachable({ family, type, code }: IcmpError): boolean {
  return type === DESTINATION_UNREACHABLE[family] && code === PORT_UNREACHABLE[family];
}

function record(message: Buffer, family: Family): void {
  const type = message[0] ?? 0;
  // ICMPv6 errors have types below 128. ICMPv4 errors: unreachable, time exceeded, parameter
  // problem.
  if (family === 6 ? type >= 128 : ![3, 11, 12].includes(type)) return;
  const flow = quotedFlow(message.subarray(8), family);
  if (!flow) return;
  const key = keyOf(flow);
  const error = { family, type, code: message[1] ?? 0 };
  const listener = listeners.get(key);
  if (listener) {
    listeners.delete(key);
    listener(error);
    return;
  }
  remembered.set(key, { error, at: performance.now() });
  const oldest = remembered.size > MOST_REMEMBERED ? remembered.keys().next().value : undefined;
  if (oldest !== undefined) remembered.delete(oldest);
}

function quotedFlow(quoted: Buffer, family: Family): Flow | undefined {
  const headerLength = family === 4 ? ((quoted[0] ?? 0) & 0x0f) * 4 : 40;
  if (quoted.length < headerLength + 4) return undefined;
  return {
    protocol: quoted[family === 4 ? 9 : 6] ?? 0,
    localPort: quoted.readUInt16BE(headerLength),
    remoteAddress: addressAt(quoted, family === 4 ? 16 : 24, family),
    remotePort: quoted.readUInt16BE(headerLength + 2),
  };
}

function keyOf({ protocol, localPort, remoteAddress, remotePort }: Flow): string {
  return `${familyOf(remoteAddress)} ${protocol} ${localPort} ${remoteAddress} ${remotePort}`;
}
