/** What ends a demo early. */

/** Events that end a demo early: a signal, or a closed output pipe (`| head`). */
export interface EarlyEnd {
  /** Rejects at the first event. */
  readonly interrupted: Promise<never>;
  /** The signal, `SIGPIPE` for a closed pipe; undefined before. */
  signal(): NodeJS.Signals | undefined;
}

export function watchForEnd(): EarlyEnd {
  const end = Promise.withResolvers<never>();
  end.promise.catch(() => undefined);
  let signal: NodeJS.Signals | undefined;
  const stop = (by: NodeJS.Signals) => {
    signal ??= by;
    end.reject(new Error(by));
  };
  // Not once(): the lab exits the process on a signal unless a listener is registered.
  for (const each of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(each, stop);
  process.stdout.on('error', () => stop('SIGPIPE'));
  return { interrupted: end.promise, signal: () => signal };
}
