import assert from 'node:assert/strict';
import {
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { watchConfig } from '../../agent/config-watch.ts';
import { waitFor } from '../lab/wait.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

/** So long that only events explain what is noticed. */
const NEVER = 3_600_000;

/** No agent starts with what begins so. */
const check = async (content: string) => {
  if (content.startsWith('bad')) throw new Error(content.trim());
};

describe('config-watch: watching the configuration file', () => {
  let directory: string;
  let end: (() => void) | undefined;
  let changes: number;
  let problems: string[];
  let unusable: string[];
  const at = (name: string) => join(directory, name);

  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-watch-'));
    changes = 0;
    problems = [];
    unusable = [];
  });
  afterEach(() => {
    end?.();
    end = undefined;
    rmSync(directory, { recursive: true, force: true });
  });

  /** Watches what is there now. */
  const start = (path: string, { pollMs = NEVER, content = readFileSync(path, 'utf8') } = {}) => {
    end = watchConfig({
      file: { path, content },
      check,
      onChange: () => {
        changes += 1;
      },
      onInvalid: (reason) => unusable.push(reason),
      onReadError: (reason) => problems.push(reason),
      settleMs: 5,
      pollMs,
    });
  };
  const changed = () => waitFor('the change is noticed', () => changes === 1);
  /** Waits until a change that came later, and is waited for longer, was noticed. */
  const eventsPassed = async () => {
    writeFileSync(at('marker'), '');
    let noticed = false;
    const endMarker = watchConfig({
      file: { path: at('marker'), content: '' },
      check,
      onChange: () => {
        noticed = true;
      },
      onInvalid: assert.fail,
      onReadError: assert.fail,
      settleMs: 20,
      pollMs: NEVER,
    });
    replace('marker', 'x');
    await waitFor('a later change is noticed', () => noticed);
    endMarker();
  };
  const replace = (name: string, content: string) => {
    writeFileSync(at('.draft'), content);
    renameSync(at('.draft'), at(name));
  };

  it('a file that is written in place', async () => {
    writeFileSync(at('f'), 'a');
    start(at('f'));
    writeFileSync(at('f'), 'b');
    await changed();
  });

  it('a file that is renamed over it', async () => {
    writeFileSync(at('f'), 'a');
    start(at('f'));
    replace('f', 'b');
    await changed();
  });

  it('the links of a ConfigMap mount', async () => {
    for (const [version, content] of [
      ['..1', 'a'],
      ['..2', 'a'],
      ['..3', 'b'],
    ] as const) {
      mkdirSync(at(version));
      writeFileSync(join(directory, version, 'config.conf'), content);
    }
    symlinkSync('..1', at('..data'));
    symlinkSync('..data/config.conf', at('config.conf'));
    start(at('config.conf'));
    const point = (version: string) => {
      symlinkSync(version, at('..data_tmp'));
      renameSync(at('..data_tmp'), at('..data'));
    };
    point('..2'); // the same content: no change
    await eventsPassed();
    assert.equal(changes, 0);
    point('..3');
    await changed();
  });

  it('a link to elsewhere, from time to time', async () => {
    mkdirSync(at('here'));
    mkdirSync(at('there'));
    writeFileSync(at('there/f'), 'a');
    symlinkSync('../there/f', at('here/f'));
    start(at('here/f'), { pollMs: 10 });
    writeFileSync(at('there/f'), 'b');
    await changed();
  });

  it('a change between reading and watching', async () => {
    writeFileSync(at('f'), 'b');
    start(at('f'), { content: 'a' });
    await changed();
  });

  it('not what is gone, or cannot be read, which is told once; but what comes back changed', async () => {
    writeFileSync(at('f'), 'a');
    start(at('f'), { pollMs: 5 });
    unlinkSync(at('f'));
    await waitFor('the problem is told', () => problems.length > 0);
    mkdirSync(at('f'));
    await waitFor('the other problem is told', () => problems.length > 1);
    rmSync(at('f'), { recursive: true });
    await waitFor('the first is told again', () => problems.length > 2);
    replace('f', 'a');
    await eventsPassed();
    assert.equal(changes, 0);
    replace('f', 'b');
    await changed();
    assert.deepEqual(
      problems.map((problem) => problem.replace(/:.*/s, '')),
      ['ENOENT', 'it is no regular file', 'ENOENT'],
    );
  });

  it('not what cannot be used, which is told once; but what can be, after it', async () => {
    writeFileSync(at('f'), 'a');
    start(at('f'), { pollMs: 5 });
    const told = (count: number) => waitFor(`${count} are told`, () => unusable.length >= count);
    replace('f', 'bad b');
    await told(1);
    replace('f', 'bad b\n'); // for the same reason
    await eventsPassed();
    replace('f', 'bad c');
    await told(2);
    replace('f', 'a');
    await eventsPassed();
    replace('f', 'bad c');
    await told(3);
    assert.equal(changes, 0);
    replace('f', 'd');
    await changed();
    assert.deepEqual(unusable, ['bad b', 'bad c', 'bad c']);
    assert.deepEqual(problems, []);
  });

  it('what can be used since something else changed', async () => {
    writeFileSync(at('f'), 'a');
    let isMissing = true;
    let ended = false;
    end = watchConfig({
      file: { path: at('f'), content: 'a' },
      check: async () => {
        if (isMissing) throw new Error('kubeconfig');
      },
      onChange: () => {
        ended = true;
      },
      onInvalid: (reason) => unusable.push(reason),
      onReadError: assert.fail,
      pollMs: 5,
    });
    replace('f', 'b');
    await waitFor('it is told', () => unusable.length > 0);
    isMissing = false;
    await waitFor('the change is noticed', () => ended);
    assert.deepEqual(unusable, ['kubeconfig']);
  });

  it('once, however many looks are under way', async () => {
    writeFileSync(at('f'), 'b');
    const { promise: checked, resolve } = Promise.withResolvers<void>();
    let looks = 0;
    end = watchConfig({
      file: { path: at('f'), content: 'a' },
      check: () => {
        looks += 1;
        return checked;
      },
      onChange: () => {
        changes += 1;
      },
      onInvalid: assert.fail,
      onReadError: assert.fail,
      pollMs: 5,
    });
    await waitFor('there are three', () => looks >= 3);
    resolve();
    await changed();
    await eventsPassed();
    assert.equal(changes, 1);
  });

  describe('with a delay', () => {
    const timers = new FakeTimers();
    let waits: number[];
    let cancelled: number;
    beforeEach(() => {
      waits = [];
      cancelled = 0;
      writeFileSync(at('f'), 'a');
      end = watchConfig({
        file: { path: at('f'), content: 'a' },
        check,
        onChange: () => {
          changes += 1;
        },
        onWait: (milliseconds) => waits.push(milliseconds),
        onCancel: () => {
          cancelled += 1;
        },
        onInvalid: (reason) => unusable.push(reason),
        onReadError: (reason) => problems.push(reason),
        delayMs: () => 10_000,
        timers,
        settleMs: 5,
        pollMs: 5,
      });
    });
    const waiting = (count = 1) => waitFor(`${count} waits`, () => waits.length === count);

    it('ends after the delay, which further changes do not prolong', async () => {
      replace('f', 'b');
      await waiting();
      timers.advance(9000);
      replace('f', 'c');
      await eventsPassed();
      assert.deepEqual([waits, changes], [[10_000], 0]);
      timers.advance(1000);
      await changed();
      assert.equal(timers.pending, 0);
    });

    it('cancels when the original content is back, and delays the next change anew', async () => {
      replace('f', 'b');
      await waiting();
      replace('f', 'a');
      await waitFor('it is cancelled', () => cancelled === 1);
      timers.advance(20_000);
      await eventsPassed();
      assert.equal(changes, 0);
      replace('f', 'b');
      await waiting(2);
      timers.advance(10_000);
      await changed();
    });

    it('cancels when the file becomes unusable or unreadable', async () => {
      replace('f', 'b');
      await waiting();
      replace('f', 'bad');
      await waitFor('it is cancelled', () => cancelled === 1);
      replace('f', 'b');
      await waiting(2);
      unlinkSync(at('f'));
      await waitFor('it is cancelled again', () => cancelled === 2);
      timers.advance(20_000);
      await eventsPassed();
      assert.deepEqual([changes, unusable, problems.length], [0, ['bad'], 1]);
    });

    it('checks the file again when the delay is over', async () => {
      end?.();
      end = undefined;
      let content = 'b';
      end = watchConfig({
        file: { path: at('f'), content: 'x' },
        check: async () => {
          if (content === 'bad') throw new Error('bad');
        },
        onChange: () => {
          changes += 1;
        },
        onWait: (milliseconds) => waits.push(milliseconds),
        onInvalid: (reason) => unusable.push(reason),
        onReadError: assert.fail,
        delayMs: () => 10_000,
        timers,
        settleMs: 5,
        pollMs: NEVER,
      });
      await waiting();
      // Something that the file names is gone; no event tells.
      content = 'bad';
      timers.advance(10_000);
      await waitFor('it is told', () => unusable.length === 1);
      assert.equal(changes, 0);
    });
  });

  it('once, and nothing after its end', async () => {
    writeFileSync(at('f'), 'a');
    start(at('f'));
    replace('f', 'b');
    await changed();
    replace('f', 'c');
    replace('f', 'd');

    let other = 0;
    const endOther = watchConfig({
      file: { path: at('f'), content: 'd' },
      check,
      onChange: () => {
        other += 1;
      },
      onInvalid: assert.fail,
      onReadError: assert.fail,
      settleMs: 5,
    });
    replace('f', 'e');
    await waitFor('the other notices', () => other === 1);
    assert.equal(changes, 1);
    endOther();
  });
});
