import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { PolicyModel } from '../../policy/model/model.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import type {
  LocalPodList,
  PodAccess,
  PodAccessList,
  PolicyExplanation,
} from '../../status/api/policies.ts';
import { NotFound } from '../../status/http/handler.ts';
import { BadParameter } from '../../status/http/parameters.ts';
import { PolicyActivity } from '../../status/policy-activity.ts';
import { policyResources } from '../../status/policy-resources.ts';
import { service } from '../fixtures.ts';
import {
  adminPolicy,
  HERE,
  labelled,
  network,
  networkPolicy,
  peerPods,
  pod,
  rule,
  type TestObject,
  THERE,
  tcp,
} from '../policy/objects.ts';
import { requestOf } from './request.ts';
import { validator } from './validator.ts';

const ONLY_WEB = { namespaces: 'default', pods: labelled({ app: 'web' }) };

/** @param isEach whether each pod has a policy of its own. */
function resourcesOf(
  pods = 3,
  isEach = false,
  others: readonly TestObject[] = [],
  externalIPsEnabled = true,
) {
  const model = new PolicyModel({ nodeName: HERE });
  for (const object of others) model.upsert(object);
  model.upsert(pod('web', { addresses: ['10.0.0.1'] }));
  model.upsert(pod('db', { addresses: ['10.0.0.2'], nodeName: THERE }));
  for (let index = 0; index < pods; index++) {
    const labels = { app: isEach ? `m${index}` : 'many' };
    const addresses = [`10.1.${index >> 8}.${index & 255}`];
    model.upsert(pod(`m${index}`, { namespace: 'many', labels, addresses }));
    const subject = { namespaces: 'many', pods: labelled(labels) };
    if (isEach)
      model.upsert(networkPolicy(`m${index}`, { namespace: 'many', subject, ingress: [] }));
  }
  model.upsert(
    networkPolicy('web', {
      subject: ONLY_WEB,
      ingress: [
        rule({ peers: [peerPods(labelled({ app: 'db' }))], ports: [tcp(80), tcp(8000, 8999)] }),
        rule({ peers: [network('192.0.2.0/24', '192.0.2.1/32')] }),
      ],
    }),
  );
  const names = [{ kind: 'domainName', pattern: '*.example.com' }] as const;
  model.upsert(
    adminPolicy('first', {
      subject: ONLY_WEB,
      egress: [rule({ peers: names }), rule({ action: 'Pass', ports: [tcp(443)] })],
    }),
  );
  const table = new RouteTable({
    nodeName: HERE,
    allPortsEnabled: true,
    externalIPsEnabled,
    onChange: () => {},
  });
  const externalIPs = ['198.51.100.7'];
  table.upsert(service({ name: 'web', clusterIPs: ['10.96.0.10'], externalIPs }));
  const resources = policyResources(
    {
      model,
      activity: new PolicyActivity(),
      names: { hasPeer: () => false, isNotObserving: () => false },
    },
    { table, nodeName: HERE },
  );
  return async <T>(path: string, query = '', signal = new AbortController().signal) =>
    (await resources[path]?.answer(new URLSearchParams(query), requestOf({ signal }))) as T;
}

const textOf = ({ direction, peer, decisions }: PodAccess) =>
  `${direction} ${peer.kind} ${peer.rest ? 'rest' : peer.names.join(' ')}: ` +
  decisions.map(({ verdict, ports }) => `${verdict} ${ports.join(', ')}`).join('; ');

