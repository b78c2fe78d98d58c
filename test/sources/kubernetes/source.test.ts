import assert from 'node:assert/strict';
import { nodeManifest, sliceManifest } from '../../e2e/manifests.ts';
import { until } from '../recording-sink.ts';
import { SourceFixture, service } from './source-fixture.ts';

describe('source: kubernetes source', () => {
  let fixture: SourceFixture;
  beforeEach(async () => {
    fixture = new SourceFixture();
    await fixture.double.listen();
  });
  afterEach(() => fixture.stop());

  /** Lists two Services and opens the watches. */
  const watching = async () => {
    fixture.double.put(service('a', 1), service('b', 1));
    await fixture.startAndWatch();
  };

  it('lists page by page, reports synced, then watches from the list’s version', async () => {
    const names = Array.from({ length: 1001 }, (_, index) => `s${1000 + index}`);
    fixture.double.put(...names.map((name) => service(name, 1)));
    const version = String(fixture.double.version);
    await fixture.startAndWatch();
    assert.deepEqual(
      fixture.requests('list').map(({ query }) => query),
      [undefined, 500, 1000].map((start) => ({
        limit: '500',
        ...(start !== undefined && { continue: `list-1 ${start}` }),
      })),
    );
    assert.deepEqual(
      fixture.sink.calls.filter((call) => call.includes('Service')),
      [...names.map((name) => `+ Service default/${name}`), 'synced Service'],
    );
    assert.deepEqual(fixture.requests('watch')[0]?.query, {
      watch: 'true',
      allowWatchBookmarks: 'true',
      resourceVersion: version,
      timeoutSeconds: '450',
    });
  });

  it('lists EndpointSlices and its own Node', async () => {
    fixture.double.put(
      { ...nodeManifest(['192.0.2.1']), metadata: { name: 'node-1' } },
      { ...nodeManifest(['192.0.2.2']), metadata: { name: 'node-2' } },
      sliceManifest('a', 4, []),
    );
    await fixture.startAndWatch();
    assert.deepEqual([...fixture.sink.objects.keys()].sort(), [
      'EndpointSlice default/a-ipv4',
      'Node node-1',
    ]);
    assert.deepEqual([...fixture.sink.syncedKinds].sort(), ['EndpointSlice', 'Node', 'Service']);
    const lists = fixture.double.requests().filter(({ verb }) => verb === 'list');
    assert.deepEqual(lists.map(({ path, query }) => [path, query]).sort(), [
      ['/api/v1/nodes', { fieldSelector: 'metadata.name=node-1', limit: '500' }],
      ['/api/v1/services', { limit: '500' }],
      [
        '/apis/discovery.k8s.io/v1/endpointslices',
        { labelSelector: '!service.kubernetes.io/headless', limit: '500' },
      ],
    ]);
  });

  it('yields to the event loop while reading a large list', async () => {
    const items = Array.from({ length: 20_000 }, (_, index) => service(`s${index}`, 1));
    const metadata = { resourceVersion: String(fixture.double.version) };
    const text = JSON.stringify({ kind: 'ServiceList', metadata, items });
    fixture.double.fail({ verb: 'list', resource: 'services', fault: { kind: 'text', text } });
    fixture.start();
    let most = 0;
    for (let before = 0, synced = false; !synced; synced = fixture.sink.syncedKinds.size === 3) {
      await new Promise(setImmediate);
      most = Math.max(most, fixture.sink.objects.size - before);
      before = fixture.sink.objects.size;
    }
    assert.equal(fixture.sink.objects.size, 20_000);
    // At most the Services in 64 KiB per turn.
    assert.ok(most < (2 * 65536 * items.length) / text.length, `${most} in one turn`);
  });

  it('delivers events, and continues from the last one when the watch ends', async () => {
    await watching();
    fixture.double.put(service('a', 2), service('c', 1));
    fixture.double.delete(service('b', 1));
    fixture.double.put(sliceManifest('other', 4, []));
    await fixture.waitForServices({ a: 2, c: 1 });
    fixture.double.bookmark();
    fixture.double.breakWatches('end', 'services');
    const { query } = await fixture.waitForRequest('watch', 2);
    assert.equal(query.resourceVersion, String(fixture.double.version));
    assert.deepEqual(fixture.waits, []);
    fixture.double.put(service('c', 3));
    await fixture.waitForServices({ a: 2, c: 3 });
    assert.equal(fixture.requests('list').length, 1);
  });

  it('ignores changes of fields that are not read', async () => {
    await watching();
    const before = fixture.sink.calls.length;
    fixture.double.put({ ...service('a', 1), status: { conditions: [{ type: 'Odd' }] } });
    fixture.double.put(service('c', 1));
    await fixture.waitForServices({ a: 1, b: 1, c: 1 });
    assert.deepEqual(fixture.sink.calls.slice(before), ['+ Service default/c']);
  });

  it('delivers a Service of another proxy, which has its cluster IP nevertheless', async () => {
    await watching();
    const labels = { 'service.kubernetes.io/service-proxy-name': 'other' };
    const metadata = { name: 'a', namespace: 'default', labels };
    fixture.double.put({ ...service('a', 4), metadata });
    await fixture.waitForServices({ a: 4, b: 1 });
    const object = fixture.sink.objects.get('Service default/a');
    assert.equal(object?.kind === 'Service' && object.otherProxy, true);
  });

  it('reads events that arrive in several chunks', async () => {
    await watching();
    const object = { ...service('c', 7), note: 'Grüße 🎉' };
    const metadata = { name: 'c', namespace: 'default', resourceVersion: '99' };
    const text = `${JSON.stringify({ type: 'ADDED', object: { ...object, metadata } })}\n`;
    for (const byte of Buffer.from(text)) {
      fixture.double.sendRaw('services', Buffer.from([byte]));
      await new Promise(setImmediate);
    }
    await fixture.waitForServices({ a: 1, b: 1, c: 7 });
  });

  it('relists when the version has expired, and delivers only the differences', async () => {
    await watching();
    fixture.double.put(service('c', 1));
    await fixture.waitForServices({ a: 1, b: 1, c: 1 });
    const before = fixture.sink.calls.length;
    fixture.double.dropChanges(3);
    fixture.double.put(service('c', 2), service('d', 1));
    fixture.double.delete(service('b', 1));
    fixture.double.breakWatches('expire', 'services');
    await fixture.waitForServices({ a: 1, c: 2, d: 1 });
    assert.deepEqual(fixture.sink.calls.slice(before), [
      '+ Service default/c',
      '+ Service default/d',
      '- Service default/b',
    ]);
    // At once except for jitter, because all nodes may relist at the same time.
    assert.deepEqual(fixture.waits, [400]);
    await fixture.waitForRequest('watch', 2);
    assert.equal(fixture.requests('list').length, 2);
  });

  it('relists when opening the watch fails with 410', async () => {
    const fault = { kind: 'status', code: 410, reason: 'Expired' } as const;
    fixture.double.fail({ verb: 'watch', resource: 'services', fault });
    await watching();
    assert.equal(fixture.requests('list').length, 2);
    assert.deepEqual(fixture.waits, [400]);
  });

  it('backs off when each watch opens but delivers a 410 ERROR event', async () => {
    const status = { kind: 'Status', code: 410, reason: 'Expired', message: 'too old' };
    const text = `${JSON.stringify({ type: 'ERROR', object: status })}\n`;
    const fault = { kind: 'text', text } as const;
    fixture.double.fail({ verb: 'watch', resource: 'services', fault, times: 4 });
    await watching();
    assert.deepEqual(fixture.waits, [400, 1200, 2400, 4800]);
  });

  it('backs off and sometimes relists when watches end as soon as they open', async () => {
    const fault = { kind: 'text', text: '' } as const;
    fixture.double.fail({ verb: 'watch', resource: 'services', fault, times: 7 });
    await watching();
    assert.deepEqual(fixture.waits, [1200, 2400, 4800, 9600, 19_200, 38_400, 45_000]);
    assert.equal(fixture.requests('list').length, 3);
  });

  it('relists when resource versions go backwards', async () => {
    await watching();
    fixture.double.takeSnapshot();
    fixture.double.put(service('a', 2), service('c', 1), service('d', 1));
    await fixture.waitForServices({ a: 2, b: 1, c: 1, d: 1 });
    fixture.double.restore();
    fixture.double.put(service('e', 1));
    await fixture.waitForServices({ a: 1, b: 1, e: 1 });
    assert.deepEqual(fixture.waits, [1200]);
  });

  it('ignores a stale list until the third consecutive one', async () => {
    await watching();
    fixture.double.takeSnapshot();
    fixture.double.put(service('c', 1));
    await fixture.waitForServices({ a: 1, b: 1, c: 1 });
    const fault = { kind: 'stale' } as const;
    fixture.double.fail({ verb: 'list', resource: 'services', fault, times: 2 });
    fixture.double.breakWatches('expire', 'services');
    await fixture.waitForRequest('watch', 2);
    assert.deepEqual(fixture.waits, [400, 1200, 2400]);
    assert.ok(!fixture.sink.calls.includes('- Service default/c'));

    fixture.double.put(service('d', 1));
    await fixture.waitForServices({ a: 1, b: 1, c: 1, d: 1 });
    fixture.double.restore();
    fixture.double.breakWatches('expire', 'services');
    await fixture.waitForServices({ a: 1, b: 1 });
    assert.deepEqual(fixture.waits.slice(3), [400, 1200, 2400]);

    // One detected restore does not make the next stale list count sooner.
    fixture.double.put(service('e', 1));
    await fixture.waitForServices({ a: 1, b: 1, e: 1 });
    fixture.double.fail({ verb: 'list', resource: 'services', fault });
    fixture.double.breakWatches('expire', 'services');
    await fixture.waitForRequest('watch', fixture.requests('watch').length + 1);
    assert.ok(!fixture.sink.calls.includes('- Service default/e'));
  });

  it('continues the watch without a relist after a long outage', async () => {
    const fault = { kind: 'refuse' } as const;
    await watching();
    fixture.double.fail({ verb: 'watch', resource: 'services', fault, times: 7 });
    fixture.double.breakWatches('cut', 'services');
    fixture.double.put(service('c', 1));
    fixture.double.delete(service('b', 1));
    await fixture.waitForServices({ a: 1, c: 1 });
    assert.equal(fixture.requests('watch').length, 9);
    assert.equal(fixture.requests('list').length, 1);
  });

  describe('with more than a page of Services', () => {
    const many = Array.from({ length: 600 }, (_, index) => service(`s${1000 + index}`, 1));
    const gone = { kind: 'status', code: 410, reason: 'Expired' } as const;

    it('removes nothing when a list is incomplete, and lists without pages when its continue token expires', async () => {
      fixture.double.put(...many);
      await fixture.startAndWatch();
      const size = fixture.sink.objects.size;
      const [first] = many;
      assert.ok(first !== undefined);
      fixture.double.dropChanges(2);
      fixture.double.delete(first);
      fixture.double.put(service('s1599', 2));
      const faults = [
        { kind: 'cut' },
        { kind: 'status', code: 500, reason: 'InternalError' },
        { kind: 'text', text: '{}' },
        { kind: 'truncate' },
      ] as const;
      for (const fault of faults)
        fixture.double.fail({ verb: 'list', resource: 'services', fault });
      fixture.double.fail({ verb: 'list', resource: 'services', fault: gone, laterPages: true });
      fixture.double.breakWatches('expire', 'services');
      await fixture.waitForRequest('watch', 2);
      const limits = fixture.requests('list').map(({ query }) => query.limit);
      assert.deepEqual(limits, [...Array<string>(8).fill('500'), undefined]);
      assert.deepEqual(fixture.waits, [400, 1200, 2400, 4800, 9600, 4800]);
      assert.equal(fixture.sink.objects.size, size - 1);
      assert.equal(fixture.sink.port('s1599'), 2);
      const removals = fixture.sink.calls.filter((call) => call.startsWith('-'));
      assert.deepEqual(removals, ['- Service default/s1000']);

      // The next list uses pages again.
      fixture.double.breakWatches('expire', 'services');
      await fixture.waitForRequest('watch', 3);
      assert.equal(fixture.requests('list').at(-1)?.query.limit, '500');
    });

    it('uses one connection for the pages and the watch', async () => {
      fixture.double.put(...many);
      await fixture.startAndWatch();
      const of = (resource: string) =>
        fixture.double.requests().filter((request) => request.resource === resource);
      const ports = of('services').map(({ clientPort }) => clientPort);
      assert.equal(ports.length, 3);
      assert.equal(new Set(ports).size, 1);
    });
  });

  it('continues from the last event when the connection breaks in the middle of an event', async () => {
    await watching();
    fixture.double.put(service('a', 2));
    await fixture.waitForServices({ a: 2, b: 1 });
    const version = String(fixture.double.version);
    fixture.double.breakWatches('cut half', 'services');
    const { query } = await fixture.waitForRequest('watch', 2);
    assert.equal(query.resourceVersion, version);
    fixture.double.delete(service('b', 1));
    await fixture.waitForServices({ a: 2 });
    assert.deepEqual(fixture.waits, [1200]);
    assert.equal(fixture.requests('list').length, 1);
  });

  it('ignores an incomplete event at the end of a response', async () => {
    await watching();
    const { resourceVersion } = fixture.requests('watch')[0]?.query ?? {};
    const object = { kind: 'Service', apiVersion: 'v1', metadata: { name: 'a' } };
    fixture.double.sendRaw('services', JSON.stringify({ type: 'DELETED', object }));
    fixture.double.breakWatches('end', 'services');
    const { query } = await fixture.waitForRequest('watch', 2);
    assert.equal(query.resourceVersion, resourceVersion);
    assert.deepEqual(fixture.ports(), { a: 1, b: 1 });
  });

  const metadata = { name: 'a', namespace: 'default', resourceVersion: '99' };
  for (const [what, line] of [
    ['is not JSON', 'oops'],
    ['is not an event', '[]'],
    ['has no version', { type: 'MODIFIED', object: service('a', 9) }],
    ['is of an unknown type', { type: 'SHRUGGED', object: { ...service('a', 9), metadata } }],
    ['is about another kind', { type: 'ADDED', object: { kind: 'Pod', metadata } }],
  ] as const) {
    it(`relists after a line that ${what}`, async () => {
      await watching();
      const text = typeof line === 'string' ? line : JSON.stringify(line);
      fixture.double.sendRaw('services', `${text}\n`);
      await fixture.waitForRequest('watch', 2);
      assert.equal(fixture.requests('list').length, 2);
      assert.deepEqual(fixture.ports(), { a: 1, b: 1 });
      assert.deepEqual(fixture.waits, [1200]);
    });
  }

  for (const [what, text] of [
    ['a list of another kind', '{"kind":"PodList","metadata":{"resourceVersion":"9"},"items":[]}'],
    ['a single object', JSON.stringify({ ...service('a', 1), metadata })],
    ['a list without a version', '{"kind":"ServiceList","metadata":{},"items":[]}'],
    ['a list without items', '{"kind":"ServiceList","metadata":{"resourceVersion":"9"}}'],
  ] as const) {
    it(`rejects ${what} in place of a list`, async () => {
      await watching();
      fixture.double.fail({ verb: 'list', resource: 'services', fault: { kind: 'text', text } });
      fixture.double.breakWatches('expire', 'services');
      await fixture.waitForRequest('watch', 2);
      assert.equal(fixture.requests('list').length, 3);
      assert.ok(!fixture.sink.calls.some((call) => call.startsWith('-')));
    });
  }

  it('says whether an earlier version of an unreadable object is in force', async () => {
    await watching();
    fixture.double.put(service('a', 70_000));
    fixture.double.put(service('d', 70_000));
    await until('both are reported', () => fixture.faultsNow().length === 2);
    assert.deepEqual(
      fixture.faultsNow().map(({ object, inForce }) => [object, inForce]),
      [
        ['Service default/a', 'last'],
        ['Service default/d', 'none'],
      ],
    );
  });

  it('keeps the last readable version of an object after events and lists', async () => {
    await watching();
    fixture.double.put(service('a', 70_000));
    await until('it is reported', () => fixture.problems.length > 0);
    assert.match(fixture.problems[0] ?? '', /^Service default\/a: spec\.ports\[0\]\.port: /);
    assert.deepEqual(fixture.unreadableNow(), { Service: 1 });
    fixture.double.put(service('c_', 1));
    fixture.double.breakWatches('expire', 'services');
    await fixture.waitForRequest('watch', 2);
    assert.deepEqual(fixture.ports(), { a: 1, b: 1 });
    fixture.double.delete(service('a', 0));
    await fixture.waitForServices({ b: 1 });
    assert.deepEqual(fixture.unreadableNow(), {});
    // Objects without a readable name are reported each time.
    const reported = fixture.problems.map((problem, index) => [
      problem.split(':')[0],
      fixture.unreadable[index]?.key,
    ]);
    assert.deepEqual(reported[0], ['Service default/a', 'default/a']);
    assert.ok(reported.length > 2);
    for (const each of reported.slice(1)) assert.deepEqual(each, ['Service default/c_', undefined]);
  });

  it('backs off while the server fails, and starts when it recovers', async () => {
    const fault = { kind: 'status', code: 500, reason: 'Busy' } as const;
    fixture.double.fail({ verb: 'list', resource: 'services', fault, times: 7 });
    fixture.double.fail({ verb: 'list', resource: 'services', fault: { kind: 'refuse' } });
    await fixture.startAndWatch();
    assert.deepEqual(fixture.waits, [1200, 2400, 4800, 9600, 19200, 38400, 45000, 45000]);
    // The complete list reset the backoff, and so does each watch that delivers an event.
    for (const how of ['end', 'cut'] as const) {
      if (how === 'cut') {
        fixture.double.put(service('a', 1));
        await fixture.waitForServices({ a: 1 });
      }
      const watches = fixture.requests('watch').length;
      fixture.double.breakWatches(how, 'services');
      await fixture.waitForRequest('watch', watches + 1);
      assert.equal(fixture.waits.at(-1), 1200);
      await until('it is watched', () => fixture.double.watching('services') === 1);
    }
  });

  it('resets the backoff after a complete list, even if the watch then fails', async () => {
    const fault = { kind: 'status', code: 500, reason: 'Busy' } as const;
    fixture.double.fail({ verb: 'list', resource: 'services', fault, times: 3 });
    fixture.double.fail({ verb: 'watch', resource: 'services', fault, times: 2 });
    await fixture.startAndWatch();
    assert.deepEqual(fixture.waits, [1200, 2400, 4800, 1200, 2400]);
    assert.equal(fixture.requests('list').length, 4);
  });

  it('waits for a server that is unreachable at start', async () => {
    await fixture.double.close();
    fixture.start();
    await until('connecting has failed several times', () => fixture.waits.length > 10);
    assert.deepEqual(fixture.sink.calls, []);
    await fixture.double.listen();
    await fixture.started;
    assert.equal(fixture.sink.syncedKinds.size, 3);
  });

  it('stops before the first list and during a watch', async () => {
    fixture.double.fail({ verb: 'list', resource: 'services', fault: { kind: 'silence' } });
    fixture.start();
    await fixture.waitForRequest('list', 1);
    await until('the others are watched', () => fixture.double.watching('nodes') === 1);
    await fixture.stop();
    await fixture.started;
    assert.ok(!fixture.sink.syncedKinds.has('Service'));
  });
});
