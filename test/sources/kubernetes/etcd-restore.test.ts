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
  let world: SourceFixture;
  afterEach(() => world.stop());

  /** Opens the watches, takes a snapshot, and changes more objects afterwards. */
  const open = async (options: SourceFixtureOptions = {}) => {
    world = new SourceFixture(options);
    await world.double.listen();
    world.double.put(service('a', 1), sliceManifest('a', 4, []), NODE);
    await world.startAndWatch();
    world.double.keep();
    world.double.put(service('b', 1), sliceManifest('b', 4, []));
    world.double.delete(service('a', 1), sliceManifest('a', 4, []), NODE);
    await has('EndpointSlice default/b-ipv4', 'Service default/b');
  };
  const has = (...objects: string[]) =>
    until(`there are ${objects}`, () => {
      return [...world.sink.objects.keys()].sort().join() === objects.join();
    });
  const lists = () => Object.values(RESOURCE).map((name) => world.requests('list', name).length);

  it('relists all kinds when the API server was stopped', async () => {
    await open();
    await world.double.close();
    world.double.restore();
    await until('reconnecting has failed twice', () => world.waits.length >= 2);
    const missed = world.waits.length;
    await world.double.listen();
    await has(...SNAPSHOT);
    assert.deepEqual(lists(), [2, 2, 2]);
    // One stale response may come from a lagging server, so there are exactly two waits.
    assert.deepEqual(world.waits.slice(missed).slice(-2), [1200, 2400]);
    world.double.put(service('c', 1));
    await until('it is watched', () => world.sink.port('c') === 1);
  });

  it('relists all kinds when watches stay open without events', async () => {
    await open({ timeouts: { ...PATIENT, silence: 200 } });
    world.double.restore();
    await has(...SNAPSHOT);
    assert.deepEqual(lists(), [2, 2, 2]);
  });

  for (const what of ['Service', 'EndpointSlice'] as const) {
    it(`relists all kinds when watches stay open and a ${what} changes`, async () => {
      await open();
      world.double.restore();
      world.double.put(what === 'Service' ? service('a', 2) : sliceManifest('c', 4, []));
      const more = what === 'Service' ? [] : ['EndpointSlice default/c-ipv4'];
      await has(...[...SNAPSHOT, ...more].sort());
      assert.deepEqual(lists(), [2, 2, 2]);
    });
  }

  it('relists a kind when another kind detects the restore while its watch opens', async () => {
    await open({ timeouts: { ...PATIENT, silence: 60_000 } });
    world.double.fail({ verb: 'watch', resource: 'services', fault: { kind: 'hold' } });
    world.double.breakWatches('cut', 'services');
    await world.waitForRequest('watch', 2);
    world.double.restore();
    world.double.put(sliceManifest('c', 4, []));
    // The reflector that detects the restore makes all others check; the last one checks before its
    // watch is open.
    await until('the other kinds are relisted', () => lists().join() === '1,2,2');
    world.double.release();
    await has(...[...SNAPSHOT, 'EndpointSlice default/c-ipv4'].sort());
  });

  it('relists a kind when its old watch detects the restore during renewal', async () => {
    const timeouts = { ...PATIENT, silence: 200 };
    world = new SourceFixture({ resources: [ALL_SERVICES], timeouts });
    await world.double.listen();
    world.double.put(service('a', 1));
    await world.startAndWatch([RESOURCE.Service]);
    world.double.keep();
    world.double.put(service('b', 1), service('c', 1));
    await has('Service default/a', 'Service default/b', 'Service default/c');
    const asked = world.requests('watch').length;
    world.double.fail({ verb: 'watch', fault: { kind: 'hold' } });
    await world.waitForRequest('watch', asked + 1);
    // The silence of the new watch must not detect the restore.
    Object.assign(timeouts, { silence: 60_000 });
    world.double.restore();
    world.double.put(service('a', 2));
    await until('the old watch has ended', () => !world.watched.has('Service'));
    world.double.release();
    await has('Service default/a');
    assert.equal(world.sink.port('a'), 2);
  });

  it('relists a kind when the version is ahead again before the next watch', async () => {
    await open();
    await world.double.close();
    world.double.restore();
    for (let port = 2; port < 20; port++) world.double.put(service('c', port));
    await world.double.listen();
    await has(...SNAPSHOT, 'Service default/c');
    assert.equal(world.sink.port('c'), 19);
    assert.deepEqual(lists(), [2, 2, 2]);
  });

  it('relists an idle kind when the snapshot lacks its last change', async () => {
    world = new SourceFixture({
      resources: [ALL_SERVICES],
      timeouts: { ...PATIENT, silence: 200 },
    });
    await world.double.listen();
    world.double.put(service('a', 1));
    await world.startAndWatch([RESOURCE.Service]);
    world.double.keep();
    world.double.put(service('b', 1));
    await has('Service default/a', 'Service default/b');
    await world.double.close();
    world.double.restore();
    // The version is ahead again, so only the silence of the watch detects the restore.
    for (const name of ['a', 'b', 'c']) world.double.put(sliceManifest(name, 4, []));
    await world.double.listen();
    await has('Service default/a');
    assert.equal(world.requests('list').length, 2);
  });

  it('does not remove objects after one stale response', async () => {
    await open();
    const calls = world.sink.calls.length;
    const fault = { kind: 'stale' } as const;
    world.double.fail({ verb: 'list', resource: 'services', fault, times: 2 });
    world.double.breakWatches('cut', 'services');
    await world.waitForRequest('watch', 2);
    assert.deepEqual(lists(), [1, 1, 1]);
    assert.deepEqual(world.waits, [1200, 1200, 2400]);
    assert.equal(world.sink.calls.length, calls);
  });
});
