/** A cluster that serves one, the other or both of two versions of ClusterNetworkPolicy. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { policyResources } from '../../../sources/kubernetes/resources.ts';
import { adminPolicy } from '../../e2e/policy-manifests.ts';
import { until } from '../recording-sink.ts';
import { PATIENT, SourceFixture } from './source-fixture.ts';

const RESOURCES = policyResources().filter(({ kind }) => kind === 'ClusterNetworkPolicy');
const NAME = 'clusternetworkpolicies';
const [OLD, NEW] = [
  'policy.networking.k8s.io/v1alpha2',
  'policy.networking.k8s.io/v1beta1',
] as const;
type Version = typeof OLD | typeof NEW;

const policy = (name: string, priority = 1) =>
  adminPolicy('ClusterNetworkPolicy', name, {
    tier: 'Admin',
    priority,
    subject: { namespaces: {} },
  });

/** A source, and an API server that serves the given versions. */
class Upgrade {
  readonly fixture = new SourceFixture({ resources: RESOURCES, timeouts: PATIENT });

  async begin(...versions: Version[]): Promise<void> {
    await this.fixture.double.listen();
    this.fixture.double.serve(NAME, ...versions);
  }

  /** Changes the served versions, and waits until one of them is watched. */
  async serve(...versions: Version[]): Promise<void> {
    const before = this.fixture.requests('watch', NAME).length;
    this.fixture.double.serve(NAME, ...versions);
    await until(
      'the kind is watched again',
      () =>
        this.fixture.requests('watch', NAME).length > before &&
        this.fixture.double.watching(NAME) === 1,
    );
  }

  async has(...names: string[]): Promise<void> {
    const expected = names.map((name) => `ClusterNetworkPolicy ${name}`).join();
    const known = () => [...this.fixture.sink.objects.keys()].sort().join();
    await until(`there are ${expected}`, () => known() === expected);
  }

  /** Requests in order, such as `list v1beta1`; `check` requests the object that changed last. */
  requests(): string[] {
    return this.fixture.double.requests().map(({ verb, path, query }) => {
      const isCheck = verb === 'list' && query.limit === '1';
      return `${isCheck ? 'check' : verb} ${path.split('/').at(-2)}`;
    });
  }

  /** Objects added to and removed from the sink. */
  calls(): string[] {
    return this.fixture.sink.calls.filter((call) => !call.startsWith('synced'));
  }
}

