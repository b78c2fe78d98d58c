import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Counter, Registry } from 'prom-client';
import { type MetricsPages, metricsHandler } from '../../metrics/server.ts';
import { Scrape } from './scrape.ts';

const TEXT = 'text/plain; charset=utf-8';

describe('server: metricsHandler()', () => {
  let server: Server;
  const registry = new Registry();
  new Counter({ name: 'some_total', help: 'Some', registers: [registry] }).inc(3);

  const start = async (pages: Partial<MetricsPages> = {}) => {
    const handler = metricsHandler({ registry, mode: 'iptables', ...pages });
    server = createServer(handler).listen(0, '127.0.0.1');
    await once(server, 'listening');
  };
  afterEach(() => {
    server.close();
    server.closeAllConnections();
  });

  const get = async (path: string) => {
    const { port } = server.address() as AddressInfo;
    const answer = await fetch(`http://127.0.0.1:${port}${path}`);
    assert.equal(answer.headers.get('x-content-type-options'), 'nosniff');
    const type = answer.headers.get('content-type');
    return { code: answer.status, type, body: await answer.text() };
  };

  it('serves the pages of kube-proxy with the same bodies', async () => {
    await start({ configuration: () => ({ kind: 'KubeProxyConfiguration', mode: 'iptables' }) });
    assert.deepEqual(await get('/healthz'), { code: 200, type: TEXT, body: 'ok' });
    assert.deepEqual(await get('/healthz?verbose'), { code: 200, type: TEXT, body: 'ok' });
    assert.deepEqual(await get('/proxyMode'), { code: 200, type: TEXT, body: 'iptables' });
    assert.deepEqual(await get('/configz'), {
      code: 200,
      type: 'application/json',
      body: '{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration","mode":"iptables"}}',
    });
    const { code, type, body } = await get('/metrics');
    assert.deepEqual([code, type], [200, 'text/plain; version=0.0.4; charset=utf-8']);
    assert.equal(new Scrape(body).value('some_total'), 3);
  });

  describe('z-pages of the process', () => {
    const started = Date.now() - 3_725_000;
    const statusz = { component: 'portwide', started, version: '1.2.3' };
    const flagz = { component: 'portwide', flags: { v: '2', cleanup: 'false' } };
    beforeEach(() => start({ statusz, flagz }));
    const ask = async (path: string, accept: string) => {
      const { port } = server.address() as AddressInfo;
      const answer = await fetch(`http://127.0.0.1:${port}${path}`, { headers: { accept } });
      return {
        code: answer.status,
        type: answer.headers.get('content-type'),
        body: await answer.text(),
      };
    };

    it('serves z-pages as text', async () => {
      for (const accept of ['*/*', 'text/plain', 'text/plain;charset=UTF-8', 'a/b, text/*;q=0.5']) {
        const { code, type, body } = await ask('/statusz', accept);
        assert.deepEqual([code, type], [200, TEXT], accept);
        assert.match(
          body,
          /^\nportwide statusz\n.*\n\nStarted: .* GMT\nUp: 1 hr 0\d min \d\d sec\n/,
        );
        assert.match(body, /\nBinary version: 1\.2\.3\nPaths: \/flagz \/healthz .*\/statusz\n$/);
      }
      const { body } = await ask('/flagz', 'text/plain');
      assert.match(body, /^\nportwide flags\n.*\n\ncleanup=false\nv=2\n$/);
    });

    it('serves z-pages as objects, for clients that request a supported version', async () => {
      for (const v of ['v1alpha1', 'v1beta1']) {
        const of = (as: string) => `application/json;v=${v};g=config.k8s.io;as=${as}`;
        const status = await ask('/statusz', of('Statusz'));
        assert.deepEqual([status.code, status.type], [200, 'application/json']);
        const { uptimeSeconds, paths, ...rest } = JSON.parse(status.body);
        assert.deepEqual(rest, {
          kind: 'Statusz',
          apiVersion: `config.k8s.io/${v}`,
          metadata: { name: 'portwide' },
          startTime: new Date(started).toISOString().replace(/\.\d+Z/, 'Z'),
          goVersion: '',
          binaryVersion: '1.2.3',
        });
        assert.ok(uptimeSeconds >= 3725 && paths.includes('/metrics'));
        const { body } = await ask('/flagz', of('Flagz'));
        assert.deepEqual(JSON.parse(body), {
          kind: 'Flagz',
          apiVersion: `config.k8s.io/${v}`,
          metadata: { name: 'portwide' },
          flags: flagz.flags,
        });
      }
    });

    it('refuses z-pages in other media types', async () => {
      for (const accept of [
        'application/json',
        'application/xml',
        'application/json;v=v1alpha1;g=config.k8s.io',
        'application/json;v=v9;g=config.k8s.io;as=Statusz',
        'text/plain;charset=latin1',
      ]) {
        assert.equal((await ask('/statusz', accept)).code, 406, accept);
      }
      const fallback = 'application/json;v=v9;g=config.k8s.io;as=Statusz,*/*';
      assert.equal((await ask('/statusz', fallback)).type, TEXT);
    });
  });

  it('returns 404 for other paths', async () => {
    await start();
    for (const path of [
      '/',
      '/metrics/',
      '/metric',
      '/configz',
      '/statusz',
      '/flagz',
      '/toString',
      '/debug/pprof',
    ]) {
      assert.deepEqual(await get(path), { code: 404, type: TEXT, body: '404 page not found\n' });
    }
  });

  it('counts health checks on a separate page', async () => {
    await start();
    const slis = async () => new Scrape((await get('/metrics/slis')).body);
    assert.equal((await slis()).value('kubernetes_healthcheck'), undefined);
    await get('/healthz');
    await get('/healthz');
    const check = { name: 'ping', type: 'healthz' };
    assert.equal((await slis()).value('kubernetes_healthcheck', check), 1);
    const total = { ...check, status: 'success' };
    assert.equal((await slis()).value('kubernetes_healthchecks_total', total), 2);
    assert.equal((await slis()).value('some_total'), undefined);
  });

  it('returns 500 with the error when a page fails', async () => {
    await start({
      configuration: () => {
        throw new Error('no configuration');
      },
    });
    assert.deepEqual(await get('/configz'), {
      code: 500,
      type: TEXT,
      body: 'Error: no configuration\n',
    });
  });
});
