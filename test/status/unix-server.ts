/** Servers on Unix sockets in temporary directories. */
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer as createHttpServer, type RequestListener } from 'node:http';
import type { Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Resources, statusHandler } from '../../status/http/handler.ts';

export interface UnixServer extends AsyncDisposable {
  readonly path: string;
}

/** A path for a socket, and what removes its directory. */
export function temporarySocket(): { readonly path: string } & Disposable {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-socket-'));
  return {
    path: join(directory, 'p.sock'),
    [Symbol.dispose]: () => rmSync(directory, { recursive: true, force: true }),
  };
}

/** @param connections sockets to destroy at the end. */
async function listenUnix(server: Server, end: () => void): Promise<UnixServer> {
  const socket = temporarySocket();
  server.listen(socket.path);
  await once(server, 'listening');
  return {
    path: socket.path,
    async [Symbol.asyncDispose]() {
      end();
      server.close();
      await once(server, 'close');
      socket[Symbol.dispose]();
    },
  };
}

export function httpOnUnix(onRequest: RequestListener): Promise<UnixServer> {
  const server = createHttpServer(onRequest);
  return listenUnix(server, () => server.closeAllConnections());
}

/** A status API with these resources. */
export function fakeAgent(resources: Resources): Promise<UnixServer> {
  const onError = (error: unknown) => {
    throw error;
  };
  return httpOnUnix(statusHandler({ resources, bindHost: undefined, onError }));
}
