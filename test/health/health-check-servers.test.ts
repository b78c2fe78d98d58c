import assert from 'node:assert/strict';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { IpFamily } from '../../api/objects.ts';
import { HealthCheckServers, type HealthServerOptions } from '../../health/health-check-servers.ts';
import type { ServiceHealth } from '../../services/service-health.ts';

const health = (
  serviceKey: string,
  port: number,
  localEndpoints = 1,
  family: IpFamily = 'IPv4',
  isOnlyFamily = false,
): ServiceHealth => ({ serviceKey, family, port, localEndpoints, isOnlyFamily });

/** Servers that only log when they are opened and closed, one line each. */
function build() {
  const log: string[] = [];
  const open = new Map<string, HealthServerOptions>();
  const state = { isProxyHealthy: true };
  const failures: string[] = [];
  const ended: string[] = [];
  const servers = new HealthCheckServers({
    isProxyHealthy: () => state.isProxyHealthy,
    listen(options) {
      const name = `${options.address.host} ${options.address.port}`;
      assert.equal(open.has(name), false, `${name} is taken`);
      open.set(name, options);
      log.push(`open ${name}`);
      return {
        close: () => {
          open.delete(name);
          log.push(`close ${name}`);
        },
      };
    },
    onBindFailure: (service, port, error) => failures.push(`${service} ${port} ${error.message}`),
    onBindRecovery: (service, port) => failures.push(`${service} ${port} recovered`),
    onEnd: (service, port, host) => ended.push(`${service} ${host} ${port}`),
  });
  /** Servers that one call opened and closed. */
  const done = (call: () => void) => {
    log.length = 0;
    call();
    return [...log];
  };
  return { servers, open, state, failures, ended, done };
}

/** Like `build`, with node ports on every address. */
function everywhere() {
  const built = build();
  built.servers.setAddresses('IPv4', 'all');
  built.servers.setAddresses('IPv6', 'all');
  return built;
}

