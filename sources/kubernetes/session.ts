import { StringDecoder } from 'node:string_decoder';
import type { KubeConfig } from '@kubernetes/client-node';
import type { Dispatcher } from 'undici';
import { isRecord } from '../../api/read-field.ts';

/** The API server answered, with an error: a Kubernetes `Status`. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  /** HTTP status, such as 410. */
  readonly code: number;
  /** Kubernetes' word for it, such as `Expired`; may be empty. */
  readonly reason: string;

  constructor(code: number, reason: string, message: string) {
    super(`API server: ${code} ${reason}: ${message}`);
    this.code = code;
    this.reason = reason;
  }
}

/** The API server was not reached, or did not speak to the end; see `cause`. */
export class ConnectionError extends Error {
  override readonly name = 'ConnectionError';

  constructor(cause: unknown) {
    super(`API server: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
  }
}

/** The API server said something that makes no sense. */
export class MalformedAnswer extends Error {
  override readonly name = 'MalformedAnswer';
}

export type Query = Readonly<Record<string, string>>;

/** Requests with one set of credentials, over connections of their own. */
export interface Session {
  /** @throws ApiError, ConnectionError, MalformedAnswer */
  get(path: string, query: Query, signal: AbortSignal): Promise<unknown>;
  /**
   * The lines of an answer, parsed, as they come; ends when the server ends it.
   * @throws ApiError, ConnectionError, MalformedAnswer
   */
  stream(path: string, query: Query, signal: AbortSignal): AsyncIterable<unknown>;
  /**
   * Creates an object, or changes one by a JSON merge patch (RFC 7396).
   * @returns the object as it is then.
   * @throws ApiError, ConnectionError, MalformedAnswer
   */
  send(method: WriteMethod, path: string, body: object, signal: AbortSignal): Promise<unknown>;
  close(): Promise<void>;
}

/** With the type of what is sent. */
const CONTENT_TYPES = {
  POST: 'application/json',
  PATCH: 'application/merge-patch+json',
} as const;
export type WriteMethod = keyof typeof CONTENT_TYPES;

/** Hears what sessions do, for metrics. `resource` is the last part of a path: `services`. */
export interface SessionObserver {
  /** An answer began, or (`code` undefined) there was none. */
  request(request: {
    method: string;
    /** Name and port. */
    host: string;
    code: number | undefined;
    seconds: number;
  }): void;
  watching(resource: string, isOpen: boolean): void;
  /** A watch brought something. */
  event(resource: string): void;
}

/** Opens a session with credentials read afresh: tokens and certificates rotate. */
export type OpenSession = () => Promise<Session>;

const HEADERS_TIMEOUT_MS = 30_000;
const LIST_TIMEOUT_MS = 60_000;
/** Bookmarks come about once a minute; without any for this long, the connection may be dead. */
const WATCH_TIMEOUT_MS = 150_000;

export async function createOpenSession(
  config: KubeConfig,
  observer?: SessionObserver,
): Promise<OpenSession> {
  const [{ RequestContext, HttpMethod }, undici] = await Promise.all([
    import('@kubernetes/client-node'),
    import('undici'),
  ]);
  const server = config.getCurrentCluster()?.server.replace(/\/+$/, '') ?? '';

  return async () => {
    const context = new RequestContext(server, HttpMethod.GET);
    try {
      await config.applySecurityAuthentication(context);
    } catch (cause) {
      throw new ConnectionError(cause);
    }
    const headers = {
      accept: 'application/json',
      'user-agent': 'portwide',
      ...context.getHeaders(),
    };
    // client-node makes a dispatcher for each call of the above; none for plain defaults.
    const dispatcher = context.getDispatcher() ?? new undici.Agent();

    const request = async (
      path: string,
      query: Query,
      signal: AbortSignal,
      bodyTimeout: number,
      written?: { method: WriteMethod; body: object },
    ): Promise<Dispatcher.ResponseData['body']> => {
      const method = written?.method ?? 'GET';
      const url = new URL(server + path);
      for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
      const timeouts = { headersTimeout: HEADERS_TIMEOUT_MS, bodyTimeout };
      const content =
        written === undefined
          ? { headers }
          : {
              headers: { ...headers, 'content-type': CONTENT_TYPES[written.method] },
              body: JSON.stringify(written.body),
            };
      const started = performance.now();
      const observe = (code: number | undefined) => {
        const seconds = (performance.now() - started) / 1000;
        observer?.request({ method, host: url.host, code, seconds });
      };
      try {
        const options = { dispatcher, method, signal, ...content, ...timeouts };
        const { statusCode, body } = await undici.request(url, options).catch((error: unknown) => {
          observe(undefined);
          throw error;
        });
        observe(statusCode);
        if (statusCode >= 200 && statusCode < 300) return body;
        throw statusError(parseOrUndefined(await body.text()), statusCode);
      } catch (error) {
        throw error instanceof ApiError ? error : new ConnectionError(error);
      }
    };

    const whole = async (body: Dispatcher.ResponseData['body']): Promise<unknown> => {
      let text: string;
      try {
        text = await body.text();
      } catch (cause) {
        throw new ConnectionError(cause);
      }
      return parseJson(text);
    };

    return {
      async get(path, query, signal) {
        return await whole(await request(path, query, signal, LIST_TIMEOUT_MS));
      },
      async *stream(path, query, signal) {
        const body = await request(path, query, signal, WATCH_TIMEOUT_MS);
        const resource = lastPart(path);
        observer?.watching(resource, true);
        try {
          for await (const line of lines(body)) {
            observer?.event(resource);
            yield parseJson(line);
          }
        } finally {
          observer?.watching(resource, false);
        }
      },
      async send(method, path, body, signal) {
        return await whole(await request(path, {}, signal, LIST_TIMEOUT_MS, { method, body }));
      },
      async close() {
        await dispatcher.destroy();
      },
    };
  };
}

/** `services` of `/api/v1/services`. */
export function lastPart(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1);
}

/** The error that a `Status` object tells. */
export function statusError(status: unknown, fallbackCode: number): ApiError {
  const { code, reason, message } = isRecord(status) ? status : {};
  return new ApiError(
    typeof code === 'number' ? code : fallbackCode,
    typeof reason === 'string' ? reason : '',
    typeof message === 'string' ? message : 'no message',
  );
}

/** Whole lines only: what a cut connection leaves of a line is dropped with an error. */
async function* lines(body: AsyncIterable<Buffer>): AsyncGenerator<string> {
  const decoder = new StringDecoder('utf8');
  let rest: string[] = [];
  const chunks = body[Symbol.asyncIterator]();
  try {
    for (;;) {
      let chunk: IteratorResult<Buffer>;
      try {
        chunk = await chunks.next();
      } catch (cause) {
        throw new ConnectionError(cause);
      }
      if (chunk.done) break;
      const [first = '', ...others] = decoder.write(chunk.value).split('\n');
      rest.push(first);
      for (const next of others) {
        yield rest.join('');
        rest = [next];
      }
    }
  } finally {
    await chunks.return?.();
  }
  if (rest.join('').trim() !== '') throw new ConnectionError(new Error('ended within a line'));
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new MalformedAnswer('API server: the answer is not JSON', { cause });
  }
}

function parseOrUndefined(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined; // a proxy's error page; the HTTP status says enough
  }
}
