/** Checks behaviour of the double that other tests rely on without checking it. */
import assert from 'node:assert/strict';
import { serviceManifest } from '../e2e/manifests.ts';
import { ApiServerDouble } from './double.ts';

const EVENTS = '/apis/events.k8s.io/v1/namespaces/default/events';
const EVENT = {
  apiVersion: 'events.k8s.io/v1',
  kind: 'Event',
  metadata: { name: 'web.1', namespace: 'default' },
  regarding: { kind: 'Service', namespace: 'default', name: 'web' },
  eventTime: '2026-01-01T00:00:00.000000Z',
  reportingController: 'portwide',
  reportingInstance: 'node-1',
  action: 'Refuse',
  reason: 'Annotation',
  type: 'Warning',
  note: 'no',
};

describe('double: the API-server double', () => {
  let double: ApiServerDouble;
  beforeEach(async () => {
    double = new ApiServerDouble();
    await double.listen();
  });
  afterEach(() => double.close());

  const send = async (method: string, path: string, body?: unknown) => {
    const init = body === undefined ? {} : { body: JSON.stringify(body) };
    const response = await fetch(double.url + path, { method, ...init });
    return { status: response.status, body: (await response.json()) as Record<string, unknown> };
  };
  const statusOf = async (...args: Parameters<typeof send>) => (await send(...args)).status;

  it('records requests with the verbs and resources of RBAC', async () => {
    double.put(serviceManifest('web', { spec: { clusterIPs: ['10.96.0.1'] } }));
    await send('GET', '/api/v1/services?limit=5');
    assert.equal(await statusOf('GET', '/api/v1/namespaces/default/services/web'), 200);
    assert.equal(await statusOf('GET', '/api/v1/nodes/none'), 404);
    await send('POST', EVENTS, EVENT);
    await send('PATCH', `${EVENTS}/web.1`, {});
    assert.deepEqual(
      double.requests().map(({ verb, group, resource, query }) => [verb, group, resource, query]),
      [
        ['list', '', 'services', { limit: '5' }],
        ['get', '', 'services', {}],
        ['get', '', 'nodes', {}],
        ['create', 'events.k8s.io', 'events', {}],
        ['patch', 'events.k8s.io', 'events', {}],
      ],
    );
  });

  it('rejects unknown paths, methods and selectors', async () => {
    for (const [method, path] of [
      ['GET', '/api/v1/secrets'],
      ['GET', '/apis/discovery.k8s.io/v1beta1/endpointslices'],
      ['DELETE', '/api/v1/namespaces/default/services/web'],
      ['POST', '/api/v1/services'],
      ['GET', EVENTS],
    ] as const) {
      assert.equal(await statusOf(method, path), 404, path);
    }
    for (const query of [
      'labelSelector=a in (b)',
      'labelSelector=!a=b',
      'fieldSelector=spec.x=y',
    ]) {
      assert.equal(await statusOf('GET', `/api/v1/services?${encodeURI(query)}`), 400, query);
    }
  });

  it('lists the objects of a namespace', async () => {
    const spec = { clusterIPs: ['10.96.0.1'] };
    const web = serviceManifest('web', { spec });
    double.put(web, { ...web, metadata: { name: 'web', namespace: 'b' } });
    const names = async (path: string) => {
      const { body } = await send('GET', path);
      return (body.items as { metadata: { namespace: string } }[]).map(
        (item) => item.metadata.namespace,
      );
    };
    assert.deepEqual(await names('/api/v1/services'), ['b', 'default']);
    assert.deepEqual(await names('/api/v1/namespaces/b/services?limit=1'), ['b']);
  });

  it('sends no bookmarks to watches from a future version, nor for resources unchanged since its start', async () => {
    await double.close();
    double = new ApiServerDouble({ bookmarkMs: 5 });
    await double.listen();
    const lines: Record<string, string[]> = {};
    const ended: Promise<void>[] = [];
    for (const [what, path, version] of [
      ['changed', '/api/v1/services', 1],
      ['unchanged', '/apis/discovery.k8s.io/v1/endpointslices', 1],
      ['future', '/api/v1/services', 100],
    ] as const) {
      const query = `watch=true&allowWatchBookmarks=true&resourceVersion=${version}`;
      const response = await fetch(`${double.url}${path}?${query}&timeoutSeconds=1`);
      ended.push(
        response.text().then((text) => {
          lines[what] = text.split('\n').filter(Boolean);
        }),
      );
    }
    double.put(serviceManifest('web', { spec: { clusterIPs: ['10.96.0.1'] } }));
    await Promise.all(ended);
    const types = (what: string) => new Set(lines[what]?.map((line) => JSON.parse(line).type));
    assert.deepEqual(types('changed'), new Set(['ADDED', 'BOOKMARK']));
    assert.deepEqual(types('unchanged'), new Set());
    assert.deepEqual(types('future'), new Set());
  });

  it('serves one object in all versions of its resource', async () => {
    const group = '/apis/policy.networking.k8s.io';
    const policy = (version: string) => ({
      apiVersion: `policy.networking.k8s.io/${version}`,
      kind: 'ClusterNetworkPolicy',
      metadata: { name: 'a' },
    });
    const [older, newer] = ['v1alpha2', 'v1beta1'].map(
      (version) => `${group}/${version}/clusternetworkpolicies`,
    ) as [string, string];
    double.put(policy('v1alpha2'));
    for (const path of [older, newer]) {
      const { body } = await send('GET', path);
      assert.equal((body.items as unknown[]).length, 1);
      assert.ok(path.startsWith(`/apis/${body.apiVersion}/`));
      const { apiVersion } = (await send('GET', `${path}/a`)).body;
      assert.ok(path.startsWith(`/apis/${apiVersion}/`));
      const events = await fetch(`${double.url}${path}?watch=true&resourceVersion=1`);
      double.breakWatches('end');
      const event = JSON.parse(await events.text()) as { object: { apiVersion: string } };
      assert.ok(path.startsWith(`/apis/${event.object.apiVersion}/`));
    }
    for (const [served, statuses] of [
      [['v1alpha2'], [200, 404]],
      [
        ['v1alpha2', 'v1beta1'],
        [200, 200],
      ],
      [['v1beta1'], [404, 200]],
      [[], [404, 404]],
    ] as const) {
      const apiVersions = served.map((version) => `policy.networking.k8s.io/${version}`);
      double.serve('clusternetworkpolicies', ...apiVersions);
      const answers = await Promise.all([older, newer].map((path) => fetch(double.url + path)));
      assert.deepEqual(
        answers.map(({ status }) => status),
        statuses,
      );
    }
    double.install('clusternetworkpolicies');
    assert.equal(await statusOf('GET', older), 200);
    assert.equal(double.list('clusternetworkpolicies').length, 1);
  });

  it('filters lists by selectors', async () => {
    const names = async (query: string) => {
      const { body } = await send('GET', `/api/v1/services?${query}`);
      return (body.items as { metadata: { name: string } }[]).map(({ metadata }) => metadata.name);
    };
    for (const [name, labels] of [
      ['a', { app: 'x' }],
      ['b', { app: 'y' }],
      ['c', {}],
    ] as const) {
      double.put(serviceManifest(name, { labels, spec: { clusterIPs: ['10.96.0.1'] } }));
    }
    assert.deepEqual(await names('labelSelector=app'), ['a', 'b']);
    assert.deepEqual(await names('labelSelector=!app'), ['c']);
    assert.deepEqual(await names('labelSelector=app=x'), ['a']);
    assert.deepEqual(await names('labelSelector=app!=x'), ['b', 'c']);
    assert.deepEqual(await names('fieldSelector=metadata.name=b'), ['b']);
  });

  it('stores Events and merges patches', async () => {
    assert.equal(await statusOf('POST', EVENTS, EVENT), 201);
    assert.equal(await statusOf('POST', EVENTS, EVENT), 409);
    const series = { count: 2, lastObservedTime: '2026-01-01T00:01:00.000000Z' };
    assert.equal(await statusOf('PATCH', `${EVENTS}/web.1`, { series }), 200);
    assert.equal(await statusOf('PATCH', `${EVENTS}/web.2`, { series }), 404);
    assert.deepEqual(double.events(), [{ ...EVENT, series }]);
  });

  for (const [what, change] of [
    ['without eventTime', { eventTime: undefined }],
    ['with an eventTime of whole seconds', { eventTime: '2026-01-01T00:00:00Z' }],
    ['without an action', { action: '' }],
    ['with a reason that is too long', { reason: 'x'.repeat(129) }],
    ['without reportingInstance', { reportingInstance: undefined }],
    ['of an unknown type', { type: 'Error' }],
    ['with a note that is too long', { note: 'x'.repeat(1025) }],
    ['with a series of one', { series: { count: 1, lastObservedTime: EVENT.eventTime } }],
    ['of another apiVersion', { apiVersion: 'v1' }],
    ['in another namespace', { metadata: { name: 'x', namespace: 'other' } }],
  ] as const) {
    it(`rejects an Event ${what}`, async () => {
      assert.equal(await statusOf('POST', EVENTS, { ...EVENT, ...change }), 422);
    });
  }

  it('rejects an Event about a Node outside the namespace default', async () => {
    const event = { ...EVENT, regarding: { kind: 'Node', name: 'node-1' } };
    assert.equal(await statusOf('POST', EVENTS, event), 201);
    const metadata = { name: 'x', namespace: 'other' };
    const elsewhere = EVENTS.replace('/default/', '/other/');
    assert.equal(await statusOf('POST', elsewhere, { ...event, metadata }), 422);
  });

  it('rejects a patch of an Event that changes more than its series', async () => {
    await send('POST', EVENTS, EVENT);
    assert.equal(await statusOf('PATCH', `${EVENTS}/web.1`, { note: 'other' }), 422);
    assert.equal(await statusOf('PATCH', `${EVENTS}/web.1`, { series: { count: 1 } }), 422);
    assert.deepEqual(double.events(), [EVENT]);
  });
});
