/** Sends one query to one resolver and waits for its response. */
import { randomInt } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { connect, isIPv6 } from 'node:net';
import { HEADER_LENGTH, type Transport } from './query.ts';
import { FLAG, rcodeIn } from './response.ts';

export interface Resolver {
  /** IP address; a link-local IPv6 address may have a zone (RFC 4007). */
  readonly address: string;
  readonly port: number;
}

/**
 * A resolver gave no usable answer. `cause` is a network error, a closed connection or a mismatch;
 * undefined after a timeout.
 */
export class NoResponseError extends Error {
  override readonly name = 'NoResponseError';
  readonly code: 'TIMEOUT' | 'UNREACHABLE';

  constructor({ address, port }: Resolver, code: NoResponseError['code'], cause?: Error) {
    const why = cause === undefined ? 'no response before the timeout' : cause.message;
    super(`resolver ${address} port ${port}: ${why}`, { cause });
    this.code = code;
  }
}

/**
 * Milliseconds before a UDP query is sent again, because the query or its response may be lost.
 * Doubles each time.
 */
const RESEND = 500;

/**
 * Sends a query with a random id from a random port: an off-path attacker must guess both to forge
 * the response (RFC 5452). A UDP query is repeated with the same id and port until a response
 * arrives. A late response to the first copy is thus accepted, and the attacker's chance does not
 * grow.
 * @param query its id is replaced.
 * @param question question section of the query, which the response must repeat.
 * @param timeout milliseconds.
 * @returns the response; its id has no meaning.
 * @throws NoResponseError (as a rejection)
 */
export function exchange(
  resolver: Resolver,
  query: Buffer,
  question: Buffer,
  transport: Transport,
  timeout: number,
): Promise<Buffer> {
  const id = randomInt(0x10000);
  const message = Buffer.from(query);
  message.writeUInt16BE(id, 0);
  const isAnswer = (bytes: Buffer) => answers(bytes, id, question);
  const ask = transport === 'udp' ? askByUdp : askByTcp;
  return ask(resolver, message, isAnswer, timeout);
}

/**
 * Whether `bytes` is the response to a query. Names are compared case-insensitively, as DNS does.
 */
function answers(bytes: Buffer, id: number, question: Buffer): boolean {
  if (bytes.length < HEADER_LENGTH || bytes.readUInt16BE(0) !== id) return false;
  if ((bytes.readUInt16BE(2) & FLAG.QR) === 0) return false;
  const questions = bytes.readUInt16BE(4);
  // A server that could not parse the query may leave out the question.
  if (questions === 0) return rcodeIn(bytes) !== 0;
  const repeated = bytes.subarray(HEADER_LENGTH, HEADER_LENGTH + question.length);
  return questions === 1 && isSameQuestion(repeated, question);
}

function isSameQuestion(a: Buffer, b: Buffer): boolean {
  return a.toString('latin1').toLowerCase() === b.toString('latin1').toLowerCase();
}

type Ask = (
  resolver: Resolver,
  query: Buffer,
  isAnswer: (bytes: Buffer) => boolean,
  timeout: number,
) => Promise<Buffer>;

const askByUdp: Ask = (resolver, query, isAnswer, timeout) =>
  new Promise((resolve, reject) => {
    const { address, port } = resolver;
    const socket = createSocket(isIPv6(address) ? 'udp6' : 'udp4');
    let resend: NodeJS.Timeout | undefined;
    const send = (pause: number) => {
      socket.send(query);
      resend = setTimeout(send, pause, 2 * pause);
    };
    const end = () => {
      clearTimeout(timer);
      clearTimeout(resend);
      // Closing a socket twice throws.
      socket.removeAllListeners().on('error', () => undefined);
      socket.close();
    };
    const fail = (code: NoResponseError['code'], cause?: Error) => {
      end();
      reject(new NoResponseError(resolver, code, cause));
    };
    const timer = setTimeout(fail, timeout, 'TIMEOUT');
    socket.once('error', (error) => fail('UNREACHABLE', error));
    socket.on('message', (bytes) => {
      // A datagram that does not match may be forged; the real response may still arrive.
      if (!isAnswer(bytes)) return;
      end();
      resolve(bytes);
    });
    // A connected socket receives only from this resolver and reports ICMP errors.
    socket.once('connect', () => send(RESEND));
    socket.connect(port, address);
  });

const askByTcp: Ask = (resolver, query, isAnswer, timeout) =>
  new Promise((resolve, reject) => {
    const { address: host, port } = resolver;
    const socket = connect({ host, port, noDelay: true });
    let received = Buffer.alloc(0);
    const end = () => {
      clearTimeout(timer);
      socket.destroy();
    };
    const fail = (code: NoResponseError['code'], cause?: Error) => {
      end();
      reject(new NoResponseError(resolver, code, cause));
    };
    const timer = setTimeout(fail, timeout, 'TIMEOUT');
    socket.on('error', (error) => fail('UNREACHABLE', error));
    socket.on('close', () => fail('UNREACHABLE', new Error('the resolver closed the connection')));
    socket.on('data', (chunk: Buffer) => {
      received = Buffer.concat([received, chunk]);
      const message = takeMessage(received);
      if (message === undefined) return;
      if (!isAnswer(message))
        return fail('UNREACHABLE', new Error('the response does not match the query'));
      end();
      resolve(message);
    });
    const length = Buffer.alloc(2);
    length.writeUInt16BE(query.length);
    socket.write(Buffer.concat([length, query]));
  });

/** The first message of a TCP stream (RFC 1035, 4.2.2), or undefined while it is incomplete. */
function takeMessage(stream: Buffer): Buffer | undefined {
  if (stream.length < 2) return undefined;
  const end = 2 + stream.readUInt16BE(0);
  return stream.length < end ? undefined : stream.subarray(2, end);
}
