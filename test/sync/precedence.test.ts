import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { Precedence } from '../../sync/precedence.ts';

describe('precedence: syncs before background work', () => {
  /** Yields, and records the end. */
  const yielding = (precedence: Precedence) => {
    const state = { hasEnded: false };
    const ended = precedence.yield().then(() => {
      state.hasEnded = true;
    });
    return { state, ended };
  };

  it('continues soon while no sync runs', async () => {
    const { state, ended } = yielding(new Precedence());
    for (let turn = 0; turn < 5; turn++) await nextTurn();
    assert.equal(state.hasEnded, true);
    await ended;
  });

  it('continues when the last sync ends, also if it fails', async () => {
    const precedence = new Precedence();
    const syncs = [Promise.withResolvers<void>(), Promise.withResolvers<void>()] as const;
    const [first, second] = syncs.map(({ promise }) => precedence.run(() => promise));
    const { state, ended } = yielding(precedence);
    syncs[0].reject(new Error('sync'));
    await assert.rejects(first ?? Promise.resolve(), /sync/);
    await nextTurn();
    assert.equal(state.hasEnded, false);
    syncs[1].resolve();
    await second;
    await ended;
  });

  it('says just before each change whether a sync runs', async () => {
    const precedence = new Precedence();
    const seen: boolean[] = [];
    precedence.beforeBusyChange(() => seen.push(precedence.isBusy));
    const [first, second] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const syncs = [first, second].map(({ promise }) => precedence.run(() => promise));
    first.resolve();
    await syncs[0];
    assert.deepEqual([seen, precedence.isBusy], [[false], true]);
    second.resolve();
    await syncs[1];
    assert.deepEqual([seen, precedence.isBusy], [[false, true], false]);
  });

  it('does not wait for the end of a long sync', async () => {
    const precedence = new Precedence();
    const long = Promise.withResolvers<void>();
    const sync = precedence.run(() => long.promise);
    await yielding(precedence).ended;
    long.resolve();
    await sync;
  });

  it('runs one slice a turn, of all background work', async () => {
    const precedence = new Precedence();
    const works = [yielding(precedence), yielding(precedence)];
    await nextTurn();
    const ended = () => works.map(({ state }) => state.hasEnded);
    assert.deepEqual(ended(), [true, false]);
    await Promise.all(works.map(({ ended }) => ended));
  });

  it('lets a sync begin that was requested after the slice', async () => {
    const precedence = new Precedence();
    const order: string[] = [];
    const slice = precedence.yield().then(() => order.push('slice'));
    precedence.expect();
    setImmediate(() => order.push('sync'));
    await slice;
    assert.deepEqual(order, ['sync', 'slice']);
  });
});
