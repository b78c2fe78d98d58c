/**
 * Model-based test of the source: random sequences of changes and faults. At the end the sink has
 * the server's objects. On the way the sink gets no change twice, loses only deleted objects, and
 * gets one `synced` per kind.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import fc from 'fast-check';
import { type ApiObject, type Kind, type ObjectKey, SERVING_KINDS } from '../../../api/objects.ts';
import { readObject } from '../../../api/read-object.ts';
import { servingResources } from '../../../sources/kubernetes/resources.ts';
import type { Timeouts } from '../../../sources/kubernetes/session.ts';
import type { WatchBreakage } from '../../api-server/double.ts';
import type { Fault } from '../../api-server/faults.ts';
import { nodeManifest, sliceManifest } from '../../e2e/manifests.ts';
import { RecordingSink, until } from '../recording-sink.ts';
import { PATIENT, RESOURCE, SourceFixture, service } from './source-fixture.ts';

const NAMES = ['a', 'b', 'c'];
const OTHER_PROXY = { 'service.kubernetes.io/service-proxy-name': 'other' };
/** With a selector for Services, so that a label can hide them. */
const HIDING_RESOURCES = servingResources('node-1').map((resource) =>
  resource.kind === 'Service'
    ? { ...resource, selectors: { labelSelector: '!service.kubernetes.io/service-proxy-name' } }
    : resource,
);

type Action =
  | { readonly do: 'put' | 'hide' | 'delete' | 'put slice' | 'delete slice'; readonly name: string }
  | { readonly do: 'fail'; readonly verb: 'list' | 'watch'; readonly fault: Fault }
  | { readonly do: 'break'; readonly how: WatchBreakage }
  | { readonly do: 'rest'; readonly turns: number }
  | { readonly do: 'compact' | 'bookmark' | 'rotate token' | 'away' }
  | { readonly do: 'skip' | 'takeSnapshot' | 'stale list' | 'restore' | 'restore behind watches' };

const named = fc
  .record({
    do: fc.constantFrom('put', 'put', 'put', 'hide', 'delete', 'put slice', 'delete slice'),
    name: fc.constantFrom(...NAMES),
  })
  .map((action) => action as Action);
const status = (code: number, reason: string, retryAfter?: number): Fault => ({
  kind: 'status',
  code,
  reason,
  ...(retryAfter !== undefined && { retryAfter }),
});
const faults: readonly Fault[] = [
  { kind: 'refuse' },
  { kind: 'silence' },
  { kind: 'cut' },
  { kind: 'cut' },
  { kind: 'truncate' },
  { kind: 'trickle', everyMs: 5 },
  { kind: 'text', text: '<html></html>' },
  { kind: 'text', text: '{}' },
  status(410, 'Expired'),
  status(410, 'Expired'),
  status(429, 'TooManyRequests', 1),
  status(500, 'InternalError'),
  status(503, 'ServiceUnavailable', 2),
];
const wrong = fc.oneof(
  fc.record({
    do: fc.constant('fail' as const),
    verb: fc.constantFrom('list' as const, 'watch' as const),
    fault: fc.constantFrom(...faults),
  }),
  fc.record({
    do: fc.constant('break' as const),
    how: fc.constantFrom<WatchBreakage[]>(
      'end',
      'end half',
      'cut',
      'cut half',
      'expire',
      'silence',
    ),
  }),
  fc.constantFrom<Action[]>(
    { do: 'compact' },
    { do: 'bookmark' },
    { do: 'rotate token' },
    { do: 'away' },
  ),
);
const rest = fc.record({ do: fc.constant('rest' as const), turns: fc.constantFrom(1, 3, 10, 40) });
const usual = fc.oneof(
  { weight: 4, arbitrary: named },
  { weight: 3, arbitrary: wrong },
  { weight: 2, arbitrary: rest },
);
const sequences = (...more: readonly Action[]): fc.Arbitrary<Action[]> => {
  const action =
    more.length === 0
      ? usual
      : fc.oneof(
          { weight: 6, arbitrary: usual },
          { weight: 2, arbitrary: fc.constantFrom(...more) },
        );
  return fc.array(action, { minLength: 5, maxLength: 25 });
};

