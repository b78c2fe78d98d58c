import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { RequestListener } from 'node:http';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { ProxyHealth, systemClock } from '../../health/proxy-health.ts';
import { proxyHandler } from '../../health/response.ts';
import { ANY_FAMILY, Listener } from '../../process/listener.ts';
import { waitFor } from '../lab/wait.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

describe('listener: a listener', () => {
  const open: Listener[] = [];
  const holders: Server[] = [];
  const clients: Socket[] = [];
  const timers = new FakeTimers();

  /** What a listener said, and the listener. */
  function listen(host: string, port: number, onRequest?: RequestListener) {
    const heard: string[] = [];
    const listener = new Listener({
      host,
      port,
      onRequest: onRequest ?? ((_request, response) => response.end('here')),
      onFailure: (error) => heard.push((error as NodeJS.ErrnoException).code ?? error.message),
      onRecovery: () => heard.push('recovered'),
      timers,
    });
    open.push(listener);
    return { listener, heard };
  }

  const listening = async (listener: Listener) =>
    (await waitFor('it listens', () => listener.address)).port;

  /** A port that somebody else has. */
  async function held(host: string): Promise<number> {
    const server = createServer();
    holders.push(server);
    server.listen({ host, port: 0, ipv6Only: host === '::' });
    await once(server, 'listening');
    return (server.address() as AddressInfo).port;
  }

  const free = async () => {
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
    await free();
  });

  it('on any family answers over both', async () => {
    const { listener } = listen(ANY_FAMILY, 0);
    const port = await listening(listener);
    for (const host of ['127.0.0.1', '[::1]']) assert.equal((await get(host, port)).body, 'here');
  });

  it('of each family stands beside that of the other on one port', async () => {
    const { listener: four } = listen('0.0.0.0', 0);
    const port = await listening(four);
    await assert.rejects(get('[::1]', port));
    const { listener: six, heard } = listen('::', port, (_request, response) => response.end('6'));
    await listening(six);
    assert.deepEqual(heard, []);
    assert.equal((await get('[::1]', port)).body, '6');
    assert.equal((await get('127.0.0.1', port)).body, 'here');
  });

  it('frees its port at once, open connections and all', async () => {
    const { listener } = listen('127.0.0.1', 0);
    const port = await listening(listener);
    const client = connect(port, '127.0.0.1');
    clients.push(client);
    await once(client, 'connect');
    const ended = once(client, 'close');
    client.resume();
    listener.close();
    const { listener: next, heard } = listen('127.0.0.1', port);
    await Promise.all([listening(next), ended]);
    assert.deepEqual(heard, []);
  });

  it('closed before it listens never does', async () => {
    const port = await held('127.0.0.1');
    await free();
    const { listener } = listen('127.0.0.1', port);
    listener.close();
    const { listener: next, heard } = listen('127.0.0.1', port);
    await listening(next);
    assert.deepEqual([heard, listener.address], [[], undefined]);
  });

  it('tells of each attempt at a port that is taken, and tries again later and later', async () => {
    const port = await held('127.0.0.1');
    const { listener, heard } = listen('127.0.0.1', port);
    await waitFor('it failed', () => heard.length);
    assert.deepEqual(heard, ['EADDRINUSE']);
    // Each try fails again after this long: half a second, doubled up to ten.
    const waits = [500, 1000, 2000, 4000, 8000, 10_000, 10_000];
    for (const wait of waits) {
      timers.advance(wait - 1);
      assert.equal(timers.pending, 1);
      timers.advance(1);
      assert.equal(timers.pending, 0);
      await waitFor('it failed again', () => timers.pending);
    }
    const failures = Array(1 + waits.length).fill('EADDRINUSE');
    assert.deepEqual([heard, listener.address], [failures, undefined]);
    await free();
    timers.advance(10_000);
    assert.equal(await listening(listener), port);
    await waitFor('it tells', () => heard.at(-1) === 'recovered');
    assert.deepEqual(heard, [...failures, 'recovered']);
  });

  it('closed while it waits does not come back', async () => {
    const port = await held('127.0.0.1');
    const { listener, heard } = listen('127.0.0.1', port);
    await waitFor('it failed', () => heard.length);
    listener.close();
    assert.equal(timers.pending, 0);
  });

  it('serves /healthz and /livez, counts them, and nothing else', async () => {
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
