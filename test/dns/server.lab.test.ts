import assert from 'node:assert/strict';
import { createSocket, type Socket as UdpSocket } from 'node:dgram';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, Socket } from 'node:net';
import type { HandlerResult, QueryHandler } from '../../dns/handler.ts';
import { DnsServer, type ServedQuery } from '../../dns/server.ts';
import { TCP_LIMITS, type TcpLimits } from '../../dns/tcp.ts';
import { openRaw, sendRaw } from '../lab/raw.ts';
import { waitFor } from '../lab/wait.ts';
import { emptyAnswer, framed } from './fake-resolver.ts';
import { queryBytes } from './messages.ts';

const ADDRESS = '127.0.0.1';
/** The IP protocol number. */
const UDP = 17;

const servers: DnsServer[] = [];
const sockets: Socket[] = [];
const datagrams: UdpSocket[] = [];
const udpSockets: UdpSocket[] = [];

/** A handler's result with this response. */
function handled(response: Buffer | undefined): HandlerResult {
  if (response === undefined) return { response, served: undefined };
  const lengths = { requestLength: 0, responseLength: response.length };
  const served = { transport: 'udp', zone: '', query: undefined, rcode: 0, by: 'zone' } as const;
  return { response, served: { ...served, ...lengths } };
}

const echo: QueryHandler = (bytes) => handled(emptyAnswer(bytes));

async function start(
  handle: QueryHandler = echo,
  limits: Partial<TcpLimits> = {},
  address = ADDRESS,
) {
  const servedQueries: ServedQuery[] = [];
  for (;;) {
    const server = new DnsServer({
      port: 0,
      handle,
      onServed: (exchange) => servedQueries.push(exchange),
      limits: { ...TCP_LIMITS, ...limits },
    });
    try {
      await server.listen(address);
    } catch (error) {
      // The port that was free for UDP is in use for TCP.
      if ((error as NodeJS.ErrnoException).code === 'EADDRINUSE') continue;
      throw error;
    }
    servers.push(server);
    return { server, servedQueries, port: server.portOf(address) ?? 0 };
  }
}

/** A TCP client with the messages that it received. */
async function client(port: number, options: { allowHalfOpen?: boolean } = {}) {
  const socket = connect({ port, host: ADDRESS, ...options });
  sockets.push(socket);
  socket.on('error', () => undefined);
  const messages: Buffer[] = [];
  let received = Buffer.alloc(0);
  socket.on('data', (chunk: Buffer) => {
    received = Buffer.concat([received, chunk]);
    while (received.length >= 2 && received.length >= 2 + received.readUInt16BE(0)) {
      const end = 2 + received.readUInt16BE(0);
      messages.push(received.subarray(2, end));
      received = received.subarray(end);
    }
  });
  await once(socket, 'connect');
  const closed = new Promise((resolve) => socket.once('close', resolve));
  return { socket, messages, closed, ids: () => messages.map((each) => each.readUInt16BE(0)) };
}

/** A socket that is closed after the test. */
function udp(type: 'udp4' | 'udp6'): UdpSocket {
  const socket = createSocket(type);
  udpSockets.push(socket);
  return socket;
}

const query = (id: number, name = 'a.example') => queryBytes(name, 'A', { id });

afterEach(() => {
  for (const socket of datagrams.splice(0)) socket.close();
  for (const socket of sockets.splice(0)) socket.destroy();
  for (const socket of udpSockets.splice(0)) socket.close();
  for (const server of servers.splice(0)) server.closeAll();
});

