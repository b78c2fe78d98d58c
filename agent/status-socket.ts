/** The Unix socket of the status API. */
import { once } from 'node:events';
import { chmodSync, lstatSync, mkdirSync, unlinkSync } from 'node:fs';
import type { RequestListener } from 'node:http';
import { createConnection } from 'node:net';
import { dirname } from 'node:path';
import { Listener } from '../process/listener.ts';
import type { DebugLog } from '../process/log.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import { systemTimers } from '../sync/timers.ts';

/** Only root can enter the directory and connect. */
const DIRECTORY_MODE = 0o700;
const SOCKET_MODE = 0o600;
const FLAG = '--status-socket';

/** Serves on a Unix socket. A failure to listen is logged and retried. */
export async function serveOnSocket(
  path: string,
  onRequest: RequestListener,
  log: DebugLog,
): Promise<Listener> {
  const failures = new RepeatedFailures(log);
  await removeStaleSocket(path);
  return new Listener({
    listen: { path },
    prepare: () => {
      mkdirSync(dirname(path), { recursive: true, mode: DIRECTORY_MODE });
      if (lstatSync(path, { throwIfNoEntry: false })?.isSocket() === false) {
        throw new Error(`${path} exists and is not a socket`);
      }
    },
    onListening: () => chmodSync(path, SOCKET_MODE),
    onRequest,
    onFailure: (err) => {
      failures.failed(FLAG, { flag: FLAG, err }, 'cannot listen; retrying');
      void removeStaleSocket(path);
    },
    onRecovery: () => failures.succeeded(FLAG, { flag: FLAG }, 'listening again'),
    timers: systemTimers,
  });
}

/**
 * Removes a socket on which no process listens: the socket of an agent that was killed. Agents in other network
 * namespaces may share the file system, so a socket in use stays. Errors show when the agent listens.
 */
async function removeStaleSocket(path: string): Promise<void> {
  if (!isSocket(path)) return;
  const connection = createConnection(path);
  try {
    await once(connection, 'connect');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ECONNREFUSED') tryUnlink(path);
  } finally {
    connection.destroy();
  }
}

function isSocket(path: string): boolean {
  try {
    return lstatSync(path).isSocket();
  } catch {
    return false;
  }
}

function tryUnlink(path: string): void {
  try {
    unlinkSync(path);
  } catch {
    // Listening on the path fails for the same reason, and is logged.
  }
}
