/** Watches that open but deliver nothing, as behind a proxy that holds back responses. */
import assert from 'node:assert/strict';
import { mock } from 'node:test';
import { nodeManifest } from '../../e2e/manifests.ts';
import { until } from '../recording-sink.ts';
import { PATIENT, SourceFixture, service } from './source-fixture.ts';

const MINUTE = 60_000;
const STALLED = /^Service: watch stalled/;
const RECOVERED = 'Service: stalled watch delivers events again';

describe('stalled-watch: a stalled watch', () => {
  let world: SourceFixture;
  let timeouts: { credentials: number; response: number; list: number; silence: number };
  beforeEach(async () => {
    timeouts = { ...PATIENT, silence: 200 };
    world = new SourceFixture({ timeouts });
    await world.double.listen();
    world.double.put(service('a', 1), service('b', 1));
    await world.startAndWatch();
  });
  afterEach(() => world.stop());

  const stall = () => {
    world.double.fail({
      verb: 'watch',
      resource: 'services',
      fault: { kind: 'mute' },
      times: 10_000,
    });
    world.double.breakWatches('silence', 'services');
  };
  const renewals = async (times: number) => {
    const before = world.requests('watch').length;
    await until(`${times} renewals`, () => world.requests('watch').length >= before + times);
  };
  const logCount = (what: RegExp) => world.logged.filter((line) => what.test(line)).length;

  it('is detected within 42 minutes, and logged once', async () => {
    stall();
    // The change is not on the object that changed last, which every renewal checks.
    world.double.put(service('c', 1));
    world.double.delete(service('a', 1));
    world.clockOffset += 25 * MINUTE - 1;
    await renewals(3);
    assert.deepEqual(world.ports(), { a: 1, b: 1 });
    assert.deepEqual([world.requests('comparison').length, world.stalled.length], [0, 0]);
    world.clockOffset += 12.5 * MINUTE;
    await world.waitForServices({ b: 1, c: 1 });
    assert.deepEqual(world.stalled, ['Service']);
    assert.equal(logCount(STALLED), 1);
    assert.deepEqual(world.delays, []);
    // Once a stalled watch is known, a comparison runs within 19 minutes.
    world.double.put(service('a', 2));
    world.clockOffset += 15 * MINUTE;
    await world.waitForServices({ a: 2, b: 1, c: 1 });
    assert.deepEqual(world.stalled, ['Service', 'Service']);
    assert.equal(logCount(STALLED), 1);
  });

  it('is detected when objects were only deleted', async () => {
    stall();
    world.double.delete(service('a', 1));
    world.clockOffset += 38 * MINUTE;
    await world.waitForServices({ b: 1 });
    assert.deepEqual(world.stalled, ['Service']);
  });

  it('is detected at the next renewal when the object that changed last has changed again', async () => {
    const checked = world.requests('check').length;
    // The check, and the list that follows it.
    const fault = { kind: 'hold' } as const;
    world.double.fail({ verb: 'list', resource: 'services', fault, times: 2 });
    await until('the check is held', () => world.requests('check').length > checked);
    stall();
    world.double.put(service('b', 2));
    const { upToDateCount: currents } = world;
    world.double.release();
    await until('it is listed', () => world.requests('list').length === 2);
    assert.equal(world.upToDateCount, currents, 'not reported as up to date before the list');
    assert.deepEqual(world.stalled, ['Service']);
    world.double.release();
    await world.waitForServices({ a: 1, b: 2 });
    assert.equal(world.requests('comparison').length, 0);
  });

  it('is logged when it delivers events again', async () => {
    stall();
    world.double.put(service('b', 2));
    await world.waitForServices({ a: 1, b: 2 });
    world.double.recover();
    await renewals(2);
    world.double.put(service('a', 2));
    await world.waitForServices({ a: 2, b: 2 });
    assert.equal(world.logged.at(-1), RECOVERED);
    assert.equal(logCount(STALLED), 1);
  });

  it('is detected although its renewal fails at first', async () => {
    world.clockOffset += 38 * MINUTE;
    const fault = { kind: 'status', code: 503, reason: 'ServiceUnavailable' } as const;
    world.double.fail({ verb: 'watch', resource: 'services', fault });
    stall();
    world.double.put(service('c', 1));
    await world.waitForServices({ a: 1, b: 1, c: 1 });
    assert.deepEqual([world.stalled, world.waits], [['Service'], [1200]]);
  });

  it('has ten seconds to deliver a change, even when a renewal is requested', async () => {
    world.double.keep();
    const { mock: timers } = mock.method(globalThis, 'setTimeout');
    try {
      world.double.fail({ verb: 'list', metadataOnly: true, fault: { kind: 'hold' } });
      world.clockOffset += 38 * MINUTE;
      await until('it is held', () => world.requests('comparison').length === 1);
      Object.assign(timeouts, { silence: 60_000, response: 20_000, list: 20_000 });
      timers.resetCalls();
      world.double.fail({ verb: 'watch', resource: 'services', fault: { kind: 'mute' } });
      world.double.skip(1);
      world.double.put(service('c', 1));
      world.double.release();
      const isSet = () => timers.calls.some(({ arguments: [, time] }) => time === 10_000);
      await until('the ten-second timer is set', isSet);
    } finally {
      timers.restore();
    }
    // Nodes have another history, so all other kinds have to check theirs.
    const fault = { kind: 'stale' } as const;
    // Exclude the comparison of Nodes, which may be late.
    world.double.fail({ verb: 'list', resource: 'nodes', metadataOnly: false, fault, times: 3 });
    world.double.put({ ...nodeManifest(['192.0.2.1']), metadata: { name: 'node-1' } });
    world.double.breakWatches('expire', 'nodes');
    await world.waitForServices({ a: 1, b: 1, c: 1 });
    assert.deepEqual([world.stalled, world.requests('list').length], [[], 1]);
  });

  it('is not reported when nothing has changed, at the cost of one metadata comparison', async () => {
    // Two pages.
    for (let number = 0; number < 500; number++) world.double.put(service(`s${number}`, 1));
    await until('the Services are read', () => world.sink.port('s499') === 1);
    const logged = [...world.logged];
    world.clockOffset += 38 * MINUTE;
    await until('it is compared', () => world.requests('comparison').length === 2);
    await renewals(3);
    assert.equal(world.requests('comparison').length, 2);
    assert.equal(world.requests('list').length, 1);
    assert.deepEqual([world.stalled, world.delays], [[], []]);
    assert.deepEqual(world.logged, logged);
  });

  it('is not reported when the server sends complete objects instead of metadata', async () => {
    const items = world.double.list('services');
    const metadata = { resourceVersion: String(world.double.version) };
    const text = JSON.stringify({ kind: 'ServiceList', apiVersion: 'v1', metadata, items });
    const fault = { kind: 'text', text } as const;
    world.double.fail({ verb: 'list', resource: 'services', metadataOnly: true, fault });
    world.clockOffset += 38 * MINUTE;
    await until('it is compared', () => world.requests('comparison').length === 1);
    await renewals(2);
    assert.deepEqual([world.stalled, world.waits, world.requests('list').length], [[], [], 1]);
  });

  it('is not reported when it delivers bookmarks', async () => {
    world.clockOffset += 20 * MINUTE;
    world.double.bookmark();
    await renewals(2);
    world.clockOffset += 20 * MINUTE;
    await renewals(2);
    assert.equal(world.requests('comparison').length, 0);
  });

  it('is not reported when it, or its renewal, delivers the change during the comparison', async () => {
    for (const skipped of [0, 1]) {
      const compared = world.requests('comparison').length;
      world.double.fail({ verb: 'list', metadataOnly: true, fault: { kind: 'hold' } });
      world.clockOffset += 38 * MINUTE;
      await until('it is held', () => world.requests('comparison').length > compared);
      Object.assign(timeouts, { silence: 10_000 });
      const name = `while-${skipped}`;
      world.double.skip(skipped);
      world.double.put(service(name, 1));
      if (skipped === 0) await until('it is told', () => world.sink.port(name) === 1);
      world.double.release();
      await until('it is told', () => world.sink.port(name) === 1);
      await until('it is renewed', () => world.double.watching('services') === 1);
      Object.assign(timeouts, { silence: 200 });
      // The silence period starts with an event.
      world.double.put(service('b', skipped + 2));
      await renewals(1);
    }
    assert.equal(world.requests('list').length, 1);
    assert.deepEqual(world.stalled, []);
  });
});
