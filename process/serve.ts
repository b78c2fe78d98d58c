/** The HTTP servers that settings ask for. */
import type { RequestListener } from 'node:http';
import { isUnspecified } from '../api/addresses.ts';
import { systemTimers } from '../sync/timers.ts';
import { ANY_FAMILY, Listener } from './listener.ts';
import type { DebugLog } from './log.ts';
import { RepeatedFailures } from './repeated-failures.ts';

export interface ServeOptions {
  /** Whether to end instead of trying again (`--bind-address-hard-fail`). */
  readonly hardFail: boolean;
  readonly log: DebugLog;
  /** Hears of the first of several failures in a row. */
  readonly onFailure: (error: Error) => void;
}

/**
 * Serves pages of the agent's own. A port that is taken does not keep Services from being served: it
 * is tried again until it is free, unless `--bind-address-hard-fail` says to end.
 * @param flag that says where; named in the log.
 */
export function serve(
  flag: string,
  { host, port }: { readonly host: string; readonly port: number },
  onRequest: RequestListener,
  { hardFail, log, onFailure }: ServeOptions,
): Listener {
  const failures = new RepeatedFailures(log);
  return new Listener({
    // To Go, and so to those who configured kube-proxy, both are every address.
    host: isUnspecified(host) ? ANY_FAMILY : host,
    port,
    onRequest,
    onFailure: (error) => {
      if (hardFail) {
        log.error({ flag, err: error }, 'cannot listen; ending');
        process.exit(1);
      }
      const isFirst = failures.failed(flag, { flag, err: error }, 'cannot listen; trying again');
      if (isFirst) onFailure(error);
    },
    onRecovery: () => failures.succeeded(flag, { flag }, 'the server listens now'),
    timers: systemTimers,
  });
}
