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

/** A poll interval that never elapses, so that only events are noticed. */
const NEVER = 3_600_000;

/** Rejects content that starts with `bad`. */
const check = async (content: string) => {
  if (content.startsWith('bad')) throw new Error(content.trim());
};

describe('config-watch: watchConfig', () => {
  let directory: string;
  let stop: (() => void) | undefined;
  let changes: number;
  let problems: string[];
  let invalid: string[];
  const at = (name: string) => join(directory, name);

  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-watch-'));
    changes = 0;
    problems = [];
    invalid = [];
  });
  afterEach(() => {
    stop?.();
    stop = undefined;
    rmSync(directory, { recursive: true, force: true });
  });

  /** Watches a file for changes of its current content. */
  const start = (path: string, { pollMs = NEVER, content = readFileSync(path, 'utf8') } = {}) => {
    stop = watchConfig({
      file: { path, content },
      check,
      onChange: () => {
        changes += 1;
      },
      onInvalid: (reason) => invalid.push(reason),
      onReadError: (reason) => problems.push(reason),
      onWatchError: ({ message }) => problems.push(message),
      settleMs: 5,
      pollMs,
    });
  };
  const changed = () => waitFor('the change is noticed', () => changes === 1);
  /** Waits until a later change with a longer settle time is noticed, so that earlier events have been handled. */
  const eventsPassed = async () => {
    writeFileSync(at('marker'), '');
    let noticed = false;
    const stopMarker = watchConfig({
      file: { path: at('marker'), content: '' },
      check,
      onChange: () => {
        noticed = true;
      },
      onInvalid: assert.fail,
      onReadError: assert.fail,
      onWatchError: assert.fail,
      settleMs: 20,
      pollMs: NEVER,
    });
    replace('marker', 'x');
    await waitFor('a later change is noticed', () => noticed);
    stopMarker();
  };
  const replace = (name: string, content: string) => {
    writeFileSync(at('.draft'), content);
    renameSync(at('.draft'), at(name));
  };

  it('notices a file written in place', async () => {
    writeFileSync(at('f'), 'a');
    start(at('f'));
    writeFileSync(at('f'), 'b');
    await changed();
  });

  it('notices a file renamed over it', async () => {
    writeFileSync(at('f'), 'a');
    start(at('f'));
    replace('f', 'b');
    await changed();
  });

  it('notices the renamed link of a ConfigMap mount, unless the content is the same', async () => {
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

  it('notices by polling a change behind a link to another directory', async () => {
    mkdirSync(at('here'));
    mkdirSync(at('there'));
    writeFileSync(at('there/f'), 'a');
    symlinkSync('../there/f', at('here/f'));
    start(at('here/f'), { pollMs: 10 });
    writeFileSync(at('there/f'), 'b');
    await changed();
  });

  it('notices a change before watching started', async () => {
    writeFileSync(at('f'), 'b');
    start(at('f'), { content: 'a' });
    await changed();
  });

  it('reports a missing or unreadable file once, and notices when it returns with a change', async () => {
    writeFileSync(at('f'), 'a');
    start(at('f'), { pollMs: 5 });
    unlinkSync(at('f'));
    await waitFor('the problem is reported', () => problems.length > 0);
    mkdirSync(at('f'));
    await waitFor('the other problem is reported', () => problems.length > 1);
    rmSync(at('f'), { recursive: true });
    await waitFor('the first problem is reported again', () => problems.length > 2);
    replace('f', 'a');
    await eventsPassed();
    assert.equal(changes, 0);
    replace('f', 'b');
    await changed();
    assert.deepEqual(
      problems.map((problem) => problem.replace(/:.*/s, '')),
      ['ENOENT', 'not a regular file', 'ENOENT'],
    );
  });

  it('reports invalid content once per reason, and notices valid content after it', async () => {
    writeFileSync(at('f'), 'a');
    start(at('f'), { pollMs: 5 });
    const reported = (count: number) =>
      waitFor(`${count} are reported`, () => invalid.length >= count);
    replace('f', 'bad b');
    await reported(1);
    replace('f', 'bad b\n'); // for the same reason
    await eventsPassed();
    replace('f', 'bad c');
    await reported(2);
    replace('f', 'a');
    await eventsPassed();
    replace('f', 'bad c');
    await reported(3);
    assert.equal(changes, 0);
    replace('f', 'd');
    await changed();
    assert.deepEqual(invalid, ['bad b', 'bad c', 'bad c']);
    assert.deepEqual(problems, []);
  });

  it('notices content that becomes valid because something else changed', async () => {
    writeFileSync(at('f'), 'a');
    let isMissing = true;
    let isChanged = false;
    stop = watchConfig({
      file: { path: at('f'), content: 'a' },
      check: async () => {
        if (isMissing) throw new Error('kubeconfig');
      },
      onChange: () => {
        isChanged = true;
      },
      onInvalid: (reason) => invalid.push(reason),
      onReadError: assert.fail,
      onWatchError: assert.fail,
      pollMs: 5,
    });
    replace('f', 'b');
    await waitFor('it is reported', () => invalid.length > 0);
    isMissing = false;
    await waitFor('the change is noticed', () => isChanged);
    assert.deepEqual(invalid, ['kubeconfig']);
  });

  it('notices a change once when checks overlap', async () => {
    writeFileSync(at('f'), 'b');
    const { promise: checked, resolve } = Promise.withResolvers<void>();
    let checks = 0;
    stop = watchConfig({
      file: { path: at('f'), content: 'a' },
      check: () => {
        checks += 1;
        return checked;
      },
      onChange: () => {
        changes += 1;
      },
      onInvalid: assert.fail,
      onReadError: assert.fail,
      onWatchError: assert.fail,
      pollMs: 5,
    });
    await waitFor('three checks have started', () => checks >= 3);
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
      stop = watchConfig({
        file: { path: at('f'), content: 'a' },
        check,
        onChange: () => {
          changes += 1;
        },
        onWait: (milliseconds) => waits.push(milliseconds),
        onCancel: () => {
          cancelled += 1;
        },
        onInvalid: (reason) => invalid.push(reason),
        onReadError: (reason) => problems.push(reason),
        onWatchError: ({ message }) => problems.push(message),
        delayMs: () => 10_000,
        timers,
        settleMs: 5,
        pollMs: 5,
      });
    });
    const waiting = (count = 1) => waitFor(`${count} waits`, () => waits.length === count);

    it('notices after the delay, which further changes do not restart', async () => {
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

    it('cancels when the file is reverted, and delays the next change again', async () => {
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

    it('cancels when the file becomes invalid or unreadable', async () => {
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
      assert.deepEqual([changes, invalid, problems.length], [0, ['bad'], 1]);
    });

    it('checks the file again after the delay', async () => {
      stop?.();
      stop = undefined;
      let content = 'b';
      stop = watchConfig({
        file: { path: at('f'), content: 'x' },
        check: async () => {
          if (content === 'bad') throw new Error('bad');
        },
        onChange: () => {
          changes += 1;
        },
        onWait: (milliseconds) => waits.push(milliseconds),
        onInvalid: (reason) => invalid.push(reason),
        onReadError: assert.fail,
        onWatchError: assert.fail,
        delayMs: () => 10_000,
        timers,
        settleMs: 5,
        pollMs: NEVER,
      });
      await waiting();
      // A file that the content refers to is removed, without an event.
      content = 'bad';
      timers.advance(10_000);
      await waitFor('it is reported', () => invalid.length === 1);
      assert.equal(changes, 0);
    });
  });

  it('notices only the first change, and nothing after it stopped', async () => {
    writeFileSync(at('f'), 'a');
    start(at('f'));
    replace('f', 'b');
    await changed();
    replace('f', 'c');
    replace('f', 'd');

    let other = 0;
    const stopOther = watchConfig({
      file: { path: at('f'), content: 'd' },
      check,
      onChange: () => {
        other += 1;
      },
      onInvalid: assert.fail,
      onReadError: assert.fail,
      onWatchError: assert.fail,
      settleMs: 5,
    });
    replace('f', 'e');
    await waitFor('the other notices', () => other === 1);
    assert.equal(changes, 1);
    stopOther();
  });
});
