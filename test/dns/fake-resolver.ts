/**
 * A fake DNS server on a local address that answers as instructed, over UDP and TCP on one port.
 */
import { createSocket, type Socket as UdpSocket } from 'node:dgram';
import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import type { Resolver } from '../../dns/exchange.ts';

/** Messages to send in response to a query: none, one or several. */
export type FakeResponder = (
  query: Buffer,
  transport: 'udp' | 'tcp',
) => Buffer | readonly Buffer[] | undefined;

export interface FakeResolver extends Resolver {
  /** Received queries with transport and source port. */
  readonly queries: readonly {
    readonly bytes: Buffer;
    readonly transport: 'udp' | 'tcp';
    readonly port: number;
  }[];
  close(): void;
}

export async function startFakeResolver(
  respond: FakeResponder,
  address = '127.0.0.1',
): Promise<FakeResolver> {
  const { udp, tcp } = await bindBoth(address);
  const queries: { bytes: Buffer; transport: 'udp' | 'tcp'; port: number }[] = [];
  const connections = new Set<Socket>();
  udp.on('message', (bytes, { port, address: client }) => {
    queries.push({ bytes, transport: 'udp', port });
    for (const answer of listOf(respond(bytes, 'udp'))) udp.send(answer, port, client);
  });
  tcp.on('connection', (socket) => {
    connections.add(socket);
    socket.on('error', () => undefined);
    let received = Buffer.alloc(0);
    socket.on('data', (chunk: Buffer) => {
      received = Buffer.concat([received, chunk]);
      if (received.length < 2 || received.length < 2 + received.readUInt16BE(0)) return;
      const bytes = received.subarray(2);
      queries.push({ bytes, transport: 'tcp', port: socket.remotePort ?? 0 });
      const answers = listOf(respond(bytes, 'tcp'));
      if (answers.length === 0) socket.destroy();
      for (const answer of answers) socket.write(framed(answer));
    });
  });
  return {
    address,
    port: udp.address().port,
    queries,
    close: () => {
      udp.close();
      tcp.close();
      for (const socket of connections) socket.destroy();
    },
  };
}

/** A message with its length prefix, as sent over TCP. */
export function framed(message: Buffer): Buffer {
  const length = Buffer.alloc(2);
  length.writeUInt16BE(message.length);
  return Buffer.concat([length, message]);
}

/**
 * An empty response to a query.
 * @param flags of the header.
 */
export function emptyAnswer(query: Buffer, flags = 0x8180): Buffer {
  const answer = Buffer.from(query);
  answer.writeUInt16BE(flags, 2);
  return answer;
}

function listOf(messages: Buffer | readonly Buffer[] | undefined): readonly Buffer[] {
  if (messages === undefined) return [];
  return Buffer.isBuffer(messages) ? [messages] : messages;
}

/** A port that is free for one protocol may be in use for the other. */
async function bindBoth(address: string): Promise<{ udp: UdpSocket; tcp: Server }> {
  for (;;) {
    const udp = createSocket('udp4');
    udp.bind(0, address);
    await once(udp, 'listening');
    const tcp = createServer();
    tcp.listen(udp.address().port, address);
    try {
      await once(tcp, 'listening');
      return { udp, tcp };
    } catch (error) {
      udp.close();
      if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error;
    }
  }
}
