/** Watches the configuration file for valid new content. */
import { type FSWatcher, watch } from 'node:fs';
import { dirname } from 'node:path';
import { asError } from '../api/errors.ts';
import { readConfig } from '../config/configuration.ts';
import type { ConfigFile } from '../config/notices.ts';
import { systemTimers, type Timers } from '../sync/timers.ts';

interface ConfigWatchOptions {
  readonly file: ConfigFile;
  /** Rejects, with the reason, content that the agent could not start with. */
  readonly check: (content: string) => Promise<void>;
  /** Called once, when the file has had valid new content for `delayMs`. */
  readonly onChange: () => void;
  /** Called when valid new content was found; `onChange` follows after this delay. */
  readonly onWait?: (milliseconds: number) => void;
  /** Called when the file is reverted, or becomes invalid or unreadable, during the delay. */
  readonly onCancel?: () => void;
  /** Returns the delay from a change to `onChange`; called once per change. Default: 0. */
  readonly delayMs?: () => number;
  readonly timers?: Timers;
  /** Called when the content is invalid, and again when the reason changes. */
  readonly onInvalid: (reason: string) => void;
  /** Called when the file cannot be read, and again when the reason changes. */
  readonly onReadError: (reason: string) => void;
  /** Called when the directory cannot be watched; the file is polled instead. */
  readonly onWatchError: (error: Error) => void;
  /** Milliseconds without an event before the file is checked. */
  readonly settleMs?: number;
  /** Milliseconds between checks without events. */
  readonly pollMs?: number;
}

/**
 * Watches the content of the configuration file. It watches the directory, because the kubelet updates a ConfigMap
 * mount by renaming a symbolic link next to the file. Polling finds changes without an event there, such as in
 * a file behind a link to another directory. A missing, unreadable or invalid file is not a change: the agent
 * could not restart with it.
 * @returns a function that stops watching.
 */
export function watchConfig(options: ConfigWatchOptions): () => void {
  const { file, onChange, onWatchError, settleMs = 50, pollMs = 5000 } = options;
  const { onWait, onCancel, delayMs = () => 0, timers = systemTimers } = options;
  /** The delay before `onChange`; `isOver` once it has passed. */
  let wait: { readonly timer: unknown; isOver: boolean } | undefined;
  let lastProblem: string | undefined;
  let settleTimer: NodeJS.Timeout | undefined;
  let isStopped = false;

  const stop = () => {
    isStopped = true;
    clearTimeout(settleTimer);
    clearInterval(pollTimer);
    timers.clear(wait?.timer);
    watcher?.close();
  };
  const cancel = () => {
    if (wait === undefined) return;
    timers.clear(wait.timer);
    wait = undefined;
    onCancel?.();
  };
  /**
   * Handles valid new content. Further changes do not restart the delay: otherwise a file that keeps changing would
   * never be applied.
   */
  const onValidChange = () => {
    const milliseconds = wait === undefined ? delayMs() : 0;
    if (milliseconds > 0) {
      const timer = timers.set(() => {
        if (wait !== undefined) wait.isOver = true;
        // Check again: files that the content refers to may have changed without an event.
        void check();
      }, milliseconds);
      wait = { timer, isOver: false };
      onWait?.(milliseconds);
    } else if (wait === undefined || wait.isOver) {
      stop();
      onChange();
    }
  };
  let started = 0;
  let lastFinished = 0;
  const check = async () => {
    started += 1;
    const number = started;
    const result = await checkFile(options);
    // Checks can overlap; ignore a result that a later check has overtaken.
    if (isStopped || number < lastFinished) return;
    lastFinished = number;
    const problem = typeof result === 'object' ? result.reason : undefined;
    if (result !== 'changed') cancel();
    if (typeof result === 'object' && problem !== lastProblem) result.report(result.reason);
    lastProblem = problem;
    if (result === 'changed') onValidChange();
  };
  const checkSoon = () => {
    if (isStopped) return;
    clearTimeout(settleTimer);
    settleTimer = setTimeout(() => void check(), settleMs).unref();
  };

  const pollTimer = setInterval(() => void check(), pollMs).unref();
  const watcher = watchDirectory(dirname(file.path), checkSoon, onWatchError);
  checkSoon(); // the file may have changed since it was read
  return stop;
}

/**
 * Compares the file with the content that the agent started with, and checks new content.
 * @returns `changed` if the content is new and valid; for an invalid or unreadable file, the reason and the callback
 * that reports it.
 */
async function checkFile({ file, check, onReadError, onInvalid }: ConfigWatchOptions) {
  let report = onReadError;
  try {
    const content = await readConfig(file.path);
    if (content === file.content) return 'unchanged';
    report = onInvalid;
    await check(content);
    return 'changed';
  } catch (error) {
    return { report, reason: asError(error).message };
  }
}

/** @returns undefined if the directory cannot be watched, for example because inotify watches are exhausted. */
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
