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
/** The number of the protocol. */
const UDP = 17;

const servers: DnsServer[] = [];
const sockets: Socket[] = [];
const datagrams: UdpSocket[] = [];
const udpSockets: UdpSocket[] = [];

/** Says of an answer what a handler says. */
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
  const heard: ServedQuery[] = [];
  for (;;) {
    const server = new DnsServer({
      port: 0,
      handle,
      onServed: (exchange) => heard.push(exchange),
      limits: { ...TCP_LIMITS, ...limits },
    });
    try {
      await server.listen(address);
    } catch (error) {
      // The port that was free for UDP is taken for TCP.
      if ((error as NodeJS.ErrnoException).code === 'EADDRINUSE') continue;
      throw error;
    }
    servers.push(server);
    return { server, heard, port: server.portOf(address) ?? 0 };
  }
}

/** A client over TCP, with the messages that it got. */
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

describe('server: a DNS server', () => {
  for (const [type, address, family] of [
    ['udp4', '127.0.0.1', 'IPv4'],
    ['udp6', '::1', 'IPv6'],
  ] as const) {
    it(`answers ${family} by UDP, from the address that was asked`, async () => {
      const { port, heard } = await start(echo, {}, address);
      const socket = udp(type);
      const answered = once(socket, 'message');
      socket.send(query(7), port, address);
      const [bytes, from] = await answered;
      assert.deepEqual(bytes, emptyAnswer(query(7)));
      assert.deepEqual([from.address, from.port], [address, port]);
      const [{ family: seen, seconds } = assert.fail()] = heard;
      assert.equal(seen, family);
      assert.ok(seconds >= 0 && seconds < 60);
    });
  }

  it('answers by UDP when it has asked somebody itself, and not at all when there is nothing to say', async () => {
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

  it('passes over what nobody can have sent: a datagram from port 0', async () => {
    const { port, heard } = await start();
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
    assert.equal(heard.length, 1);
  });

  it('is not harmed by an answer that comes when it is closed', async () => {
    const { promise, resolve } = Promise.withResolvers<HandlerResult>();
    const asked = Promise.withResolvers<void>();
    const { server, port } = await start(() => {
      asked.resolve();
      return promise;
    });
    const socket = udp('udp4');
    socket.send(query(1), port, ADDRESS);
    await asked.promise;
    server.closeAll();
    resolve(handled(emptyAnswer(query(1))));
    // Mocha says nothing of it.
    const failures: unknown[] = [];
    const listener = (reason: unknown) => failures.push(reason);
    process.on('unhandledRejection', listener);
    await new Promise((done) => setImmediate(done));
    process.off('unhandledRejection', listener);
    assert.deepEqual(failures, []);
  });

  it('listens by both protocols or by none', async () => {
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

  it('holds nothing where it can listen by one protocol alone', async () => {
    const taken = createServer().listen(0, ADDRESS);
    await once(taken, 'listening');
    const { port } = taken.address() as AddressInfo;
    const server = new DnsServer({ port, handle: echo, onServed: () => {} });
    await assert.rejects(server.listen(ADDRESS), { code: 'EADDRINUSE' });
    const socket = udp('udp4');
    const listening = once(socket, 'listening');
    socket.bind(port, ADDRESS);
    await listening;
    taken.close();
  });
});

describe('server: a DNS server that drains', () => {
  /** Answers when it is told to. */
  function slow() {
    const waiting: (() => void)[] = [];
    const handle: QueryHandler = (bytes) =>
      new Promise((resolve) => waiting.push(() => resolve(handled(emptyAnswer(bytes)))));
    return { handle, waiting };
  }
  const LONG = 60_000;

  it('answers the queries that it has, by UDP and TCP, takes no more, and closes', async () => {
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

  it('answers datagrams that came before', async () => {
    const { port, server } = await start();
    const socket = udp('udp4');
    const answered = once(socket, 'message');
    // The kernel of the loopback has it when the callback comes.
    await new Promise((resolve) => socket.send(query(1), port, ADDRESS, resolve));
    await server.drain(LONG);
    assert.equal((await answered)[0].readUInt16BE(0), 1);
  });

  it('waits for a limited time', async () => {
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

describe('server: over TCP', () => {
  it('queries are answered one after the other on one connection', async () => {
    const { port, heard } = await start();
    const { socket, messages } = await client(port);
    for (let id = 1; id <= 3; id++) {
      socket.write(framed(query(id)));
      await waitFor('an answer', () => messages.length === id);
      assert.deepEqual(messages.at(-1), emptyAnswer(query(id)));
    }
    assert.equal(heard.length, 3);
  });

  it('many may come at once, in pieces of any size', async () => {
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

  it('answers of one read go out together, for each write costs a call of the kernel', async () => {
    const { port } = await start();
    const { write } = Socket.prototype;
    let writes = 0;
    Socket.prototype.write = function (this: Socket, ...args: Parameters<typeof write>) {
      if (this.localPort === port) writes += 1;
      return write.apply(this, args);
    } as typeof write;
    try {
      const { socket, ids } = await client(port);
      const asked = Array.from({ length: 50 }, (_, id) => id);
      socket.write(Buffer.concat(asked.map((id) => framed(query(id)))));
      await waitFor('all are answered', () => ids().length === asked.length);
      assert.deepEqual(ids(), asked);
    } finally {
      Socket.prototype.write = write;
    }
    // One, unless this process is interrupted: then what there is goes out first.
    assert.ok(writes <= 25, String(writes));
  });

  it('whoever has to be waited for holds up nobody', async () => {
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

  it('so many are waited for and no more', async () => {
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

  it('a client that says no more gets its answers first', async () => {
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

  it('what nothing is said to does not end the connection', async () => {
    const { port } = await start((bytes) =>
      bytes.readUInt16BE(0) === 1 ? handled(undefined) : echo(bytes, 'tcp'),
    );
    const { socket, ids } = await client(port);
    socket.write(Buffer.concat([1, 2].map((id) => framed(query(id)))));
    await waitFor('the other answer', () => ids().length === 1);
    assert.deepEqual(ids(), [2]);
  });

  for (const [what, length] of [
    ['longer than queries are', 4097],
    ['shorter than a header', 11],
    ['empty', 0],
  ] as const) {
    it(`a message that is ${what} ends the connection`, async () => {
      const { port, server } = await start();
      const { socket, closed, messages } = await client(port);
      const head = Buffer.alloc(2);
      head.writeUInt16BE(length);
      socket.write(head);
      await closed;
      assert.equal(messages.length, 0);
      await waitFor('it is gone', () => server.connections === 0);
    });
  }

  it('a connection that asks nothing is closed, also one that never ends its query', async () => {
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
    assert.ok(at < bytes.length - 1, 'it had more to say');
  });

  it('one that asks stays', async () => {
    const { port, server } = await start(echo, { idle: 600 });
    const busy = await client(port);
    const quiet = await client(port);
    let id = 0;
    // Asks as soon as it is answered, until the other has been closed, and for as long again.
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

  it('one connection too many ends the one that has been quiet for longest', async () => {
    const { port, server } = await start(echo, { connections: 3 });
    const clients = [];
    for (let count = 0; count < 3; count++) {
      clients.push(await client(port));
      await waitFor('it is accepted', () => server.connections === count + 1);
    }
    const [first, second, third] = clients;
    assert.ok(first && second && third);
    first.socket.write(framed(query(1)));
    await waitFor('an answer', () => first.messages.length === 1);
    const fourth = await client(port);
    await second.closed;
    fourth.socket.write(framed(query(4)));
    await waitFor('an answer', () => fourth.messages.length === 1);
    assert.deepEqual([first.socket.destroyed, third.socket.destroyed], [false, false]);
    assert.equal(server.connections, 3);
  });

  it('also when many come at once', async () => {
    const { port, server } = await start(echo, { connections: 3 });
    const clients = await Promise.all(Array.from({ length: 20 }, () => client(port)));
    await waitFor(
      'three are left',
      () => clients.filter(({ socket }) => !socket.destroyed).length === 3,
    );
    assert.equal(server.connections, 3);
  });

  it('one client with many queries at once does not hold up another', async () => {
    let asked = 0;
    let before: number | undefined;
    const { port } = await start((bytes, transport) => {
      asked += 1;
      if (bytes.readUInt16BE(0) === 0xffff) before ??= asked;
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

  it('nor does one with queries that take long', async () => {
    let asked = 0;
    let before: number | undefined;
    const { port } = await start((bytes, transport) => {
      asked += 1;
      if (bytes.readUInt16BE(0) === 0xffff) before ??= asked;
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

  it('a client that does not read its answers is not read from', async () => {
    const answer = Buffer.alloc(60_000);
    let asked = 0;
    const { port, server } = await start(() => {
      asked += 1;
      return handled(answer);
    });
    const { socket } = await client(port);
    socket.pause();
    const count = 20_000;
    const stream = Buffer.concat(
      Array.from({ length: count }, (_, id) => framed(query(id & 0xffff))),
    );
    socket.write(stream);
    // It is stuck once both sides' kernels hold what they can: then nothing moves any more.
    let last = -1;
    let looks = 0;
    await waitFor('nothing is read any more', () => {
      looks = asked === last ? looks + 1 : 0;
      last = asked;
      return asked > 0 && looks === 10;
    });
    const then = asked;
    assert.ok(then < count / 10, `${then} answers of 60,000 bytes were made`);
    assert.equal(server.connections, 1);
    // Once it reads, all goes on.
    let bytes = 0;
    socket.removeAllListeners('data');
    socket.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
    });
    socket.resume();
    await waitFor('more answers', () => asked > then && bytes > answer.length);
  });

  it('clients that come and go leave nothing', async () => {
    const { port, server } = await start();
    for (let turn = 0; turn < 50; turn++) {
      const { socket } = await client(port);
      if (turn % 2 === 0) socket.write(framed(query(turn)));
      if (turn % 3 === 0) socket.resetAndDestroy();
      else socket.destroy();
    }
    await waitFor('all are gone', () => server.connections === 0);
  });

  it('closing ends connections too', async () => {
    const { port, server } = await start();
    const { closed } = await client(port);
    await waitFor('it is accepted', () => server.connections === 1);
    server.closeAll();
    await closed;
  });
});
