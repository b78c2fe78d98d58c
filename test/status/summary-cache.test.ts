import assert from 'node:assert/strict';
import type { Service } from '../../api/objects.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import { SummaryCache } from '../../status/summary-cache.ts';
import { endpoint, service, slice } from '../fixtures.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

function build() {
  const table = new RouteTable({ nodeName: 'node-a', allPortsEnabled: true, onChange: () => {} });
  const add = (name: string, fields: Partial<Service> = {}) =>
    table.upsert(service({ name, clusterIPs: [`10.96.0.${name.length}`], ...fields }));
  const timers = new FakeTimers();
  const cache = new SummaryCache(timers);
  const summary = (name: string) => {
    const inspected = table.inspect(`default/${name}`);
    return inspected && cache.summary(inspected, table.topology);
  };
  return { table, add, timers, cache, summary };
}

describe('summary-cache: rows of Services', () => {
  it('computes a row again only if its Service, slices, Routes or refusals changed', () => {
    const { table, add, summary } = build();
    add('a');
    add('bb');
    table.takeChanges();
    const before = [summary('a'), summary('bb')];
    table.upsert(slice([endpoint('10.244.0.1')], { serviceKey: 'default/bb' }));
    const withSlice = summary('bb');
    assert.equal(withSlice?.state, 'noEndpoints');
    assert.equal(withSlice?.endpoints.ready, 1);
    table.takeChanges();
    assert.equal(summary('bb')?.state, 'served');
    assert.equal(summary('a'), before[0]);
    // Service c gets the VIP of Service a, because it is older.
    add('c', { creationTimestamp: '2020-01-01T00:00:00Z' });
    table.takeChanges();
    assert.equal(summary('a')?.state, 'refused');
    assert.equal(summary('a'), summary('a'));
  });

  it('forgets deleted Services, and everything some seconds after the last request', () => {
    const { table, add, timers, cache, summary } = build();
    add('a');
    add('bb');
    table.takeChanges();
    summary('a');
    summary('bb');
    table.remove('Service', 'default/a');
    cache.prune(table);
    assert.equal(cache.size, 1);
    timers.advance(9000);
    cache.prune(table);
    timers.advance(9000);
    assert.equal(cache.size, 1);
    timers.advance(1000);
    assert.deepEqual([cache.size, timers.pending], [0, 0]);
  });
});
