import assert from 'node:assert/strict';
import { LiveWatch } from '../../../sources/kubernetes/live-watch.ts';

describe('live-watch: LiveWatch', () => {
  it('gives the event loop a turn between events that take long', async () => {
    const events = Array.from({ length: 20 }, (_, index) => index);
    async function* all() {
      yield* events;
    }
    let turn = 0;
    const count = () => {
      turn += 1;
      immediate = setImmediate(count);
    };
    let immediate = setImmediate(count);
    const turns: number[] = [];
    const watch = new LiveWatch({
      stream: { events: all(), close: () => {} },
      onEvent: () => {
        turns.push(turn);
        const end = performance.now() + 3;
        while (performance.now() < end);
      },
      silenceMs: () => 60_000,
      onClose: () => {},
    });
    await watch.untilSilentOrEnded();
    clearImmediate(immediate);
    assert.equal(turns.length, events.length);
    const most = Math.max(...turns.map((each) => turns.filter((other) => other === each).length));
    assert.ok(most <= 2, `${most} events in one turn`);
  });
});
