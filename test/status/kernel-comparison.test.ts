import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { IpFamily } from '../../api/objects.ts';
import { FakeTables } from '../../nft/fake-tables.ts';
import { NftBackend } from '../../nftables/backend.ts';
import type { Backend } from '../../proxier/backend.ts';
import type { ComparedObject, Comparison, SyncSpan } from '../../proxier/compared-object.ts';
import { MAX_COMPARED_OBJECTS } from '../../proxier/comparison.ts';
import { KernelComparisons, kernelDiff } from '../../status/kernel-comparison.ts';
import { SyncActivity } from '../../status/sync-activity.ts';
import { route } from '../fixtures.ts';
import { modeOptions } from '../nftables/options.ts';
import { FakeTimers } from '../sync/fake-timers.ts';
import { requestOf } from './request.ts';
import { observerOf, syncReport } from './sync-reports.ts';

const ALL = { family: undefined, service: undefined };
const STAYS = requestOf();
const QUIET: SyncSpan = { ended: 1, begun: 1 };

function object(desired: string, state: ComparedObject['state'] = 'missing'): ComparedObject {
  const actual = state === 'ok' ? desired : null;
  return { type: 'element', in: 'map m', desired, actual, state, service: null };
}

function found(objects: readonly ComparedObject[], syncs = QUIET): Comparison {
  const different = objects.filter(({ state }) => state !== 'ok').length;
  return { compared: 10, different, objects, syncs };
}

type Compare = NonNullable<Backend['compare']>;

function backendOf(compare: Compare, family: IpFamily = 'IPv4'): Backend {
  return { family, compare } as unknown as Backend;
}

/** Comparisons of one family, which has synced. */
function comparisonsOf(...backends: readonly Backend[]) {
  const syncs = new SyncActivity();
  const observer = syncs.observing(observerOf());
  const families = backends.map(({ family }) => family);
  for (const family of families) observer.synced(syncReport(family));
  const timers = new FakeTimers();
  const comparisons = new KernelComparisons({ backends: () => backends, families, syncs }, timers);
  return { comparisons, observer, timers };
}

/** Returns these results one after the other, the last one again and again. */
function attempts(...results: readonly Comparison[]) {
  const state = { made: 0 };
  const compare = async () => {
    state.made += 1;
    const result = results[Math.min(state.made, results.length) - 1];
    assert.ok(result);
    return result;
  };
  return { state, backend: backendOf(compare) };
}

const desired = (objects: readonly { readonly desired: string | null }[]) =>
  objects.map((each) => each.desired);

