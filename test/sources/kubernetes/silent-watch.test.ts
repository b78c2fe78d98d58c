/** Watches without events, which a kube-apiserver has for kinds that do not change. */
import assert from 'node:assert/strict';
import { mock } from 'node:test';
import { until } from '../recording-sink.ts';
import { PATIENT, SourceFixture, service } from './source-fixture.ts';

describe('silent-watch: a silent watch', () => {
  let fixture: SourceFixture;
  /** Renews watches after a short silence; only Services have an object. */
  const settle = async () => {
    fixture = new SourceFixture({ timeouts: { ...PATIENT, silence: 200 } });
    await fixture.double.listen();
    fixture.double.put(service('a', 1));
    await fixture.startAndWatch();
  };
  afterEach(() => fixture.stop());

  const renewals = (times: number) =>
    until(`${times} renewals`, () => fixture.requests('watch').length > times);

  it('is renewed on a new connection, without a wait, a list or a log message', async () => {
    await settle();
    const logged = [...fixture.logged];
    await renewals(3);
    assert.equal(fixture.requests('list').length, 1);
    assert.deepEqual(fixture.delays, []);
    assert.deepEqual(fixture.logged, logged);
    const ports = fixture.requests('watch').map(({ clientPort }) => clientPort);
    assert.equal(new Set(ports).size, ports.length);
    // The check requests one object, over the connection of the new watch.
    const [check] = fixture.requests('check');
    assert.equal(check?.path, '/api/v1/namespaces/default/services');
    assert.equal(check?.query.fieldSelector, 'metadata.name=a');
    assert.equal(check?.clientPort, ports[1]);
    await until('only the last one is open', () => fixture.double.watching('services') === 1);
  });

  it('is reported as up to date at each renewal, so that an idle cluster causes no alert', async () => {
    await settle();
    const { upToDateCount: currents } = fixture;
    await renewals(3);
    assert.ok(fixture.upToDateCount >= currents + 2, `${fixture.upToDateCount}, after ${currents}`);
  });

  it('delivers changes within a second while its renewal opens', async () => {
    await settle();
    for (const verb of ['list', 'watch'] as const) {
      fixture.double.fail({ verb, resource: 'services', fault: { kind: 'hold' } });
      const before = fixture.requests(verb === 'list' ? 'check' : 'watch').length;
      const held = () => fixture.requests(verb === 'list' ? 'check' : 'watch').length > before;
      await until(`the ${verb} is held`, held);
      assert.equal(fixture.double.watching('services'), 1);
      const started = performance.now();
      fixture.double.put(service(verb, 1));
      await until('the change is delivered', () => fixture.sink.port(verb) === 1);
      assert.ok(performance.now() - started < 1000);
      fixture.double.release();
    }
    assert.deepEqual(fixture.delays, []);
    assert.equal(fixture.requests('list').length, 1);
  });

  it('on a broken connection, is replaced by one that delivers changes within a second', async () => {
    await settle();
    fixture.double.fail({ verb: 'watch', resource: 'services', fault: { kind: 'hold' } });
    fixture.double.breakWatches('silence', 'services');
    await renewals(1);
    const started = performance.now();
    fixture.double.put(service('b', 1));
    fixture.double.release();
    await fixture.waitForServices({ a: 1, b: 1 });
    assert.ok(performance.now() - started < 1000);
  });

  it('delivers no change twice when objects change during renewal', async () => {
    await settle();
    fixture.double.fail({ verb: 'watch', resource: 'services', fault: { kind: 'hold' } });
    await renewals(1);
    const before = fixture.sink.calls.length;
    fixture.double.put(service('b', 1));
    fixture.double.put(service('a', 2));
    fixture.double.delete(service('b', 1));
    fixture.double.put(service('a', 3));
    await fixture.waitForServices({ a: 3 });
    fixture.double.release();
    await until('only the new one is open', () => fixture.double.watching('services') === 1);
    fixture.double.put(service('c', 1));
    await fixture.waitForServices({ a: 3, c: 1 });
    assert.deepEqual(fixture.sink.calls.slice(before), [
      '+ Service default/b',
      '+ Service default/a',
      '- Service default/b',
      '+ Service default/a',
      '+ Service default/c',
    ]);
    assert.equal(fixture.requests('list').length, 1);
    assert.deepEqual(fixture.delays, []);
  });

  it('is renewed with jitter', async () => {
    const { mock: timers } = mock.method(globalThis, 'setTimeout');
    try {
      fixture = new SourceFixture({ timeouts: { ...PATIENT, silence: 20_000 } });
      await fixture.double.listen();
      await fixture.startAndWatch();
      await until('all are watched', () => fixture.watched.size === 3);
    } finally {
      timers.restore();
    }
    const set = timers.calls.map(({ arguments: [, milliseconds] }) => milliseconds);
    // In this test the random value is 0.5.
    assert.equal(set.filter((milliseconds) => milliseconds === 25_000).length, 3);
    assert.ok(!set.includes(20_000));
  });

  it('stays open while its renewal fails, but is not reported as open', async () => {
    await settle();
    assert.ok(fixture.watched.has('Service'));
    const fault = { kind: 'status', code: 503, reason: 'ServiceUnavailable' } as const;
    fixture.double.fail({ verb: 'watch', resource: 'services', fault, times: 3 });
    fixture.double.fail({ verb: 'watch', resource: 'services', fault: { kind: 'hold' } });
    await renewals(4);
    assert.deepEqual(fixture.waits, [1200, 2400, 4800]);
    assert.ok(!fixture.watched.has('Service'));
    assert.equal(fixture.double.watching('services'), 1);
    fixture.double.put(service('b', 1));
    await fixture.waitForServices({ a: 1, b: 1 });
    assert.ok(fixture.watched.has('Service'));
    fixture.double.release();
    await renewals(5);
    assert.equal(fixture.requests('list').length, 1);
    assert.deepEqual(fixture.waits, [1200, 2400, 4800]);
  });

  it('is kept without a log message when it delivers an event while its renewal fails', async () => {
    const timeouts = { ...PATIENT, silence: 200 };
    fixture = new SourceFixture({ timeouts });
    await fixture.double.listen();
    await fixture.startAndWatch();
    const logged = [...fixture.logged];
    const next = { kind: 'status', code: 503, reason: 'ServiceUnavailable' } as const;
    fixture.double.fail({ verb: 'watch', resource: 'services', fault: { kind: 'hold', next } });
    await renewals(1);
    Object.assign(timeouts, { silence: 60_000 });
    fixture.double.put(service('a', 1));
    await fixture.waitForServices({ a: 1 });
    fixture.double.release();
    await until('the renewal is refused', () => fixture.codes.includes(503));
    fixture.double.put(service('b', 1));
    await fixture.waitForServices({ a: 1, b: 1 });
    assert.deepEqual([fixture.delays, fixture.logged], [[], logged]);
    assert.ok(fixture.watched.has('Service'));
  });

  it('is kept when it delivers an event while its renewal waits for a retry', async () => {
    await settle();
    const fault = { kind: 'status', code: 503, reason: 'ServiceUnavailable' } as const;
    fixture.double.fail({ verb: 'watch', resource: 'services', fault });
    fixture.holdDelays = true;
    await until('the retry waits', () => !fixture.watched.has('Service'));
    const before = fixture.requests('watch').length;
    fixture.double.put(service('b', 1));
    await renewals(before);
    assert.deepEqual(fixture.waits, [1200]);
  });

  it('causes a relist when its version has expired', async () => {
    await settle();
    fixture.double.dropChanges(2);
    fixture.double.put(service('b', 1));
    fixture.double.delete(service('a', 1));
    fixture.double.compact();
    await fixture.waitForServices({ b: 1 });
    assert.equal(fixture.requests('list').length, 2);
  });
});