describe('versions: a resource with two versions', () => {
  let upgrade: Upgrade;
  let fixture: SourceFixture;
  beforeEach(() => {
    upgrade = new Upgrade();
    fixture = upgrade.fixture;
    fixture.double.put(policy('a'));
  });
  afterEach(() => fixture.stop());

  for (const [what, served, requests] of [
    ['the older version', [OLD], ['list v1beta1', 'list v1alpha2', 'watch v1alpha2']],
    ['both versions', [OLD, NEW], ['list v1beta1', 'watch v1beta1']],
    ['the newer version', [NEW], ['list v1beta1', 'watch v1beta1']],
  ] as const) {
    it(`is listed and watched when the server has ${what}`, async () => {
      await upgrade.begin(...served);
      await fixture.startAndWatch([NAME]);
      await upgrade.has('a');
      assert.deepEqual(upgrade.requests(), requests);
      fixture.double.put(policy('b'));
      await upgrade.has('a', 'b');
      fixture.double.delete(policy('a'));
      await upgrade.has('b');
      assert.deepEqual(fixture.delays, []);
      assert.deepEqual([fixture.notInstalled, fixture.problems], [[], []]);
    });
  }

  it('counts as not installed while neither version is served, with one log message', async () => {
    await upgrade.begin();
    await fixture.startAndWatch([]);
    await until('several attempts were made', () => fixture.requests('list', NAME).length >= 12);
    assert.deepEqual(fixture.notInstalled, ['ClusterNetworkPolicy']);
    assert.deepEqual(fixture.logged, [
      'ClusterNetworkPolicy: CRD is not installed; checking again periodically',
    ]);
    // Each attempt sends two requests, the first for the newer version.
    const first = ['list v1beta1', 'list v1alpha2'];
    assert.deepEqual(upgrade.requests().slice(0, 8), [...first, ...first, ...first, ...first]);
    assert.deepEqual(fixture.delays.slice(0, 3), [1200, 2400, 45_000]);
    assert.deepEqual(fixture.watchesDown(), []);
    await upgrade.serve(OLD);
    await upgrade.has('a');
    await until('it is watched', () => fixture.watched.has('ClusterNetworkPolicy'));
    assert.deepEqual(fixture.watchesDown(), []);
  });

  it('is watched without interruption when an upgrade adds the newer version or removes the older', async () => {
    await upgrade.begin(OLD);
    await fixture.startAndWatch([NAME]);
    await upgrade.serve(OLD, NEW);
    assert.equal(upgrade.requests().at(-1), 'watch v1alpha2');
    fixture.double.put(policy('b'));
    await upgrade.has('a', 'b');
    await upgrade.serve(NEW);
    assert.deepEqual(upgrade.requests().slice(-3), [
      'check v1alpha2',
      'list v1beta1',
      'watch v1beta1',
    ]);
    fixture.double.put(policy('c'));
    await upgrade.has('a', 'b', 'c');
    await upgrade.serve(OLD);
    fixture.double.delete(policy('a'));
    await upgrade.has('b', 'c');
    const added = ['a', 'b', 'c'].map((name) => `+ ClusterNetworkPolicy ${name}`);
    assert.deepEqual(upgrade.calls(), [...added, '- ClusterNetworkPolicy a']);
    assert.deepEqual(fixture.notInstalled, []);
    assert.ok(!fixture.logged.some((line) => /failed|not installed/.test(line)));
  });

  it('is not reported as not installed during an upgrade without objects', async () => {
    fixture.double.delete(policy('a'));
    await upgrade.begin(OLD);
    await fixture.startAndWatch([NAME]);
    await upgrade.serve(NEW);
    fixture.double.put(policy('b'));
    await upgrade.has('b');
    assert.deepEqual(fixture.notInstalled, []);
  });

  it('has the current object after an upgrade that changes it', async () => {
    await upgrade.begin(OLD);
    await fixture.startAndWatch([NAME]);
    fixture.double.serve(NAME, NEW);
    fixture.double.put({ ...policy('a', 7), apiVersion: NEW });
    await until('the object is current', () => {
      const object = fixture.sink.objects.get('ClusterNetworkPolicy a');
      return object?.kind === 'ClusterNetworkPolicy' && object.priority === 7;
    });
    assert.deepEqual(upgrade.calls(), ['+ ClusterNetworkPolicy a', '+ ClusterNetworkPolicy a']);
  });

  it('is removed after three attempts that find neither version, not earlier', async () => {
    const missing = { kind: 'status', code: 404, reason: 'NotFound' } as const;
    const fail = (times: number) =>
      fixture.double.fail({ verb: 'list', resource: NAME, fault: missing, times });
    await upgrade.begin(OLD, NEW);
    await fixture.startAndWatch([NAME]);
    for (const times of [1, 2, 5]) {
      const before = fixture.requests('watch', NAME).length;
      fail(times);
      fixture.double.breakWatches('expire', NAME);
      await until('the kind is watched', () => fixture.requests('watch', NAME).length > before);
    }
    assert.deepEqual(upgrade.calls(), ['+ ClusterNetworkPolicy a']);
    assert.deepEqual(fixture.notInstalled, []);
    fail(6);
    fixture.double.breakWatches('expire', NAME);
    await until('the object is removed and added again', () => upgrade.calls().length === 3);
    assert.deepEqual(fixture.notInstalled, ['ClusterNetworkPolicy']);
    assert.ok(
      fixture.logged.includes(
        'ClusterNetworkPolicy: CRD is no longer served; its objects are no longer used',
      ),
    );
  });

  it('is requested at the same path after other failures, then listed at the served path', async () => {
    await upgrade.begin(OLD);
    await fixture.startAndWatch([NAME]);
    const fault = { kind: 'status', code: 503, reason: 'ServiceUnavailable' } as const;
    fixture.double.fail({ verb: 'list', resource: NAME, fault, times: 2 });
    await upgrade.serve(NEW);
    assert.deepEqual(upgrade.requests().slice(-5), [
      'check v1alpha2',
      'check v1alpha2',
      'check v1alpha2',
      'list v1beta1',
      'watch v1beta1',
    ]);
    assert.deepEqual(upgrade.calls(), ['+ ClusterNetworkPolicy a']);
  });

  it('backs off when lists succeed and watches return 404', async () => {
    const missing = { kind: 'status', code: 404, reason: 'NotFound' } as const;
    await upgrade.begin(OLD, NEW);
    await fixture.startAndWatch([NAME]);
    fixture.double.fail({ verb: 'watch', resource: NAME, fault: missing, times: 9 });
    const before = fixture.delays.length;
    await upgrade.serve(OLD, NEW);
    assert.ok(fixture.delays.length - before >= 4);
    assert.deepEqual(upgrade.calls(), ['+ ClusterNetworkPolicy a']);
  });
});

