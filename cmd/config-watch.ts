import { type FSWatcher, watch } from 'node:fs';
import { dirname } from 'node:path';
import type { ConfigFile } from '../config/configure.ts';
import { systemTimers, type Timers } from '../proxier/runner.ts';
import { readConfig } from './configuration.ts';

export interface ConfigWatchOptions {
  readonly file: ConfigFile;
  /** Rejects for content that an agent would not start with, and says why. */
  readonly check: (content: string) => Promise<void>;
  /**
   * Called once, when the file holds something else than was read that can be used, and has since
   * `delayMs` milliseconds ago.
   */
  readonly onChange: () => void;
  /** Such a change was found, and `onChange` comes in so many milliseconds. */
  readonly onWait?: (milliseconds: number) => void;
  /** What was waited for is no more: the file is as it was read, or cannot be used or read. */
  readonly onCancel?: () => void;
  /** How long to wait after a change, asked for each; 0 by default. */
  readonly delayMs?: () => number;
  readonly timers?: Timers;
  /** The file holds what cannot be used; called again when the reason changes. */
  readonly onUnusable: (reason: string) => void;
  /** The file cannot be read; called again when the reason changes. */
  readonly onProblem: (reason: string) => void;
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
  const { file, check, onChange, onUnusable, onProblem, settleMs = 50, pollMs = 5000 } = options;
  const { onWait, onCancel, delayMs = () => 0, timers = systemTimers } = options;
  /** Whether a change waits, and whether its time has come. */
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
    if (wait === undefined || ended) return;
    timers.clear(wait.timer);
    wait = undefined;
    onCancel?.();
  };
  /** A change that can be used is there. Another one meanwhile does not begin the wait anew. */
  const found = () => {
    const milliseconds = wait === undefined ? delayMs() : 0;
    if (milliseconds > 0) {
      const timer = timers.set(() => {
        if (wait !== undefined) wait.isOver = true;
        // It may have changed again, without an event.
        void look();
      }, milliseconds);
      wait = { timer, isOver: false };
      onWait?.(milliseconds);
    } else if (wait === undefined || wait.isOver) {
      end();
      onChange();
    }
  };
  const tellOnce = (tell: (reason: string) => void, error: unknown) => {
    const reason = error instanceof Error ? error.message : String(error);
    if (!ended && reason !== lastProblem) tell(reason);
    lastProblem = reason;
  };
  const look = async () => {
    let content: string;
    try {
      content = await readConfig(file.path);
    } catch (error) {
      cancel();
      return tellOnce(onProblem, error);
    }
    if (content === file.content) {
      cancel();
      lastProblem = undefined;
      return;
    }
    try {
      await check(content);
    } catch (error) {
      cancel();
      return tellOnce(onUnusable, error);
    }
    lastProblem = undefined;
    if (!ended) found();
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

/** @returns undefined when it cannot be watched, such as when inotify watches are used up. */
function watchDirectory(
  directory: string,
  onEvent: () => void,
  onError: (error: Error) => void,
): FSWatcher | undefined {
  try {
    return watch(directory, { persistent: false }, onEvent).on('error', onError);
  } catch (error) {
    onError(error instanceof Error ? error : new Error(String(error)));
    return undefined;
  }
}
