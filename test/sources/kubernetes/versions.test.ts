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
  readonly world = new SourceFixture({ resources: RESOURCES, timeouts: PATIENT });

  async begin(...versions: Version[]): Promise<void> {
    await this.world.double.listen();
    this.world.double.serve(NAME, ...versions);
  }

  /** Changes the served versions, and waits until one of them is watched. */
  async serve(...versions: Version[]): Promise<void> {
    const before = this.world.requests('watch', NAME).length;
    this.world.double.serve(NAME, ...versions);
    await until(
      'it is watched again',
      () =>
        this.world.requests('watch', NAME).length > before &&
        this.world.double.watching(NAME) === 1,
    );
  }

  async has(...names: string[]): Promise<void> {
    const wanted = names.map((name) => `ClusterNetworkPolicy ${name}`).join();
    const known = () => [...this.world.sink.objects.keys()].sort().join();
    await until(`there are ${wanted}`, () => known() === wanted);
  }

  /** Requests in order, such as `list v1beta1`; `check` requests the object that changed last. */
  asked(): string[] {
    return this.world.double.requests().map(({ verb, path, query }) => {
      const isCheck = verb === 'list' && query.limit === '1';
      return `${isCheck ? 'check' : verb} ${path.split('/').at(-2)}`;
    });
  }

  /** Objects added to and removed from the sink. */
  calls(): string[] {
    return this.world.sink.calls.filter((call) => !call.startsWith('synced'));
  }
}

