import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { Poller } from '../../../status/page/poller.js';
import { FakeTimers } from '../../sync/fake-timers.ts';

function build() {
  const timers = new FakeTimers();
  const asked: string[] = [];
  const tags: (string | undefined)[] = [];
  const answers: [path: string, value: unknown][] = [];
  const state = {
    isVisible: true,
    isLost: false,
    took: 0,
    lost: 0,
    busy: 0,
    refused: [] as string[],
    tag: '"1"',
    unchanged: 0,
  };
  const poller = new Poller({
    answered: (path, value) => answers.push([path, value]),
    unchanged: () => {
      state.unchanged += 1;
    },
    refused: (_, error) => state.refused.push(error),
    busy: () => {
      state.busy += 1;
    },
    lost: () => {
      state.lost += 1;
    },
    isVisible: () => state.isVisible,
    timers,
    fetch: async (path, { signal, headers }) => {
      asked.push(path);
      tags.push(headers['if-none-match']);
      await nextTurn();
      timers.advance(state.took);
      signal.throwIfAborted();
      if (state.isLost) throw new TypeError('connection refused');
      if (path === '/bad') return Response.json({ error: { message: 'no' } }, { status: 404 });
      if (path === '/busy') return Response.json({ error: { message: 'busy' } }, { status: 503 });
      if (path === '/tagged' && headers['if-none-match'] === state.tag)
        return new Response(null, { status: 304 });
      return Response.json({ path }, path === '/tagged' ? { headers: { etag: state.tag } } : {});
    },
  });
  const pass = async (milliseconds: number) => {
    timers.advance(milliseconds);
    for (let turn = 0; turn < 10; turn++) await nextTurn();
  };
  return { poller, asked, tags, answers, state, pass };
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

  it('asks only for a new version of an answer that has one', async () => {
    const { poller, tags, answers, state, pass } = build();
    poller.show([{ path: '/tagged' }]);
    await pass(0);
    await pass(1000);
    assert.deepEqual([tags, answers.length, state.unchanged], [[undefined, '"1"'], 1, 1]);
    state.tag = '"2"';
    await pass(1000);
    await pass(1000);
    assert.deepEqual(tags.slice(2), ['"1"', '"2"']);
    assert.deepEqual([answers.length, state.unchanged, state.lost], [2, 2, 0]);
  });

  it('asks for the whole answer when it comes back to a path', async () => {
    const { poller, tags, pass } = build();
    poller.show([{ path: '/tagged' }]);
    await pass(0);
    poller.show([]);
    poller.show([{ path: '/tagged' }]);
    await pass(0);
    assert.deepEqual(tags, [undefined, undefined]);
  });

  it('asks once for what takes the agent long, until it is answered, and then when told', async () => {
    const { poller, asked, answers, state, pass } = build();
    const needs = [{ path: '/once', interval: 5000, isOnce: true }];
    state.isLost = true;
    poller.show(needs);
    await pass(0);
    state.isLost = false;
    await pass(5000);
    assert.deepEqual([asked.length, answers.length], [2, 1]);
    poller.show(needs);
    poller.resume();
    await pass(60_000);
    assert.equal(asked.length, 2);
    poller.again('/once');
    poller.again('/once');
    poller.again('/other');
    await pass(0);
    await pass(60_000);
    assert.deepEqual([asked.length, answers.length], [3, 2]);
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
      [asked.length, answers.length, state.refused.length, state.lost, state.busy],
      [1, 0, 0, 0, 1],
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
