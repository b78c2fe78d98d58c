import assert from 'node:assert/strict';
import { EARLY_WINDOW_MS, sharedEventDelay } from '../../events/shared-event-delay.ts';
import { Random } from '../random.ts';

const SECOND = 1000;

describe('sharing: when nodes look whether a shared Event was written', () => {
  /** Sorted delays in seconds of all nodes that look, each with so many shared Events at the same time. */
  const looks = (nodes: number, events: number, known = nodes): number[] => {
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

  it('a small cluster looks within five seconds', () => {
    for (const nodes of [1, 3, 5]) {
      const delays = looks(nodes, 10);
      assert.equal(delays.length, nodes * 10);
      assert.ok((delays.at(-1) ?? 0) < EARLY_WINDOW_MS / SECOND);
    }
  });

  for (const [nodes, most] of [
    [50, 40],
    [1000, 40],
    [5000, 40],
  ] as const) {
    it(`of ${nodes} nodes no more than ${most} look in any second, and the first within six`, () => {
      const delays = looks(nodes, 1);
      assert.ok((delays[0] ?? 60) < 6);
      assert.ok(busiestSecond(delays) <= most, `${busiestSecond(delays)}`);
    });
  }

  it('a hundred Events at the same time on 5,000 nodes are no storm either', () => {
    const delays = looks(5000, 100);
    // On average 100 a second of those that look early, and 40 of the others.
    assert.ok(busiestSecond(delays) < 200, `${busiestSecond(delays)}`);
    assert.ok((delays.at(-1) ?? 0) <= 30 * 60);
  });

  it('where agents run on a hundredth of the nodes, the Event is written within half a minute', () => {
    const [first = Number.POSITIVE_INFINITY] = looks(50, 1, 5000);
    assert.ok(first < 30, `${first}`);
  });
});