describe('versions: a resource with two versions', () => {
  let upgrade: Upgrade;
  let world: SourceFixture;
  beforeEach(() => {
    upgrade = new Upgrade();
    world = upgrade.world;
    world.double.put(policy('a'));
  });
  afterEach(() => world.stop());

  for (const [what, served, asked] of [
    ['the older version', [OLD], ['list v1beta1', 'list v1alpha2', 'watch v1alpha2']],
    ['both versions', [OLD, NEW], ['list v1beta1', 'watch v1beta1']],
    ['the newer version', [NEW], ['list v1beta1', 'watch v1beta1']],
  ] as const) {
    it(`is listed and watched when the server has ${what}`, async () => {
      await upgrade.begin(...served);
      await world.startAndWatch([NAME]);
      await upgrade.has('a');
      assert.deepEqual(upgrade.asked(), asked);
      world.double.put(policy('b'));
      await upgrade.has('a', 'b');
      world.double.delete(policy('a'));
      await upgrade.has('b');
      assert.deepEqual(world.delays, []);
      assert.deepEqual([world.notInstalled, world.problems], [[], []]);
    });
  }

  it('is not installed while neither version is served, which is logged once', async () => {
    await upgrade.begin();
    await world.startAndWatch([]);
    await until('several attempts were made', () => world.requests('list', NAME).length >= 12);
    assert.deepEqual(world.notInstalled, ['ClusterNetworkPolicy']);
    assert.deepEqual(world.logged, [
      'ClusterNetworkPolicy: CRD is not installed; checking again periodically',
    ]);
    // Each attempt sends two requests, the first for the newer version.
    const first = ['list v1beta1', 'list v1alpha2'];
    assert.deepEqual(upgrade.asked().slice(0, 8), [...first, ...first, ...first, ...first]);
    assert.deepEqual(world.delays.slice(0, 3), [1200, 2400, 60_000]);
    await upgrade.serve(OLD);
    await upgrade.has('a');
  });

  it('is watched without interruption when an upgrade adds the newer version or removes the older', async () => {
    await upgrade.begin(OLD);
    await world.startAndWatch([NAME]);
    await upgrade.serve(OLD, NEW);
    assert.equal(upgrade.asked().at(-1), 'watch v1alpha2');
    world.double.put(policy('b'));
    await upgrade.has('a', 'b');
    await upgrade.serve(NEW);
    assert.deepEqual(upgrade.asked().slice(-3), [
      'check v1alpha2',
      'list v1beta1',
      'watch v1beta1',
    ]);
    world.double.put(policy('c'));
    await upgrade.has('a', 'b', 'c');
    await upgrade.serve(OLD);
    world.double.delete(policy('a'));
    await upgrade.has('b', 'c');
    const added = ['a', 'b', 'c'].map((name) => `+ ClusterNetworkPolicy ${name}`);
    assert.deepEqual(upgrade.calls(), [...added, '- ClusterNetworkPolicy a']);
    assert.deepEqual(world.notInstalled, []);
    assert.ok(!world.logged.some((line) => /failed|not installed/.test(line)));
  });

  it('is not reported as not installed during an upgrade without objects', async () => {
    world.double.delete(policy('a'));
    await upgrade.begin(OLD);
    await world.startAndWatch([NAME]);
    await upgrade.serve(NEW);
    world.double.put(policy('b'));
    await upgrade.has('b');
    assert.deepEqual(world.notInstalled, []);
  });

  it('has the current object after an upgrade that changes it', async () => {
    await upgrade.begin(OLD);
    await world.startAndWatch([NAME]);
    world.double.serve(NAME, NEW);
    world.double.put({ ...policy('a', 7), apiVersion: NEW });
    await until('the object is current', () => {
      const object = world.sink.objects.get('ClusterNetworkPolicy a');
      return object?.kind === 'ClusterNetworkPolicy' && object.priority === 7;
    });
    assert.deepEqual(upgrade.calls(), ['+ ClusterNetworkPolicy a', '+ ClusterNetworkPolicy a']);
  });

  it('is removed after three attempts that find neither version, not earlier', async () => {
    const missing = { kind: 'status', code: 404, reason: 'NotFound' } as const;
    const fail = (times: number) =>
      world.double.fail({ verb: 'list', resource: NAME, fault: missing, times });
    await upgrade.begin(OLD, NEW);
    await world.startAndWatch([NAME]);
    for (const times of [1, 2, 5]) {
      const before = world.requests('watch', NAME).length;
      fail(times);
      world.double.breakWatches('expire', NAME);
      await until('it is watched', () => world.requests('watch', NAME).length > before);
    }
    assert.deepEqual(upgrade.calls(), ['+ ClusterNetworkPolicy a']);
    assert.deepEqual(world.notInstalled, []);
    fail(6);
    world.double.breakWatches('expire', NAME);
    await until('the object is removed and added again', () => upgrade.calls().length === 3);
    assert.deepEqual(world.notInstalled, ['ClusterNetworkPolicy']);
    assert.ok(
      world.logged.includes(
        'ClusterNetworkPolicy: CRD is no longer installed; removed its objects',
      ),
    );
  });

  it('is requested at the same path after other failures, then listed at the served one', async () => {
    await upgrade.begin(OLD);
    await world.startAndWatch([NAME]);
    const fault = { kind: 'status', code: 503, reason: 'ServiceUnavailable' } as const;
    world.double.fail({ verb: 'list', resource: NAME, fault, times: 2 });
    await upgrade.serve(NEW);
    assert.deepEqual(upgrade.asked().slice(-5), [
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
    await world.startAndWatch([NAME]);
    world.double.fail({ verb: 'watch', resource: NAME, fault: missing, times: 9 });
    const before = world.delays.length;
    await upgrade.serve(OLD, NEW);
    assert.ok(world.delays.length - before >= 4);
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
  const { double, sink } = upgrade.world;
  const deleted = new Set<string>();
  try {
    await upgrade.begin(OLD);
    await upgrade.world.startAndWatch([NAME]);
    for (const each of actions) {
      if (each.do === 'put') double.put(policy(each.name, each.priority));
      else if (each.do === 'delete') {
        double.delete(policy(each.name));
        deleted.add(`- ClusterNetworkPolicy ${each.name}`);
      } else if (each.do === 'serve') await upgrade.serve(...each.versions);
      else if (each.do === 'compact') double.compact();
      else double.breakWatches(each.do, NAME);
    }
    const wanted = () =>
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
      () => known().sort().join() === wanted().sort().join(),
    );
    for (const call of upgrade.calls()) assert.ok(!call.startsWith('-') || deleted.has(call), call);
    assert.deepEqual(upgrade.world.notInstalled, []);
  } finally {
    await upgrade.world.stop();
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
