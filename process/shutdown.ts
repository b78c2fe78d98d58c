/**
 * Graceful shutdown of a long-running process. The folder process/ contains the parts of any
 * long-running process: log, lock, signals, servers, external programs.
 */

/**
 * Milliseconds after which a stopping process exits even if a part of it hangs. After SIGTERM the
 * kubelet would kill a hung process. After a change of the configuration file, only this timeout
 * ends a hung process.
 */
const STOP_TIMEOUT = 25_000;

/** Resolves with the first SIGTERM or SIGINT. A second signal exits the process immediately. */
export function stopSignal(): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    let isStopping = false;
    const stop = (signal: NodeJS.Signals) => {
      if (isStopping) process.exit(1);
      isStopping = true;
      resolve(signal);
    };
    // Do not use `once`: while an external program runs, signal-exit of execa listens too. If
    // signal-exit finds no other listener, it kills this process with the signal.
    process.on('SIGTERM', stop);
    process.on('SIGINT', stop);
  });
}

/** Exits immediately on a signal during startup, and stops gracefully afterwards. */
export class Shutdown {
  readonly signal = stopSignal();
  readonly #requested = Promise.withResolvers<number>();
  #isServing = false;

  /** Awaits a step of the startup. A signal during the step exits the process with status 0. */
  async exitOnSignal<T>(step: Promise<T>): Promise<T> {
    const signal = await Promise.race([step.then(() => undefined), this.signal]);
    if (signal !== undefined) process.exit(0);
    return step;
  }

  /** Requests an exit: immediate during startup, graceful afterwards through `requested`. */
  readonly request = (status: number): void => {
    if (!this.#isServing) process.exit(status);
    this.#requested.resolve(status);
  };

  /**
   * Marks the startup as complete, and waits for an exit request or a signal.
   * @returns the exit status.
   */
  async requested(): Promise<number> {
    this.#isServing = true;
    const status = await Promise.race([this.#requested.promise, this.signal.then(() => 0)]);
    setTimeout(() => process.exit(status), STOP_TIMEOUT).unref();
    return status;
  }
}
