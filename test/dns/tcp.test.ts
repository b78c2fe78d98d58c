import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { TCP_LIMITS, TcpConnections } from '../../dns/tcp.ts';
import { waitFor } from '../lab/wait.ts';
import { framed } from './fake-resolver.ts';
import { queryBytes } from './messages.ts';

/** More than the connections that one address may keep. */
const CLIENTS = 30;

/** The largest answer. */
const LARGE = 65_535;
/** Milliseconds that an answer takes; all connections together have 5 in a slice. */
const WORK_MS = 2;

describe('DNS over TCP: bounds', () => {
  const connections = new TcpConnections(TCP_LIMITS);
  const clients: Socket[] = [];
  let server: Server | undefined;
  afterEach(() => {
    for (const client of clients) client.destroy();
    connections.close();
    server?.close();
  });

  it(`answers ${CLIENTS} clients at once that share an address`, async () => {
    let accepted = 0;
    const query = framed(queryBytes('a.example', 'A'));
    server = createServer({ allowHalfOpen: true }, (socket) => {
      // As seen from another host: loopback addresses have no bound of their own.
      Object.defineProperty(socket, 'remoteAddress', { value: '192.0.2.1' });
      connections.add(socket, (bytes) => bytes);
      accepted += 1;
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    for (let count = 0; count < CLIENTS; count++) {
      clients.push(connect({ port, host: '127.0.0.1' }));
    }
    const ask = async (client: Socket) => {
      const outcome = Promise.race([once(client, 'data'), once(client, 'close')]);
      await waitFor('all connections', () => accepted === CLIENTS);
      client.write(query);
      const [bytes] = await outcome;
      return Buffer.isBuffer(bytes) && bytes.equals(query);
    };
    const answered = await Promise.all(clients.map(ask));
    assert.equal(answered.filter(Boolean).length, CLIENTS);
  });

  /** @returns the port. */
  const listen = async (answer: () => Buffer) => {
    server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) =>
      connections.add(socket, answer),
    );
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return (server.address() as AddressInfo).port;
  };
  /** A client that sends queries at once, and counts the bytes that it receives. */
  const send = (port: number, queries: number) => {
    const client = connect({ port, host: '127.0.0.1' });
    const state = { client, received: 0 };
    clients.push(client);
    client.on('data', (bytes) => {
      state.received += bytes.length;
    });
    client.write(Buffer.concat(Array(queries).fill(framed(queryBytes('a.example', 'A')))));
    return state;
  };

  it('leaves the event loop to others, however many clients ask for costly answers', async () => {
    const queries = 10;
    const answer = Buffer.alloc(1000);
    let inTurn = 0;
    let most = 0;
    const work = () => {
      const end = performance.now() + WORK_MS;
      while (performance.now() < end);
      inTurn += 1;
      most = Math.max(most, inTurn);
      return answer;
    };
    const port = await listen(work);
    const all = Array.from({ length: CLIENTS }, () => send(port, queries));
    let isDone = false;
    const nextTurn = () => {
      inTurn = 0;
      if (!isDone) setImmediate(nextTurn);
    };
    nextTurn();
    try {
      const isAnswered = ({ received }: { received: number }) =>
        received === queries * (2 + answer.length);
      await waitFor('all answers', () => all.every(isAnswered));
    } finally {
      isDone = true;
    }
    // The two slices of a turn: what has arrived, and what waits.
    assert.ok(most <= 2 * (5 / WORK_MS + 1), `${most} answers in one turn`);
  });

  it('answers other clients while many read nothing of large answers', async () => {
    const answer = Buffer.alloc(LARGE);
    const port = await listen(() => answer);
    for (let count = 0; count < CLIENTS; count++) send(port, 500).client.pause();
    await waitFor('they are connected', () => connections.size === CLIENTS);
    const reader = send(port, 1);
    await waitFor('the answer', () => reader.received === 2 + LARGE);
  });
});