describe('server: DnsServer', () => {
  for (const [type, address, family] of [
    ['udp4', '127.0.0.1', 'IPv4'],
    ['udp6', '::1', 'IPv6'],
  ] as const) {
    it(`answers ${family} over UDP, from the address that was queried`, async () => {
      const { port, servedQueries } = await start(echo, {}, address);
      const socket = udp(type);
      const answered = once(socket, 'message');
      socket.send(query(7), port, address);
      const [bytes, from] = await answered;
      assert.deepEqual(bytes, emptyAnswer(query(7)));
      assert.deepEqual([from.address, from.port], [address, port]);
      const [{ family: seen, seconds } = assert.fail()] = servedQueries;
      assert.equal(seen, family);
      assert.ok(seconds >= 0 && seconds < 60);
    });
  }

  it('answers over UDP when the handler is asynchronous, and sends nothing without a response', async () => {
    const { port } = await start((bytes) =>
      bytes.readUInt16BE(0) === 1
        ? handled(undefined)
        : Promise.resolve(handled(emptyAnswer(bytes))),
    );
    const socket = udp('udp4');
    const answered = once(socket, 'message');
    for (const id of [1, 2]) socket.send(query(id), port, ADDRESS);
    const [bytes] = await answered;
    assert.equal(bytes.readUInt16BE(0), 2);
  });

  it('ignores datagrams with source port 0', async () => {
    const { port, servedQueries } = await start();
    const header = Buffer.alloc(8);
    header.writeUInt16BE(port, 2);
    header.writeUInt16BE(header.length + query(1).length, 4);
    const forged = openRaw(4, UDP);
    datagrams.push(forged);
    sendRaw(forged, Buffer.concat([header, query(1)]), UDP, ADDRESS);
    const socket = createSocket('udp4');
    datagrams.push(socket);
    const answered = once(socket, 'message');
    socket.send(query(2), port, ADDRESS);
    const [bytes] = await answered;
    assert.deepEqual(bytes, emptyAnswer(query(2)));
    assert.equal(servedQueries.length, 1);
  });

  it('ignores a response that is ready after close', async () => {
    const { promise, resolve } = Promise.withResolvers<HandlerResult>();
    const started = Promise.withResolvers<void>();
    const { server, port } = await start(() => {
      started.resolve();
      return promise;
    });
    const socket = udp('udp4');
    socket.send(query(1), port, ADDRESS);
    await started.promise;
    server.closeAll();
    resolve(handled(emptyAnswer(query(1))));
    // Mocha would not report an unhandled rejection.
    const failures: unknown[] = [];
    const listener = (reason: unknown) => failures.push(reason);
    process.on('unhandledRejection', listener);
    await new Promise((done) => setImmediate(done));
    process.off('unhandledRejection', listener);
    assert.deepEqual(failures, []);
  });

  it('listens on UDP and TCP, or fails', async () => {
    const { server, port } = await start();
    assert.deepEqual(server.addresses, [ADDRESS]);
    const other = new DnsServer({ port, handle: echo, onServed: () => {} });
    await assert.rejects(other.listen(ADDRESS), { code: 'EADDRINUSE' });
    assert.deepEqual(other.addresses, []);
    server.close(ADDRESS);
    assert.deepEqual([server.addresses, server.portOf(ADDRESS)], [[], undefined]);
    await other.listen(ADDRESS);
    other.closeAll();
  });

  it('holds no socket if only one protocol is available', async () => {
    const blocker = createServer().listen(0, ADDRESS);
    await once(blocker, 'listening');
    const { port } = blocker.address() as AddressInfo;
    const server = new DnsServer({ port, handle: echo, onServed: () => {} });
    await assert.rejects(server.listen(ADDRESS), { code: 'EADDRINUSE' });
    const socket = udp('udp4');
    const listening = once(socket, 'listening');
    socket.bind(port, ADDRESS);
    await listening;
    blocker.close();
  });
});