/** Order of the versions of each Service, and of its deletions. */
class History {
  readonly #putAt = new Map<number, number>();
  readonly #goneAt = new Map<ObjectKey, number>();
  #now = 0;
  restored = false;

  /** A port that identifies one version of a Service. */
  nextPort(): number {
    const port = this.#putAt.size + 1;
    this.#putAt.set(port, ++this.#now);
    return port;
  }

  gone(name: string): void {
    this.#goneAt.set(`default/${name}`, ++this.#now);
  }

  /**
   * Whether a Service version is older than another; always false after a restore, which may go
   * back.
   */
  isBefore(object: ApiObject, known: ApiObject | undefined): boolean {
    if (this.restored || object.kind !== 'Service' || known?.kind !== 'Service') return false;
    return (object.ports[0]?.port ?? 0) <= (known.ports[0]?.port ?? 0);
  }

  /** Whether a Service was deleted after the version that the sink has. */
  mayGo(object: ApiObject | undefined): boolean {
    if (object?.kind !== 'Service') return true;
    const putAt = this.#putAt.get(object.ports[0]?.port ?? 0) ?? Infinity;
    return (this.#goneAt.get(object.key) ?? 0) > putAt;
  }
}

/** Also rejects older versions, and removals of objects that were not deleted. */
class StrictRecorder extends RecordingSink {
  readonly #history: History;

  constructor(history: History) {
    super();
    this.#history = history;
  }

  override upsert(object: ApiObject): void {
    const known = this.objects.get(`${object.kind} ${object.key}`);
    const isOld = this.#history.isBefore(object, known);
    assert.ok(!isOld, `${object.kind} ${object.key} went back to an older version`);
    super.upsert(object);
  }

  override remove(kind: Kind, key: ObjectKey): void {
    const object = this.objects.get(`${kind} ${key}`);
    assert.ok(this.#history.mayGo(object), `${kind} ${key} was removed but was not deleted`);
    super.remove(kind, key);
  }
}

/** A cluster whose API server requires the token of a file. */
class Cluster {
  readonly #directory = mkdtempSync(join(tmpdir(), 'portwide-model-'));
  readonly #history = new History();
  readonly fixture: SourceFixture;
  #tokens = 0;

