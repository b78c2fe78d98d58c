import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** A request that is held until the test answers it. */
export interface Held {
  readonly path: string;
  readonly query: Readonly<Record<string, string>>;
  readonly isWatch: boolean;
  readonly authorization: string | undefined;
  /** Whether the client has left. */
  readonly gone: () => boolean;
  /** Answers a list. */
  list(version: string, items: readonly unknown[], next?: string): void;
  status(code: number, reason: string): void;
  /** Sends events of a watch. */
  send(...events: readonly unknown[]): void;
  /** Sends text of a watch as it stands. */
  raw(text: string): void;
  end(): void;
  /** Cuts the connection. */
  cut(): void;
}

/** Says nothing on its own: faults come when the test wants them. */
export class FakeApiServer {
  readonly requests: Held[] = [];
  readonly #server = createServer((request, response) => {
    this.requests.push(hold(request, response));
  });

  async listen(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#server.listen(0, '127.0.0.1', resolve);
    await promise;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#server.close(() => resolve());
    this.#server.closeAllConnections();
    await promise;
  }
}

function hold(request: IncomingMessage, response: ServerResponse): Held {
  const url = new URL(request.url ?? '/', 'http://localhost');
  const query = Object.fromEntries(url.searchParams);
  const json = (code: number, value: unknown) =>
    response.writeHead(code, { 'content-type': 'application/json' }).end(JSON.stringify(value));
  return {
    path: url.pathname,
    query,
    isWatch: query.watch === 'true',
    authorization: request.headers.authorization,
    gone: () => response.destroyed,
    list: (version, items, next) =>
      json(200, { kind: 'L', metadata: { resourceVersion: version, continue: next }, items }),
    status: (code, reason) =>
      json(code, { kind: 'Status', code, reason, message: 'as the test says' }),
    send: (...events) =>
      void response.write(events.map((event) => `${JSON.stringify(event)}\n`).join('')),
    raw: (text) => void response.write(text),
    end: () => response.end(),
    cut: () => response.socket?.destroy(),
  };
}
