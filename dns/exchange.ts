/** One query to one resolver, and its answer. */
import { randomInt } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { connect, isIPv6 } from 'node:net';
import { HEADER_LENGTH, type Transport } from './query.ts';
import { FLAG, rcodeIn } from './response.ts';

export interface Resolver {
  /** An IP address, of IPv6 perhaps with a zone. */
  readonly address: string;
  readonly port: number;
}

/** A resolver did not answer; the cause tells of a network's error, if there was one. */
export class NoAnswer extends Error {
  override readonly name = 'NoAnswer';
  readonly code: 'TIMEOUT' | 'UNREACHABLE';

  constructor({ address, port }: Resolver, code: NoAnswer['code'], cause?: Error) {
    const why = cause === undefined ? 'no answer in time' : cause.message;
    super(`resolver ${address} port ${port}: ${why}`, { cause });
    this.code = code;
  }
}

/** Milliseconds until a query by UDP is sent again: it, or its answer, may have been lost. Twice as many each time. */
const RESEND = 500;

/**
 * Asks under an id and from a port of its own, both by chance, so that nobody who does not see the
 * query can answer in the resolver's place (RFC 5452). By UDP it is sent again while there is no answer, under the
 * same id and from the same port, so that a late answer to the first counts and forgers gain nothing.
 * @param query its id is of no matter.
 * @param question the question in it, which the answer has to repeat.
 * @param timeout milliseconds.
 * @returns the answer, under whatever id.
 * @throws NoAnswer (a rejection)
 */
export function exchange(
  resolver: Resolver,
  query: Buffer,
  question: Buffer,
  transport: Transport,
  timeout: number,
): Promise<Buffer> {
  const id = randomInt(0x10000);
  const own = Buffer.from(query);
  own.writeUInt16BE(id, 0);
  const isAnswer = (bytes: Buffer) => answers(bytes, id, question);
  const ask = transport === 'udp' ? askByUdp : askByTcp;
  return ask(resolver, own, isAnswer, timeout);
}

/** Whether this is the answer to a query; names are compared as DNS does, for case says nothing. */
function answers(bytes: Buffer, id: number, question: Buffer): boolean {
  if (bytes.length < HEADER_LENGTH || bytes.readUInt16BE(0) !== id) return false;
  if ((bytes.readUInt16BE(2) & FLAG.QR) === 0) return false;
  const questions = bytes.readUInt16BE(4);
  // Who could not read the query may not repeat it.
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
      // Closing twice throws.
      socket.removeAllListeners().on('error', () => undefined);
      socket.close();
    };
    const fail = (code: NoAnswer['code'], cause?: Error) => {
      end();
      reject(new NoAnswer(resolver, code, cause));
    };
    const timer = setTimeout(fail, timeout, 'TIMEOUT');
    socket.once('error', (error) => fail('UNREACHABLE', error));
    socket.on('message', (bytes) => {
      // Something else may be a forged answer; the right one may follow.
      if (!isAnswer(bytes)) return;
      end();
      resolve(bytes);
    });
    // Connected, it hears this resolver alone, and of ICMP errors.
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
    const fail = (code: NoAnswer['code'], cause?: Error) => {
      end();
      reject(new NoAnswer(resolver, code, cause));
    };
    const timer = setTimeout(fail, timeout, 'TIMEOUT');
    socket.on('error', (error) => fail('UNREACHABLE', error));
    socket.on('close', () => fail('UNREACHABLE', new Error('the connection was closed')));
    socket.on('data', (chunk: Buffer) => {
      received = Buffer.concat([received, chunk]);
      const message = takeMessage(received);
      if (message === undefined) return;
      if (!isAnswer(message)) return fail('UNREACHABLE', new Error('it answered something else'));
      end();
      resolve(message);
    });
    const length = Buffer.alloc(2);
    length.writeUInt16BE(query.length);
    socket.write(Buffer.concat([length, query]));
  });

/** The first message of a stream (RFC 1035, 4.2.2), once it is complete. */
function takeMessage(stream: Buffer): Buffer | undefined {
  if (stream.length < 2) return undefined;
  const end = 2 + stream.readUInt16BE(0);
  return stream.length < end ? undefined : stream.subarray(2, end);
}