describe('health-check-servers: servers of health check node ports', () => {
  it('opens, keeps and closes servers with their Services', () => {
    const { servers, done } = everywhere();
    const update = (...changes: ServiceHealth[]) => done(() => servers.update(changes));
    assert.deepEqual(update(health('a/b', 30_001), health('a/c', 30_002)), [
      'open 0.0.0.0 30001',
      'open 0.0.0.0 30002',
    ]);
    assert.deepEqual(update(health('a/b', 30_001, 7)), []);
    assert.deepEqual(update(health('a/b', 30_003)), ['close 0.0.0.0 30001', 'open 0.0.0.0 30003']);
    assert.deepEqual(update(health('a/c', 0, 0)), ['close 0.0.0.0 30002']);
    assert.deepEqual(update(health('a/c', 0, 0), health('never/was', 0, 0)), []);
    assert.deepEqual(
      done(() => servers.close()),
      ['close 0.0.0.0 30003'],
    );
  });

  it('reports the end of a server with its Service, port or address', () => {
    const { servers, ended } = everywhere();
    servers.update([health('a/b', 30_001), health('a/c', 30_002)]);
    servers.update([health('a/b', 30_003), health('a/c', 0)]);
    assert.deepEqual(ended, ['a/b 0.0.0.0 30001', 'a/c 0.0.0.0 30002']);
    servers.setAddresses('IPv4', ['192.0.2.1']);
    assert.deepEqual(ended.slice(2), ['a/b 0.0.0.0 30003']);
  });

  it('lists the ports that cannot be bound, until they are or are no longer needed', () => {
    const { servers, open } = everywhere();
    const unbound = () =>
      Array.from(servers.unbound(), ({ serviceKey, host, port, error }) =>
        [serviceKey, host, port, error.message].join(' '),
      );
    servers.update([health('a/b', 30_001), health('a/b', 30_001, 1, 'IPv6'), health('a/c', 1)]);
    const fail = (host: string, reason: string) =>
      open.get(`${host} 30001`)?.onFailure(new Error(reason));
    fail('0.0.0.0', 'taken');
    fail('::', 'taken');
    fail('::', 'still taken');
    assert.deepEqual(unbound(), ['a/b 0.0.0.0 30001 taken', 'a/b :: 30001 still taken']);
    open.get('0.0.0.0 30001')?.onRecovery();
    assert.deepEqual(unbound(), ['a/b :: 30001 still taken']);
    servers.update([health('a/b', 30_001, 0), health('a/b', 30_001, 0, 'IPv6')]);
    assert.deepEqual(unbound(), ['a/b :: 30001 still taken']);
    servers.update([health('a/b', 30_002), health('a/b', 30_002, 0, 'IPv6')]);
    assert.deepEqual(unbound(), []);
  });

  it('opens separate sockets for each family', () => {
    const { servers, done } = everywhere();
    const both = [health('a/b', 30_001), health('a/b', 30_001, 1, 'IPv6')];
    assert.deepEqual(
      done(() => servers.update(both)),
      ['open 0.0.0.0 30001', 'open :: 30001'],
    );
    assert.deepEqual(
      done(() => servers.update([health('a/b', 0, 0, 'IPv6')])),
      ['close :: 30001'],
    );
  });

  it('answers in both families for a Service with one', () => {
    const { servers, done } = everywhere();
    const only = (port: number) =>
      done(() => servers.update([health('a/b', port, 1, 'IPv6', true)]));
    assert.deepEqual(only(30_001), ['open 0.0.0.0 30001', 'open :: 30001']);
    assert.deepEqual(only(30_002), [
      'close 0.0.0.0 30001',
      'close :: 30001',
      'open 0.0.0.0 30002',
      'open :: 30002',
    ]);
    // The Service gets another family, which has not been synced.
    assert.deepEqual(
      done(() => servers.update([health('a/b', 30_002, 1, 'IPv6')])),
      ['close 0.0.0.0 30002'],
    );
    assert.deepEqual(only(30_002), ['open 0.0.0.0 30002']);
    assert.deepEqual(
      done(() => servers.setAddresses('IPv4', ['192.0.2.1'])),
      ['close 0.0.0.0 30002', 'open 192.0.2.1 30002'],
    );
    assert.deepEqual(
      done(() => servers.update([health('a/b', 0, 0, 'IPv6', true)])),
      ['close 192.0.2.1 30002', 'close :: 30002'],
    );
  });

  it('closes a port before another Service opens it, also when two Services swap ports', () => {
    const { servers, done } = everywhere();
    servers.update([health('a/b', 30_001), health('a/c', 30_002)]);
    assert.deepEqual(
      done(() => servers.update([health('a/d', 30_001), health('a/b', 0, 0)])),
      ['close 0.0.0.0 30001', 'open 0.0.0.0 30001'],
    );
    assert.deepEqual(
      done(() => servers.update([health('a/c', 30_001), health('a/d', 30_002)])),
      ['close 0.0.0.0 30002', 'close 0.0.0.0 30001', 'open 0.0.0.0 30001', 'open 0.0.0.0 30002'],
    );
  });

  it('follows changes of the node port addresses', () => {
    const { servers, done } = build();
    const set = (addresses: readonly string[]) =>
      done(() => servers.setAddresses('IPv4', addresses));
    assert.deepEqual(
      done(() => servers.update([health('a/b', 30_001), health('a/b', 30_001, 1, 'IPv6')])),
      [],
    );
    assert.deepEqual(set(['192.0.2.1', '192.0.2.2']), [
      'open 192.0.2.1 30001',
      'open 192.0.2.2 30001',
    ]);
    assert.deepEqual(set(['192.0.2.3', '192.0.2.2']), [
      'close 192.0.2.1 30001',
      'open 192.0.2.3 30001',
    ]);
    assert.deepEqual(
      done(() => servers.setAddresses('IPv6', ['fe80::1', '2001:db8::1'])),
      ['open 2001:db8::1 30001'],
    );
    assert.deepEqual(set([]), ['close 192.0.2.2 30001', 'close 192.0.2.3 30001']);
  });

  it('reports the Service of a port that cannot be bound, and serves others', () => {
    const { servers, open, failures } = everywhere();
    servers.update([health('a/b', 30_001), health('a/c', 30_002)]);
    const taken = open.get('0.0.0.0 30001');
    taken?.onFailure(new Error('in use'));
    taken?.onRecovery();
    assert.deepEqual(failures, ['a/b 30001 in use', 'a/b 30001 recovered']);
    assert.equal(open.has('0.0.0.0 30002'), true);
  });

  describe('over the wire', () => {
    const running: Server[] = [];
    afterEach(() => {
      for (const server of running.splice(0)) server.close();
    });

    /** Starts a real server with these options, on a port that the kernel chooses. */
    async function serve(options: HealthServerOptions | undefined): Promise<string> {
      const server = createServer(options?.onRequest);
      running.push(server);
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
      return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    }

    it('reports the current number of endpoints, on any path', async () => {
      const { servers, open, state } = everywhere();
      servers.update([health('a/b', 30_001, 2)]);
      const url = await serve(open.get('0.0.0.0 30001'));
      const ask = async (path: string, init: RequestInit = {}) => {
        const response = await fetch(url + path, init);
        const weight = response.headers.get('x-load-balancing-endpoint-weight');
        assert.equal(response.headers.get('content-type'), 'application/json');
        assert.equal(response.headers.get('x-content-type-options'), 'nosniff');
        return { code: response.status, weight, body: await response.json() };
      };
      const service = { namespace: 'a', name: 'b' };
      assert.deepEqual(await ask('/'), {
        code: 200,
        weight: '2',
        body: { service, localEndpoints: 2, serviceProxyHealthy: true },
      });
      assert.equal((await ask('/healthz?x=1', { method: 'POST' })).code, 200);

      servers.update([health('a/b', 30_001, 0)]);
      assert.deepEqual(await ask('/healthz'), {
        code: 503,
        weight: '0',
        body: { service, localEndpoints: 0, serviceProxyHealthy: true },
      });

      servers.update([health('a/b', 30_001, 3)]);
      state.isProxyHealthy = false;
      assert.deepEqual(await ask('/healthz'), {
        code: 503,
        weight: '3',
        body: { service, localEndpoints: 3, serviceProxyHealthy: false },
      });
    });
  });
});
