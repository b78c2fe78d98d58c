import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Service } from '../../api/objects.ts';
import { NO_EVENTS } from '../../events/recorder.ts';
import { ENOBUFS, NetlinkError } from '../../netlink/core/error.ts';
import type { Backend } from '../../proxier/backend.ts';
import type { Comparison } from '../../proxier/compared-object.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import { openApiText } from '../../scripts/openapi.ts';
import type { ChangeList } from '../../status/api/activity.ts';
import type { Problem, ResourceList } from '../../status/api/common.ts';
import type { KernelDiff } from '../../status/api/kernel.ts';
import type { NodeStatus } from '../../status/api/node-status.ts';
import type { EndpointList, ServiceDetail, ServiceList } from '../../status/api/services.ts';
import { type Resources, statusHandler } from '../../status/http/handler.ts';
import { RecentEvents } from '../../status/recent-events.ts';
import { statusResources } from '../../status/resources.ts';
import { SeriesRecorder } from '../../status/series.ts';
import type { StatusSources } from '../../status/sources.ts';
import { SyncActivity } from '../../status/sync-activity.ts';
import { WatchActivity } from '../../status/watch-activity.ts';
import { endpoint, podAt, service, servicePort, slice, upsertWithPods } from '../fixtures.ts';
import { node } from '../policy/objects.ts';
import { NODE } from '../preflight/facts.ts';
import { requestOf, UNLIMITED } from './request.ts';
import { observerOf, syncedActivity, syncReport } from './sync-reports.ts';
import { mediaTypes, validator } from './validator.ts';

const NOW = Date.parse('2026-11-22T12:00:00Z');

/** Adds Services that ask for VIPs of older ones: `younger` gets none, `split` gets its cluster IP. */
function addConflicts(table: RouteTable): void {
  const creationTimestamp = '2027-01-01T00:00:00Z';
  const clusterIPs = ['10.96.0.11'];
  table.upsert(service({ name: 'younger', creationTimestamp, clusterIPs, portsAnnotation: 'all' }));
  const ofOther = { clusterIPs: ['10.96.0.21'], externalIPs: ['10.96.0.12'] };
  table.upsert(service({ name: 'split', creationTimestamp, ...ofOther }));
  table.takeChanges();
}

/** A table with a served, an empty, a refused and an ignored Service. */
function filledTable(): RouteTable {
  const table = new RouteTable({ nodeName: 'node-a', allPortsEnabled: true, onChange: () => {} });
  const add = (fields: Partial<Service>) => table.upsert(service(fields));
  add({ name: 'web', ports: [servicePort({ nodePort: 30080 })], type: 'NodePort' });
  table.upsert(
    slice([
      endpoint('10.244.0.1'),
      endpoint('10.244.1.1', {
        nodeName: 'node-b',
        ready: false,
        serving: true,
        terminating: true,
      }),
      endpoint('10.244.1.2', { nodeName: 'node-b', ready: false, serving: false }),
    ]),
  );
  add({ name: 'media', clusterIPs: ['10.96.0.11', 'fd00::11'], portsAnnotation: 'all' });
  table.upsert(
    slice([endpoint('10.244.0.5')], { name: 'media-1', serviceKey: 'default/media', ports: [] }),
  );
  add({ name: 'empty', clusterIPs: ['10.96.0.12'] });
  add({ name: 'refused', clusterIPs: ['10.96.0.13'], portsAnnotation: 'all', type: 'NodePort' });
  add({ name: 'other', clusterIPs: [], headless: true, namespace: 'kube-system' });
  table.takeChanges();
  return table;
}

function statusOf(table: RouteTable, fields: Partial<StatusSources> = {}) {
  const sources: StatusSources = {
    version: '1.2.3',
    nodeName: 'node-a',
    startedAt: NOW - 60_000,
    statusSocket: '/run/agent.sock',
    mode: { name: 'nftables', reason: '--proxy-mode=nftables' },
    manifests: '/manifests',
    families: ['IPv4', 'IPv6'],
    missingInputs: () => [],
    sourceFaults: () => [],
    unboundHealthPorts: () => [],
    remainingState: () => [],
    table,
    kinds: ['Service', 'EndpointSlice', 'Node'],
    backends: () => [],
    nodeAddresses: () => ['192.0.2.1'],
    syncs: new SyncActivity(() => NOW - 1000),
    watches: new WatchActivity(() => NOW - 60_000),
    events: new RecentEvents(() => NOW - 1000),
    traffic: {
      top: async () => ({
        items: [],
        total: 0,
        continue: null,
        sample: {
          since: '2026-11-22T12:00:00.000Z',
          sampledAt: '2026-11-22T12:00:00.000Z',
          intervalSeconds: null,
          countsBytes: true,
          notes: [],
        },
      }),
      flows: async function* () {},
      lookup: async () => assert.fail('conntrack was read'),
      connections: async () => ({ total: 0, entries: [] }),
    },
    kernelFeatures: async () => [],
    kernelRelease: '6.12.0',
    disabledForwarding: async () => undefined,
    foreignChains: async () => ({ value: { value: [] }, age: 0 }),
    nodeChecks: async () => ({
      at: '2026-11-22T12:00:00.000Z',
      status: 'ok',
      checks: [{ status: 'ok', name: 'RBAC', seen: 'all requests are allowed', action: '' }],
      omitted: 0,
    }),
    series: new SeriesRecorder(),
    policy: undefined,
    ...fields,
  };
  const resources = statusResources(sources, () => NOW);
  const get = async <T>(path: string, query = '', parts: readonly string[] = []) =>
    (await resources[path]?.answer(new URLSearchParams(query), requestOf({ path: parts }))) as T;
  const service = (name: string) =>
    get<ServiceDetail>('/api/v1/services/{namespace}/{name}', '', ['default', name]);
  return { sources, resources, get, service };
}

