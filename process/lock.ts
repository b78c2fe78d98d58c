/** The node lock: at most one agent runs on a node. */
import { connect, createServer, type Server } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import type { DebugLog } from './log.ts';
import { RepeatedFailures } from './repeated-failures.ts';

/**
 * Abstract Unix socket (unix(7)): scoped to the network namespace, and released when the process
 * exits.
 */
const LOCK_ADDRESS = '\0portwide';
const RETRY_MS = 500;

/**
 * Acquires the node lock, and waits while another agent holds it. Two agents would undo each
 * other's rules. During an upgrade the old agent may still be running.
 */
export async function acquireLock(log: DebugLog): Promise<Server> {
  const failures = new RepeatedFailures(log);
  for (;;) {
    const lock = await tryLock();
    if (lock !== undefined) {
      failures.succeeded(LOCK_ADDRESS, {}, 'acquired the node lock');
      return lock;
    }
    failures.failed(
      LOCK_ADDRESS,
      {},
      'another agent is running on this node; waiting for the node lock',
    );
    await sleep(RETRY_MS);
  }
}

/**
 * Acquires the node lock without waiting.
 * @returns undefined if another agent holds it.
 * @throws Error if listening on the socket fails for any other reason.
 */
export function tryLock(): Promise<Server | undefined> {
  return new Promise((resolve, reject) => {
    const server = createServer((socket) => socket.destroy());
    // Not `once`: accepting a connection may fail later, for example without a free file descriptor.
    server.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE') resolve(undefined);
      else reject(error);
    });
    server.listen(LOCK_ADDRESS, () => resolve(server.unref()));
  });
}

/** Whether an agent holds the node lock. Does not take the lock, so no agent has to wait. */
export function isLocked(): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(LOCK_ADDRESS);
    const finish = (isHeld: boolean) => {
      socket.destroy();
      resolve(isHeld);
    };
    socket.once('connect', () => finish(true));
    socket.once('error', () => finish(false));
  });
}