  constructor(timeouts: Timeouts) {
    const kubeconfig = join(this.#directory, 'kubeconfig');
    const sink = new StrictRecorder(this.#history);
    const cluster = { kubeconfig };
    const resources = HIDING_RESOURCES;
    this.fixture = new SourceFixture({ timeouts, sink, cluster, resources, bookmarkMs: 20 });
  }

  async start(): Promise<void> {
    const { double } = this.fixture;
    await double.listen();
    double.put({ ...nodeManifest([]), metadata: { name: 'node-1' } });
    const config = {
      clusters: [{ name: 'c', cluster: { server: double.url } }],
      users: [{ name: 'u', user: { tokenFile: 'token' } }],
      contexts: [{ name: 'x', context: { cluster: 'c', user: 'u' } }],
      'current-context': 'x',
    };
    writeFileSync(join(this.#directory, 'kubeconfig'), JSON.stringify(config));
    await this.#rotateToken();
    this.fixture.start();
  }

  async act(action: Action): Promise<void> {
    const { double } = this.fixture;
    if (action.do === 'put') double.put(service(action.name, this.#history.nextPort()));
    else if (action.do === 'hide') {
      this.#history.gone(action.name);
      const metadata = { name: action.name, namespace: 'default', labels: OTHER_PROXY };
      double.put({ ...service(action.name, this.#history.nextPort()), metadata });
    } else if (action.do === 'delete') {
      this.#history.gone(action.name);
      double.delete(service(action.name, 1));
    } else if (action.do === 'put slice') {
      const port = this.#history.nextPort();
      double.put(sliceManifest(action.name, 4, [], { ports: [{ port, name: '' }] }));
    } else if (action.do === 'delete slice') double.delete(sliceManifest(action.name, 4, []));
    else if (action.do === 'fail') double.fail({ verb: action.verb, fault: action.fault });
    else if (action.do === 'break') double.breakWatches(action.how);
    else if (action.do === 'rest') await turns(action.turns);
    else if (action.do === 'skip') double.dropChanges(1);
    else if (action.do === 'rotate token') await this.#rotateToken();
    else if (action.do === 'away') {
      await double.close();
      await turns(20);
      await double.listen();
    } else if (action.do === 'stale list') {
      double.fail({ verb: 'list', resource: 'services', fault: { kind: 'stale' } });
      double.breakWatches('expire', 'services');
    } else if (action.do === 'restore') await this.#restore();
    else if (action.do === 'restore behind watches') await this.#goBack();
    else double[action.do]();
  }

  /** The usual procedure: API servers are stopped while etcd is restored. */
  async #restore(): Promise<void> {
    const { double } = this.fixture;
    await double.close();
    await turns(20);
    await this.#goBack(() => double.listen());
  }

  /**
   * API servers and watches keep running. In such a small cluster new resource versions could soon
   * equal old versions, so nothing is written until the restore is detected.
   */
  async #goBack(then: () => Promise<unknown> = async () => {}): Promise<void> {
    this.fixture.double.restore();
    this.#history.restored = true;
    for (const name of NAMES) this.#history.gone(name);
    await then();
    await this.inStep();
  }

  inStep(): Promise<void> {
    return until('the sink has what the server has', () =>
      isDeepStrictEqual(this.fixture.sink.objects, this.expected()),
    );
  }

  /** The objects that the sink should have. */
  expected(): Map<string, ApiObject | undefined> {
    const objects = Object.values(RESOURCE).flatMap((name) => this.fixture.double.list(name));
    return new Map(
      objects
        .map((raw) => readObject(raw, SERVING_KINDS))
        .filter((object) => object?.kind !== 'Service' || !object.otherProxy)
        .map((object) => [`${object?.kind} ${object?.key}`, object]),
    );
  }

  async stop(): Promise<void> {
    await this.fixture.stop();
    rmSync(this.#directory, { recursive: true, force: true });
  }

  /**
   * The server changes the token first, like a token that expires before the kubelet writes the
   * next.
   */
  async #rotateToken(): Promise<void> {
    const token = `token-${++this.#tokens}`;
    this.fixture.double.setTokens([token]);
    if (this.#tokens > 1) await turns(5);
    writeFileSync(join(this.#directory, 'token'), `${token}\n`);
  }
}

async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise(setImmediate);
}

async function run(actions: readonly Action[]): Promise<void> {
  // Short timeouts during faults, and long timeouts at the end for slow machines.
  const timeouts = { credentials: 1000, response: 60, list: 60, silence: 60 };
  const cluster = new Cluster(timeouts);
  const { double, sink, problems } = cluster.fixture;
  try {
    await cluster.start();
    for (const action of actions) await cluster.act(action);
    Object.assign(timeouts, { ...PATIENT, silence: 300 });
    double.recover();
    if (actions.some((action) => action.do === 'skip')) {
      // No watch delivers the skipped changes.
      const fault = status(410, 'Expired');
      for (const resource of Object.values(RESOURCE))
        double.fail({ verb: 'watch', resource, fault });
    }
    await double.close();
    await double.listen();
    await cluster.fixture.started;
    await cluster.inStep();
    assert.equal(sink.syncedKinds.size, 3);
    assert.deepEqual(problems, []);
  } finally {
    await cluster.stop();
  }
}

/** At most two stale lists; the agent would treat a third stale list as a restore of etcd. */
const hasFewStaleLists = (actions: readonly Action[]) =>
  actions.filter((action) => action.do === 'stale list').length < 3;

describe('model: the source ends with the same objects as the server', function () {
  this.timeout(120_000);

  for (const [what, sequence, numRuns] of [
    ['after changes and faults', sequences(), 200],
    ['when events are skipped', sequences({ do: 'skip' }), 60],
    ['when lists are stale', sequences({ do: 'takeSnapshot' }, { do: 'stale list' }), 100],
    [
      'when etcd is restored',
      sequences({ do: 'takeSnapshot' }, { do: 'restore' }, { do: 'restore behind watches' }),
      100,
    ],
  ] as const) {
    it(what, () =>
      fc.assert(fc.asyncProperty(sequence.filter(hasFewStaleLists), run), {
        seed: 46,
        numRuns,
        endOnFailure: true,
      }),
    );
  }
});
