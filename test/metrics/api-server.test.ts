import assert from 'node:assert/strict';
import { Registry } from 'prom-client';
import { apiServerMetrics } from '../../metrics/api-server.ts';
import { metricDefiner } from '../../metrics/define.ts';
import { Scrape } from './scrape.ts';

describe('api-server: apiServerMetrics()', () => {
  const registry = new Registry();
  const metrics = apiServerMetrics(metricDefiner(registry));
  const scrape = async () => new Scrape(await registry.metrics());
  const host = '10.96.0.1:443';

  it("uses client-go's label value for a request without a response", async () => {
    metrics.request({ method: 'GET', host, code: 200, seconds: 0.1 });
    metrics.request({ method: 'GET', host, code: undefined, seconds: 30 });
    const scraped = await scrape();
    for (const code of ['200', '<error>']) {
      const labels = { code, method: 'GET', host };
      assert.equal(scraped.value('rest_client_requests_total', labels), 1, code);
    }
    const sum = scraped.value('rest_client_request_duration_seconds_sum', { verb: 'GET', host });
    assert.equal(sum, 30.1);
  });

  it('exports a series for each watched kind', async () => {
    metrics.watchOpen('Service', true);
    metrics.watchOpen('EndpointSlice', true);
    metrics.watchOpen('EndpointSlice', false);
    metrics.upToDate('Node');
    const scraped = await scrape();
    const state = (kind: string) => scraped.value('portwide_api_watch_state', { kind });
    assert.deepEqual(['Service', 'EndpointSlice', 'Node'].map(state), [1, 0, undefined]);
    const last = scraped.value('portwide_api_last_event_timestamp_seconds', { kind: 'Node' });
    assert.ok(last !== undefined && last > 0);
  });

  it('counts stale watches from 0 on, so that the first one is an increase', async () => {
    metrics.watchOpen('Pod', false);
    const count = async () =>
      (await scrape()).value('portwide_api_stalled_watches_total', { kind: 'Pod' });
    assert.equal(await count(), 0);
    metrics.watchStalled('Pod');
    metrics.watchOpen('Pod', true);
    assert.equal(await count(), 1);
  });

  it('exports no series for a CRD that is not installed or was removed', async () => {
    metrics.watchOpen('CIDRGroup', true);
    metrics.upToDate('CIDRGroup');
    metrics.watchOpen('CIDRGroup', false);
    for (const resource of ['CIDRGroup', 'AdminNetworkPolicy'] as const)
      metrics.notInstalled(resource);
    const scraped = await scrape();
    for (const name of ['portwide_api_watch_state', 'portwide_api_last_event_timestamp_seconds']) {
      assert.equal(scraped.value(name, { kind: 'CIDRGroup' }), undefined, name);
    }
  });
});
