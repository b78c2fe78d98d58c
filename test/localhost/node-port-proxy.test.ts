import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import type { LocalhostNodePort } from '../../localhost/endpoint-picker.ts';
import { NodePortProxy } from '../../localhost/node-port-proxy.ts';
import { waitFor } from '../lab/wait.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

describe('node-port-proxy: proxy for node ports on localhost', () => {
  const servers: Server[] = [];
  const sockets: Socket[] = [];
  let timers: FakeTimers;
  let proxy: NodePortProxy;
  let events: string[];

  beforeEach(() => {
    timers = new FakeTimers();
    events = [];
    proxy = new NodePortProxy({
      families: ['IPv4', 'IPv6'],
      timers,
      onBindFailure: (_nodePort, error) =>
        events.push((error as NodeJS.ErrnoException).code ?? error.message),
      onBindRecovery: () => events.push('recovered'),
      onBindAbandoned: () => events.push('abandoned'),
      onConnection: (_nodePort, isForwarded) => events.push(isForwarded ? 'forwarded' : 'failed'),
    });
  });

  afterEach(async () => {
    for (const socket of sockets.splice(0)) socket.destroy();
    const drained = proxy.drain(0);
    timers.advance(0);
    await drained;
    for (const server of servers.splice(0)) server.close();
  });

  /** An endpoint: a server that passes each connection to `onConnection`. */
  async function endpoint(onConnection: (socket: Socket) => void, host = '127.0.0.1') {
    const server = createServer({ allowHalfOpen: true }, (socket) => {
      sockets.push(socket);
      socket.on('error', () => {});
      onConnection(socket);
    });
    servers.push(server);
    server.listen({ host, port: 0 });
    await once(server, 'listening');
    return { address: host, port: (server.address() as AddressInfo).port };
  }

  /** A port that was free a moment ago. */
  async function freePort(): Promise<number> {
    const { port } = await endpoint(() => {});
    const server = servers.pop();
    server?.close();
    if (server) await once(server, 'close');
    return port;
  }

  async function nodePort(
    endpoints: LocalhostNodePort['endpoints'],
    fields: Partial<LocalhostNodePort> = {},
  ): Promise<LocalhostNodePort> {
    const port = fields.port ?? (await freePort());
    const serviceKey = 'default/web';
    return {
      id: 'web',
      serviceKey,
      family: 'IPv4',
      affinitySeconds: 0,
      ...fields,
      endpoints,
      port,
    };
  }

  /** Connects, and retries until the listener is bound. */
  async function client(port: number, host = '127.0.0.1'): Promise<Socket> {
    return await waitFor('a connection', async () => {
      const socket = connect({ host, port, allowHalfOpen: true });
      sockets.push(socket);
      try {
        await once(socket, 'connect');
      } catch {
        return undefined;
      }
      socket.on('error', () => {});
      return socket;
    });
  }

  async function all(socket: Socket): Promise<string> {
    let text = '';
    for await (const chunk of socket) text += String(chunk);
    return text;
  }

  /** Whether a socket was reset, once it has closed. */
  const isReset = (socket: Socket) =>
    new Promise<boolean>((resolve) => socket.resume().once('close', resolve));

  const refused = async (port: number) => {
    const socket = connect({ host: '127.0.0.1', port });
    const [error] = await once(socket, 'error');
    assert.equal((error as NodeJS.ErrnoException).code, 'ECONNREFUSED');
  };

  const SERVED = [
    ['IPv4', '127.0.0.1'],
    ['IPv6', '::1'],
  ] as const;
  for (const [family, host] of SERVED) {
    it(`returns the response to a client that closed its side first (${family})`, async () => {
      const target = await endpoint((socket) => {
        void all(socket).then((said) => socket.end(`you said ${said}`));
      }, host);
      const own = await nodePort([target], { family });
      proxy.update([own]);
      const socket = await client(own.port, host);
      socket.end('hello');
      assert.equal(await all(socket), 'you said hello');
      assert.deepEqual(events, ['forwarded']);
      assert.deepEqual(
        proxy.listeners(),
        SERVED.map(([each]) => [each, each === family ? 1 : 0]),
      );
    });
  }

  it('does not read from a client while the endpoint does not read', async () => {
    let reading: Socket | undefined;
    const target = await endpoint((socket) => {
      reading = socket.pause();
    });
    const own = await nodePort([target]);
    proxy.update([own]);
    const socket = await client(own.port);
    // More than the sockets of both connections buffer (tcp_rmem and tcp_wmem are 10 MB together).
    const size = 64 * 1024 * 1024;
    socket.end(Buffer.alloc(size));
    const before = process.memoryUsage().arrayBuffers;
    const from = await waitFor('it is accepted', () => reading);
    assert.ok(process.memoryUsage().arrayBuffers - before < size / 2);
    let read = 0;
    from.on('data', (chunk) => {
      read += chunk.length;
    });
    from.resume();
    await once(from, 'end');
    assert.equal(read, size);
  });

  it('keeps connections when endpoints change or the Service is deleted', async () => {
    const echo = (name: string) => (socket: Socket) =>
      void socket.on('data', (data) => socket.write(`${name}: ${data}`));
    const [one, two] = [await endpoint(echo('one')), await endpoint(echo('two'))];
    const own = await nodePort([one]);
    proxy.update([own]);
    const held = await client(own.port);
    const say = async (socket: Socket) => {
      socket.write('hi');
      return String(await once(socket, 'data'));
    };
    assert.equal(await say(held), 'one: hi');
    proxy.update([{ ...own, endpoints: [two] }]);
    assert.equal(await say(await client(own.port)), 'two: hi');
    assert.equal(await say(held), 'one: hi');
    proxy.update([{ ...own, port: 0 }]);
    await refused(own.port);
    assert.equal(await say(held), 'one: hi');
    assert.deepEqual(proxy.listeners(), [
      ['IPv4', 0],
      ['IPv6', 0],
    ]);
  });

  it('serves a port that moves to another Service in one update', async () => {
    const [one, two] = [
      await endpoint((socket) => socket.end('one')),
      await endpoint((socket) => socket.end('two')),
    ];
    const own = await nodePort([one]);
    proxy.update([own]);
    assert.equal(await all(await client(own.port)), 'one');
    proxy.update([
      { ...own, id: 'other', endpoints: [two] },
      { ...own, port: 0 },
    ]);
    assert.equal(await all(await client(own.port)), 'two');
  });

  it('resets the client when the endpoint refuses the connection', async () => {
    const port = await freePort();
    const own = await nodePort([{ address: '127.0.0.1', port }]);
    proxy.update([own]);
    const socket = connect({ host: '127.0.0.1', port: own.port });
    const [error] = await once(socket, 'error');
    assert.equal((error as NodeJS.ErrnoException).code, 'ECONNRESET');
    assert.deepEqual(events, ['failed']);
  });

  it('resets one side when the other aborts', async () => {
    let other: Socket | undefined;
    const target = await endpoint((socket) => {
      other = socket;
    });
    const own = await nodePort([target]);
    proxy.update([own]);
    for (const who of ['endpoint', 'client']) {
      other = undefined;
      const socket = await client(own.port);
      const peer = await waitFor('it is forwarded', () => other);
      const [aborting, observer] = who === 'client' ? [socket, peer] : [peer, socket];
      const broken = isReset(observer);
      aborting.resetAndDestroy();
      assert.equal(await broken, true, `${who} aborts`);
    }
  });

  it('retries a port that another process uses', async () => {
    const held = await endpoint((socket) => socket.end('held'));
    const target = await endpoint((socket) => socket.end('pod'));
    const own = await nodePort([target], { port: held.port });
    proxy.update([own]);
    await waitFor('it fails', () => events.length > 0);
    assert.deepEqual(events, ['EADDRINUSE']);
    assert.deepEqual(proxy.listeners()[0], ['IPv4', 0]);
    const [holder] = servers.splice(0, 1);
    holder?.close();
    await waitFor('it listens', () => {
      timers.advance(10_000);
      return events.includes('recovered');
    });
    assert.equal(await all(await client(own.port)), 'pod');
    assert.deepEqual(proxy.listeners()[0], ['IPv4', 1]);
  });

  it('waits for connections to end when draining, and resets the remaining connections', async () => {
    const target = await endpoint((socket) => void socket.resume());
    const own = await nodePort([target]);
    proxy.update([own]);
    const [ends, stays] = [await client(own.port), await client(own.port)];
    await waitFor('both are forwarded', () => events.length === 2);
    let isOver = false;
    const drained = proxy.drain(5000).then(() => {
      isOver = true;
    });
    await refused(own.port);
    ends.destroy();
    await once(ends, 'close');
    assert.equal(isOver, false);
    const broken = isReset(stays);
    timers.advance(5000);
    await drained;
    assert.equal(await broken, true);
  });

  it('does not listen again after draining started', async () => {
    const target = await endpoint((socket) => void socket.resume());
    const own = await nodePort([target]);
    proxy.update([own]);
    await client(own.port);
    await waitFor('it is forwarded', () => events.length === 1);
    const drained = proxy.drain(5000);
    proxy.update([own]);
    assert.deepEqual(proxy.listeners()[0], ['IPv4', 0]);
    timers.advance(5000);
    await drained;
  });

  it('ignores families that it does not serve', async () => {
    proxy = new NodePortProxy({
      families: [],
      timers,
      onBindFailure: () => assert.fail(),
      onBindRecovery: () => {},
      onBindAbandoned: () => {},
      onConnection: () => {},
    });
    const own = await nodePort([{ address: '127.0.0.1', port: 1 }]);
    proxy.update([own]);
    await refused(own.port);
    assert.deepEqual(proxy.listeners(), []);
  });
});