describe('kernel comparison: beside syncs', () => {
  it('counts while a family waits for its rate limit or its backoff', async () => {
    const { state, backend } = attempts(found([object('a')]));
    const { comparisons, observer } = comparisonsOf(backend);
    observer.queued('IPv4');
    const result = await comparisons.compare(ALL, STAYS);
    assert.deepEqual([result.different, result.inProgress, result.stable], [1, 0, true]);
    assert.equal(state.made, 1);
  });

  it('compares again until no sync runs meanwhile', async () => {
    const { state, backend } = attempts(
      found([object('changing')], { ended: 1, begun: 2 }),
      found([object('fault')], { ended: 2, begun: 2 }),
    );
    const result = await comparisonsOf(backend).comparisons.compare(ALL, STAYS);
    assert.deepEqual(desired(result.objects), ['fault']);
    assert.deepEqual([result.different, result.stable, state.made], [1, true, 2]);
  });

  it('counts what every attempt finds if syncs run during each, and marks the rest as changes in progress', async () => {
    const { state, backend } = attempts(
      found([object('a'), object('fault')], { ended: 1, begun: 2 }),
      found([object('b'), object('fault')], { ended: 2, begun: 4 }),
      found([object('c'), object('fault')], { ended: 4, begun: 5 }),
      found([object('a'), object('fault')], { ended: 5, begun: 6 }),
    );
    const result = await comparisonsOf(backend).comparisons.compare(ALL, STAYS);
    assert.deepEqual(
      result.objects.map((each) => [each.desired, each.inProgress]),
      [
        ['fault', false],
        ['a', true],
      ],
    );
    assert.deepEqual([result.different, result.inProgress, result.stable], [1, 1, false]);
    assert.equal(state.made, 4);
  });

  it('takes what all attempts find during one long sync for changes in progress', async () => {
    const { backend } = attempts(found([object('a')], { ended: 1, begun: 2 }));
    const result = await comparisonsOf(backend).comparisons.compare(ALL, STAYS);
    assert.deepEqual([result.different, result.inProgress, result.stable], [0, 1, false]);
  });

  it('lists a limited number, and counts all exactly', async () => {
    const many = Array.from({ length: MAX_COMPARED_OBJECTS }, (_, index) => object(`${index}`));
    const all = { ...found(many), compared: 9000, different: 5000 };
    const backends = (['IPv4', 'IPv6'] as const).map((family) =>
      backendOf(async () => all, family),
    );
    const result = await comparisonsOf(...backends).comparisons.compare(ALL, STAYS);
    const diff = kernelDiff(result, 1000);
    assert.deepEqual([diff.items.length, diff.omitted, diff.total], [1000, 9000, 10_000]);
    assert.deepEqual([diff.different, diff.compared, diff.continue], [10_000, 18_000, null]);
  });

  it('finds an element that another program deleted from table portwide while other Services change all the time', async () => {
    const fake = new FakeTables();
    const backend = new NftBackend(fake.tables, {
      ...modeOptions(),
      onWarning: assert.fail,
    });
    const busy = (change: number) =>
      route({ id: 'default/busy/IPv4', serviceKey: 'default/busy', clusterIP: '10.96.0.99' }, [
        `10.244.1.${change % 250}`,
      ]);
    backend.update([route({}, ['10.244.0.1', '10.244.0.2']), busy(0)], []);
    await backend.apply(true);
    const [key = ''] = fake.sets.get('endpoints')?.keys() ?? [];
    fake.sets.get('endpoints')?.delete(key);
    let changes = 0;
    let syncing: Promise<unknown> = Promise.resolve();
    // The change is in force before the comparison ends, but the dump lacks it.
    fake.onDump = () => {
      changes += 1;
      backend.update([busy(changes)], []);
      syncing = syncing.then(() => backend.apply(false));
      return false;
    };
    const { comparisons } = comparisonsOf(backend);
    const result = await comparisons.compare(ALL, STAYS);
    fake.onDump = () => false;
    await syncing;
    assert.equal(result.stable, false);
    assert.ok(result.inProgress > 0, 'the test makes changes in progress');
    assert.equal(result.different, 1);
    const [first] = result.objects;
    assert.deepEqual([first?.state, first?.service], ['missing', 'default/web']);
    const settled = await comparisons.compare(ALL, STAYS);
    assert.deepEqual([settled.different, settled.inProgress, settled.stable], [1, 0, true]);
  });
});

describe('kernel comparison: families that are not synced', () => {
  it('names a family that never synced, and one whose last sync failed', async () => {
    const syncs = new SyncActivity();
    const observer = syncs.observing(observerOf());
    const families = ['IPv4', 'IPv6'] as const;
    const comparisons = new KernelComparisons({ backends: () => [], families, syncs });
    const unsynced = async () => (await comparisons.compare(ALL, STAYS)).unsynced;
    const never = { family: 'IPv6', hasSynced: false, error: null };
    observer.synced(syncReport('IPv4'));
    assert.deepEqual(await unsynced(), [never]);
    observer.syncFailed('IPv4', new Error('EPERM'), { full: true, seconds: 1 });
    observer.queued('IPv4');
    assert.deepEqual(await unsynced(), [
      { family: 'IPv4', hasSynced: true, error: 'EPERM' },
      never,
    ]);
    const ofFamily = await comparisons.compare({ ...ALL, family: 'IPv6' }, STAYS);
    assert.deepEqual(ofFamily.unsynced, [never]);
  });
});

