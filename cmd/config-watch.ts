import { type FSWatcher, watch } from 'node:fs';
import { dirname } from 'node:path';
import type { ConfigFile } from '../config/configure.ts';
import { readConfig } from './configuration.ts';

export interface ConfigWatchOptions {
  readonly file: ConfigFile;
  /** Rejects for content that an agent would not start with, and says why. */
  readonly check: (content: string) => Promise<void>;
  /** Called once, when the file holds something else than was read that can be used. */
  readonly onChange: () => void;
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
  let lastProblem: string | undefined;
  let settling: NodeJS.Timeout | undefined;
  let ended = false;

  const end = () => {
    ended = true;
    clearTimeout(settling);
    clearInterval(polling);
    watcher?.close();
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
      return tellOnce(onProblem, error);
    }
    if (content === file.content) {
      lastProblem = undefined;
      return;
    }
    try {
      await check(content);
    } catch (error) {
      return tellOnce(onUnusable, error);
    }
    if (ended) return;
    end();
    onChange();
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
