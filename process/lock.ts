/** One agent per node: the lock that the running agent holds. */
import { createServer, type Server } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import type { DebugLog } from './log.ts';
import { RepeatedFailures } from './repeated-failures.ts';

/** Abstract (unix(7)): belongs to the network namespace, and goes with the process that holds it. */
const LOCK_ADDRESS = '\0portwide';
const RETRY_MS = 500;

/**
 * Two agents would undo each other's rules. Waits until no other runs on this node, which during
 * an upgrade the old one still does.
 */
export async function acquireLock(log: DebugLog): Promise<Server> {
  const failures = new RepeatedFailures(log);
  for (;;) {
    const lock = await tryLock();
    if (lock !== undefined) {
      failures.succeeded(LOCK_ADDRESS, {}, 'the other agent has ended');
      return lock;
    }
    failures.failed(LOCK_ADDRESS, {}, 'another agent runs on this node; waiting until it ends');
    await sleep(RETRY_MS);
  }
}

/**
 * @returns undefined when somebody has it.
 * @throws Error when it fails for another reason.
 */
export function tryLock(): Promise<Server | undefined> {
  return new Promise((resolve, reject) => {
    const server = createServer((socket) => socket.destroy());
    server.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE') resolve(undefined);
      else reject(error);
    });
    server.listen(LOCK_ADDRESS, () => resolve(server.unref()));
  });
}