describe('server: drain()', () => {
  /** A handler that answers on demand. */
  function slow() {
    const waiting: (() => void)[] = [];
    const handle: QueryHandler = (bytes) =>
      new Promise((resolve) => waiting.push(() => resolve(handled(emptyAnswer(bytes)))));
    return { handle, waiting };
  }
  const LONG = 60_000;

  it('answers the queries received, over UDP and TCP, ignores new ones, and closes', async () => {
    const { handle, waiting } = slow();
    const { port, server } = await start(handle);
    const socket = udp('udp4');
    const answered = once(socket, 'message');
    socket.send(query(1), port, ADDRESS);
    const tcp = await client(port);
    tcp.socket.write(framed(query(2)));
    const idle = await client(port);
    await waitFor('both wait', () => waiting.length === 2);
    const drained = server.drain(LONG);
    await idle.closed;
    socket.send(query(3), port, ADDRESS);
    tcp.socket.write(framed(query(4)));
    for (const answer of waiting) answer();
    assert.equal((await answered)[0].readUInt16BE(0), 1);
    await drained;
    await tcp.closed;
    assert.deepEqual(tcp.ids(), [2]);
    assert.equal(waiting.length, 2);
    assert.deepEqual([server.addresses, server.connections], [[], 0]);
  });

  it('answers datagrams that the kernel received before drain()', async () => {
    const { port, server } = await start();
    const socket = udp('udp4');
    const answered = once(socket, 'message');
    // The loopback interface has delivered the datagram when the callback is called.
    await new Promise((resolve) => socket.send(query(1), port, ADDRESS, resolve));
    await server.drain(LONG);
    assert.equal((await answered)[0].readUInt16BE(0), 1);
  });

  it('closes everything after the time limit of drain()', async () => {
    const { handle, waiting } = slow();
    const { port, server } = await start(handle);
    const tcp = await client(port);
    tcp.socket.write(framed(query(1)));
    await waitFor('it waits', () => waiting.length === 1);
    await server.drain(1);
    await tcp.closed;
    assert.deepEqual(tcp.ids(), []);
  });
});

