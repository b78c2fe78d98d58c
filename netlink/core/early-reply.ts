/** Waits a short time for the reply to a small transaction. */
import { libc } from './libc.ts';

/**
 * Milliseconds for which one turn of the event loop waits for replies. Without this wait other work of the event loop, such
 * as requests of the status API, runs before each reply is read, and syncs take longer.
 */
const MAX_WAIT = 2;
/** A change of one Service is about 1 KiB. The kernel may need longer than `MAX_WAIT` for much larger transactions. */
const MAX_BYTES = 16 << 10;

/** When the first wait of this turn of the event loop began. */
let waitingSince: number | undefined;

/**
 * Waits until the socket is readable, for at most 2 ms less the time since the first wait in the same turn of the event
 * loop. The thread pool sends meanwhile. Does not wait for a large transaction.
 * @param length bytes of the transaction.
 * @returns whether the socket is readable. The kernel has then executed the transaction.
 */
export function waitForReply(fd: number, length: number): boolean {
  if (length > MAX_BYTES) return false;
  const rest = restOfWait();
  return rest > 0 && libc().waitReadable(fd, rest);
}

/** Milliseconds. Many small transactions, one after the other, must not hold up the event loop. */
function restOfWait(): number {
  if (waitingSince !== undefined) return MAX_WAIT - (performance.now() - waitingSince);
  waitingSince = performance.now();
  setImmediate(() => {
    waitingSince = undefined;
  });
  return MAX_WAIT;
}