describe('policy resources: the status API', () => {
  const get = resourcesOf();
  const validate = validator();

  it('lists pods of this node with the policies that apply', async () => {
    const list = await get<LocalPodList>('/api/v1/pods');
    validate('LocalPodList', list);
    assert.deepEqual(
      list.items.map(({ name, ingress, egress }) => [name, ingress.policies, egress.policies]),
      [
        ['web', ['NetworkPolicy default/web'], ['AdminNetworkPolicy first']],
        ...['m0', 'm1', 'm2'].map((name) => [name, [], []]),
      ],
    );
    assert.equal(list.items[0]?.ingress.isolated, true);
    assert.equal((await get<LocalPodList>('/api/v1/pods', 'namespace=many')).total, 3);
  });

  it('says for a pod which peers may connect, to which ports, and where it may connect to', async () => {
    const list = await get<PodAccessList>('/api/v1/access', 'pod=default/web');
    validate('PodAccessList', list);
    const rest = 'TCP 0-79, TCP 81-7999, TCP 9000-65535, UDP all, SCTP all, other protocols';
    assert.deepEqual(list.items.map(textOf), [
      `ingress pods default/db: allow TCP 80, TCP 8000-8999; deny ${rest}`,
      'ingress pods rest: deny all',
      'ingress addresses 192.0.2.0/32 192.0.2.2-192.0.2.255: allow all',
      'ingress addresses rest: deny all',
      'ingress ownNode : allow all',
      'egress pods rest: allow TCP 443; allow TCP 0-442, TCP 444-65535, UDP all, SCTP all, other protocols',
      'egress addresses rest: allow TCP 443; allow TCP 0-442, TCP 444-65535, UDP all, SCTP all, other protocols',
      'egress domainName *.example.com: allow all',
    ]);
    const passed = list.items[5]?.decisions[0];
    assert.equal(passed?.passedBy, 'AdminNetworkPolicy first spec.egress[1]');
    assert.equal(list.items[0]?.decisions[0]?.rule, 'spec.ingress[0]');
  });

  it('has pages, directions and namespaces', async () => {
    const one = await get<PodAccessList>(
      '/api/v1/access',
      'pod=default/web&direction=egress&limit=1',
    );
    assert.deepEqual([one.items.length, one.total, one.continue], [1, 3, 'o1']);
    const many = await get<PodAccessList>('/api/v1/access', 'namespace=many&direction=ingress');
    assert.deepEqual(new Set(many.items.map((row) => row.pod)), new Set(['many/m0']));
    validate('PodAccessList', many);
  });

  it('bounds the names of peers', async () => {
    const big = resourcesOf(300);
    const [first] = (await big<PodAccessList>('/api/v1/access', 'pod=default/web&direction=egress'))
      .items;
    assert.deepEqual(
      [first?.peer.names.length, first?.peer.total, first?.peer.namespaces],
      [10, 301, ['default', 'many']],
    );
  });

  it('shows pods of a namespace with the same policies together', async () => {
    const many = await get<PodAccessList>('/api/v1/access', 'namespace=many&direction=ingress');
    validate('PodAccessList', many);
    assert.deepEqual(many.podGroups, [
      { pod: 'many/m0', others: ['many/m1', 'many/m2'], total: 3 },
    ]);
    assert.deepEqual([...new Set(many.items.map((row) => row.pod))], ['many/m0']);
    assert.equal(many.nextPod, null);
    const big = resourcesOf(300);
    const { podGroups } = await big<PodAccessList>('/api/v1/access', 'namespace=many');
    assert.deepEqual(
      podGroups.map(({ others, total }) => [others.length, total]),
      [[100, 300]],
    );
  });

  it('goes through a namespace with many groups of pods', async () => {
    // Each pod has a policy of its own.
    const big = resourcesOf(9, true);
    const seen: string[] = [];
    const counts: number[] = [];
    for (let next: string | null = 'many/m0'; next !== null; ) {
      const query: string = `namespace=many&direction=ingress&limit=1000&firstPod=${next}`;
      const { podGroups, items, nextPod }: PodAccessList = await big('/api/v1/access', query);
      assert.deepEqual(
        new Set(items.map(({ pod }) => pod)),
        new Set(podGroups.map(({ pod }) => pod)),
      );
      seen.push(...podGroups.map(({ pod }) => pod));
      counts.push(podGroups.length);
      next = nextPod;
    }
    assert.deepEqual(counts, [4, 4, 1]);
    assert.equal(new Set(seen).size, 9);
  });

  it('shows a group by the ports of its pods although its first pod has no address yet', async () => {
    const fields = {
      namespace: 'named',
      labels: { app: 'named' },
      namedPorts: [{ name: 'http', protocol: 'TCP', port: 8080 }],
    } as const;
    const ingress = [rule({ ports: [{ name: 'http', protocol: 'TCP' }] })];
    const named = resourcesOf(0, false, [
      pod('a', fields),
      pod('b', { ...fields, addresses: ['10.2.0.2'] }),
      networkPolicy('named', {
        namespace: 'named',
        subject: { namespaces: 'named', pods: labelled({ app: 'named' }) },
        ingress,
      }),
    ]);
    const list = await named<PodAccessList>('/api/v1/access', 'namespace=named&direction=ingress');
    assert.deepEqual(list.podGroups, [{ pod: 'named/a', others: ['named/b'], total: 2 }]);
    assert.deepEqual(list.items[0]?.decisions[0]?.ports, ['TCP 8080']);
  });

  it('stops when the client has gone, before it has computed all peers', async () => {
    const gone = new AbortController();
    const answer = resourcesOf()<PodAccessList>('/api/v1/access', 'pod=default/web', gone.signal);
    gone.abort();
    let isOver = false;
    answer.catch(() => {
      isOver = true;
    });
    let turns = 0;
    for (; !isOver && turns < 100; turns += 1) await nextTurn();
    await assert.rejects(answer, { name: 'AbortError' });
    // Each group of peers takes a turn.
    assert.ok(turns <= 2, `${turns} turns`);
  });

  it('refuses the address of a Service, because policies see endpoints', async () => {
    const query = 'from=default/web&to=10.96.0.10&port=80';
    await assert.rejects(
      get('/api/v1/policies/explain', query),
      /to belongs to Service default.web/,
    );
  });

  it('explains a connection to an external IP that is not served', async () => {
    const query = 'from=default/web&to=198.51.100.7&port=80';
    const path = '/api/v1/policies/explain';
    await assert.rejects(get(path, query), /to belongs to Service default.web/);
    const answer = await resourcesOf(3, false, [], false)<PolicyExplanation>(path, query);
    assert.equal(answer.families[0]?.to, '198.51.100.7');
  });

  it('explains one connection', async () => {
    const path = '/api/v1/policies/explain';
    const denied = await get<PolicyExplanation>(path, 'from=many/m0&to=default/web&port=80');
    validate('PolicyExplanation', denied);
    assert.deepEqual([denied.verdict, denied.families[0]?.ingress.tier], ['deny', 'NetworkPolicy']);
    const named = await get<PolicyExplanation>(path, 'from=default/web&to=a.example.com&port=80');
    validate('PolicyExplanation', named);
    assert.deepEqual([named.verdict, named.families[0]?.to], ['allow', null]);
    assert.equal(named.families[0]?.egress.rule, 'spec.egress[0]');
  });

  for (const [path, query, error] of [
    ['/api/v1/access', '', BadParameter],
    ['/api/v1/access', 'pod=web', BadParameter],
    ['/api/v1/access', 'pod=default/db', NotFound],
    ['/api/v1/access', 'pod=default/web&direction=up', BadParameter],
    ['/api/v1/access', 'pod=default/web&firstPod=default/web', BadParameter],
    ['/api/v1/access', 'namespace=many&firstPod=default/web', BadParameter],
    ['/api/v1/policies/explain', 'from=default/web&to=10.0.0.2', BadParameter],
    ['/api/v1/policies/explain', 'from=default/web&to=*.a&port=1', BadParameter],
    ['/api/v1/policies/explain', 'from=default/no&to=10.0.0.2&port=1', NotFound],
    ['/api/v1/policies/explain', 'from=fd00::1&to=10.0.0.2&port=1', BadParameter],
  ] as const) {
    it(`refuses ${path}?${query}`, async () => {
      await assert.rejects(get(path, query), error);
    });
  }
});
