/** The resources of network policy, whose CRDs may not be installed. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { POLICY_KINDS } from '../../../api/objects.ts';
import { readObject } from '../../../api/read-object.ts';
import { servingAndPolicyResources } from '../../../sources/kubernetes/resources.ts';
import type { Manifest } from '../../e2e/manifests.ts';
import { nodeManifest } from '../../e2e/manifests.ts';
import { until } from '../recording-sink.ts';
import { IMPATIENT, lastPart, SourceFixture } from './source-fixture.ts';

const RESOURCES = servingAndPolicyResources('node-1');
const CRDS = [
  'adminnetworkpolicies',
  'baselineadminnetworkpolicies',
  'clusternetworkpolicies',
  'cidrgroups',
];
const ALL = RESOURCES.map(({ paths: [path] }) => lastPart(path));

const group = (name: string, cidr: string): Manifest => ({
  apiVersion: 'policy.networking.k8s.io/v1alpha1',
  kind: 'CIDRGroup',
  metadata: { name },
  spec: { cidrs: [cidr] },
});
const pod = (name: string, phase: string): Manifest => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, namespace: 'default' },
  status: { phase, podIPs: [{ ip: '10.244.0.9' }] },
});

describe('policy: the kubernetes source for network policy', () => {
  let fixture: SourceFixture;
  beforeEach(async () => {
    fixture = new SourceFixture({ resources: RESOURCES });
    await fixture.double.listen();
  });
  afterEach(() => fixture.stop());

  const groups = () =>
    [...fixture.sink.objects.values()].flatMap((object) =>
      object.kind === 'CIDRGroup' ? [`${object.name} ${object.cidrs.join()}`] : [],
    );
  const hasGroups = (...expected: readonly string[]) =>
    until(`there are the groups ${expected.join('; ')}`, () => groups().join() === expected.join());
  const lists = () => fixture.requests('list', 'cidrgroups').length;
  /** Log messages of the reflector of CIDRGroups. */
  const logged = () => fixture.logged.filter((line) => line.startsWith('CIDRGroup'));
  const absent = () => fixture.logged.filter((line) => /not installed|no longer served/.test(line));

  it('relists all kinds after etcd was restored, as soon as one kind changes', async () => {
    const policy = (name: string): Manifest => ({
      apiVersion: 'networking.k8s.io/v1',
      kind: 'NetworkPolicy',
      metadata: { name, namespace: 'default' },
      spec: { podSelector: {} },
    });
    const namespace = { apiVersion: 'v1', kind: 'Namespace', metadata: { name: 'default' } };
    const known = () => [...fixture.sink.objects.keys()].sort().join();
    const has = (...objects: string[]) =>
      until(`there are ${objects}`, () => known() === objects.join());
    fixture.double.put(namespace, pod('a', 'Running'), policy('a'), group('a', '192.0.2.0/24'));
    await fixture.startAndWatch(ALL);
    fixture.double.takeSnapshot();
    fixture.double.put(pod('b', 'Running'), policy('b'), group('b', '192.0.2.0/24'));
    fixture.double.delete(namespace, pod('a', 'Running'), policy('a'), group('a', '192.0.2.0/24'));
    await has('CIDRGroup b', 'NetworkPolicy default/b', 'Pod default/b');
    fixture.double.restore();
    fixture.double.put(pod('c', 'Running'));
    await has(
      'CIDRGroup a',
      'Namespace default',
      'NetworkPolicy default/a',
      'Pod default/a',
      'Pod default/c',
    );
  });

  it('lists each resource once, with all Nodes and without finished pods', async () => {
    await fixture.startAndWatch(ALL);
    const listRequests = fixture.double.requests().filter(({ verb }) => verb === 'list');
    const selectors = listRequests.map(({ path, query: { limit, ...query } }) => {
      assert.equal(limit, '500');
      return [path, query] as const;
    });
    const group1 = '/apis/policy.networking.k8s.io/v1alpha1';
    assert.deepEqual(Object.fromEntries(selectors), {
      '/api/v1/services': {},
      '/apis/discovery.k8s.io/v1/endpointslices': {
        labelSelector: '!service.kubernetes.io/headless',
      },
      '/api/v1/nodes': {},
      '/api/v1/namespaces': {},
      '/api/v1/pods': { fieldSelector: 'status.phase!=Succeeded,status.phase!=Failed' },
      '/apis/networking.k8s.io/v1/networkpolicies': {},
      [`${group1}/adminnetworkpolicies`]: {},
      [`${group1}/baselineadminnetworkpolicies`]: {},
      [`${group1}/cidrgroups`]: {},
      '/apis/policy.networking.k8s.io/v1beta1/clusternetworkpolicies': {},
    });
    assert.equal(selectors.length, 10);
    assert.deepEqual(
      [...fixture.sink.syncedKinds].sort(),
      ['EndpointSlice', 'Node', 'Service', ...POLICY_KINDS].sort(),
    );
  });

  it('delivers all Nodes, and a pod until it finishes', async () => {
    for (const name of ['node-1', 'node-2']) {
      fixture.double.put({ ...nodeManifest(['192.0.2.1']), metadata: { name } });
    }
    fixture.double.put(pod('a', 'Running'), pod('b', 'Succeeded'));
    await fixture.startAndWatch(ALL);
    assert.deepEqual([...fixture.sink.objects.keys()].sort(), [
      'Node node-1',
      'Node node-2',
      'Pod default/a',
    ]);
    fixture.double.put(pod('a', 'Failed'));
    await until('the pod is removed', () => !fixture.sink.objects.has('Pod default/a'));
  });

  it('lists pods page by page, and keeps only the required fields', async () => {
    const names = Array.from({ length: 1001 }, (_, index) => `p${1000 + index}`);
    fixture.double.put(
      ...names.map((name) => ({ ...pod(name, 'Running'), note: 'x'.repeat(1000) })),
    );
    await fixture.startAndWatch(ALL);
    assert.equal(fixture.requests('list', 'pods').length, 3);
    assert.equal(fixture.sink.objects.size, 1001);
    assert.ok(JSON.stringify(fixture.sink.objects.get('Pod default/p1000')).length < 400);
  });

  describe('objects that cannot be read', () => {
    const admin = (name: string, operator: string): Manifest => ({
      apiVersion: 'policy.networking.k8s.io/v1alpha1',
      kind: 'AdminNetworkPolicy',
      metadata: { name, uid: `uid-${name}` },
      spec: {
        priority: 1,
        subject: { namespaces: { matchExpressions: [{ key: 'team', operator, values: ['x'] }] } },
        ingress: [{ action: 'Deny', from: [{ namespaces: {} }] }],
      },
    });
    const unreadable = (...counts: readonly (readonly [kind: string, count: number])[]) =>
      until(`unreadable are ${JSON.stringify(counts)}`, () => {
        const now = Object.entries(fixture.unreadableNow());
        return JSON.stringify(now) === JSON.stringify(counts);
      });
    const relisted = async () => {
      const before = fixture.requests('watch', 'adminnetworkpolicies').length;
      fixture.double.breakWatches('expire', 'adminnetworkpolicies');
      await until(
        'the kind is watched again',
        () => fixture.requests('watch', 'adminnetworkpolicies').length > before,
      );
    };

    beforeEach(async () => {
      fixture.double.put(admin('a', 'In'), admin('b', 'in'), group('g', 'nonsense'));
      await fixture.startAndWatch(ALL);
    });

    it('are reported once, with their uid, across events and lists', async () => {
      const field = 'spec.subject.namespaces.matchExpressions[0].operator';
      assert.deepEqual(fixture.unreadableNow(), { AdminNetworkPolicy: 1, CIDRGroup: 1 });
      fixture.double.put({ ...admin('b', 'in'), status: {} });
      await relisted();
      fixture.double.put(admin('a', 'in'));
      await unreadable(['AdminNetworkPolicy', 2], ['CIDRGroup', 1]);
      const ofPolicies = fixture.unreadable.flatMap((object, index) =>
        object?.kind === 'AdminNetworkPolicy' ? [[object, fixture.problems[index]]] : [],
      );
      assert.deepEqual(
        ofPolicies.map(([object]) => object),
        ['b', 'a'].map((name) => ({ kind: 'AdminNetworkPolicy', key: name, uid: `uid-${name}` })),
      );
      assert.ok(String(ofPolicies[0]?.[1]).startsWith(`AdminNetworkPolicy b: ${field}: must be`));
      assert.equal(fixture.problems.length, 3);
    });

    it('are reported again when the reason changes', async () => {
      fixture.double.put(admin('b', 'notin'));
      await until('the problem is reported', () => fixture.problems.length === 3);
      assert.match(fixture.problems[2] ?? '', /"notin"/);
      assert.deepEqual(fixture.unreadableNow(), { AdminNetworkPolicy: 1, CIDRGroup: 1 });
    });

    it('are not counted once they can be read again', async () => {
      fixture.double.put(admin('a', 'in'));
      await unreadable(['AdminNetworkPolicy', 2], ['CIDRGroup', 1]);
      fixture.double.put(admin('b', 'In'));
      await unreadable(['AdminNetworkPolicy', 1], ['CIDRGroup', 1]);
      fixture.double.put(admin('a', 'In'));
      await unreadable(['CIDRGroup', 1]);
      fixture.double.put(admin('a', 'in'));
      await unreadable(['AdminNetworkPolicy', 1], ['CIDRGroup', 1]);
      assert.equal(fixture.problems.length, 4);
    });

    it('are not counted once they are deleted', async () => {
      fixture.double.delete(group('g', ''));
      await unreadable(['AdminNetworkPolicy', 1]);
      fixture.double.delete(admin('b', 'in'));
      await unreadable();
      assert.ok(!fixture.sink.calls.some((call) => call.startsWith('- ')));
    });

    it('are not counted once they are missing from a list', async () => {
      const { length } = fixture.requests('list', 'adminnetworkpolicies');
      fixture.double.fail({
        verb: 'watch',
        resource: 'adminnetworkpolicies',
        fault: { kind: 'status', code: 410, reason: 'Expired' },
        times: 1,
      });
      fixture.double.breakWatches('cut', 'adminnetworkpolicies');
      fixture.double.delete(admin('b', 'in'));
      await until(
        'the kind is relisted',
        () => fixture.requests('list', 'adminnetworkpolicies').length > length,
      );
      await unreadable(['CIDRGroup', 1]);
    });

    it('are not counted once their CRD is removed', async () => {
      const fault = { kind: 'status', code: 404, reason: 'NotFound' } as const;
      fixture.double.fail({ verb: 'list', resource: 'cidrgroups', fault, times: 3 });
      fixture.double.breakWatches('expire', 'cidrgroups');
      await until('the problem is reported again', () => fixture.problems.length === 3);
      assert.deepEqual(fixture.unreadable.at(-1), { kind: 'CIDRGroup', key: 'g', uid: '' });
    });
  });

  describe('when the CRDs are not installed', () => {
    beforeEach(() => {
      for (const resource of CRDS) fixture.double.uninstall(resource);
    });

    it('treats them as empty and synced, with one log message each', async () => {
      await fixture.startAndWatch(ALL.filter((resource) => !CRDS.includes(resource)));
      assert.equal(fixture.sink.syncedKinds.size, RESOURCES.length);
      await until('several checks were made', () => lists() > 20);
      assert.deepEqual(absent().sort(), [
        'AdminNetworkPolicy: CRD is not installed; checking again periodically',
        'BaselineAdminNetworkPolicy: CRD is not installed; checking again periodically',
        'CIDRGroup: CRD is not installed; checking again periodically',
        'ClusterNetworkPolicy: CRD is not installed; checking again periodically',
      ]);
      assert.equal(logged().length, 1);
      assert.ok(Object.values(fixture.failures).every((count) => count === 0));
    });

    it('checks for them three times, then at least once a minute', async () => {
      await fixture.startAndWatch([]);
      await until('several checks were made', () => lists() > 6);
      // Two quick attempts for each of the four, and no other waits.
      const count = (wait: number) => fixture.delays.filter((each) => each === wait).length;
      assert.deepEqual([count(1200), count(2400)], [4, 4]);
      assert.deepEqual(
        [...new Set(fixture.delays)].sort((a, b) => a - b),
        [1200, 2400, 45_000],
      );
    });

    it('reports no watch as down, at any check', async () => {
      await fixture.startAndWatch(ALL.filter((resource) => !CRDS.includes(resource)));
      for (const checks of [1, 2, 3, 4, 10]) {
        await until(`${checks} checks were made`, () => lists() >= checks);
        assert.deepEqual(fixture.watchesDown(), []);
      }
    });

    it('reports a watch as down while the API server refuses the check', async () => {
      await fixture.startAndWatch(ALL.filter((resource) => !CRDS.includes(resource)));
      const fault = { kind: 'status', code: 403, reason: 'Forbidden' } as const;
      fixture.double.fail({ verb: 'list', resource: 'cidrgroups', fault, times: Infinity });
      await until('it is down', () => fixture.watchesDown().join() === 'CIDRGroup');
      fixture.double.recover();
      await until('no watch is down', () => fixture.watchesDown().length === 0);
    });

    it('watches a CRD that is installed, and removes its objects when it is uninstalled', async () => {
      await fixture.startAndWatch([]);
      fixture.double.put(group('a', '10.0.0.0/8'));
      assert.deepEqual(groups(), []);
      fixture.double.install('cidrgroups');
      await hasGroups('a 10.0.0.0/8');
      await until('it is watched', () => fixture.double.watching('cidrgroups') === 1);
      fixture.double.put(group('b', '192.0.2.0/24'));
      await hasGroups('a 10.0.0.0/8', 'b 192.0.2.0/24');
      fixture.double.uninstall('cidrgroups');
      await hasGroups();
      await until(
        'the removal is logged',
        () => logged().filter((line) => /not inst/.test(line)).length === 2,
      );
      const before = lists();
      await until('three more checks were made', () => lists() >= before + 3);
      assert.deepEqual(fixture.watchesDown(), []);
      fixture.double.install('cidrgroups');
      fixture.double.put(group('c', '10.0.0.0/8'));
      await hasGroups('c 10.0.0.0/8');
      assert.equal(absent().length, 5);
      assert.equal(fixture.notInstalled.filter((each) => each === 'CIDRGroup').length, 2);
    });
  });

  describe('when the CRDs are installed', () => {
    const missing = { kind: 'status', code: 404, reason: 'NotFound' } as const;
    const fail = (times: number, verb: 'list' | 'watch' = 'list') =>
      fixture.double.fail({ verb, resource: 'cidrgroups', fault: missing, times });
    const relist = () => fixture.double.breakWatches('expire', 'cidrgroups');
    const watchedAgain = async (before: number) => {
      await until(
        'the kind is watched again',
        () =>
          fixture.requests('watch', 'cidrgroups').length > before &&
          fixture.double.watching('cidrgroups') === 1,
      );
    };
    beforeEach(async () => {
      fixture.double.put(group('a', '10.0.0.0/8'));
      await fixture.startAndWatch(ALL);
    });

    it('keeps objects when two lists in a row return 404', async () => {
      for (let round = 0; round < 3; round++) {
        const before = fixture.requests('watch', 'cidrgroups').length;
        fail(2);
        relist();
        await watchedAgain(before);
      }
      assert.deepEqual(groups(), ['a 10.0.0.0/8']);
      assert.ok(!fixture.sink.calls.some((call) => call.startsWith('- ')));
      assert.deepEqual(absent(), []);
    });

    it('keeps objects when a watch and a list in a row return 404', async () => {
      const before = fixture.requests('watch', 'cidrgroups').length;
      fail(1, 'watch');
      fail(1);
      fixture.double.breakWatches('cut', 'cidrgroups');
      await watchedAgain(before + 1);
      assert.ok(!fixture.sink.calls.some((call) => call.startsWith('- ')));
    });

    it('keeps objects when only watches return 404', async () => {
      const before = fixture.requests('watch', 'cidrgroups').length;
      fail(6, 'watch');
      fixture.double.breakWatches('cut', 'cidrgroups');
      await watchedAgain(before + 6);
      assert.ok(!fixture.sink.calls.some((call) => call.startsWith('- ')));
    });

    it('restarts the count of 404 responses after a successful watch', async () => {
      const before = fixture.requests('watch', 'cidrgroups').length;
      fail(2);
      relist();
      await watchedAgain(before);
      fixture.double.put(group('b', '10.0.0.0/8'));
      await hasGroups('a 10.0.0.0/8', 'b 10.0.0.0/8');
      fail(1, 'watch');
      fixture.double.breakWatches('end', 'cidrgroups');
      await watchedAgain(before + 2);
      assert.ok(!fixture.sink.calls.some((call) => call.startsWith('- ')));
    });

    it('removes objects after the third consecutive 404', async () => {
      const before = fixture.requests('watch', 'cidrgroups').length;
      fail(3);
      relist();
      await watchedAgain(before);
      const calls = fixture.sink.calls.filter((call) => call.includes('CIDRGroup'));
      assert.deepEqual(calls, [
        '+ CIDRGroup a',
        'synced CIDRGroup',
        '- CIDRGroup a',
        '+ CIDRGroup a',
      ]);
      assert.deepEqual(absent(), [
        'CIDRGroup: CRD is no longer served; its objects are no longer used',
      ]);
    });

    it('restarts the count of 404 responses after another failure', async () => {
      const before = fixture.requests('watch', 'cidrgroups').length;
      const fault = { kind: 'status', code: 503, reason: 'ServiceUnavailable' } as const;
      for (let round = 0; round < 3; round++) {
        fail(2);
        fixture.double.fail({ verb: 'list', resource: 'cidrgroups', fault });
      }
      relist();
      await watchedAgain(before);
      assert.ok(!fixture.sink.calls.some((call) => call.startsWith('- ')));
    });

    it('keeps objects when reading the CRD is forbidden', async () => {
      const fault = { kind: 'status', code: 403, reason: 'Forbidden' } as const;
      fixture.double.fail({ verb: 'list', resource: 'cidrgroups', fault, times: 10 });
      const before = lists();
      relist();
      await until('ten lists have failed', () => lists() >= before + 10);
      assert.deepEqual(groups(), ['a 10.0.0.0/8']);
      assert.deepEqual(absent(), []);
    });

    it('keeps objects of a built-in resource that returns 404', async () => {
      fixture.double.put(pod('a', 'Running'));
      await until('the pod is added', () => fixture.sink.objects.has('Pod default/a'));
      fixture.double.fail({ verb: 'list', resource: 'pods', fault: missing, times: 10 });
      fixture.double.breakWatches('expire', 'pods');
      const before = fixture.requests('list', 'pods').length;
      await until(
        'ten lists have failed',
        () => fixture.requests('list', 'pods').length >= before + 10,
      );
      assert.ok(fixture.sink.objects.has('Pod default/a'));
      assert.deepEqual(absent(), []);
    });
  });
});

