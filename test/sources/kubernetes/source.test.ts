import assert from 'node:assert/strict';
import { createKubernetesSource } from '../../../sources/kubernetes/source.ts';
import type { Source } from '../../../sources/store.ts';
import { Recorder, until } from '../recorder.ts';
import { FakeApiServer, type Held } from './fake-api-server.ts';

/** As lists have them: without kind and apiVersion. */
const service = (name: string, port: number, version = '1') => ({
  metadata: { name, namespace: 'default', resourceVersion: version },
  spec: { clusterIP: '10.0.0.1', ports: [{ port }] },
});
const event = (type: string, name: string, port: number, version: string) => ({
  type,
  object: { apiVersion: 'v1', kind: 'Service', ...service(name, port, version) },
});
const bookmark = (version: string) => ({
  type: 'BOOKMARK',
  object: { apiVersion: 'v1', kind: 'Service', metadata: { resourceVersion: version } },
});
const expired = { type: 'ERROR', object: { kind: 'Status', code: 410, reason: 'Expired' } };

describe('kubernetes source', () => {
  let server: FakeApiServer;
  let sink: Recorder;
  let problems: string[];
  let logged: string[];
  let waits: number[];
  let source: Source;
  let started: Promise<void>;
  let taken: Set<Held>;

  /** The next request for Services of that kind. */
  const next = async (kind: 'list' | 'watch'): Promise<Held> => {
    const find = () =>
      server.requests.find(
        (held) =>
          held.path === '/api/v1/services' &&
          held.isWatch === (kind === 'watch') &&
          !taken.has(held),
      );
    await until(`there is a ${kind}`, () => find() !== undefined);
    const held = find();
    assert.ok(held !== undefined);
    taken.add(held);
    return held;
  };
  /** Lists two Services and returns the watch that follows. */
  const watching = async (): Promise<Held> => {
    (await next('list')).list('10', [service('a', 1), service('b', 1)]);
    const watch = await next('watch');
    await started;
    return watch;
  };

  beforeEach(async () => {
    server = new FakeApiServer();
    await server.listen();
    sink = new Recorder();
    [problems, logged, waits, taken] = [[], [], [], new Set()];
    source = createKubernetesSource({
      master: server.url,
      nodeName: 'node-1',
      sink,
      onProblem: ({ message }) => problems.push(message),
      log: {
        info: (_details, message) => logged.push(message),
        warn: (_details, message) => logged.push(message),
      },
      backoff: {
        random: () => 0.5,
        delay: async (milliseconds) => void waits.push(milliseconds),
      },
    });
    started = source.start();
    started.catch(() => undefined); // awaited by the tests that are about it
    // The other two lists, each with one object; their watches stay silent.
    const lists = () =>
      server.requests.filter(({ isWatch, path }) => !isWatch && !path.endsWith('/services'));
    await until('the others list', () => lists().length === 2);
    for (const held of lists()) {
      const isNode = held.path === '/api/v1/nodes';
      held.list('5', isNode ? [{ metadata: { name: 'node-1', resourceVersion: '5' } }] : []);
    }
  });
  afterEach(async () => {
    await source.stop();
    await server.close();
  });

  it('lists page by page, then says that all is there, then watches from the list', async () => {
    const first = await next('list');
    assert.deepEqual(first.query, {
      labelSelector: '!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name',
      limit: '500',
    });
    first.list('10', [service('a', 1)], 'token');
    const second = await next('list');
    assert.equal(second.query.continue, 'token');
    assert.ok(!sink.syncedKinds.has('Service'));
    second.list('11', [service('b', 1)]);
    await started;
    assert.deepEqual([...sink.syncedKinds].sort(), ['EndpointSlice', 'Node', 'Service']);
    assert.deepEqual([...sink.objects.keys()].sort(), [
      'Node node-1',
      'Service default/a',
      'Service default/b',
    ]);
    assert.deepEqual((await next('watch')).query, {
      labelSelector: first.query.labelSelector,
      watch: 'true',
      allowWatchBookmarks: 'true',
      resourceVersion: '10',
      timeoutSeconds: '450',
    });
    const others = server.requests.filter(({ path }) => !path.endsWith('/services'));
    assert.deepEqual(
      others
        .filter(({ isWatch }) => !isWatch)
        .map(({ path, query }) => [path, query])
        .sort(),
      [
        ['/api/v1/nodes', { fieldSelector: 'metadata.name=node-1', limit: '500' }],
        [
          '/apis/discovery.k8s.io/v1/endpointslices',
          { labelSelector: '!service.kubernetes.io/headless', limit: '500' },
        ],
      ],
    );
  });

  it('follows events, and watches on from the last when the watch ends', async () => {
    const watch = await watching();
    watch.send(event('MODIFIED', 'a', 2, '12'), event('ADDED', 'c', 1, '13'));
    watch.send(event('DELETED', 'b', 1, '14'), event('MODIFIED', 'a', 2, '15'));
    await until('b is gone', () => sink.port('b') === undefined);
    watch.send(bookmark('20'));
    watch.end();
    const again = await next('watch');
    assert.equal(again.query.resourceVersion, '20');
    assert.deepEqual([sink.port('a'), sink.port('c')], [2, 1]);
    assert.deepEqual(waits, []);
  });

  it('takes events that arrive in pieces', async () => {
    const watch = await watching();
    const text = `${JSON.stringify({ ...event('ADDED', 'c', 7, '12'), note: 'Grüße 🎉' })}\n`;
    for (const byte of Buffer.from(text).toString('latin1')) watch.raw(byte);
    watch.send(bookmark('13'));
    await until('c is there', () => sink.port('c') === 7);
  });

  it('lists again when the version is forgotten, and tells the differences only', async () => {
    const watch = await watching();
    watch.send(event('ADDED', 'c', 1, '12'), expired);
    const list = await next('list');
    assert.deepEqual([sink.port('a'), sink.port('b'), sink.port('c')], [1, 1, 1]);
    const before = sink.calls.length;
    list.list('30', [service('a', 1), service('c', 2)], 'token');
    (await next('list')).list('30', [service('d', 1)]);
    assert.equal((await next('watch')).query.resourceVersion, '30');
    assert.deepEqual(sink.calls.slice(before), [
      '+ Service default/c',
      '+ Service default/d',
      '- Service default/b',
    ]);
    assert.deepEqual(waits, []);
  });

  it('lists again when the watch itself is refused with 410', async () => {
    (await watching()).status(410, 'Expired');
    (await next('list')).list('30', [service('a', 1)]);
    await next('watch');
    assert.deepEqual([sink.port('a'), sink.port('b')], [1, undefined]);
    assert.deepEqual(waits, [1200], 'it had brought nothing, so it waits first');
  });

  it('drops nothing when a list breaks off, and asks for it whole when its pages expire', async () => {
    const watch = await watching();
    watch.send(event('ADDED', 'c', 1, '12'), expired);
    (await next('list')).list('30', [service('a', 2)], 'token');
    (await next('list')).status(410, 'Expired');
    const whole = await next('list');
    assert.deepEqual([sink.port('a'), sink.port('b'), sink.port('c')], [2, 1, 1]);
    assert.equal(whole.query.limit, undefined);
    whole.cut();
    (await next('list')).status(500, 'InternalError');
    (await next('list')).raw('{}');
    server.requests.at(-1)?.end();
    assert.deepEqual([sink.port('a'), sink.port('b'), sink.port('c')], [2, 1, 1]);
    (await next('list')).list('31', [service('a', 3)]);
    await next('watch');
    assert.deepEqual([sink.port('a'), sink.port('b'), sink.port('c')], [3, undefined, undefined]);
    assert.deepEqual(waits, [1200, 2400, 4800, 9600]);
  });

  it('watches on from the last event when the connection is cut, in mid-event too', async () => {
    const watch = await watching();
    watch.send(event('MODIFIED', 'a', 2, '12'));
    watch.raw('{"type":"DELETED","object":{"kind":"Service"');
    await until('a is new', () => sink.port('a') === 2);
    watch.cut();
    const again = await next('watch');
    assert.equal(again.query.resourceVersion, '12');
    again.send(event('DELETED', 'b', 1, '13'));
    await until('b is gone', () => sink.port('b') === undefined);
    assert.deepEqual(waits, [1200]);
  });

  it('does not take half an event at the end of an answer', async () => {
    const watch = await watching();
    watch.raw(JSON.stringify(event('DELETED', 'a', 1, '12')));
    watch.end();
    assert.equal((await next('watch')).query.resourceVersion, '10');
    assert.equal(sink.port('a'), 1);
  });

  for (const [what, text] of [
    ['is no JSON', 'oops\n'],
    ['is no event', '[]\n'],
    ['is of no known type', `${JSON.stringify(event('SHRUGGED', 'a', 1, '12'))}\n`],
    [
      'is about something else',
      `${JSON.stringify({ type: 'ADDED', object: { kind: 'Pod', metadata: { resourceVersion: '12' } } })}\n`,
    ],
  ] as const) {
    it(`lists again after a line that ${what}`, async () => {
      (await watching()).raw(text);
      (await next('list')).list('30', [service('a', 2)]);
      assert.equal((await next('watch')).query.resourceVersion, '30');
      assert.deepEqual([sink.port('a'), sink.port('b')], [2, undefined]);
    });
  }

  it('keeps the last readable version of an object, through events and lists', async () => {
    const watch = await watching();
    watch.send(event('MODIFIED', 'a', 70_000, '12'));
    await until('it is reported', () => problems.length > 0);
    assert.match(problems[0] ?? '', /^Service default\/a: spec\.ports\[0\]\.port: /);
    watch.send(expired);
    (await next('list')).list('30', [service('a', 0), service('b', 1), service('c_', 1)]);
    const again = await next('watch');
    assert.deepEqual([sink.port('a'), sink.port('b'), problems.length], [1, 1, 3]);
    again.send(event('DELETED', 'a', 0, '31'));
    await until('a is gone', () => sink.port('a') === undefined);
  });

  it('waits longer and longer for a server that fails, and starts when it is back', async () => {
    for (let failures = 0; failures < 7; failures++) (await next('list')).status(503, 'Busy');
    (await next('list')).cut();
    (await next('list')).list('10', []);
    await started;
    assert.deepEqual(waits, [1200, 2400, 4800, 9600, 19200, 38400, 45000, 45000]);
    // Only a watch that brings something ends the waiting.
    (await next('watch')).end();
    const watch = await next('watch');
    assert.equal(waits.at(-1), 45000);
    watch.send(event('ADDED', 'a', 1, '11'));
    await until('a is there', () => sink.port('a') === 1);
    watch.cut();
    await next('watch');
    assert.equal(waits.at(-1), 1200);
  });

  it('stops before the first list and in the middle of a watch', async () => {
    const list = await next('list');
    await source.stop();
    await started;
    await until('it has left', () => list.gone());
    assert.ok(!sink.syncedKinds.has('Service'));
  });
});
