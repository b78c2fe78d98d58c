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
  let fixture: SourceFixture;
  let timeouts: { credentials: number; response: number; list: number; silence: number };
  beforeEach(async () => {
    timeouts = { ...PATIENT, silence: 200 };
    fixture = new SourceFixture({ timeouts });
    await fixture.double.listen();
    fixture.double.put(service('a', 1), service('b', 1));
    await fixture.startAndWatch();
  });
  afterEach(() => fixture.stop());

  const stall = () => {
    fixture.double.fail({
      verb: 'watch',
      resource: 'services',
      fault: { kind: 'mute' },
      times: 10_000,
    });
    fixture.double.breakWatches('silence', 'services');
  };
  const renewals = async (times: number) => {
    const before = fixture.requests('watch').length;
    await until(`${times} renewals`, () => fixture.requests('watch').length >= before + times);
  };
  const logCount = (what: RegExp) => fixture.logged.filter((line) => what.test(line)).length;

  it('is detected within 42 minutes, and logged once', async () => {
    stall();
    // The change is not on the object that changed last, which every renewal checks.
    fixture.double.put(service('c', 1));
    fixture.double.delete(service('a', 1));
    fixture.clockOffset += 25 * MINUTE - 1;
    await renewals(3);
    assert.deepEqual(fixture.ports(), { a: 1, b: 1 });
    assert.deepEqual([fixture.requests('comparison').length, fixture.stalled.length], [0, 0]);
    fixture.clockOffset += 12.5 * MINUTE;
    await fixture.waitForServices({ b: 1, c: 1 });
    assert.deepEqual(fixture.stalled, ['Service']);
    assert.equal(logCount(STALLED), 1);
    assert.deepEqual(fixture.delays, []);
    // Once a stalled watch is known, a comparison runs within 19 minutes.
    fixture.double.put(service('a', 2));
    fixture.clockOffset += 15 * MINUTE;
    await fixture.waitForServices({ a: 2, b: 1, c: 1 });
    assert.deepEqual(fixture.stalled, ['Service', 'Service']);
    assert.equal(logCount(STALLED), 1);
  });

  it('is detected when objects were only deleted', async () => {
    stall();
    fixture.double.delete(service('a', 1));
    fixture.clockOffset += 38 * MINUTE;
    await fixture.waitForServices({ b: 1 });
    assert.deepEqual(fixture.stalled, ['Service']);
  });

  it('is detected at the next renewal when the object that changed last has changed again', async () => {
    const checked = fixture.requests('check').length;
    // The check, and the list that follows it.
    const fault = { kind: 'hold' } as const;
    fixture.double.fail({ verb: 'list', resource: 'services', fault, times: 2 });
    await until('the check is held', () => fixture.requests('check').length > checked);
    stall();
    fixture.double.put(service('b', 2));
    const { upToDateCount } = fixture;
    fixture.double.release();
    await until('the relist is held', () => fixture.requests('list').length === 2);
    assert.equal(
      fixture.upToDateCount,
      upToDateCount,
      'not reported as up to date before the list',
    );
    assert.deepEqual(fixture.stalled, ['Service']);
    fixture.double.release();
    await fixture.waitForServices({ a: 1, b: 2 });
    assert.equal(fixture.requests('comparison').length, 0);
  });

  it('is logged when it delivers events again', async () => {
    stall();
    fixture.double.put(service('b', 2));
    await fixture.waitForServices({ a: 1, b: 2 });
    fixture.double.recover();
    await renewals(2);
    fixture.double.put(service('a', 2));
    await fixture.waitForServices({ a: 2, b: 2 });
    assert.equal(fixture.logged.at(-1), RECOVERED);
    assert.equal(logCount(STALLED), 1);
  });

  it('is detected although its renewal fails at first', async () => {
    fixture.clockOffset += 38 * MINUTE;
    const fault = { kind: 'status', code: 503, reason: 'ServiceUnavailable' } as const;
    fixture.double.fail({ verb: 'watch', resource: 'services', fault });
    stall();
    fixture.double.put(service('c', 1));
    await fixture.waitForServices({ a: 1, b: 1, c: 1 });
    assert.deepEqual([fixture.stalled, fixture.waits], [['Service'], [1200]]);
  });

  it('has ten seconds to deliver a change, even when a renewal is requested', async () => {
    fixture.double.takeSnapshot();
    const { mock: timers } = mock.method(globalThis, 'setTimeout');
    try {
      fixture.double.fail({ verb: 'list', metadataOnly: true, fault: { kind: 'hold' } });
      fixture.clockOffset += 38 * MINUTE;
      await until('the comparison is held', () => fixture.requests('comparison').length === 1);
      Object.assign(timeouts, { silence: 60_000, response: 20_000, list: 20_000 });
      timers.resetCalls();
      fixture.double.fail({ verb: 'watch', resource: 'services', fault: { kind: 'mute' } });
      fixture.double.dropChanges(1);
      fixture.double.put(service('c', 1));
      fixture.double.release();
      const isSet = () => timers.calls.some(({ arguments: [, time] }) => time === 10_000);
      await until('the ten-second timer is set', isSet);
    } finally {
      timers.restore();
    }
    // Nodes have another history, so all other kinds have to check theirs.
    const fault = { kind: 'stale' } as const;
    // Exclude the comparison of Nodes, which may be late.
    fixture.double.fail({ verb: 'list', resource: 'nodes', metadataOnly: false, fault, times: 3 });
    fixture.double.put({ ...nodeManifest(['192.0.2.1']), metadata: { name: 'node-1' } });
    fixture.double.breakWatches('expire', 'nodes');
    await fixture.waitForServices({ a: 1, b: 1, c: 1 });
    assert.deepEqual([fixture.stalled, fixture.requests('list').length], [[], 1]);
  });

  it('is not reported when nothing has changed, at the cost of one metadata comparison', async () => {
    // Two pages.
    for (let number = 0; number < 500; number++) fixture.double.put(service(`s${number}`, 1));
    await until('the Services are read', () => fixture.sink.port('s499') === 1);
    const logged = [...fixture.logged];
    fixture.clockOffset += 38 * MINUTE;
    await until('the comparison is made', () => fixture.requests('comparison').length === 2);
    await renewals(3);
    assert.equal(fixture.requests('comparison').length, 2);
    assert.equal(fixture.requests('list').length, 1);
    assert.deepEqual([fixture.stalled, fixture.delays], [[], []]);
    assert.deepEqual(fixture.logged, logged);
  });

  it('is not reported when the server sends complete objects instead of metadata', async () => {
    const items = fixture.double.list('services');
    const metadata = { resourceVersion: String(fixture.double.version) };
    const text = JSON.stringify({ kind: 'ServiceList', apiVersion: 'v1', metadata, items });
    const fault = { kind: 'text', text } as const;
    fixture.double.fail({ verb: 'list', resource: 'services', metadataOnly: true, fault });
    fixture.clockOffset += 38 * MINUTE;
    await until('the comparison is made', () => fixture.requests('comparison').length === 1);
    await renewals(2);
    assert.deepEqual(
      [fixture.stalled, fixture.waits, fixture.requests('list').length],
      [[], [], 1],
    );
  });

  it('is not reported when it delivers bookmarks', async () => {
    fixture.clockOffset += 20 * MINUTE;
    fixture.double.bookmark();
    await renewals(2);
    fixture.clockOffset += 20 * MINUTE;
    await renewals(2);
    assert.equal(fixture.requests('comparison').length, 0);
  });

  it('is not reported when it, or its renewal, delivers the change during the comparison', async () => {
    for (const skipped of [0, 1]) {
      const compared = fixture.requests('comparison').length;
      fixture.double.fail({ verb: 'list', metadataOnly: true, fault: { kind: 'hold' } });
      fixture.clockOffset += 38 * MINUTE;
      await until('the comparison is held', () => fixture.requests('comparison').length > compared);
      Object.assign(timeouts, { silence: 10_000 });
      const name = `while-${skipped}`;
      fixture.double.dropChanges(skipped);
      fixture.double.put(service(name, 1));
      if (skipped === 0)
        await until('the change is delivered', () => fixture.sink.port(name) === 1);
      // The renewal delivers it, whether or not the short silence period has ended before the change.
      else fixture.double.breakWatches('end', 'services');
      fixture.double.release();
      await until('the change is delivered', () => fixture.sink.port(name) === 1);
      await until('the watch is renewed', () => fixture.double.watching('services') === 1);
      Object.assign(timeouts, { silence: 200 });
      // The silence period starts with an event.
      fixture.double.put(service('b', skipped + 2));
      await renewals(1);
    }
    assert.equal(fixture.requests('list').length, 1);
    assert.deepEqual(fixture.stalled, []);
  });
});