type Action =
  | { readonly do: 'put' | 'delete'; readonly name: string; readonly priority: number }
  | { readonly do: 'serve'; readonly versions: Version[] }
  | { readonly do: 'cut' | 'expire' | 'compact' };
const action: fc.Arbitrary<Action> = fc.oneof(
  fc.record({
    do: fc.constantFrom('put' as const, 'put' as const, 'delete' as const),
    name: fc.constantFrom('a', 'b', 'c'),
    priority: fc.constantFrom(1, 2),
  }),
  fc.record({
    do: fc.constant('serve' as const),
    versions: fc.subarray<Version>([OLD, NEW], { minLength: 1 }),
  }),
  fc.record({
    do: fc.constantFrom('cut' as const, 'expire' as const, 'compact' as const),
  }),
);

async function run(actions: readonly Action[]): Promise<void> {
  const upgrade = new Upgrade();
  const { double, sink } = upgrade.fixture;
  const deleted = new Set<string>();
  try {
    await upgrade.begin(OLD);
    await upgrade.fixture.startAndWatch([NAME]);
    for (const each of actions) {
      if (each.do === 'put') double.put(policy(each.name, each.priority));
      else if (each.do === 'delete') {
        double.delete(policy(each.name));
        deleted.add(`- ClusterNetworkPolicy ${each.name}`);
      } else if (each.do === 'serve') await upgrade.serve(...each.versions);
      else if (each.do === 'compact') double.compact();
      else double.breakWatches(each.do, NAME);
    }
    const expected = () =>
      double.list(NAME).map(({ metadata, spec }) => {
        const { name } = metadata as { name: string };
        return `${name} ${(spec as { priority: number }).priority}`;
      });
    const known = () =>
      [...sink.objects.values()].map((object) =>
        object.kind === 'ClusterNetworkPolicy' ? `${object.name} ${object.priority}` : '',
      );
    await until(
      'the sink has what the server has',
      () => known().sort().join() === expected().sort().join(),
    );
    for (const call of upgrade.calls()) assert.ok(!call.startsWith('-') || deleted.has(call), call);
    assert.deepEqual(upgrade.fixture.notInstalled, []);
  } finally {
    await upgrade.fixture.stop();
  }
}

it('versions: no object is added or removed twice for any sequence of served versions', function () {
  this.timeout(120_000);
  return fc.assert(fc.asyncProperty(fc.array(action, { minLength: 5, maxLength: 25 }), run), {
    seed: 46,
    numRuns: 100,
    endOnFailure: true,
  });
});
