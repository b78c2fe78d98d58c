import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { Poller } from '../../../status/page/poller.js';
import { FakeTimers } from '../../sync/fake-timers.ts';

function build() {
  const timers = new FakeTimers();
  const asked: string[] = [];
  const answers: [path: string, value: unknown][] = [];
  const state = { isVisible: true, isLost: false, took: 0, lost: 0, refused: [] as string[] };
  const poller = new Poller({
    answered: (path, value) => answers.push([path, value]),
    refused: (_, error) => state.refused.push(error),
    lost: () => {
      state.lost += 1;
    },
    isVisible: () => state.isVisible,
    timers,
    fetch: async (path, signal) => {
      asked.push(path);
      await nextTurn();
      timers.advance(state.took);
      signal.throwIfAborted();
      if (state.isLost) throw new TypeError('connection refused');
      if (path === '/bad') return Response.json({ error: { message: 'no' } }, { status: 404 });
      if (path === '/busy') return Response.json({ error: { message: 'busy' } }, { status: 503 });
      return Response.json({ path });
    },
  });
  const pass = async (milliseconds: number) => {
    timers.advance(milliseconds);
    for (let turn = 0; turn < 10; turn++) await nextTurn();
  };
  return { poller, asked, answers, state, pass };
}

describe('status page: polling', () => {
  it('asks for what is shown, at once and then each second or at its own interval', async () => {
    const { poller, asked, answers, pass } = build();
    poller.show([{ path: '/a' }, { path: '/b', interval: 5000 }]);
    await pass(0);
    assert.deepEqual(asked, ['/a', '/b']);
    assert.deepEqual(answers.at(0), ['/a', { path: '/a' }]);
    for (let second = 0; second < 4; second++) await pass(1000);
    assert.deepEqual(asked, ['/a', '/b', '/a', '/a', '/a', '/a']);
  });

  it('drops an answer that is no longer shown', async () => {
    const { poller, asked, answers, pass } = build();
    poller.show([{ path: '/a' }]);
    poller.show([{ path: '/b' }]);
    await pass(0);
    await pass(1000);
    assert.deepEqual(asked, ['/a', '/b', '/b']);
    assert.ok(answers.every(([path]) => path === '/b'));
  });

  it('asks for nothing while hidden, and for everything when visible again', async () => {
    const { poller, asked, state, pass } = build();
    poller.show([{ path: '/a' }, { path: '/b' }]);
    await pass(0);
    state.isVisible = false;
    for (let second = 0; second < 60; second++) await pass(1000);
    assert.equal(asked.length, 2);
    state.isVisible = true;
    poller.resume();
    await pass(0);
    await pass(1000);
    assert.deepEqual(asked.slice(2), ['/a', '/b', '/a', '/b']);
  });

  it('asks less often for what takes the agent long', async () => {
    const { poller, asked, state, pass } = build();
    state.took = 3000;
    poller.show([{ path: '/slow' }]);
    await pass(0);
    await pass(2999);
    assert.equal(asked.length, 1);
    await pass(1);
    assert.equal(asked.length, 2);
  });

  it('keeps the last value while the agent is busy', async () => {
    const { poller, asked, answers, state, pass } = build();
    poller.show([{ path: '/busy' }]);
    await pass(0);
    assert.deepEqual(
      [asked.length, answers.length, state.refused.length, state.lost],
      [1, 0, 0, 0],
    );
    await pass(1000);
    assert.equal(asked.length, 2);
  });

  it('tells an error of the agent from no answer, and goes on asking', async () => {
    const { poller, asked, state, pass } = build();
    poller.show([{ path: '/bad' }]);
    await pass(0);
    assert.deepEqual([state.refused, state.lost], [['no'], 0]);
    state.isLost = true;
    await pass(1000);
    assert.equal(state.lost, 1);
    await pass(1000);
    assert.equal(asked.length, 3);
  });
});
