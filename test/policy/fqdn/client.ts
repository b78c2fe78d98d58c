/** The DNS client of the lab tests: looks up names and connects to the addresses. */
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { connect } from 'node:net';
import packet, { type StringAnswer } from 'dns-packet';
import { serveCalls } from '../../child.ts';

export interface LookupsOptions {
  readonly resolver: string;
  /** The name of each lookup; `#` stands for its number. */
  readonly name: string;
  readonly count: number;
  /** Maximum of concurrent lookups. */
  readonly concurrency: number;
  /** Rate limit; default: unlimited. */
  readonly perSecond?: number;
  readonly first?: number;
  /** Connects to this TCP port of the resolved address. */
  readonly port?: number;
}

export interface LookupsResult {
  readonly answered: number;
  readonly connected: number;
  /** Milliseconds between query and answer, sorted. */
  readonly latencies: readonly number[];
  readonly milliseconds: number;
}

const TIMEOUT = 5000;

async function lookup(resolver: string, name: string, id: number) {
  const type = resolver.includes(':') ? 'AAAA' : 'A';
  const socket = createSocket(resolver.includes(':') ? 'udp6' : 'udp4');
  try {
    socket.connect(53, resolver);
    await once(socket, 'connect');
    const answer = once(socket, 'message', { signal: AbortSignal.timeout(TIMEOUT) });
    const start = performance.now();
    socket.send(packet.encode({ type: 'query', id, questions: [{ type, name }] }));
    const [bytes] = (await answer) as [Buffer];
    const milliseconds = performance.now() - start;
    const [first] = packet.decode(bytes).answers ?? [];
    return { address: (first as StringAnswer | undefined)?.data, milliseconds };
  } finally {
    socket.close();
  }
}

/** Whether a TCP connection succeeds, possibly after retransmissions. */
async function reaches(address: string, port: number): Promise<boolean> {
  const socket = connect({ host: address, port });
  socket.on('error', () => undefined);
  try {
    await once(socket, 'connect', { signal: AbortSignal.timeout(TIMEOUT) });
    return true;
  } catch {
    return false;
  } finally {
    socket.destroy();
  }
}

/** Queries A and AAAA at once, as libc does. @returns the number of answers. */
async function askForBoth(resolver: string, name: string): Promise<number> {
  const socket = createSocket('udp4');
  try {
    socket.connect(53, resolver);
    await once(socket, 'connect');
    let answers = 0;
    const both = new Promise<void>((resolve) => {
      socket.on('message', () => {
        answers += 1;
        if (answers === 2) resolve();
      });
    });
    for (const [id, type] of (['A', 'AAAA'] as const).entries()) {
      socket.send(packet.encode({ type: 'query', id, questions: [{ type, name }] }));
    }
    const timer = Promise.withResolvers<void>();
    const timeout = setTimeout(timer.resolve, TIMEOUT);
    await Promise.race([both, timer.promise]);
    clearTimeout(timeout);
    return answers;
  } finally {
    socket.close();
  }
}

const functions = {
  /** @returns the number of answers. */
  async pairs(resolver: string, name: string, count: number): Promise<number> {
    let answers = 0;
    for (let number = 0; number < count; number++) {
      answers += await askForBoth(resolver, name.replaceAll('#', String(number)));
    }
    return answers;
  },

  async lookups(options: LookupsOptions): Promise<LookupsResult> {
    const { resolver, name, count, concurrency, perSecond = Infinity, first = 0, port } = options;
    const latencies: number[] = [];
    let connected = 0;
    let next = 0;
    const begin = performance.now();
    const lane = async () => {
      while (next < count) {
        const number = next++;
        const wait = begin + (number / perSecond) * 1000 - performance.now();
        if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
        const asked = name.replaceAll('#', String(first + number));
        const found = await lookup(resolver, asked, number & 0xffff).catch(() => undefined);
        if (found === undefined) continue;
        latencies.push(found.milliseconds);
        if (port === undefined || found.address === undefined) continue;
        if (await reaches(found.address, port)) connected += 1;
      }
    };
    await Promise.all(Array.from({ length: concurrency }, lane));
    return {
      answered: latencies.length,
      connected,
      latencies: latencies.sort((a, b) => a - b),
      milliseconds: performance.now() - begin,
    };
  },
};

export type ClientFunctions = typeof functions;
serveCalls(functions);
