/** Servers on Unix sockets in temporary directories. */
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type RequestListener } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Resource, statusHandler } from '../../status/http/handler.ts';
import { UNLIMITED } from './request.ts';

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

/** @param path default: in a temporary directory. */
export async function httpOnUnix(onRequest: RequestListener, path?: string): Promise<UnixServer> {
  const server = createServer(onRequest);
  const socket = path === undefined ? temporarySocket() : { path, [Symbol.dispose]: () => {} };
  server.listen(socket.path);
  await once(server, 'listening');
  return {
    path: socket.path,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
      socket[Symbol.dispose]();
    },
  };
}

/** Resources by path. Parameters are not checked. */
export type FakeResources = Readonly<
  Record<
    string,
    (request: { readonly query: URLSearchParams; readonly path: readonly string[] }) => object
  >
>;

/** A status API with these resources. */
export function fakeAgent(answers: FakeResources, path?: string): Promise<UnixServer> {
  const resources = Object.fromEntries(
    Object.entries(answers).map(([at, handle]): [string, Resource] => [
      at,
      {
        summary: '',
        response: undefined,
        mediaType: 'application/json',
        parameters: {},
        answer: (query, request) => handle({ query, path: request.path }),
      },
    ]),
  );
  const budget = UNLIMITED;
  const onError = (error: unknown) => {
    throw error;
  };
  return httpOnUnix(
    statusHandler({ resources, bindHost: undefined, statusSocket: undefined, budget, onError }),
    path,
  );
}
