import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { OpenWriteSession } from '../../events/write.ts';

/** A request for Events. */
export interface Received {
  readonly method: string;
  readonly path: string;
  readonly contentType: string | undefined;
  readonly authorization: string | undefined;
  readonly body: Readonly<Record<string, unknown>>;
}

/**
 * Stores Events; `statusFor` chooses the status of each response. Unlike the API-server double, a
 * test can decide by the content of a request. With `open`, requests take no time on the fake
 * clock.
 */
export class EventServer {
  readonly received: Received[] = [];
  /** The stored Events by name. */
  readonly stored = new Map<string, Readonly<Record<string, unknown>>>();
  /** Status to respond with; 0 closes the connection; undefined handles the request. */
  statusFor: (request: Received) => number | undefined = () => undefined;
  readonly #server = createServer((request, response) => {
    let text = '';
    request.setEncoding('utf8');
    request.on('data', (chunk: string) => {
      text += chunk;
    });
    request.on('end', () => {
      const received: Received = {
        method: request.method ?? '',
        path: request.url ?? '',
        contentType: request.headers['content-type'],
        authorization: request.headers.authorization,
        body: JSON.parse(text),
      };
      const status = this.#handle(received);
      if (status === 0) {
        response.destroy();
        return;
      }
      const responseBody =
        status < 300 ? this.#responseTo(received) : { kind: 'Status', code: status };
      response.writeHead(status, { 'content-type': 'application/json' });
      response.end(JSON.stringify(responseBody));
    });
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

  /** A session without a connection, for tests whose fake clock must not advance meanwhile. */
  readonly open: OpenWriteSession = async () => ({
    send: async (method, path, body) => {
      const request = { contentType: undefined, authorization: undefined };
      const received = { ...request, method, path, body: { ...body } };
      const status = this.#handle(received);
      if (status >= 300) throw Object.assign(new Error(`${status}`), { code: status });
      return this.#responseTo(received);
    },
    close: () => {},
  });

  /** Response to a successful request: the current Event. */
  #responseTo({ method, path, body }: Received): unknown {
    const last = decodeURIComponent(path.split('/').at(-1) ?? '');
    return method === 'POST' ? body : this.stored.get(last);
  }

  #handle(received: Received): number {
    this.received.push(received);
    return this.statusFor(received) ?? this.#store(received);
  }

  #store({ method, path, body }: Received): number {
    if (method === 'POST') {
      const { name } = body.metadata as { name: string };
      if (this.stored.has(name)) return 409;
      this.stored.set(name, body);
      return 201;
    }
    const name = decodeURIComponent(path.split('/').at(-1) ?? '');
    const known = this.stored.get(name);
    if (known === undefined) return 404;
    this.stored.set(name, { ...known, ...body });
    return 200;
  }
}
