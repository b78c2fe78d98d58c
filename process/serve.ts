/** Starts the HTTP servers that flags configure, such as health checks and metrics. */
import type { RequestListener } from 'node:http';
import { isUnspecified } from '../api/addresses.ts';
import { systemTimers } from '../sync/timers.ts';
import type { Connections } from './connections.ts';
import { ANY_FAMILY, Listener } from './listener.ts';
import type { DebugLog } from './log.ts';
import { RepeatedFailures } from './repeated-failures.ts';

export interface ServeOptions {
  /** Exit instead of retrying (`--bind-address-hard-fail`). */
  readonly hardFail: boolean;
  /** Bounds the connections; default: limits of the server's own. */
  readonly connections?: Connections;
  readonly log: DebugLog;
  /** Called for the first of several consecutive failures. */
  readonly onFailure: (error: Error) => void;
}

/**
 * Starts an HTTP server of the agent. A port in use does not stop the agent from serving Services:
 * listening is retried until the port is free. With `--bind-address-hard-fail` the process exits
 * instead.
 * @param flag The flag that sets the address; a field of the log lines.
 */
export function startHttpServer(
  flag: string,
  { host, port }: { readonly host: string; readonly port: number },
  onRequest: RequestListener,
  { hardFail, connections, log, onFailure }: ServeOptions,
): Listener {
  const failures = new RepeatedFailures(log);
  return new Listener({
    // Go, and therefore kube-proxy, listens on both families for either unspecified address.
    listen: { host: isUnspecified(host) ? ANY_FAMILY : host, port },
    onRequest,
    connections,
    onFailure: (error) => {
      if (hardFail) {
        log.error({ flag, err: error }, 'cannot listen; exiting');
        process.exit(1);
      }
      const isFirst = failures.failed(flag, { flag, err: error }, 'cannot listen; retrying');
      if (isFirst) onFailure(error);
    },
    onRecovery: () => failures.succeeded(flag, { flag }, 'listening again'),
    timers: systemTimers,
  });
}
