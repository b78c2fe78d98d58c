import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { type Removal, Takeover } from '../../takeover/takeover.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

const SECOND = 1000;
const MINUTE = 60 * SECOND;

/** A takeover with one removal, whose attempts end as told: with an error or the connections left. */
function taking(attempt: () => number | Error) {
  const timers = new FakeTimers();
  const said: string[] = [];
  const log = {
    debug: () => {},
    info: (_details: object, message: string) => void said.push(message),
    warn: (details: object, message: string) => {
      said.push(`warning: ${message}: ${(details as { err: Error }).err.message}`);
    },
    error: (details: object, message: string) => {
      said.push(`error: ${message}: ${(details as { err: Error }).err.message}`);
    },
  };
  const takeover = new Takeover(log, timers);
  let attempts = 0;
  let isDone = false;
  const removal: Removal = {
    what: 'ipvs',
    failure: 'cannot',
    attempt: async () => {
      attempts += 1;
      const end = attempt();
      if (end instanceof Error) throw end;
      return end;
    },
  };
  void takeover.remove(removal).then(() => {
    isDone = true;
  });
  return {
    takeover,
    timers,
    said,
    kept: () => [...takeover.kept()],
    attempts: () => attempts,
    isDone: () => isDone,
    /** Lets time pass in steps, with all that follows from each. */
    pass: async (milliseconds: number, step = SECOND) => {
      for (let passed = 0; passed < milliseconds; passed += step) {
        timers.advance(step);
        await nextTurn();
      }
    },
  };
}

describe('taking over from another mode', () => {
  it('is done at once where nothing needs what was left', async () => {
    const { isDone, kept, attempts, said, timers } = taking(() => 0);
    await nextTurn();
    assert.deepEqual([isDone(), kept(), attempts(), said, timers.pending], [true, [], 1, [], 0]);
  });

  it('keeps what connections need, and removes it within a minute of the last one', async () => {
    let connections = 21;
    const { isDone, kept, said, pass } = taking(() => connections);
    // So that looks come at whole periods, and the last connection ends right after one.
    await nextTurn();
    await pass(10 * MINUTE);
    assert.deepEqual(kept(), [{ what: 'ipvs', reason: 'connections', connections: 21 }]);
    connections = 1;
    await pass(MINUTE);
    assert.deepEqual(kept(), [{ what: 'ipvs', reason: 'connections', connections: 1 }]);
    connections = 0;
    // Half a minute is left for the removal itself.
    await pass(30 * SECOND);
    assert.deepEqual([isDone(), kept()], [true, []]);
    assert.deepEqual(said, [
      'mode ipvs left established connections; what they need stays until they end',
    ]);
  });

  it('tries again soon after a failure, later after many, and warns of each new reason', async () => {
    const [busy, denied] = [new Error('busy'), new Error('denied')];
    const ends = [busy, busy, denied, denied, 2];
    const { isDone, kept, said, attempts, pass } = taking(() => ends.shift() ?? 0);
    await pass(2 * SECOND);
    assert.equal(attempts(), 2);
    assert.deepEqual(kept(), [{ what: 'ipvs', reason: 'error', connections: 0 }]);
    await pass(MINUTE);
    assert.deepEqual([isDone(), kept()], [true, []]);
    assert.deepEqual(said, [
      'warning: cannot; trying again: busy',
      'warning: cannot; trying again: denied',
      'mode ipvs left established connections; what they need stays until they end',
      'the removal succeeds again',
    ]);
  });

  it('goes on for as long as it fails, every five minutes in the end', async () => {
    const { attempts, said, pass } = taking(() => new Error('no'));
    await pass(60 * MINUTE);
    assert.deepEqual(
      [said[0], said.at(-1)?.slice(0, 6)],
      ['warning: cannot; trying again: no', 'error:'],
    );
    const after = attempts();
    await pass(60 * MINUTE);
    assert.equal(attempts() - after, 12);
  });

  it('leaves no timer behind when it is stopped, waiting or in the middle of an attempt', async () => {
    const waiting = taking(() => 3);
    await nextTurn();
    assert.equal(waiting.timers.pending, 1);
    waiting.takeover.stop();
    assert.equal(waiting.timers.pending, 0);
    const attempting = taking(() => 3);
    attempting.takeover.stop();
    await attempting.pass(MINUTE);
    assert.deepEqual([attempting.timers.pending, attempting.attempts()], [0, 1]);
  });
});
