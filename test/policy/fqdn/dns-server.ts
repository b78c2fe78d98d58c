/**
 * The DNS server of the lab tests, over UDP and TCP. A name encodes its own records; see
 * `recordsOf`.
 */
import { createSocket, type RemoteInfo } from 'node:dgram';
import { once } from 'node:events';
import { createServer, type Socket } from 'node:net';
import packet, { type Answer, type Packet } from 'dns-packet';
import { serveCalls } from '../../child.ts';

/** Addresses of the host `elsewhere` that names are resolved to. */
export function addressOf(number: number, type: 'A' | 'AAAA'): string {
  const [high, low] = [(number >> 8) & 0xff, number & 0xff];
  return type === 'A'
    ? `198.18.${high}.${low}`
    : `2001:db8:52::${high.toString(16)}:${low.toString(16)}`;
}

/** A query over UDP and its source. */
export interface Asked {
  readonly name: string;
  readonly id: number;
  readonly address: string;
  readonly port: number;
}

const asked: Asked[] = [];

function partsOf(name: string): string[] {
  return (name.split('.')[0] ?? '').toLowerCase().split('-');
}

/**
 * The records of a name, encoded in its first label. `-` joins several:
 * - `a7`: the address with this number; `m100`: the first hundred from 1000 on
 * - `t5`: a TTL of 5 seconds; otherwise 300
 * - `i10x0x0x1`: this IPv4 address; type A only
 * - `cname`: a CNAME with its address records in the same answer; `bare`: a CNAME only
 * - `silent`: no answer
 */
function recordsOf(name: string, type: 'A' | 'AAAA'): Answer[] {
  const parts = partsOf(name);
  const number = (letter: string) => {
    const part = parts.find((each) => new RegExp(`^${letter}\\d+$`).test(each));
    return part === undefined ? undefined : Number(part.slice(1));
  };
  const ttl = number('t') ?? 300;
  const alias = `alias-of-${parts.join('-')}.elsewhere.test`;
  if (parts.includes('bare')) return [{ type: 'CNAME', name, ttl, data: alias }];
  const owner = parts.includes('cname') ? alias : name;
  const literal = parts.find((each) => /^i[\dx]+$/.test(each));
  if (literal !== undefined) {
    const data = literal.slice(1).replaceAll('x', '.');
    return type === 'A' ? [{ type, name, ttl, data }] : [];
  }
  const single = number('a');
  const many = number('m') ?? 0;
  const numbers = [
    ...(single === undefined ? [] : [single]),
    ...Array.from({ length: many }, (_, index) => 1000 + index),
  ];
  const addresses = numbers.map((each) => ({
    type,
    name: owner,
    ttl,
    data: addressOf(each, type),
  }));
  if (owner === name) return addresses;
  return [{ type: 'CNAME', name, ttl, data: alias }, ...addresses];
}

function answerTo(query: Buffer, limit: number): Buffer {
  const { id = 0, questions = [], additionals = [] } = packet.decode(query);
  const [question] = questions;
  const type = question?.type;
  const answers =
    question !== undefined && (type === 'A' || type === 'AAAA')
      ? recordsOf(question.name, type)
      : [];
  const response: Packet = { type: 'response', id, flags: packet.RECURSION_AVAILABLE, questions };
  const whole = packet.encode({ ...response, answers });
  const edns = additionals.find((each) => each.type === 'OPT');
  if (whole.length <= Math.max(limit, edns?.type === 'OPT' ? edns.udpPayloadSize : 0)) return whole;
  return packet.encode({
    ...response,
    flags: packet.RECURSION_AVAILABLE | packet.TRUNCATED_RESPONSE,
    answers: answers.slice(0, 5),
  });
}

async function serve(address: string): Promise<void> {
  const isIpv6 = address.includes(':');
  const udp = createSocket({ type: isIpv6 ? 'udp6' : 'udp4', ipv6Only: isIpv6 });
  udp.on('message', (query: Buffer, from: RemoteInfo) => {
    const { id = 0, questions = [] } = packet.decode(query);
    const name = questions[0]?.name ?? '';
    if (!partsOf(name).includes('silent')) {
      udp.send(answerTo(query, 512), from.port, from.address);
      return;
    }
    asked.push({ name, id, address: from.address, port: from.port });
  });
  udp.bind({ port: 53, address });
  const tcp = createServer(serveConnection);
  tcp.listen({ port: 53, host: address, ipv6Only: true });
  await Promise.all([once(udp, 'listening'), once(tcp, 'listening')]);
}

function serveConnection(socket: Socket): void {
  let bytes = Buffer.alloc(0);
  socket.on('error', () => socket.destroy());
  socket.on('data', (chunk: Buffer) => {
    bytes = Buffer.concat([bytes, chunk]);
    while (bytes.length >= 2 && bytes.length >= 2 + bytes.readUInt16BE(0)) {
      const end = 2 + bytes.readUInt16BE(0);
      const answer = answerTo(bytes.subarray(2, end), 65_535);
      const length = Buffer.alloc(2);
      length.writeUInt16BE(answer.length);
      socket.write(Buffer.concat([length, answer]));
      bytes = bytes.subarray(end);
    }
  });
}

const functions = {
  serve,
  /** Unanswered queries. */
  asked: (): readonly Asked[] => asked,
};
export type ServerFunctions = typeof functions;
if (process.send !== undefined && import.meta.main) serveCalls(functions);
