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
 * Waits until the socket is readable, for at most 2 ms. The thread pool sends meanwhile. Does not wait for a large
 * transaction, nor after earlier waits in the same turn of the event loop.
 * @param length bytes of the transaction.
 * @returns whether the socket is readable. The kernel has then executed the transaction.
 */
export function waitForReply(fd: number, length: number): boolean {
  return length <= MAX_BYTES && mayWait() && libc().waitReadable(fd, MAX_WAIT);
}

/** Many small transactions, one after the other, must not hold up the event loop. */
function mayWait(): boolean {
  if (waitingSince !== undefined) return performance.now() - waitingSince < MAX_WAIT;
  waitingSince = performance.now();
  setImmediate(() => {
    waitingSince = undefined;
  });
  return true;
}
