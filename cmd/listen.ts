import { UserError } from './errors.ts';
import type { Log } from './log.ts';

/** As kube-proxy. */
const RETRY_MS = 5000;

/** A server that listens, or tries to. */
export interface Listening {
  close(): void;
}

/**
 * Has a server listen. A port that is taken does not keep Services from being served: it is tried
 * again until it is free, unless `--bind-address-hard-fail` says to end.
 * @param flag that says where; named in errors.
 * @throws UserError only with `hardFail`.
 */
export async function listenOrRetry(
  flag: string,
  listen: () => Promise<{ close(): unknown }>,
  { hardFail, log, retryMs = RETRY_MS }: { hardFail: boolean; log: Log; retryMs?: number },
): Promise<Listening> {
  let server: { close(): unknown } | undefined;
  let retry: NodeJS.Timeout | undefined;
  let closed = false;
  const attempt = async (): Promise<void> => {
    try {
      const listening = await listen();
      if (closed) {
        listening.close();
        return;
      }
      server = listening;
      if (retry !== undefined) log.info({ flag }, 'the server listens now');
    } catch (error) {
      const reason = (error as Error).message;
      if (hardFail) throw new UserError(`${flag}: ${reason}`, { cause: error });
      if (retry === undefined) log.error({ flag, reason }, 'cannot listen; trying again');
      if (!closed) retry = setTimeout(() => void attempt(), retryMs).unref();
    }
  };
  await attempt();
  return {
    close() {
      closed = true;
      clearTimeout(retry);
      server?.close();
    },
  };
}
