import assert from 'node:assert/strict';
import { idleRates, topRows } from '../../../status/traffic/top.ts';
import { TrafficCounters } from '../../../status/traffic/traffic-counters.ts';

describe('topRows: the busiest first', () => {
  function counted(bytes: readonly number[]): TrafficCounters {
    const counters = new TrafficCounters();
    counters.endSample(undefined);
    for (const [index, each] of bytes.entries()) {
      for (const counter of counters.of(`default/s${index}`, '10.0.0.1:80', 'UDP/53')) {
        counter.opened += 1;
        counter.packets += 1;
        counter.bytes += each;
      }
    }
    counters.endSample(2);
    return counters;
  }

  it('orders by bytes a second, and returns no more rows than asked for', () => {
    const all = [...counted([10, 30, 20, 30]).list('service')];
    const names = (count: number) => topRows(all, true, count).map(({ service }) => service);
    assert.deepEqual(names(10), ['default/s1', 'default/s3', 'default/s2', 'default/s0']);
    assert.deepEqual(names(3), ['default/s1', 'default/s3', 'default/s2']);
    assert.equal(names(1).length, 1);
    assert.deepEqual(topRows([], true, 5), []);
  });

  it('names endpoints and ports, and hides numbers that the kernel does not count', () => {
    const counters = counted([10]);
    const [port] = topRows([...counters.list('port')], false, 5);
    assert.deepEqual(port, {
      service: 'default/s0',
      endpoint: null,
      protocol: 'UDP',
      port: 53,
      otherPorts: false,
      connections: 0,
      connectionsPerSecond: 0.5,
      packetsPerSecond: null,
      bytesPerSecond: null,
      total: { connections: 1, packets: null, bytes: null },
    });
    const [endpoint] = topRows([...counters.list('endpoint', 'default/s0')], true, 5);
    assert.equal(endpoint?.endpoint, '10.0.0.1:80');
    assert.equal(endpoint?.bytesPerSecond, 5);
    assert.deepEqual([...counters.list('endpoint', 'default/other')], []);
  });
});

describe('idleRates: no traffic', () => {
  it('is zero only where a counter would have a number', () => {
    const rates = (intervalSeconds: number | null, countsBytes: boolean) =>
      Object.values(idleRates({ intervalSeconds, countsBytes }));
    assert.deepEqual(rates(1, true), [0, 0, 0, 0]);
    assert.deepEqual(rates(1, false), [0, 0, null, null]);
    assert.deepEqual(rates(null, true), [0, null, null, null]);
  });
});
