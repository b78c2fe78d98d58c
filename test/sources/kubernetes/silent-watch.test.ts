/** Watches without events, which a kube-apiserver has for kinds that do not change. */
import assert from 'node:assert/strict';
import { mock } from 'node:test';
import { until } from '../recording-sink.ts';
import { PATIENT, SourceFixture, service } from './source-fixture.ts';

describe('silent-watch: a silent watch', () => {
  let world: SourceFixture;
  /** Renews watches after a short silence; only Services have an object. */
  const settle = async () => {
    world = new SourceFixture({ timeouts: { ...PATIENT, silence: 200 } });
    await world.double.listen();
    world.double.put(service('a', 1));
    await world.startAndWatch();
  };
  afterEach(() => world.stop());

  const renewals = (times: number) =>
    until(`${times} renewals`, () => world.requests('watch').length > times);

  it('is renewed on a new connection, without a wait, a list or a log message', async () => {
    await settle();
    const logged = [...world.logged];
    await renewals(3);
    assert.equal(world.requests('list').length, 1);
    assert.deepEqual(world.delays, []);
    assert.deepEqual(world.logged, logged);
    const ports = world.requests('watch').map(({ clientPort }) => clientPort);
    assert.equal(new Set(ports).size, ports.length);
    // The check requests one object, over the connection of the new watch.
    const [check] = world.requests('check');
    assert.equal(check?.path, '/api/v1/namespaces/default/services');
    assert.equal(check?.query.fieldSelector, 'metadata.name=a');
    assert.equal(check?.clientPort, ports[1]);
    await until('only the last one is open', () => world.double.watching('services') === 1);
  });

  it('is reported as up to date at each renewal, so that an idle cluster causes no alert', async () => {
    await settle();
    const { upToDateCount: currents } = world;
    await renewals(3);
    assert.ok(world.upToDateCount >= currents + 2, `${world.upToDateCount}, after ${currents}`);
  });

  it('delivers changes within a second while its renewal opens', async () => {
    await settle();
    for (const verb of ['list', 'watch'] as const) {
      world.double.fail({ verb, resource: 'services', fault: { kind: 'hold' } });
      const asked = world.requests(verb === 'list' ? 'check' : 'watch').length;
      const held = () => world.requests(verb === 'list' ? 'check' : 'watch').length > asked;
      await until(`the ${verb} is held`, held);
      assert.equal(world.double.watching('services'), 1);
      const started = performance.now();
      world.double.put(service(verb, 1));
      await until('the change is delivered', () => world.sink.port(verb) === 1);
      assert.ok(performance.now() - started < 1000);
      world.double.release();
    }
    assert.deepEqual(world.delays, []);
    assert.equal(world.requests('list').length, 1);
  });

  it('on a broken connection, is replaced by one that delivers changes within a second', async () => {
    await settle();
    world.double.fail({ verb: 'watch', resource: 'services', fault: { kind: 'hold' } });
    world.double.breakWatches('silence', 'services');
    await renewals(1);
    const started = performance.now();
    world.double.put(service('b', 1));
    world.double.release();
    await world.waitForServices({ a: 1, b: 1 });
    assert.ok(performance.now() - started < 1000);
  });

  it('delivers no change twice when objects change during renewal', async () => {
    await settle();
    world.double.fail({ verb: 'watch', resource: 'services', fault: { kind: 'hold' } });
    await renewals(1);
    const before = world.sink.calls.length;
    world.double.put(service('b', 1));
    world.double.put(service('a', 2));
    world.double.delete(service('b', 1));
    world.double.put(service('a', 3));
    await world.waitForServices({ a: 3 });
    world.double.release();
    await until('only the new one is open', () => world.double.watching('services') === 1);
    world.double.put(service('c', 1));
    await world.waitForServices({ a: 3, c: 1 });
    assert.deepEqual(world.sink.calls.slice(before), [
      '+ Service default/b',
      '+ Service default/a',
      '- Service default/b',
      '+ Service default/a',
      '+ Service default/c',
    ]);
    assert.equal(world.requests('list').length, 1);
    assert.deepEqual(world.delays, []);
  });

  it('is renewed with jitter', async () => {
    const { mock: timers } = mock.method(globalThis, 'setTimeout');
    try {
      world = new SourceFixture({ timeouts: { ...PATIENT, silence: 20_000 } });
      await world.double.listen();
      await world.startAndWatch();
      await until('all are watched', () => world.watched.size === 3);
    } finally {
      timers.restore();
    }
    const set = timers.calls.map(({ arguments: [, milliseconds] }) => milliseconds);
    // The random value is 0.5 here.
    assert.equal(set.filter((milliseconds) => milliseconds === 25_000).length, 3);
    assert.ok(!set.includes(20_000));
  });

  it('stays open while its renewal fails, but is not reported as open', async () => {
    await settle();
    assert.ok(world.watched.has('Service'));
    const fault = { kind: 'status', code: 503, reason: 'ServiceUnavailable' } as const;
    world.double.fail({ verb: 'watch', resource: 'services', fault, times: 3 });
    world.double.fail({ verb: 'watch', resource: 'services', fault: { kind: 'hold' } });
    await renewals(4);
    assert.deepEqual(world.waits, [1200, 2400, 4800]);
    assert.ok(!world.watched.has('Service'));
    assert.equal(world.double.watching('services'), 1);
    world.double.put(service('b', 1));
    await world.waitForServices({ a: 1, b: 1 });
    assert.ok(world.watched.has('Service'));
    world.double.release();
    await renewals(5);
    assert.equal(world.requests('list').length, 1);
    assert.deepEqual(world.waits, [1200, 2400, 4800]);
  });

  it('is kept without a log message when it delivers an event while its renewal fails', async () => {
    const timeouts = { ...PATIENT, silence: 200 };
    world = new SourceFixture({ timeouts });
    await world.double.listen();
    await world.startAndWatch();
    const logged = [...world.logged];
    const next = { kind: 'status', code: 503, reason: 'ServiceUnavailable' } as const;
    world.double.fail({ verb: 'watch', resource: 'services', fault: { kind: 'hold', next } });
    await renewals(1);
    Object.assign(timeouts, { silence: 60_000 });
    world.double.put(service('a', 1));
    await world.waitForServices({ a: 1 });
    world.double.release();
    await until('the renewal is refused', () => world.codes.includes(503));
    world.double.put(service('b', 1));
    await world.waitForServices({ a: 1, b: 1 });
    assert.deepEqual([world.delays, world.logged], [[], logged]);
    assert.ok(world.watched.has('Service'));
  });

  it('is kept when it delivers an event while its renewal waits for a retry', async () => {
    await settle();
    const fault = { kind: 'status', code: 503, reason: 'ServiceUnavailable' } as const;
    world.double.fail({ verb: 'watch', resource: 'services', fault });
    world.holdDelays = true;
    await until('the retry waits', () => !world.watched.has('Service'));
    const asked = world.requests('watch').length;
    world.double.put(service('b', 1));
    await renewals(asked);
    assert.deepEqual(world.waits, [1200]);
  });

  it('causes a relist when its version has expired', async () => {
    await settle();
    world.double.skip(2);
    world.double.put(service('b', 1));
    world.double.delete(service('a', 1));
    world.double.compact();
    await world.waitForServices({ b: 1 });
    assert.equal(world.requests('list').length, 2);
  });
});