/** An HTTP server with these resources. */
async function serverOf(resources: Resources) {
  const onError = (error: unknown) => assert.fail(String(error));
  const budget = UNLIMITED;
  const bindHost = '127.0.0.1';
  const handler = statusHandler({ resources, bindHost, statusSocket: undefined, budget, onError });
  const server = createServer(handler).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

describe('resources: the status API', () => {
  const validate = validator();
  const { resources, get, service: detail } = statusOf(filledTable(), { syncs: syncedActivity() });

  it('has a version of lists of Services and endpoints, which follows each change', () => {
    const table = filledTable();
    const { resources: changing, sources } = statusOf(table);
    const versionOf = (path: string, query = '') =>
      changing[path]?.version?.(new URLSearchParams(query));
    for (const path of ['/api/v1/services', '/api/v1/endpoints']) {
      const seen = [versionOf(path)];
      assert.equal(versionOf(path), seen[0]);
      const changes = [
        () => table.upsert(service({ name: 'web' })),
        () => table.takeChanges(),
        () => table.upsert(slice([endpoint('10.244.0.9')])),
        () => table.remove('Service', 'default/empty'),
        () => table.upsert({ ...node('node-a', []), zone: path }),
        () => table.takeChanges(),
      ];
      for (const change of changes) {
        change();
        seen.push(versionOf(path));
      }
      assert.equal(new Set(seen).size, changes.length + 1);
      table.takeChanges();
      assert.equal(versionOf(path), seen.at(-1));
      assert.equal(versionOf(path, 'traffic=true'), undefined);
    }
    // A restarted agent has other versions.
    const restarted = statusOf(table, { startedAt: sources.startedAt + 1 }).resources;
    const query = new URLSearchParams();
    assert.notEqual(restarted['/api/v1/services']?.version?.(query), versionOf('/api/v1/services'));
  });

  it('tells which pods own which ports, and why an endpoint owns none', async () => {
    const table = filledTable();
    table.upsert(
      service({
        name: 'turn',
        type: 'LoadBalancer',
        clusterIPs: ['10.96.0.20'],
        loadBalancerIngress: [{ ip: '203.0.113.9', ipMode: 'VIP' }],
        portsAnnotation: '5060/UDP',
        ownedPortsAnnotation: '20000-20999/UDP,30000-30399/TCP',
        portsPerPodAnnotation: '100',
      }),
    );
    const endpoints = [
      endpoint('10.244.0.1', { ordinal: 0 }),
      endpoint('10.244.1.1', { ordinal: 1, ready: false, serving: false, nodeName: 'node-b' }),
      endpoint('10.244.1.4', { ordinal: 4, nodeName: 'node-b' }),
      endpoint('10.244.1.5'),
      endpoint('192.0.2.1', { ordinal: 5 }),
      endpoint('10.244.1.6', { ordinal: 10 }),
      endpoint('10.244.1.7', { ordinal: 4, ready: false, serving: false }),
    ];
    upsertWithPods(
      table,
      slice(endpoints, { name: 'turn-1', serviceKey: 'default/turn', ports: [] }),
    );
    table.remove('Pod', podAt('192.0.2.1').key);
    table.setNodeAddresses(new Set(['192.0.2.1']));
    table.takeChanges();
    const { get: ask, service: detailOf } = statusOf(table, { syncs: syncedActivity() });
    const turn = await detailOf('turn');
    validate('ServiceDetail', turn);
    assert.deepEqual(turn.summary.ports, [
      '5060/UDP',
      '20000-20999/UDP (100 per pod)',
      '30000-30399/TCP (100 per pod)',
    ]);
    const [owned] = turn.ownedPorts;
    assert.equal(turn.ownedPorts.length, 1);
    assert.equal(owned?.udpVip, '203.0.113.9');
    assert.deepEqual(
      owned.slices.map(({ firstOrdinal, lastOrdinal, ports, owner, state }) =>
        [firstOrdinal, lastOrdinal, ports, owner, state].join(' '),
      ),
      [
        '0 0 20000-20099/UDP,30000-30099/TCP 10.244.0.1 served',
        '1 1 20100-20199/UDP,30100-30199/TCP 10.244.1.1 notServing',
        '2 3 20200-20399/UDP,30200-30399/TCP  vacant',
        '4 4 20400-20499/UDP 10.244.1.4 served',
        '5 9 20500-20999/UDP  vacant',
      ],
    );
    assert.deepEqual(owned.withoutSlice, [
      { address: '10.244.1.5', ordinal: null, reason: 'has no ordinal in its name' },
      { address: '10.244.1.6', ordinal: 10, reason: 'has an ordinal past the last slice' },
      { address: '10.244.1.7', ordinal: 4, reason: 'has the ordinal of another endpoint' },
      { address: '192.0.2.1', ordinal: 5, reason: 'has no pod in its namespace' },
    ]);
    assert.deepEqual(
      turn.routes
        .filter(({ portsPerPod }) => portsPerPod !== null)
        .map(({ vip, ports, endpoints: { length }, masquerade, otherwise }) =>
          [vip, ports, length, masquerade, otherwise].join(' '),
        ),
      [
        '10.96.0.20 20000-20999/UDP 0 none reject',
        '10.96.0.20 30000-30399/TCP 2 remote owners reject',
        '203.0.113.9 20000-20999/UDP 2 none reject',
        '203.0.113.9 30000-30399/TCP 2 remote owners reject',
      ],
    );
    const { items } = await ask<EndpointList>('/api/v1/endpoints', 'service=default/turn');
    assert.deepEqual(
      items
        .filter(({ cluster }) => !/ready/.test(cluster.reason))
        .map(({ address, ownedPorts, cluster }) =>
          [address, cluster.used, ownedPorts, cluster.reason].join(' '),
        ),
      [
        '10.244.0.1 true 20000-20099/UDP,30000-30099/TCP owns ports',
        '10.244.1.1 false 20100-20199/UDP,30100-30199/TCP owns ports, but does not serve',
        '10.244.1.4 true 20400-20499/UDP owns ports',
        '10.244.1.5 false  has no ordinal in its name',
        '10.244.1.6 false  has an ordinal past the last slice',
        '10.244.1.7 false  has the ordinal of another endpoint',
        '192.0.2.1 false  has no pod in its namespace',
      ],
    );
    assert.deepEqual(
      turn.problems.map(({ reason }) => reason),
      ['ServedWithWarning', 'ServedWithWarning', 'ServedWithWarning'],
    );
  });

  it('tells whose pods answer on a VIP with owned ports that an older Service has', async () => {
    const table = filledTable();
    const add = (name: string, clusterIP: string, fields: Partial<Service>) => {
      table.upsert(
        service({
          name,
          type: 'LoadBalancer',
          clusterIPs: [clusterIP],
          loadBalancerIngress: [{ ip: '203.0.113.9', ipMode: 'VIP' }],
          ownedPortsAnnotation: '20000-20199/UDP',
          portsPerPodAnnotation: '100',
          ...fields,
        }),
      );
      const pods = [endpoint('10.244.0.1', { ordinal: 0 })];
      upsertWithPods(
        table,
        slice(pods, { name: `${name}-1`, serviceKey: `default/${name}`, ports: [] }),
      );
    };
    add('older', '10.96.0.20', { creationTimestamp: '2025-01-01T00:00:00Z' });
    add('younger', '10.96.0.21', {
      loadBalancerIngress: [
        { ip: '203.0.113.9', ipMode: 'VIP' },
        { ip: '192.0.2.1', ipMode: 'VIP' },
      ],
    });
    table.setNodeAddresses(new Set(['192.0.2.1']));
    const ownedBy = async (name: string) => {
      table.takeChanges();
      const detail = await statusOf(table).service(name);
      validate('ServiceDetail', detail);
      const [owned] = detail.ownedPorts;
      return {
        refusedVips: owned?.refusedVips,
        udpVip: owned?.udpVip,
        states: owned?.slices.map(({ state }) => state),
      };
    };
    assert.deepEqual(await ownedBy('older'), {
      refusedVips: [],
      udpVip: '203.0.113.9',
      states: ['served', 'vacant'],
    });
    const refusedVips = [
      { vip: '192.0.2.1', service: null },
      { vip: '203.0.113.9', service: 'default/older' },
    ];
    assert.deepEqual(await ownedBy('younger'), {
      refusedVips,
      udpVip: null,
      states: ['refused', 'vacant'],
    });
    // TCP ports are served on the cluster IP.
    add('younger', '10.96.0.21', { ownedPortsAnnotation: '20000-20199/UDP,30000-30199/TCP' });
    assert.deepEqual(await ownedBy('younger'), {
      refusedVips: refusedVips.slice(1),
      udpVip: null,
      states: ['served', 'vacant'],
    });
    table.remove('Service', 'default/older');
    assert.deepEqual(await ownedBy('younger'), {
      refusedVips: [],
      udpVip: '203.0.113.9',
      states: ['served', 'vacant'],
    });
  });

  it('says that packets to owned ports without an owner that serves are rejected', async () => {
    const table = filledTable();
    const fields = { ownedPortsAnnotation: '20000-20999/UDP', portsPerPodAnnotation: '100' };
    table.upsert(service({ name: 'turn', clusterIPs: ['10.96.0.20'], ...fields }));
    upsertWithPods(
      table,
      slice([endpoint('10.244.0.7')], { name: 'turn-1', serviceKey: 'default/turn' }),
    );
    table.takeChanges();
    const { summary, problems } = await statusOf(table).service('turn');
    assert.equal(summary.state, 'noEndpoints');
    assert.deepEqual(
      problems.filter(({ reason }) => reason === 'NoEndpoints').map(({ message }) => message),
      ['no endpoint owns ports; packets to 20000-20999/UDP are rejected'],
    );
  });

  it('says of both traffic policies that they drop packets', async () => {
    const table = filledTable();
    const policies = { internalTrafficPolicy: 'Local', externalTrafficPolicy: 'Local' } as const;
    const loadBalancerIngress = [{ ip: '203.0.113.77', ipMode: 'VIP' }] as const;
    const fields = { type: 'LoadBalancer', clusterIPs: ['10.96.0.20'], ...policies } as const;
    table.upsert(service({ name: 'away', loadBalancerIngress, ...fields }));
    const remote = endpoint('10.244.1.7', { nodeName: 'node-b' });
    table.upsert(slice([remote], { name: 'away-1', serviceKey: 'default/away' }));
    table.takeChanges();
    const { problems } = await statusOf(table).service('away');
    assert.deepEqual(
      problems.filter(({ reason }) => reason === 'NoEndpoints').map(({ message }) => message),
      [
        'spec.internalTrafficPolicy: Local, and no endpoint is on this node; packets from pods and this node are dropped',
        'spec.externalTrafficPolicy: Local, and no endpoint is on this node; packets from outside are dropped',
      ],
    );
  });

  it('is described by status/openapi.json; run `npm run docs` after a change', () => {
    const file = new URL('../../status/openapi.json', import.meta.url);
    assert.equal(readFileSync(file, 'utf8'), openApiText());
  });

  it('sends each answer with the media type of the description', async () => {
    await using agent = await serverOf(resources);
    const types = mediaTypes();
    for (const path of Object.keys(resources)) {
      // Need a kernel: test/e2e/trace.test.ts.
      if (path.startsWith('/api/v1/trace')) continue;
      const target = path.replace('{namespace}', 'default').replace('{name}', 'web');
      const answer = await fetch(agent.url + target);
      const refused = await fetch(`${agent.url}${target}?unknown=1`);
      await Promise.all([answer.text(), refused.text()]);
      const sent = [answer, refused].map(({ headers }) => headers.get('content-type'));
      assert.deepEqual([path, answer.status, refused.status], [path, 200, 400]);
      assert.deepEqual([path, ...sent], [path, types.get(path)?.ok, types.get(path)?.error]);
    }
  });

  for (const [path, { response }] of Object.entries(resources)) {
    // Tested with packets: streams, and the trace, which needs an address.
    const isOther = path.endsWith('/flows') || path.startsWith('/api/v1/trace');
    if (response === undefined || path.includes('{') || isOther) continue;
    it(`answers as described: ${path}`, async () => validate(response, await get(path)));
  }

  for (const name of ['web', 'media', 'empty', 'refused']) {
    it(`describes Service ${name}`, async () => validate('ServiceDetail', await detail(name)));
  }

  it('refuses an unknown parameter of each resource', async () => {
    for (const path of Object.keys(resources)) {
      await assert.rejects(() => get(path, 'foo=1'), /parameter foo is unknown/, path);
    }
  });

  it('lists Services with their state and endpoints', async () => {
    const { items, total } = await get<ServiceList>('/api/v1/services');
    assert.equal(total, 5);
    assert.deepEqual(
      items.map(({ name, state, ports, portKind }) => `${name} ${state} ${portKind} ${ports}`),
      [
        'empty noEndpoints ports 80/TCP',
        'media partial all all',
        'refused refused all ',
        'web served ports 80:30080/TCP',
        'other ignored ports ',
      ],
    );
    const web = items.find(({ name }) => name === 'web');
    assert.deepEqual(web?.endpoints, { ready: 1, terminating: 1, notReady: 1, local: 1 });
    assert.equal(web?.familyEndpoints, null);
  });

  it('counts endpoints of a dual-stack Service by family, and sorts it by its pods', async () => {
    const table = filledTable();
    table.upsert(
      slice([endpoint('fd00::5', { nodeName: 'node-b' })], {
        ...{ name: 'media-6', serviceKey: 'default/media', ports: [], family: 'IPv6' },
      }),
    );
    table.upsert(
      slice([endpoint('10.244.0.7'), endpoint('10.244.0.8')], {
        ...{ name: 'empty-1', serviceKey: 'default/empty' },
      }),
    );
    const { items } = await statusOf(table).get<ServiceList>('/api/v1/services', 'sort=endpoints');
    const media = items.find(({ name }) => name === 'media');
    const one = { ready: 1, terminating: 0, notReady: 0 };
    assert.deepEqual(media?.endpoints, { ...one, ready: 2, local: 1 });
    assert.deepEqual(media?.familyEndpoints, {
      IPv4: { ...one, local: 1 },
      IPv6: { ...one, local: 0 },
    });
    assert.deepEqual(
      items.slice(0, 3).map(({ name }) => name),
      ['empty', 'media', 'web'],
    );
  });

  for (const [query, names] of [
    ['namespace=kube-system', ['other']],
    ['state=refused', ['refused']],
    ['ports=all&state=partial', ['media']],
    ['vip=fd00:0::11', ['media']],
    ['service=default/web', ['web']],
    ['sort=endpoints&limit=2', ['media', 'web']],
    ['sort=problems&limit=2', ['refused', 'empty']],
    ['sort=problems&order=descending&limit=1', ['other']],
    ['order=descending&limit=2', ['other', 'web']],
    ['offset=1&limit=2', ['media', 'refused']],
    ['offset=0&limit=2&state=served', ['web']],
    ['offset=9', []],
    ['search=+MEDIA+', ['media']],
    ['search=10.96.0.1', ['empty', 'media', 'refused', 'web']],
    ['search=30080', ['web']],
  ] as const) {
    it(`selects Services: ${query}`, async () => {
      const { items } = await get<ServiceList>('/api/v1/services', query);
      assert.deepEqual(
        items.map(({ name }) => name),
        names,
      );
    });
  }

  for (const [query, message] of [
    ['namespace=a/b', /parameter namespace must be a namespace/],
    ['service=web', /parameter service must be namespace\/name/],
    ['vip=10.0.0.256', /parameter vip must be an IP address/],
    [`search=${'a'.repeat(101)}`, /parameter search must be text of at most 100 characters/],
    ['offset=-1', /parameter offset must be a number from 0/],
    ['sort=x', /parameter sort must be one of name, problems/],
  ] as const) {
    it(`refuses ${query}`, async () => {
      await assert.rejects(() => get('/api/v1/services', query), message);
    });
  }

  it('has the refused VIPs of Services, and finds Services by them', async () => {
    const table = filledTable();
    addConflicts(table);
    const { get, service } = statusOf(table);
    const named = async (query: string) =>
      (await get<ServiceList>('/api/v1/services', query)).items.map(
        ({ name, vips, refusedVips }) => `${name} ${vips} ${refusedVips}`,
      );
    assert.deepEqual(await named('vip=10.96.0.13'), ['refused  10.96.0.13']);
    assert.deepEqual(await named('vip=10.96.0.11'), [
      'media 10.96.0.11,fd00::11 ',
      'younger  10.96.0.11',
    ]);
    assert.deepEqual(await named('search=10.96.0.12'), [
      'empty 10.96.0.12 ',
      'split 10.96.0.21 10.96.0.12',
    ]);
    assert.deepEqual((await service('refused')).summary.refusedVips, ['10.96.0.13']);
  });

  it('is partial if a port or an IP family of a Service has no endpoint', async () => {
    const table = filledTable();
    const { get } = statusOf(table);
    const { items } = await get<ServiceList>('/api/v1/services', 'state=partial');
    // Its endpoint is IPv4 only.
    assert.deepEqual(
      items.map(({ name }) => name),
      ['media'],
    );
    const counts = async () => {
      const { services } = await get<NodeStatus>('/api/v1/status');
      return [services.served, services.noEndpoints, services.partial];
    };
    assert.deepEqual(await counts(), [1, 1, 1]);
    const fields = { name: 'media-2', serviceKey: 'default/media', ports: [] };
    table.upsert(slice([endpoint('fd00:1::5')], { ...fields, family: 'IPv6' }));
    table.takeChanges();
    assert.deepEqual(await counts(), [2, 1, 0]);
  });

  it('lists the resources of this agent', async () => {
    const { paths } = await get<ResourceList>('/api/v1');
    assert.deepEqual(paths, Object.keys(resources));
  });

  it('lists changes of the kernel, the newest first, of all or of one Service', async () => {
    const { sources, get } = statusOf(filledTable());
    const observer = sources.syncs.observing(observerOf());
    observer.queued('IPv4');
    observer.synced({ ...syncReport('IPv4'), services: new Set(['default/web']) });
    observer.synced(syncReport('IPv6'));
    observer.driftDetected('IPv4', 'table deleted');
    observer.syncFailed('IPv4', new Error('no memory'), { full: true, seconds: 1 });
    const list = await get<ChangeList>('/api/v1/changes');
    validate('ChangeList', list);
    assert.deepEqual(
      list.items.map(({ kind, family, message }) => `${kind} ${family} ${message}`.trim()),
      ['failure IPv4 no memory', 'external IPv4 table deleted', 'sync IPv6', 'sync IPv4'],
    );
    const { items } = await get<ChangeList>('/api/v1/changes', 'service=default/web');
    assert.deepEqual(
      items.map(({ queuedSeconds }) => queuedSeconds),
      [0],
    );
    assert.equal((await get<ChangeList>('/api/v1/changes', 'family=IPv6')).total, 1);
  });

  it('says why a Service does not answer', async () => {
    const reasons = async (name: string) =>
      (await detail(name)).problems.map(({ reason, message }) => `${reason}: ${message}`);
    assert.deepEqual(await reasons('web'), []);
    assert.match((await reasons('empty')).join(), /NoEndpoints: no endpoint: no EndpointSlice/);
    assert.match((await reasons('refused')).join(), /RefusedNodePort: spec\.type/);
  });

  it('fails with 404 for a Service that does not exist', async () => {
    await assert.rejects(detail('none'), /knows no Service "default\/none"/);
  });

  it('fails with 404 for flows of a Service that does not exist, instead of waiting', async () => {
    await using server = await serverOf(resources);
    const ask = (service: string) => fetch(`${server.url}/api/v1/flows?service=${service}`);
    const unknown = await ask('default/none');
    assert.equal(unknown.status, 404);
    assert.match(await unknown.text(), /this agent knows no Service \\"default\/none\\"/);
    assert.equal((await ask('default/web')).status, 200);
  });
});

describe('resources: traffic of Services and endpoints', () => {
  const validate = validator();
  const rates = (connections: number) => ({
    connections,
    connectionsPerSecond: 0.5,
    packetsPerSecond: null,
    bytesPerSecond: null,
  });
  const { sources } = statusOf(filledTable());
  const asked: string[] = [];
  const { get } = statusOf(filledTable(), {
    traffic: {
      ...sources.traffic,
      lookup: async () => ({
        service: (name) => rates(asked.push(name)),
        endpoint: (name, endpoint) => rates(asked.push(`${name} ${endpoint}`)),
      }),
    },
  });
  beforeEach(() => {
    asked.length = 0;
  });

  it('is looked up only for the rows of the page', async () => {
    const query = 'traffic=true&limit=2';
    const { items } = await get<ServiceList>('/api/v1/services', query);
    assert.deepEqual(
      items.map(({ name, traffic }) => [`default/${name}`, traffic]),
      asked.map((name, index) => [name, rates(index + 1)]),
    );
    assert.equal(asked.length, 2);
    validate('ServiceList', await get('/api/v1/services', query));
  });

  it('names endpoints as the counters do', async () => {
    const list = await get('/api/v1/endpoints', 'traffic=true');
    assert.deepEqual(asked.slice(0, 2), [
      'default/media 10.244.0.5',
      'default/web 10.244.0.1:8080',
    ]);
    validate('EndpointList', list);
  });

  it('is not read without the parameter, which has one value', async () => {
    const [item] = (await get<ServiceList>('/api/v1/services')).items;
    assert.equal(item !== undefined && 'traffic' in item, false);
    assert.deepEqual(asked, []);
    await assert.rejects(get('/api/v1/services', 'traffic=false'), {
      message: 'parameter traffic must be one of true, not "false"',
    });
  });
});

describe('resources: state of the node', () => {
  const table = filledTable();

  it('is starting before the first sync of each family, then healthy or degraded', async () => {
    const empty = new RouteTable({ nodeName: 'a', allPortsEnabled: true, onChange: () => {} });
    const { sources, get } = statusOf(empty);
    const state = async () => (await get<NodeStatus>('/api/v1/status')).state;
    assert.equal(await state(), 'starting');
    const observer = sources.syncs.observing(observerOf());
    observer.synced(syncReport('IPv4'));
    assert.equal(await state(), 'starting');
    observer.synced(syncReport('IPv6'));
    assert.equal(await state(), 'healthy');
    observer.syncFailed('IPv6', new Error('nft failed'), { full: true, seconds: 1 });
    assert.equal(await state(), 'degraded');
  });

  it('says whether the source has the Node', async () => {
    const table = filledTable();
    const { get } = statusOf(table);
    const hasNode = async () => (await get<NodeStatus>('/api/v1/status')).source.hasNode;
    assert.equal(await hasNode(), false);
    table.upsert({ ...NODE, name: 'node-a', key: 'node-a' });
    assert.equal(await hasNode(), true);
  });

  it('names at most 50 objects and manifests that cannot be read, also in the Service', async () => {
    const web = {
      ...{ object: 'Service default/web', message: 'a.yaml:2: spec.x: wrong' },
      inForce: 'last',
    } as const;
    const gone = {
      ...{ object: 'Service default/gone', message: 'spec.y: wrong' },
      inForce: 'none',
    } as const;
    const file = { object: undefined, message: 'x.yaml: bad', inForce: 'parts' } as const;
    const files = Array.from({ length: 60 }, () => file);
    const { get, service } = statusOf(filledTable(), {
      sourceFaults: () => [web, gone, ...files],
    });
    const { state, problems } = await get<NodeStatus>('/api/v1/status');
    assert.equal(state, 'degraded');
    const unreadable = problems.filter(({ reason }) => reason === 'Unreadable');
    assert.equal(unreadable.length, 51);
    assert.equal(unreadable[50]?.message, 'and 12 more, see the log');
    const expected = 'a.yaml:2: spec.x: wrong; the last readable version stays in force';
    assert.deepEqual(
      unreadable.slice(0, 3).map(({ message }) => message),
      [
        expected,
        'spec.y: wrong; it is not in force: no version was readable',
        'x.yaml: bad; the readable objects of the file are in force',
      ],
    );
    const detail = await service('web');
    assert.equal(detail.problems[0]?.message, expected);
    await assert.rejects(service('gone'), /knows no Service .*: it cannot be read: spec\.y: wrong/);
  });

  it('names rules of another proxy that stay until an operator acts', async () => {
    const common = { what: 'iptables', connections: 0 } as const;
    const { get } = statusOf(filledTable(), {
      remainingState: () => [
        { ...common, reason: 'error' },
        { ...common, reason: 'program', problem: 'iptables-nft is not installed' },
      ],
    });
    const { problems } = await get<NodeStatus>('/api/v1/status');
    const leftovers = problems.filter(({ reason }) => reason === 'Leftover');
    assert.deepEqual(
      leftovers.map(({ message }) => message),
      ['iptables-nft is not installed'],
    );
  });

  it('names health check node ports that cannot be bound, also in the Service', async () => {
    const error = new Error('listen EADDRINUSE');
    const unbound = (name: string, host: string) =>
      ({ serviceKey: `default/${name}`, port: 30_500, host, error }) as const;
    const { get, service } = statusOf(filledTable(), {
      unboundHealthPorts: () => [unbound('media', '0.0.0.0'), unbound('web', '::')],
    });
    const { state, problems } = await get<NodeStatus>('/api/v1/status');
    assert.equal(state, 'degraded');
    const ofReason = (list: readonly Problem[]) =>
      list.filter(({ reason }) => reason === 'FailedToStartServiceHealthcheck');
    const expected = [
      ['Service default/media', 'IPv4', 'health check node port 0.0.0.0:30500'],
      ['Service default/web', 'IPv6', 'health check node port [::]:30500'],
    ].map(([object, family, port]) => ({
      ...{ object, family, reason: 'FailedToStartServiceHealthcheck' },
      message: `${port} cannot be served (listen EADDRINUSE); load balancers may believe the answers of another process; retrying`,
    }));
    assert.deepEqual(ofReason(problems), expected);
    assert.deepEqual(ofReason((await service('web')).problems), expected.slice(1));
    assert.deepEqual(ofReason((await service('empty')).problems), []);
  });

  it('counts each Service in one state, as `state` of the list selects them', async () => {
    const table = filledTable();
    addConflicts(table);
    const { get } = statusOf(table);
    const { services } = await get<NodeStatus>('/api/v1/status');
    const { total, served, noEndpoints, partial, partlyRefused, refused, ignored } = services;
    const states = { served, noEndpoints, partial, partlyRefused, refused, ignored };
    assert.deepEqual(states, {
      ...{ served: 1, noEndpoints: 1, partial: 1 },
      ...{ partlyRefused: 1, refused: 2, ignored: 1 },
    });
    assert.equal(
      total,
      Object.values(states).reduce((sum, count) => sum + count),
    );
    for (const [state, count] of Object.entries(states)) {
      const list = await get<ServiceList>('/api/v1/services', `state=${state}`);
      assert.deepEqual([state, list.total], [state, count]);
    }
  });

  it('names a failing sync, a closed watch, a kernel feature and a refused Service', async () => {
    const { sources, get } = statusOf(table, {
      manifests: undefined,
      kernelFeatures: async () => [{ name: 'ip_forward', value: '0', ok: false, note: 'set it' }],
    });
    const syncs = sources.syncs.observing(observerOf());
    const failure = new NetlinkError('nf_tables transaction', ENOBUFS);
    syncs.syncFailed('IPv4', failure, { full: true, seconds: 1 });
    syncs.syncFailed('IPv4', failure, { full: true, seconds: 1 });
    sources.watches
      .observing({
        request: () => {},
        watchOpen: () => {},
        upToDate: () => {},
        notInstalled: () => {},
        watchStalled: () => {},
      })
      .watchOpen('Service', false);
    const { problems } = await get<NodeStatus>('/api/v1/status');
    assert.deepEqual(
      problems.map(({ reason, family, object }) => [reason, family ?? object]),
      [
        ['SyncFailed', 'IPv4'],
        ['WatchDown', null],
        ['Kernel', null],
        ['RefusedNodePort', 'Service default/refused'],
      ],
    );
    assert.match(problems[0]?.message ?? '', /\(2 attempts\): nf_tables transaction: ENOBUFS$/);
  });

  it('forwards every call of the observers that it wraps', () => {
    const calls: string[] = [];
    const observer = new SyncActivity().observing(observerOf(calls));
    observer.queued('IPv4');
    observer.unchanged('IPv4', []);
    observer.synced(syncReport('IPv4'));
    observer.syncFailed('IPv4', 'x', { full: true, seconds: 1 });
    observer.driftDetected('IPv4', 'x');
    assert.deepEqual(calls, ['queued', 'unchanged', 'synced', 'syncFailed', 'driftDetected']);
  });

  it('remembers a bounded number of syncs and Events', () => {
    const syncs = new SyncActivity();
    const observer = syncs.observing(observerOf());
    const events = new RecentEvents();
    const recorder = events.observing(NO_EVENTS);
    const regarding = {
      apiVersion: 'v1',
      kind: 'Service',
      namespace: 'a',
      name: 'b',
      uid: '',
    } as const;
    for (let index = 0; index < 1000; index++) {
      observer.synced(syncReport('IPv4', false));
      recorder.warning(regarding, 'Refused', String(index));
    }
    assert.equal(syncs.changes.length, 500);
    const recorded = events.of(regarding);
    assert.equal(recorded.length, 500);
    assert.equal(recorded[0]?.message, '999');
  });
});

describe('resources: comparison with the kernel', () => {
  const missing: Comparison = {
    compared: 4,
    different: 1,
    syncs: { ended: 1, begun: 1 },
    objects: [
      { type: 'element', in: 'map m', desired: 'a', actual: null, state: 'missing', service: null },
    ],
  };
  const backend = (family: 'IPv4' | 'IPv6', compare: Backend['compare']) =>
    ({ family, compare }) as unknown as ReturnType<StatusSources['backends']>[number];

  it('lists differences of all families', async () => {
    const { get } = statusOf(filledTable(), {
      backends: () => [backend('IPv4', async () => missing), backend('IPv6', async () => missing)],
    });
    const all = await get<KernelDiff>('/api/v1/diff');
    assert.equal(all.items.length, 2);
    assert.equal(all.compared, 8);
    assert.equal(all.stable, true);
    const one = await get<KernelDiff>('/api/v1/diff', 'limit=1');
    assert.deepEqual([one.items.length, one.omitted, one.total, one.continue], [1, 1, 2, null]);
  });

  it('lists differences of one namespace', async () => {
    const asked: unknown[] = [];
    const compare = async (...[, , namespace]: Parameters<NonNullable<Backend['compare']>>) => {
      asked.push(namespace);
      return missing;
    };
    const { get } = statusOf(filledTable(), { backends: () => [backend('IPv4', compare)] });
    await get<KernelDiff>('/api/v1/diff', 'namespace=shop');
    assert.deepEqual(asked, ['shop']);
  });

  it('describes differences of a Service unless they may be changes in progress', async () => {
    const syncs = syncedActivity();
    const changing = { ...missing, syncs: { ended: 1, begun: 2 } };
    const of = (comparison: Comparison) =>
      statusOf(filledTable(), { syncs, backends: () => [backend('IPv4', async () => comparison)] });
    const reasons = ({ problems }: ServiceDetail) => problems.map(({ reason }) => reason);
    const wrong = await of(missing).service('web');
    assert.deepEqual(reasons(wrong), ['KernelDiffers']);
    assert.deepEqual(
      [wrong.kernelTotal, wrong.kernelDifferent, wrong.kernelStable, wrong.kernel[0]?.inProgress],
      [4, 1, true, false],
    );
    const busy = await of(changing).service('web');
    assert.deepEqual(reasons(busy), []);
    assert.deepEqual(
      [busy.kernelTotal, busy.kernelDifferent, busy.kernelStable, busy.kernel[0]?.inProgress],
      [4, 0, false, true],
    );
  });

  it('names families that are not synced', async () => {
    const { get, service: detail } = statusOf(filledTable());
    const { unsynced } = await get<KernelDiff>('/api/v1/diff', 'family=IPv6');
    assert.deepEqual(unsynced, [{ family: 'IPv6', hasSynced: false, error: null }]);
    const { problems } = await detail('web');
    assert.deepEqual(
      problems.map(({ reason, message }) => [reason, message]),
      [
        ['NotSynced', 'not synced yet'],
        ['NotSynced', 'not synced yet'],
      ],
    );
  });

  for (const [path, parts] of [
    ['/api/v1/diff', []],
    ['/api/v1/services/{namespace}/{name}', ['default', 'web']],
  ] as const) {
    it(`stops the comparison when the client is gone: ${path}`, async () => {
      const client = new AbortController();
      const stops: boolean[] = [];
      const compare = async (_: unknown, signal?: AbortSignal): Promise<Comparison> => {
        stops.push(signal?.aborted === true);
        client.abort();
        stops.push(signal?.aborted === true);
        return missing;
      };
      const { resources } = statusOf(filledTable(), { backends: () => [backend('IPv4', compare)] });
      const answer = async () =>
        resources[path]?.answer(
          new URLSearchParams(),
          requestOf({ path: parts, signal: client.signal }),
        );
      await assert.rejects(answer(), { name: 'AbortError' });
      assert.deepEqual(stops, [false, true]);
    });
  }

  it('describes the Service although the kernel cannot be read', async () => {
    const failing = async () => {
      throw new Error('EPERM');
    };
    const { service: detail } = statusOf(filledTable(), {
      backends: () => [backend('IPv4', failing)],
    });
    const { problems } = await detail('web');
    assert.deepEqual(
      problems.map(({ reason }) => reason),
      ['KernelUnreadable'],
    );
  });
});
