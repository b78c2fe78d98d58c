import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Counter, Registry } from 'prom-client';
import { type MetricsPages, metricsHandler } from '../../metrics/server.ts';
import { Scrape } from './scrape.ts';

const TEXT = 'text/plain; charset=utf-8';

describe('the metrics server', () => {
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

  it('answers as kube-proxy does', async () => {
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

  it('has no other page', async () => {
    await start();
    for (const path of ['/', '/metrics/', '/metric', '/configz', '/toString', '/debug/pprof']) {
      assert.deepEqual(await get(path), { code: 404, type: TEXT, body: '404 page not found\n' });
    }
  });

  it('counts its health checks on a page of their own', async () => {
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

  it('says what went wrong', async () => {
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
