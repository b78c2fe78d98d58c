import assert from 'node:assert/strict';
import { EARLY_WINDOW_MS, sharedEventDelay } from '../../events/shared-event-delay.ts';
import { Random } from '../random.ts';

const SECOND = 1000;

describe('shared-event-delay: when nodes check whether a shared Event was written', () => {
  /**
   * Sorted delays in seconds of all nodes that check, each with the given number of simultaneous
   * shared Events.
   */
  const checkDelays = (nodes: number, events: number, known = nodes): number[] => {
    const random = new Random(nodes + events);
    const delays: number[] = [];
    for (let node = 0; node < nodes; node++) {
      for (let waiting = 1; waiting <= events; waiting++) {
        const delay = sharedEventDelay(known, waiting, () => random.next());
        if (delay !== undefined) delays.push(delay / SECOND);
      }
    }
    return delays.sort((a, b) => a - b);
  };
  const busiestSecond = (delays: readonly number[]) =>
    Math.max(...[...Map.groupBy(delays, Math.floor).values()].map(({ length }) => length));

  it('all nodes of a small cluster check within five seconds', () => {
    for (const nodes of [1, 3, 5]) {
      const delays = checkDelays(nodes, 10);
      assert.equal(delays.length, nodes * 10);
      assert.ok((delays.at(-1) ?? 0) < EARLY_WINDOW_MS / SECOND);
    }
  });

  for (const [nodes, most] of [
    [50, 40],
    [1000, 40],
    [5000, 40],
  ] as const) {
    it(`of ${nodes} nodes at most ${most} check in any second, the first within six seconds`, () => {
      const delays = checkDelays(nodes, 1);
      assert.ok((delays[0] ?? 60) < 6);
      assert.ok(busiestSecond(delays) <= most, `${busiestSecond(delays)}`);
    });
  }

  it('limits the rate for 100 simultaneous Events on 5,000 nodes', () => {
    const delays = checkDelays(5000, 100);
    // On average 100 checks per second by early nodes, and 40 by late ones.
    assert.ok(busiestSecond(delays) < 200, `${busiestSecond(delays)}`);
    assert.ok((delays.at(-1) ?? 0) <= 30 * 60);
  });

  it('the Event is written within half a minute when one node in a hundred runs an agent', () => {
    const [first = Number.POSITIVE_INFINITY] = checkDelays(50, 1, 5000);
    assert.ok(first < 30, `${first}`);
  });
});
