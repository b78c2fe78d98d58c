/** Watching a configuration file for content that an agent can start with. */
import { type FSWatcher, watch } from 'node:fs';
import { dirname } from 'node:path';
import { asError } from '../api/errors.ts';
import { readConfig } from '../config/configuration.ts';
import type { ConfigFile } from '../config/notices.ts';
import { systemTimers, type Timers } from '../sync/timers.ts';

interface ConfigWatchOptions {
  readonly file: ConfigFile;
  /** Rejects for content that an agent would not start with, and says why. */
  readonly check: (content: string) => Promise<void>;
  /** Called once, when the file has held other, usable content for `delayMs`. */
  readonly onChange: () => void;
  /** A usable change was found; `onChange` follows after this delay. */
  readonly onWait?: (milliseconds: number) => void;
  /** During the delay the file was changed back, or became unusable or unreadable. */
  readonly onCancel?: () => void;
  /** Delay from a change to `onChange`, asked once per change. Default: 0. */
  readonly delayMs?: () => number;
  readonly timers?: Timers;
  /** The file holds what cannot be used; called again when the reason changes. */
  readonly onInvalid: (reason: string) => void;
  /** The file cannot be read; called again when the reason changes. */
  readonly onReadError: (reason: string) => void;
  /** Milliseconds of quiet to wait for after an event. */
  readonly settleMs?: number;
  /** Milliseconds between looks without any event. */
  readonly pollMs?: number;
}

/**
 * Watches the content of the configuration file. The directory is watched, not the file: a
 * ConfigMap mount is updated by a symbolic link beside it that is renamed over another. A look from
 * time to time finds what makes no event there, such as a link to elsewhere. A file that is gone, or
 * cannot be read or used, is no change: there is nothing to start anew with.
 * @returns what ends it.
 */
export function watchConfig(options: ConfigWatchOptions): () => void {
  const { file, onChange, onReadError: onProblem, settleMs = 50, pollMs = 5000 } = options;
  const { onWait, onCancel, delayMs = () => 0, timers = systemTimers } = options;
  /** The delay of a change that was found; `isOver` once it has passed. */
  let wait: { readonly timer: unknown; isOver: boolean } | undefined;
  let lastProblem: string | undefined;
  let settling: NodeJS.Timeout | undefined;
  let ended = false;

  const end = () => {
    ended = true;
    clearTimeout(settling);
    clearInterval(polling);
    timers.clear(wait?.timer);
    watcher?.close();
  };
  const cancel = () => {
    if (wait === undefined) return;
    timers.clear(wait.timer);
    wait = undefined;
    onCancel?.();
  };
  /** A usable change is there. Further changes do not restart the delay, or a file that keeps changing would never apply. */
  const changeFound = () => {
    const milliseconds = wait === undefined ? delayMs() : 0;
    if (milliseconds > 0) {
      const timer = timers.set(() => {
        if (wait !== undefined) wait.isOver = true;
        // Check again: what the file refers to may have changed without an event.
        void look();
      }, milliseconds);
      wait = { timer, isOver: false };
      onWait?.(milliseconds);
    } else if (wait === undefined || wait.isOver) {
      end();
      onChange();
    }
  };
  let looks = 0;
  let lastLook = 0;
  const look = async () => {
    looks += 1;
    const number = looks;
    const found = await lookAt(options);
    // Several may be under way; the result of one that a later one has overtaken is outdated.
    if (ended || number < lastLook) return;
    lastLook = number;
    const problem = typeof found === 'object' ? found.reason : undefined;
    if (found !== 'usable') cancel();
    if (typeof found === 'object' && problem !== lastProblem) found.tell(found.reason);
    lastProblem = problem;
    if (found === 'usable') changeFound();
  };
  const lookSoon = () => {
    if (ended) return;
    clearTimeout(settling);
    settling = setTimeout(() => void look(), settleMs).unref();
  };

  const polling = setInterval(() => void look(), pollMs).unref();
  const watcher = watchDirectory(dirname(file.path), lookSoon, (error) =>
    onProblem(`is looked at every ${pollMs} ms only: ${error.message}`),
  );
  lookSoon(); // it may have changed since it was read
  return end;
}

/** What the file holds now: what was read, what an agent can start with, or a problem and who is told of it. */
async function lookAt({
  file,
  check,
  onReadError: onProblem,
  onInvalid: onUnusable,
}: ConfigWatchOptions) {
  let tell = onProblem;
  try {
    const content = await readConfig(file.path);
    if (content === file.content) return 'unchanged';
    tell = onUnusable;
    await check(content);
    return 'usable';
  } catch (error) {
    return { tell, reason: asError(error).message };
  }
}

/** @returns undefined when it cannot be watched, such as when inotify watches are used up. */
function watchDirectory(
  directory: string,
  onEvent: () => void,
  onError: (error: Error) => void,
): FSWatcher | undefined {
  try {
    return watch(directory, { persistent: false }, onEvent).on('error', onError);
  } catch (error) {
    onError(asError(error));
    return undefined;
  }
}
