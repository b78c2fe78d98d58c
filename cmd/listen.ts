import type { RequestListener } from 'node:http';
import { ANY_FAMILY, Listener } from '../health/listener.ts';
import { systemTimers } from '../proxier/runner.ts';
import type { Log } from './log.ts';

/** To Go, and so to those who configured kube-proxy, these are one. */
const UNSPECIFIED: readonly string[] = ['', '0.0.0.0', '::'];

/**
 * Serves pages of the agent's own. A port that is taken does not keep Services from being served: it
 * is tried again until it is free, unless `--bind-address-hard-fail` says to end.
 * @param flag that says where; named in the log.
 */
export function serve(
  flag: string,
  { host, port }: { readonly host: string; readonly port: number },
  onRequest: RequestListener,
  { hardFail, log }: { readonly hardFail: boolean; readonly log: Log },
): Listener {
  return new Listener({
    host: UNSPECIFIED.includes(host) ? ANY_FAMILY : host,
    port,
    onRequest,
    onFailure: (error) => {
      const next = hardFail ? 'ending' : 'trying again';
      log.error({ flag, err: error }, `cannot listen; ${next}`);
      if (hardFail) process.exit(1);
    },
    onRecovery: () => log.info({ flag }, 'the server listens now'),
    timers: systemTimers,
  });
}