describe('kernel comparison: several requests', () => {
  /** Comparisons that end when `finish` is called, one at a time. */
  function blocked() {
    const runs: { readonly end: () => void; readonly signal: AbortSignal | undefined }[] = [];
    const compare: Compare = async (_, signal) => {
      const { promise, resolve } = Promise.withResolvers<void>();
      runs.push({ end: resolve, signal });
      await promise;
      signal?.throwIfAborted();
      return found([]);
    };
    return { runs, ...comparisonsOf(backendOf(compare)) };
  }

  it('share one comparison that begins after them, one at a time', async () => {
    const { runs, comparisons } = blocked();
    const first = comparisons.compare(ALL, STAYS);
    await nextTurn();
    // The running comparison may have missed a change already.
    const later = Promise.all([1, 2, 3].map(() => comparisons.compare(ALL, STAYS)));
    await nextTurn();
    assert.equal(runs.length, 1);
    runs[0]?.end();
    await first;
    await nextTurn();
    assert.equal(runs.length, 2);
    runs[1]?.end();
    const [one, other] = await later;
    assert.equal(one, other);
    assert.equal(runs.length, 2);
  });

  it('of one Service wait at most 10 seconds for others', async () => {
    const { runs, comparisons, timers } = blocked();
    const of = (service: string) => comparisons.compare({ family: undefined, service }, STAYS);
    const first = of('default/a');
    await nextTurn();
    const second = of('default/b');
    await nextTurn();
    timers.advance(9999);
    runs[0]?.end();
    await first;
    timers.advance(1);
    await assert.rejects(second, /no comparison within 10 s/);
    assert.equal(runs.length, 1);
  });

  it('leave four times its duration between comparisons, at most 10 seconds', async () => {
    const { runs, comparisons, timers } = blocked();
    for (const [duration, rest] of [
      [10, 40],
      [9000, 10_000],
      [1, 4],
    ] as const) {
      const before = runs.length;
      const first = comparisons.compare(ALL, STAYS);
      await nextTurn();
      timers.advance(duration);
      runs[before]?.end();
      await first;
      const gone = new AbortController();
      const left = comparisons.compare(ALL, requestOf({ signal: gone.signal }));
      await nextTurn();
      timers.advance(rest - 1);
      gone.abort(new Error('gone'));
      await assert.rejects(left, /gone/);
      const second = comparisons.compare(ALL, STAYS);
      await nextTurn();
      assert.equal(runs.length, before + 1);
      timers.advance(1);
      await nextTurn();
      assert.equal(runs.length, before + 2);
      runs[before + 1]?.end();
      await second;
    }
  });

  it('stop the comparison when all clients are gone, and begin none without a client', async () => {
    const { runs, comparisons } = blocked();
    const clients = [new AbortController(), new AbortController(), new AbortController()] as const;
    const [a, b, c] = clients;
    const gone = (controller: AbortController) => controller.abort(new Error('gone'));
    const both = [a, b].map(({ signal }) => comparisons.compare(ALL, requestOf({ signal })));
    await nextTurn();
    const waiting = comparisons.compare(ALL, requestOf({ signal: c.signal }));
    gone(a);
    await assert.rejects(both[0] ?? Promise.resolve(), /gone/);
    assert.equal(runs[0]?.signal?.aborted, false);
    gone(b);
    await assert.rejects(both[1] ?? Promise.resolve(), /gone/);
    assert.equal(runs[0]?.signal?.aborted, true);
    gone(c);
    await assert.rejects(waiting, /gone/);
    runs[0]?.end();
    await nextTurn();
    assert.equal(runs.length, 1);
    const next = comparisons.compare(ALL, STAYS);
    await nextTurn();
    assert.equal(runs.length, 2);
    runs[1]?.end();
    await next;
  });
});
