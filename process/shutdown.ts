/** How a process that runs on is told to end. process/ has what any process of ours needs, whatever it serves. */

/**
 * Milliseconds after which a stopping process exits even if a part of it hangs. The kubelet kills it after
 * SIGTERM, but not when it stops by itself because its configuration file changed.
 */
const STOP_TIMEOUT = 25_000;

/** The first of these signals; whoever sends another does not want to wait. */
export function stopSignal(): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    let isStopping = false;
    const stop = (signal: NodeJS.Signals) => {
      if (isStopping) process.exit(1);
      isStopping = true;
      resolve(signal);
    };
    // Not once(): while a command runs, execa's signal-exit listens too, and where it finds nobody
    // else listening it has the signal end this process.
    process.on('SIGTERM', stop);
    process.on('SIGINT', stop);
  });
}

/** A start that a signal ends at once, and a stop that waits for the parts of the process. */
export class Shutdown {
  readonly signal = stopSignal();
  readonly #requested = Promise.withResolvers<number>();
  #isServing = false;

  /** Awaits a step of the start. A signal meanwhile ends the process with status 0. */
  async exitOnSignal<T>(step: Promise<T>): Promise<T> {
    const signal = await Promise.race([step.then(() => undefined), this.signal]);
    if (signal !== undefined) process.exit(0);
    return step;
  }

  /** Ends the process: at once while it starts, and by way of `requested` when it serves. */
  readonly request = (status: number): void => {
    if (!this.#isServing) process.exit(status);
    this.#requested.resolve(status);
  };

  /** Call it when the start is over. @returns the exit status, once the parts are to stop. */
  async requested(): Promise<number> {
    this.#isServing = true;
    const status = await Promise.race([this.#requested.promise, this.signal.then(() => 0)]);
    setTimeout(() => process.exit(status), STOP_TIMEOUT).unref();
    return status;
  }
}
