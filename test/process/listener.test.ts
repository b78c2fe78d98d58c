import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { RequestListener } from 'node:http';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { ProxyHealth, systemClock } from '../../health/proxy-health.ts';
import { proxyHandler } from '../../health/response.ts';
import { Connections } from '../../process/connections.ts';
import { ANY_FAMILY, Listener } from '../../process/listener.ts';
import { RetryingServer } from '../../process/retrying-server.ts';
import { waitFor } from '../lab/wait.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

describe('listener: an HTTP server that retries', () => {
  const open: Listener[] = [];
  const holders: Server[] = [];
  const clients: Socket[] = [];
  const timers = new FakeTimers();

  /** Starts a listener and records its callbacks. */
  function listen(
    host: string,
    port: number,
    onRequest?: RequestListener,
    connections?: Connections,
  ) {
    const events: string[] = [];
    const listener = new Listener({
      listen: { host, port },
      onRequest: onRequest ?? ((_request, response) => response.end('here')),
      onFailure: (error) => events.push((error as NodeJS.ErrnoException).code ?? error.message),
      onRecovery: () => events.push('recovered'),
      connections,
      timers,
    });
    open.push(listener);
    return { listener, events };
  }

  const listening = async (listener: Listener) =>
    (await waitFor('the server to listen', () => listener.address)).port;

  /** A port in use by another server. */
  async function occupiedPort(host: string): Promise<number> {
    const server = createServer();
    holders.push(server);
    server.listen({ host, port: 0, ipv6Only: host === '::' });
    await once(server, 'listening');
    return (server.address() as AddressInfo).port;
  }

  const releasePorts = async () => {
    for (const server of holders.splice(0)) {
      server.close();
      await once(server, 'close');
    }
  };

  const get = async (host: string, port: number, path = '/', init: RequestInit = {}) => {
    const response = await fetch(`http://${host}:${port}${path}`, init);
    return { code: response.status, headers: response.headers, body: await response.text() };
  };

  afterEach(async () => {
    for (const client of clients.splice(0)) client.destroy();
    for (const listener of open.splice(0)) listener.close();
    await releasePorts();
  });

  it('serves both families on ANY_FAMILY', async () => {
    const { listener } = listen(ANY_FAMILY, 0);
    const port = await listening(listener);
    for (const host of ['127.0.0.1', '[::1]']) assert.equal((await get(host, port)).body, 'here');
  });

  it('answers beyond its limit of connections, and closes the idle connection', async () => {
    const connections = new Connections({ total: 2, perClient: 1 });
    let respond = () => {};
    const { listener } = listen(
      '127.0.0.1',
      0,
      ({ url }, response) => {
        if (url === '/slow') respond = () => response.end('slow');
        else response.end('here');
      },
      connections,
    );
    const port = await listening(listener);
    const slow = get('127.0.0.1', port, '/slow', { headers: { connection: 'close' } });
    await waitFor('the slow request', () => connections.size === 1);
    const idle = connect({ host: '127.0.0.1', port });
    clients.push(idle);
    await waitFor('the idle connection', () => connections.size === 2);
    const closed = once(idle, 'close');
    idle.resume();
    assert.equal((await get('127.0.0.1', port)).body, 'here');
    await closed;
    respond();
    assert.equal((await slow).body, 'slow');
  });

  it('keeps listening, with its connections, when accepting a connection fails', async () => {
    let server: Server | undefined;
    const failures: Error[] = [];
    const retrying = new RetryingServer({
      listen: { host: '127.0.0.1', port: 0 },
      create: () => {
        server = createServer();
        return server;
      },
      onFailure: (error) => failures.push(error),
      onRecovery: () => {},
      timers,
    });
    const address = await waitFor('the server to listen', () => retrying.address);
    server?.emit('error', Object.assign(new Error('accept EMFILE'), { code: 'EMFILE' }));
    assert.deepEqual([failures, retrying.address, timers.pending], [[], address, 0]);
    retrying.close();
  });

  it('retries when what follows listening fails', async () => {
    const failures: string[] = [];
    const retrying = new RetryingServer({
      listen: { host: '127.0.0.1', port: 0 },
      create: createServer,
      onListening: () => {
        if (failures.length === 0) throw new Error('no such file');
      },
      onFailure: ({ message }) => failures.push(message),
      onRecovery: () => failures.push('recovered'),
      timers,
    });
    await waitFor('a failed attempt', () => failures.length);
    timers.advance(500);
    await waitFor('recovery', () => failures.length === 2);
    assert.deepEqual(failures, ['no such file', 'recovered']);
    retrying.close();
  });

  it('shares a port between an IPv4 and an IPv6 server', async () => {
    const { listener: four } = listen('0.0.0.0', 0);
    const port = await listening(four);
    await assert.rejects(get('[::1]', port));
    const { listener: six, events } = listen('::', port, (_request, response) => response.end('6'));
    await listening(six);
    assert.deepEqual(events, []);
    assert.equal((await get('[::1]', port)).body, '6');
    assert.equal((await get('127.0.0.1', port)).body, 'here');
  });

  it('frees its port and closes connections on close', async () => {
    const { listener } = listen('127.0.0.1', 0);
    const port = await listening(listener);
    const client = connect(port, '127.0.0.1');
    clients.push(client);
    await once(client, 'connect');
    const ended = once(client, 'close');
    client.resume();
    listener.close();
    const { listener: next, events } = listen('127.0.0.1', port);
    await Promise.all([listening(next), ended]);
    assert.deepEqual(events, []);
  });

  it('does not start to listen after close', async () => {
    const port = await occupiedPort('127.0.0.1');
    await releasePorts();
    const { listener } = listen('127.0.0.1', port);
    listener.close();
    const { listener: next, events } = listen('127.0.0.1', port);
    await listening(next);
    assert.deepEqual([events, listener.address], [[], undefined]);
  });

  it('reports each failed attempt and retries with backoff while the port is in use', async () => {
    const port = await occupiedPort('127.0.0.1');
    const { listener, events } = listen('127.0.0.1', port);
    await waitFor('a failed attempt', () => events.length);
    assert.deepEqual(events, ['EADDRINUSE']);
    // Waits between attempts: half a second, doubled up to ten seconds.
    const waits = [500, 1000, 2000, 4000, 8000, 10_000, 10_000];
    for (const wait of waits) {
      timers.advance(wait - 1);
      assert.equal(timers.pending, 1);
      timers.advance(1);
      assert.equal(timers.pending, 0);
      await waitFor('another failed attempt', () => timers.pending);
    }
    const failures = Array(1 + waits.length).fill('EADDRINUSE');
    assert.deepEqual([events, listener.address], [failures, undefined]);
    await releasePorts();
    timers.advance(10_000);
    assert.equal(await listening(listener), port);
    await waitFor('the recovery callback', () => events.at(-1) === 'recovered');
    assert.deepEqual(events, [...failures, 'recovered']);
  });

  it('does not retry after close', async () => {
    const port = await occupiedPort('127.0.0.1');
    const { listener, events } = listen('127.0.0.1', port);
    await waitFor('a failed attempt', () => events.length);
    listener.close();
    assert.equal(timers.pending, 0);
  });

  it('serves and counts /healthz and /livez only', async () => {
    const inputs = { needsNode: false, missingInputs: () => [] };
    const health = new ProxyHealth({ timeout: 1000, clock: systemClock, ...inputs });
    const counted: string[] = [];
    const count = (path: string, code: number) => counted.push(`${path} ${code}`);
    const { listener } = listen('127.0.0.1', 0, proxyHandler(health, count));
    const port = await listening(listener);
    health.begin(['IPv4']);
    health.updated('IPv4');

    const well = await get('127.0.0.1', port, '/healthz?verbose=1');
    assert.equal(well.code, 200);
    assert.equal(well.headers.get('content-type'), 'application/json');
    assert.equal(well.headers.get('x-content-type-options'), 'nosniff');
    assert.equal(JSON.parse(well.body).status.IPv4.healthy, true);
    assert.equal((await get('127.0.0.1', port, '/livez', { method: 'HEAD' })).code, 200);

    health.setNode({
      kind: 'Node',
      key: 'n',
      name: 'n',
      labels: {},
      zone: undefined,
      podCIDRs: [],
      addresses: [],
      deleting: true,
      taints: [],
    });
    assert.equal((await get('127.0.0.1', port, '/healthz')).code, 503);
    assert.equal((await get('127.0.0.1', port, '/livez')).code, 200);
    for (const path of ['/', '/healthz/', '/metrics', '/livezz']) {
      assert.equal((await get('127.0.0.1', port, path)).code, 404);
    }
    assert.deepEqual(counted, ['/healthz 200', '/livez 200', '/healthz 503', '/livez 200']);
  });
});
