/** Watches of the Pods of single namespaces, which begin and end while the source runs. */
import assert from 'node:assert/strict';
import { servingAndPolicyResources } from '../../../sources/kubernetes/resources.ts';
import { addressedPod } from '../../e2e/manifests.ts';
import { until } from '../recording-sink.ts';
import { SourceFixture, type SourceFixtureOptions, service } from './source-fixture.ts';

const pod = (namespace: string, name: string, ip = '10.244.0.1') =>
  addressedPod(name, [ip], { namespace });
const FORBIDDEN = { kind: 'status', code: 403, reason: 'Forbidden' } as const;

describe('kubernetes source: watches of Pods', () => {
  let fixture: SourceFixture;
  const start = async (options: SourceFixtureOptions = {}) => {
    fixture = new SourceFixture(options);
    await fixture.double.listen();
    fixture.double.put(pod('shop', 'a'), pod('shop', 'b'), pod('games', 'c'));
    await fixture.startAndWatch();
  };
  afterEach(() => fixture.stop());

  const pods = () =>
    [...fixture.sink.objects.values()].flatMap(({ kind, key }) => (kind === 'Pod' ? [key] : []));
  const has = (...expected: readonly string[]) =>
    until(`the Pods are ${expected}`, () => pods().sort().join() === expected.join());
  const watching = (count: number) =>
    until(`${count} watches of Pods`, () => fixture.double.watching('pods') === count);
  /** Ends a watch; the sink must forget its Pods. */
  const end = (namespace: string) => {
    fixture.podWatches.end(namespace);
    for (const key of pods().filter((each) => each.startsWith(`${namespace}/`)))
      fixture.sink.objects.delete(`Pod ${key}`);
  };
  const paths = () =>
    fixture.double
      .requests()
      .filter(({ resource }) => resource === 'pods')
      .map(({ verb, path }) => `${verb} ${path}`);

  it('list and watch one namespace, and say when it is listed', async () => {
    await start();
    assert.deepEqual(paths(), [], 'no Pods are read without need');
    fixture.podWatches.begin('shop', () => {});
    await watching(1);
    await has('shop/a', 'shop/b');
    assert.deepEqual(fixture.sink.calls.slice(-3), [
      '+ Pod shop/a',
      '+ Pod shop/b',
      'synced Pod shop',
    ]);
    assert.deepEqual(paths(), [
      'list /api/v1/namespaces/shop/pods',
      'watch /api/v1/namespaces/shop/pods',
    ]);
    fixture.double.put(pod('shop', 'd'), pod('games', 'e'));
    fixture.double.delete(pod('shop', 'a'));
    await has('shop/b', 'shop/d');
    assert.ok(fixture.logged.includes('Pod: listed objects'));
  });

  it('end with the watch of the namespace, and begin again', async () => {
    await start();
    fixture.podWatches.begin('shop', () => {});
    fixture.podWatches.begin('games', () => {});
    await watching(2);
    await has('games/c', 'shop/a', 'shop/b');
    end('shop');
    await watching(1);
    fixture.double.put(pod('shop', 'd'), pod('games', 'e'));
    await has('games/c', 'games/e');
    fixture.podWatches.begin('shop', () => {});
    await watching(2);
    await has('games/c', 'games/e', 'shop/a', 'shop/b', 'shop/d');
    end('shop');
    end('games');
    await watching(0);
    assert.deepEqual(fixture.notInstalled, ['Pod'], 'no state of a watch remains');
    fixture.podWatches.end('other');
  });

  it('count as open while all of them are open', async () => {
    await start();
    fixture.podWatches.begin('games', () => {});
    await until('the watch is reported', () => fixture.watched.has('Pod'));
    fixture.holdDelays = true;
    fixture.double.fail({ fault: FORBIDDEN, verb: 'list', resource: 'pods' });
    fixture.podWatches.begin('shop', () => {});
    assert.equal(fixture.watched.has('Pod'), false);
    await until('the failure is logged', () =>
      fixture.logged.includes('Pod: list or watch failed; retrying'),
    );
    assert.equal(fixture.watched.has('Pod'), false);
    fixture.double.put(pod('games', 'e'));
    await has('games/c', 'games/e');
    assert.equal(fixture.watched.has('Pod'), false);
    fixture.podWatches.end('shop');
    assert.ok(fixture.watched.has('Pod'), 'the others are open');
  });

  it('are retried when the list is forbidden, and other namespaces and kinds are served', async () => {
    await start();
    fixture.double.fail({ fault: FORBIDDEN, verb: 'list', resource: 'pods', times: 3 });
    const forbidden: string[] = [];
    fixture.podWatches.begin('shop', () => forbidden.push('shop'));
    await until('the list succeeds', () => fixture.sink.calls.includes('synced Pod shop'));
    assert.equal(fixture.failures.Pod, 3);
    assert.deepEqual(forbidden, ['shop', 'shop']);
    assert.deepEqual(
      [fixture.failures.Service, fixture.failures.EndpointSlice, fixture.failures.Node],
      [0, 0, 0],
    );
    await has('shop/a', 'shop/b');
  });

  it('count as forbidden only when the next attempt is forbidden, too', async () => {
    await start();
    const rule = { verb: 'list', resource: 'pods' } as const;
    const unavailable = { kind: 'status', code: 503, reason: 'ServiceUnavailable' } as const;
    for (const fault of [FORBIDDEN, unavailable, FORBIDDEN])
      fixture.double.fail({ ...rule, fault });
    const forbidden: string[] = [];
    fixture.podWatches.begin('shop', () => forbidden.push('shop'));
    await until('the list succeeds', () => fixture.sink.calls.includes('synced Pod shop'));
    assert.deepEqual([fixture.failures.Pod, forbidden], [3, []]);
  });

  it('keep what they know while the API server is away', async () => {
    await start();
    fixture.podWatches.begin('shop', () => {});
    await watching(1);
    await has('shop/a', 'shop/b');
    await fixture.double.close();
    await until('the watch is reported as closed', () => !fixture.watched.has('Pod'));
    assert.deepEqual(pods().sort(), ['shop/a', 'shop/b']);
    fixture.double.delete(pod('shop', 'a'));
    await fixture.double.listen();
    await has('shop/b');
  });

  it('relist when another kind shows that etcd was restored', async () => {
    await start();
    fixture.podWatches.begin('shop', () => {});
    await watching(1);
    await has('shop/a', 'shop/b');
    fixture.double.takeSnapshot();
    fixture.double.put(pod('shop', 'd'), service('late', 80));
    await has('shop/a', 'shop/b', 'shop/d');
    await fixture.waitForServices({ late: 80 });
    fixture.double.restore();
    fixture.double.put(service('web', 80));
    await has('shop/a', 'shop/b');
  });

  it('count Pods that cannot be read, of all namespaces', async () => {
    await start();
    fixture.double.put(pod('shop', 'x', 'nonsense'), pod('games', 'y', 'nonsense'));
    fixture.podWatches.begin('shop', () => {});
    fixture.podWatches.begin('games', () => {});
    await until('both are reported', () => fixture.unreadableNow().Pod === 2);
    assert.deepEqual(
      fixture
        .faultsNow()
        .map(({ object }) => object)
        .sort(),
      ['Pod games/y', 'Pod shop/x'],
    );
    fixture.podWatches.end('shop');
    assert.equal(fixture.unreadableNow().Pod, 1);
  });

  it('make no second request if all Pods are watched for network policy', async () => {
    const resources = servingAndPolicyResources('node-1');
    await start({ resources });
    await has('games/c', 'shop/a', 'shop/b');
    const before = paths();
    // The sink knows them already, and is told once more.
    for (const key of ['Pod shop/a', 'Pod shop/b']) fixture.sink.objects.delete(key);
    fixture.podWatches.begin('shop', () => {});
    assert.deepEqual(fixture.sink.calls.slice(-3), [
      '+ Pod shop/a',
      '+ Pod shop/b',
      'synced Pod shop',
    ]);
    fixture.podWatches.end('shop');
    fixture.double.put(pod('shop', 'd'));
    await has('games/c', 'shop/a', 'shop/b', 'shop/d');
    assert.deepEqual(paths(), before);
  });
});
