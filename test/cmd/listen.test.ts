import assert from 'node:assert/strict';
import { listenOrRetry } from '../../cmd/listen.ts';
import { waitFor } from '../lab/wait.ts';

/** A port that is taken for the first `failures` attempts. */
function port(failures: number) {
  let attempts = 0;
  let isOpen = false;
  const listen = async () => {
    attempts += 1;
    if (attempts <= failures) throw new Error('EADDRINUSE');
    isOpen = true;
    return {
      close: () => {
        isOpen = false;
      },
    };
  };
  return { listen, attempts: () => attempts, isOpen: () => isOpen };
}

describe('a server that cannot listen', () => {
  let lines: string[];
  const log = {
    error: (_: object, message: string) => void lines.push(message),
    info: (_: object, message: string) => void lines.push(message),
    warn: assert.fail,
  };
  beforeEach(() => {
    lines = [];
  });

  it('is tried again until it can, and told of once', async () => {
    const { listen, isOpen } = port(3);
    const listening = await listenOrRetry('--x', listen, { hardFail: false, log, retryMs: 1 });
    await waitFor('it listens', isOpen);
    assert.deepEqual(lines, ['cannot listen; trying again', 'the server listens now']);
    listening.close();
    assert.equal(isOpen(), false);
  });

  it('is not tried again after its end', async () => {
    const { listen, attempts } = port(Infinity);
    const listening = await listenOrRetry('--x', listen, { hardFail: false, log, retryMs: 1 });
    await waitFor('it was tried', () => attempts() > 2);
    listening.close();
    const before = attempts();
    const other = port(Infinity);
    const later = await listenOrRetry('--x', other.listen, { hardFail: false, log, retryMs: 1 });
    await waitFor('time went by', () => other.attempts() > 3);
    later.close();
    assert.equal(attempts(), before);
  });

  it('is not tried again when its end comes during an attempt, and does not stay when it can', async () => {
    for (const canListen of [false, true]) {
      const gate = Promise.withResolvers<void>();
      let attempts = 0;
      let closed = 0;
      const listen = async () => {
        attempts += 1;
        if (attempts === 1) throw new Error('EADDRINUSE');
        await gate.promise;
        if (!canListen) throw new Error('EADDRINUSE');
        return { close: () => (closed += 1) };
      };
      const listening = await listenOrRetry('--x', listen, { hardFail: false, log, retryMs: 1 });
      await waitFor('it is under way', () => attempts === 2);
      listening.close();
      gate.resolve();
      const other = port(3);
      const later = await listenOrRetry('--x', other.listen, { hardFail: false, log, retryMs: 1 });
      await waitFor('time went by', other.isOpen);
      later.close();
      assert.deepEqual([attempts, closed], [2, canListen ? 1 : 0]);
    }
  });

  it('ends all with --bind-address-hard-fail', async () => {
    const { listen, attempts } = port(1);
    await assert.rejects(listenOrRetry('--x', listen, { hardFail: true, log, retryMs: 1 }), {
      name: 'UserError',
      message: '--x: EADDRINUSE',
    });
    assert.equal(attempts(), 1);
  });
});
