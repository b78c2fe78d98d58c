/**
 * etcd is restored from a snapshot: its version goes back, and existing watches do not report it.
 */
import assert from 'node:assert/strict';
import { ALL_SERVICES } from '../../../sources/kubernetes/resources.ts';
import { nodeManifest, sliceManifest } from '../../e2e/manifests.ts';
import { until } from '../recording-sink.ts';
import {
  PATIENT,
  RESOURCE,
  SourceFixture,
  type SourceFixtureOptions,
  service,
} from './source-fixture.ts';

const NODE = { ...nodeManifest(['192.0.2.1']), metadata: { name: 'node-1' } };
const OLD_NODE = 'Node node-1';
const SNAPSHOT = ['EndpointSlice default/a-ipv4', OLD_NODE, 'Service default/a'];

describe('etcd-restore: after etcd was restored from a snapshot', () => {
  let fixture: SourceFixture;
  afterEach(() => fixture.stop());

  /** Opens the watches, takes a snapshot, and changes more objects afterwards. */
  const open = async (options: SourceFixtureOptions = {}) => {
    fixture = new SourceFixture(options);
    await fixture.double.listen();
    fixture.double.put(service('a', 1), sliceManifest('a', 4, []), NODE);
    await fixture.startAndWatch();
    fixture.double.takeSnapshot();
    fixture.double.put(service('b', 1), sliceManifest('b', 4, []));
    fixture.double.delete(service('a', 1), sliceManifest('a', 4, []), NODE);
    await has('EndpointSlice default/b-ipv4', 'Service default/b');
  };
  const has = (...objects: string[]) =>
    until(`there are ${objects}`, () => {
      return [...fixture.sink.objects.keys()].sort().join() === objects.join();
    });
  const lists = () => Object.values(RESOURCE).map((name) => fixture.requests('list', name).length);

  it('relists all kinds when the API server was stopped', async () => {
    await open();
    await fixture.double.close();
    fixture.double.restore();
    await until('reconnecting has failed twice', () => fixture.waits.length >= 2);
    const missed = fixture.waits.length;
    await fixture.double.listen();
    await has(...SNAPSHOT);
    assert.deepEqual(lists(), [2, 2, 2]);
    // One stale response may come from a lagging server, so there are exactly two waits.
    assert.deepEqual(fixture.waits.slice(missed).slice(-2), [1200, 2400]);
    fixture.double.put(service('c', 1));
    await until('it is watched', () => fixture.sink.port('c') === 1);
  });

  it('relists all kinds when watches stay open without events', async () => {
    await open({ timeouts: { ...PATIENT, silence: 200 } });
    fixture.double.restore();
    await has(...SNAPSHOT);
    assert.deepEqual(lists(), [2, 2, 2]);
  });

  for (const what of ['Service', 'EndpointSlice'] as const) {
    it(`relists all kinds when watches stay open and a ${what} changes`, async () => {
      await open();
      fixture.double.restore();
      fixture.double.put(what === 'Service' ? service('a', 2) : sliceManifest('c', 4, []));
      const more = what === 'Service' ? [] : ['EndpointSlice default/c-ipv4'];
      await has(...[...SNAPSHOT, ...more].sort());
      assert.deepEqual(lists(), [2, 2, 2]);
    });
  }

  it('relists a kind when another kind detects the restore while its watch opens', async () => {
    await open({ timeouts: { ...PATIENT, silence: 60_000 } });
    fixture.double.fail({ verb: 'watch', resource: 'services', fault: { kind: 'hold' } });
    fixture.double.breakWatches('cut', 'services');
    await fixture.waitForRequest('watch', 2);
    fixture.double.restore();
    fixture.double.put(sliceManifest('c', 4, []));
    // The reflector that detects the restore makes all others check; the last one checks before its
    // watch is open.
    await until('the other kinds are relisted', () => lists().join() === '1,2,2');
    fixture.double.release();
    await has(...[...SNAPSHOT, 'EndpointSlice default/c-ipv4'].sort());
  });

  it('relists a kind when its old watch detects the restore during renewal', async () => {
    const timeouts = { ...PATIENT, silence: 200 };
    fixture = new SourceFixture({ resources: [ALL_SERVICES], timeouts });
    await fixture.double.listen();
    fixture.double.put(service('a', 1));
    await fixture.startAndWatch([RESOURCE.Service]);
    fixture.double.takeSnapshot();
    fixture.double.put(service('b', 1), service('c', 1));
    await has('Service default/a', 'Service default/b', 'Service default/c');
    const before = fixture.requests('watch').length;
    fixture.double.fail({ verb: 'watch', fault: { kind: 'hold' } });
    await fixture.waitForRequest('watch', before + 1);
    // The silence of the new watch must not detect the restore.
    Object.assign(timeouts, { silence: 60_000 });
    fixture.double.restore();
    fixture.double.put(service('a', 2));
    await until('the old watch has ended', () => !fixture.watched.has('Service'));
    fixture.double.release();
    await has('Service default/a');
    assert.equal(fixture.sink.port('a'), 2);
  });

  it('relists a kind when the version is ahead again before the next watch', async () => {
    await open();
    await fixture.double.close();
    fixture.double.restore();
    for (let port = 2; port < 20; port++) fixture.double.put(service('c', port));
    await fixture.double.listen();
    await has(...SNAPSHOT, 'Service default/c');
    assert.equal(fixture.sink.port('c'), 19);
    assert.deepEqual(lists(), [2, 2, 2]);
  });

  it('relists an idle kind when the snapshot lacks its last change', async () => {
    fixture = new SourceFixture({
      resources: [ALL_SERVICES],
      timeouts: { ...PATIENT, silence: 200 },
    });
    await fixture.double.listen();
    fixture.double.put(service('a', 1));
    await fixture.startAndWatch([RESOURCE.Service]);
    fixture.double.takeSnapshot();
    fixture.double.put(service('b', 1));
    await has('Service default/a', 'Service default/b');
    await fixture.double.close();
    fixture.double.restore();
    // The version is ahead again, so only the silence of the watch detects the restore.
    for (const name of ['a', 'b', 'c']) fixture.double.put(sliceManifest(name, 4, []));
    await fixture.double.listen();
    await has('Service default/a');
    assert.equal(fixture.requests('list').length, 2);
  });

  it('does not remove objects after one stale response', async () => {
    await open();
    const calls = fixture.sink.calls.length;
    const fault = { kind: 'stale' } as const;
    fixture.double.fail({ verb: 'list', resource: 'services', fault, times: 2 });
    fixture.double.breakWatches('cut', 'services');
    await fixture.waitForRequest('watch', 2);
    assert.deepEqual(lists(), [1, 1, 1]);
    assert.deepEqual(fixture.waits, [1200, 1200, 2400]);
    assert.equal(fixture.sink.calls.length, calls);
  });
});