type Action =
  | { readonly do: 'put' | 'delete'; readonly name: string; readonly cidr: string }
  | { readonly do: 'install' | 'uninstall' | 'cut' | 'expire' | 'not ready' | 'compact' }
  | { readonly do: 'rest'; readonly turns: number };
const action: fc.Arbitrary<Action> = fc.oneof(
  fc.record({
    do: fc.constantFrom('put' as const, 'put' as const, 'delete' as const),
    name: fc.constantFrom('a', 'b', 'c'),
    cidr: fc.constantFrom('10.0.0.0/8', '192.0.2.0/24'),
  }),
  fc.record({
    do: fc.constantFrom<('install' | 'uninstall' | 'cut' | 'expire' | 'not ready' | 'compact')[]>(
      'install',
      'uninstall',
      'cut',
      'expire',
      'not ready',
      'compact',
    ),
  }),
  fc.record({ do: fc.constant('rest' as const), turns: fc.constantFrom(1, 5, 30) }),
);

async function run(actions: readonly Action[]): Promise<void> {
  const fixture = new SourceFixture({
    resources: RESOURCES,
    timeouts: { ...IMPATIENT, silence: 1000 },
  });
  const { double, sink } = fixture;
  await double.listen();
  const isInstalled = { now: true };
  try {
    fixture.start();
    for (const each of actions) {
      if (each.do === 'put' && isInstalled.now) double.put(group(each.name, each.cidr));
      else if (each.do === 'delete') double.delete(group(each.name, each.cidr));
      else if (each.do === 'install' || each.do === 'uninstall') {
        isInstalled.now = each.do === 'install';
        double[each.do]('cidrgroups');
      } else if (each.do === 'cut' || each.do === 'expire') {
        double.breakWatches(each.do, 'cidrgroups');
      } else if (each.do === 'not ready') {
        const fault = { kind: 'status', code: 404, reason: 'NotFound' } as const;
        double.fail({ verb: 'list', resource: 'cidrgroups', fault });
      } else if (each.do === 'compact') double.compact();
      else if (each.do === 'rest') {
        for (let turn = 0; turn < each.turns; turn++) await new Promise(setImmediate);
      }
    }
    double.recover();
    await fixture.started;
    assert.equal(sink.syncedKinds.size, RESOURCES.length);
    const expected = () =>
      double.list('cidrgroups').map((raw) => {
        const object = readObject(raw, ['CIDRGroup']);
        return object?.kind === 'CIDRGroup' ? `${object.name} ${object.cidrs.join()}` : '';
      });
    const known = () =>
      [...sink.objects.values()].flatMap((object) =>
        object.kind === 'CIDRGroup' ? [`${object.name} ${object.cidrs.join()}`] : [],
      );
    await until(
      'the sink has what the server has',
      () => known().sort().join() === expected().sort().join(),
    );
  } finally {
    await fixture.stop();
  }
}

it('policy: adds and removes CIDRGroups with their CRD, in any order', function () {
  this.timeout(120_000);
  return fc.assert(fc.asyncProperty(fc.array(action, { minLength: 5, maxLength: 25 }), run), {
    seed: 46,
    numRuns: 100,
    endOnFailure: true,
  });
});