describe('server: TCP', () => {
  it('answers queries one after the other on one connection', async () => {
    const { port, servedQueries } = await start();
    const { socket, messages } = await client(port);
    for (let id = 1; id <= 3; id++) {
      socket.write(framed(query(id)));
      await waitFor('an answer', () => messages.length === id);
      assert.deepEqual(messages.at(-1), emptyAnswer(query(id)));
    }
    assert.equal(servedQueries.length, 3);
  });

  it('accepts several queries at once, in pieces of any size', async () => {
    const { port } = await start();
    const ids = Array.from({ length: 500 }, (_, index) => index);
    const stream = Buffer.concat(ids.map((id) => framed(query(id))));
    const { socket, ids: answered } = await client(port);
    for (let at = 0, size = 1; at < stream.length; at += size, size = (size * 7) % 997) {
      await new Promise((resolve) => socket.write(stream.subarray(at, at + size), resolve));
    }
    await waitFor('all answers', () => answered().length === ids.length);
    assert.deepEqual(answered(), ids);
  });

  it('writes the responses to one read in one system call', async () => {
    const { port } = await start();
    const { write } = Socket.prototype;
    let writes = 0;
    Socket.prototype.write = function (this: Socket, ...args: Parameters<typeof write>) {
      if (this.localPort === port) writes += 1;
      return write.apply(this, args);
    } as typeof write;
    try {
      const { socket, ids } = await client(port);
      const queryIds = Array.from({ length: 50 }, (_, id) => id);
      socket.write(Buffer.concat(queryIds.map((id) => framed(query(id)))));
      await waitFor('all queries are answered', () => ids().length === queryIds.length);
      assert.deepEqual(ids(), queryIds);
    } finally {
      Socket.prototype.write = write;
    }
    // One, unless the process is interrupted: then the responses so far are written first.
    assert.ok(writes <= 25, String(writes));
  });

  it('does not delay other queries for one that waits for a resolver', async () => {
    const { promise, resolve } = Promise.withResolvers<HandlerResult>();
    const { port } = await start((bytes) =>
      bytes.readUInt16BE(0) === 1 ? promise : echo(bytes, 'tcp'),
    );
    const { socket, ids } = await client(port);
    socket.write(Buffer.concat([1, 2, 3].map((id) => framed(query(id)))));
    await waitFor('the others', () => ids().length === 2);
    resolve(handled(emptyAnswer(query(1))));
    await waitFor('the last', () => ids().length === 3);
    assert.deepEqual(ids(), [2, 3, 1]);
  });

  it('limits the pending queries of a connection', async () => {
    const waiting: (() => void)[] = [];
    const { port } = await start(
      (bytes) => new Promise((resolve) => waiting.push(() => resolve(handled(emptyAnswer(bytes))))),
      { pendingQueries: 2 },
    );
    const { socket, ids } = await client(port);
    socket.write(Buffer.concat([1, 2, 3, 4].map((id) => framed(query(id)))));
    for (let answered = 0; answered < 4; answered++) {
      await waitFor('a query', () => waiting.length > answered);
      assert.ok(waiting.length <= answered + 2);
      waiting[answered]?.();
      await waitFor('its answer', () => ids().length === answered + 1);
    }
    assert.deepEqual(ids(), [1, 2, 3, 4]);
  });

  it('sends pending responses after the client has closed its side', async () => {
    const { promise, resolve } = Promise.withResolvers<HandlerResult>();
    const { port } = await start((bytes) =>
      bytes.readUInt16BE(0) === 1 ? promise : echo(bytes, 'tcp'),
    );
    const { socket, ids, closed } = await client(port, { allowHalfOpen: true });
    socket.end(Buffer.concat([1, 2].map((id) => framed(query(id)))));
    await waitFor('one answer', () => ids().length === 1);
    resolve(handled(emptyAnswer(query(1))));
    await once(socket, 'end');
    assert.deepEqual(ids(), [2, 1]);
    await closed;
  });

  it('keeps the connection open when a query gets no response', async () => {
    const { port } = await start((bytes) =>
      bytes.readUInt16BE(0) === 1 ? handled(undefined) : echo(bytes, 'tcp'),
    );
    const { socket, ids } = await client(port);
    socket.write(Buffer.concat([1, 2].map((id) => framed(query(id)))));
    await waitFor('the other response', () => ids().length === 1);
    assert.deepEqual(ids(), [2]);
  });

  for (const [what, length] of [
    ['longer than a query', 4097],
    ['shorter than a header', 11],
    ['empty', 0],
  ] as const) {
    it(`closes the connection after a message that is ${what}`, async () => {
      const { port, server } = await start();
      const { socket, closed, messages } = await client(port);
      const head = Buffer.alloc(2);
      head.writeUInt16BE(length);
      socket.write(head);
      await closed;
      assert.equal(messages.length, 0);
      await waitFor('the connection is closed', () => server.connections === 0);
    });
  }

  it('closes a connection that sends no complete query', async () => {
    const { port } = await start(echo, { idle: 60 });
    const quiet = await client(port);
    const slow = await client(port);
    const bytes = framed(query(1));
    let at = 0;
    const drip = setInterval(() => {
      if (at < bytes.length - 1) slow.socket.write(bytes.subarray(at, ++at));
    }, 10);
    await Promise.all([quiet.closed, slow.closed]);
    clearInterval(drip);
    assert.ok(at < bytes.length - 1, 'the client had more to send');
  });

  it('keeps a connection open while it sends queries', async () => {
    const { port, server } = await start(echo, { idle: 600 });
    const busy = await client(port);
    const quiet = await client(port);
    let id = 0;
    // Sends a query after each response until the idle connection has been closed, and for as long
    // again.
    const askUntil = async (done: () => boolean) => {
      while (!done()) {
        busy.socket.write(framed(query(++id)));
        await waitFor('an answer', () => busy.messages.length === id);
      }
    };
    await askUntil(() => quiet.socket.destroyed);
    const again = await client(port);
    await askUntil(() => again.socket.destroyed);
    assert.ok(!busy.socket.destroyed);
    assert.equal(server.connections, 1);
  });

  it('closes the connection idle for longest when there are too many', async () => {
    const { port, server } = await start(echo, { total: 3 });
    const clients = [];
    for (let count = 0; count < 3; count++) {
      clients.push(await client(port));
      await waitFor('the connection is accepted', () => server.connections === count + 1);
    }
    const [first, second, third] = clients;
    assert.ok(first && second && third);
    const ask = async ({ socket, messages }: typeof first, id: number) => {
      socket.write(framed(query(id)));
      await waitFor('an answer', () => messages.at(-1)?.readUInt16BE(0) === id);
    };
    for (const [index, each] of [first, second, third].entries()) await ask(each, 1 + index);
    await ask(first, 4);
    const fourth = await client(port);
    await second.closed;
    await ask(fourth, 5);
    assert.deepEqual([first.socket.destroyed, third.socket.destroyed], [false, false]);
    assert.equal(server.connections, 3);
  });

  it('closes the connections idle for longest among many simultaneous ones', async () => {
    const { port, server } = await start(echo, { total: 3 });
    const clients = await Promise.all(Array.from({ length: 20 }, () => client(port)));
    await waitFor(
      'three connections remain',
      () => clients.filter(({ socket }) => !socket.destroyed).length === 3,
    );
    assert.equal(server.connections, 3);
  });

  it('interleaves one client with many queries and another client', async () => {
    let queryCount = 0;
    let before: number | undefined;
    const { port } = await start((bytes, transport) => {
      queryCount += 1;
      if (bytes.readUInt16BE(0) === 0xffff) before ??= queryCount;
      return echo(bytes, transport);
    });
    const [greedy, other] = [await client(port), await client(port)];
    const count = 1000;
    const all = Buffer.concat(Array.from({ length: count }, (_, id) => framed(query(id))));
    await new Promise((resolve) => greedy.socket.write(all, resolve));
    other.socket.write(framed(query(0xffff)));
    await waitFor(
      'both are answered',
      () => other.messages.length === 1 && greedy.messages.length === count,
    );
    assert.ok(before !== undefined && before < count, `${before} before it`);
  });

  it('interleaves slow queries with queries of another client', async () => {
    let queryCount = 0;
    let before: number | undefined;
    const { port } = await start((bytes, transport) => {
      queryCount += 1;
      if (bytes.readUInt16BE(0) === 0xffff) before ??= queryCount;
      const end = performance.now() + 6;
      while (performance.now() < end);
      return echo(bytes, transport);
    });
    const [greedy, other] = [await client(port), await client(port)];
    const all = Buffer.concat(Array.from({ length: 40 }, (_, id) => framed(query(id))));
    await new Promise((resolve) => greedy.socket.write(all, resolve));
    other.socket.write(framed(query(0xffff)));
    await waitFor(
      'both are answered',
      () => other.messages.length === 1 && greedy.messages.length === 40,
    );
    assert.ok(before !== undefined && before < 40, `${before} before it`);
  });

  it('stops reading from a client that does not read its responses', async () => {
    const answer = Buffer.alloc(60_000);
    let queryCount = 0;
    const { port, server } = await start(() => {
      queryCount += 1;
      return handled(answer);
    });
    const { socket } = await client(port);
    socket.pause();
    const count = 20_000;
    const stream = Buffer.concat(
      Array.from({ length: count }, (_, id) => framed(query(id & 0xffff))),
    );
    socket.write(stream);
    // The connection is stuck once the kernel buffers of both sides are full.
    let last = -1;
    let stableReads = 0;
    await waitFor('nothing is read any more', () => {
      stableReads = queryCount === last ? stableReads + 1 : 0;
      last = queryCount;
      return queryCount > 0 && stableReads === 10;
    });
    const then = queryCount;
    assert.ok(then < count / 10, `${then} responses of 60,000 bytes were made`);
    assert.equal(server.connections, 1);
    // Everything continues once the client reads.
    let bytes = 0;
    socket.removeAllListeners('data');
    socket.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
    });
    socket.resume();
    await waitFor('more answers', () => queryCount > then && bytes > answer.length);
  });

  it('releases closed connections', async () => {
    const { port, server } = await start();
    for (let turn = 0; turn < 50; turn++) {
      const { socket } = await client(port);
      if (turn % 2 === 0) socket.write(framed(query(turn)));
      if (turn % 3 === 0) socket.resetAndDestroy();
      else socket.destroy();
    }
    await waitFor('all connections are closed', () => server.connections === 0);
  });

  it('closes connections on closeAll()', async () => {
    const { port, server } = await start();
    const { closed } = await client(port);
    await waitFor('the connection is accepted', () => server.connections === 1);
    server.closeAll();
    await closed;
  });
});
