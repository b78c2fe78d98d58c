/** Keeps the process alive when the node is short of file descriptors. */
import type { Logger } from 'pino';

/**
 * Errors of system calls that got no file descriptor, and changed nothing. Other processes of the
 * node can cause the shortage, and it ends; so it is no fault of the code that got the error.
 * ENOBUFS and ENOMEM are not among them: after these the outcome of a netlink operation may be
 * unknown.
 */
const SHORTAGES = ['EMFILE', 'ENFILE'];
/** Milliseconds between two log lines. */
const LOG_PERIOD = 10_000;

export function isShortage(error: unknown): boolean {
  return error instanceof Error && 'code' in error && SHORTAGES.includes(String(error.code));
}

/**
 * Handles errors that nothing else handled. A shortage in a timer or an event listener is logged,
 * and the process goes on, because exiting would stop serving and not end the shortage. Any other
 * error and any rejected promise may have left half a change behind, or ended a loop that must run.
 * It is logged, and the process exits with status 1, to be restarted.
 */
export function surviveShortages(log: Logger): void {
  let nextLine = 0;
  let suppressed = 0;
  process.on('uncaughtException', (err, origin) => {
    if (origin === 'unhandledRejection' || !isShortage(err)) {
      log.fatal({ err }, 'internal error; exiting');
      process.exit(1);
    }
    suppressed += 1;
    const now = performance.now();
    if (now < nextLine) return;
    log.error({ err, repeated: suppressed }, 'short of file descriptors');
    nextLine = now + LOG_PERIOD;
    suppressed = 0;
  });
}
