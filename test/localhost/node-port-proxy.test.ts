import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import type { LocalhostNodePort } from '../../localhost/endpoint-picker.ts';
import { NodePortProxy } from '../../localhost/node-port-proxy.ts';
import { waitFor } from '../lab/wait.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

describe('node-port-proxy: the proxy for node ports on localhost', () => {
  const servers: Server[] = [];
  const sockets: Socket[] = [];
  let timers: FakeTimers;
  let proxy: NodePortProxy;
  let heard: string[];

  beforeEach(() => {
    timers = new FakeTimers();
    heard = [];
    proxy = new NodePortProxy({
      families: ['IPv4', 'IPv6'],
      timers,
      onBindFailure: (_nodePort, error) =>
        heard.push((error as NodeJS.ErrnoException).code ?? error.message),
      onBindRecovery: () => heard.push('recovered'),
      onBindAbandoned: () => heard.push('abandoned'),
      onConnection: (_nodePort, isForwarded) => heard.push(isForwarded ? 'forwarded' : 'failed'),
    });
  });

  afterEach(async () => {
    for (const socket of sockets.splice(0)) socket.destroy();
    const drained = proxy.drain(0);
    timers.advance(0);
    await drained;
    for (const server of servers.splice(0)) server.close();
  });

  /** A server that stands for an endpoint; each connection is handed to `onConnection`. */
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

  /** Connects; waits for the listener, which listens a moment after it was asked to. */
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

  /** Whether a socket ends by an error, once it ends. */
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
    it(`${family}: a client may close its side first and still get the answer`, async () => {
      const target = await endpoint((socket) => {
        void all(socket).then((said) => socket.end(`you said ${said}`));
      }, host);
      const own = await nodePort([target], { family });
      proxy.update([own]);
      const socket = await client(own.port, host);
      socket.end('hello');
      assert.equal(await all(socket), 'you said hello');
      assert.deepEqual(heard, ['forwarded']);
      assert.deepEqual(
        proxy.listeners(),
        SERVED.map(([each]) => [each, each === family ? 1 : 0]),
      );
    });
  }

  it('what the other side does not read is not read either', async () => {
    let reading: Socket | undefined;
    const target = await endpoint((socket) => {
      reading = socket.pause();
    });
    const own = await nodePort([target]);
    proxy.update([own]);
    const socket = await client(own.port);
    // More than sockets of both connections hold (tcp_rmem and tcp_wmem are 10 MB together).
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

  it('connections go on when endpoints change, and when the Service goes; new ones do not', async () => {
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

  it('a port that moves to another Service in one change is served by that', async () => {
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

  it('resets the client of an endpoint that does not answer', async () => {
    const port = await freePort();
    const own = await nodePort([{ address: '127.0.0.1', port }]);
    proxy.update([own]);
    const socket = connect({ host: '127.0.0.1', port: own.port });
    const [error] = await once(socket, 'error');
    assert.equal((error as NodeJS.ErrnoException).code, 'ECONNRESET');
    assert.deepEqual(heard, ['failed']);
  });

  it('resets one side when the other breaks off', async () => {
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
      const [breaks, hears] = who === 'client' ? [socket, peer] : [peer, socket];
      const broken = isReset(hears);
      breaks.resetAndDestroy();
      assert.equal(await broken, true, `${who} breaks off`);
    }
  });

  it('a port that another process has is tried again', async () => {
    const held = await endpoint((socket) => socket.end('held'));
    const target = await endpoint((socket) => socket.end('pod'));
    const own = await nodePort([target], { port: held.port });
    proxy.update([own]);
    await waitFor('it fails', () => heard.length > 0);
    assert.deepEqual(heard, ['EADDRINUSE']);
    assert.deepEqual(proxy.listeners()[0], ['IPv4', 0]);
    const [holder] = servers.splice(0, 1);
    holder?.close();
    await waitFor('it listens', () => {
      timers.advance(10_000);
      return heard.includes('recovered');
    });
    assert.equal(await all(await client(own.port)), 'pod');
    assert.deepEqual(proxy.listeners()[0], ['IPv4', 1]);
  });

  it('gives connections time to end when the agent does, and resets those that are left', async () => {
    const target = await endpoint((socket) => void socket.resume());
    const own = await nodePort([target]);
    proxy.update([own]);
    const [ends, stays] = [await client(own.port), await client(own.port)];
    await waitFor('both are forwarded', () => heard.length === 2);
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

  it('listens no more once the agent ends, whatever a last sync says', async () => {
    const target = await endpoint((socket) => void socket.resume());
    const own = await nodePort([target]);
    proxy.update([own]);
    await client(own.port);
    await waitFor('it is forwarded', () => heard.length === 1);
    const drained = proxy.drain(5000);
    proxy.update([own]);
    assert.deepEqual(proxy.listeners()[0], ['IPv4', 0]);
    timers.advance(5000);
    await drained;
  });

  it('passes over families that it does not serve', async () => {
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
