/** Requests to the API server. */
import { text } from 'node:stream/consumers';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { isRecord } from '../../api/read-field.ts';
import { type ClusterConfig, CredentialSource, type Credentials } from './credentials.ts';
import { ConnectionError, isApiServerFailure, statusError } from './errors.ts';
import { nonStatusAdvice, statusAdvice } from './explain-failure.ts';
import { createAgent, type HttpResponse, sendRequest } from './http.ts';
import { readLines } from './lines.ts';
import { type ListPart, ListSplitter, parseJson } from './list-splitter.ts';

export type QueryParameters = Readonly<Record<string, string>>;

/** Sends requests with one set of credentials, over its own connections. */
export interface Session {
  /**
   * Reads a list, or one page of it, in parts. Parts before an error are valid.
   * @param form `metadata` requests a `PartialObjectMetadataList`; a server that does not support
   * it sends complete objects.
   * @throws ApiError, ConnectionError, MalformedResponse
   */
  list(
    path: string,
    query: QueryParameters,
    form?: 'objects' | 'metadata',
  ): AsyncIterable<ListPart>;
  /**
   * Opens a watch; resolves when the head of the response has arrived.
   * @throws ApiError, ConnectionError
   */
  watch(path: string, query: QueryParameters): Promise<WatchStream>;
  /**
   * Creates an object, or changes one by a JSON merge patch (RFC 7396).
   * @returns the object in the response; undefined if the response is not JSON.
   * @throws ApiError, ConnectionError
   */
  send(method: WriteMethod, path: string, body: object): Promise<unknown>;
  close(): void;
}

/** An open watch. */
export interface WatchStream {
  /**
   * The parsed lines of the response as they arrive. Ends when the server ends the response.
   * @throws ConnectionError, MalformedResponse
   */
  readonly events: AsyncIterable<unknown>;
  close(): void;
}

const JSON_TYPE = 'application/json';
/**
 * Accept header that requests a PartialObjectMetadataList. kube-apiserver supports it since 1.15,
 * also for CRDs.
 */
const METADATA_TYPE = `${JSON_TYPE};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,${JSON_TYPE}`;
/** Content type of the request body. */
const CONTENT_TYPES = {
  POST: JSON_TYPE,
  PATCH: 'application/merge-patch+json',
} as const;
type WriteMethod = keyof typeof CONTENT_TYPES;

/** Observes requests, for metrics. */
export interface RequestObserver {
  /**
   * Called when the head of a response has arrived, or with `code` undefined when the request
   * failed without a response.
   */
  request(request: {
    method: string;
    /** Host name and port. */
    host: string;
    code: number | undefined;
    seconds: number;
  }): void;
}

/**
 * Opens a session with freshly read credentials, because tokens and certificates rotate. The signal
 * aborts all requests of the session.
 * @throws ConnectionError
 */
export type OpenSession = (signal: AbortSignal) => Promise<Session>;

/** Timeouts in milliseconds. */
export const TIMEOUTS = {
  /** Timeout for reading credential files or running an exec credential plugin. */
  credentials: 60_000,
  /** Timeout for the head of a response; for a write, for the complete response. */
  response: 30_000,
  /** Timeout for a complete page of a list. */
  list: 120_000,
  /**
   * Silence after which a watch is renewed, because its connection may be broken; plus up to 50 %
   * jitter. Bookmarks arrive about once a minute. For an idle kind they begin only with etcd's first
   * progress report after the start of the API server.
   */
  silence: 150_000,
};
export type Timeouts = Readonly<typeof TIMEOUTS>;

export function createOpenSession(
  config: ClusterConfig,
  timeouts: Timeouts = TIMEOUTS,
  observer?: RequestObserver,
): OpenSession {
  const source = new CredentialSource(config);
  return async (signal) => {
    const credentials = await readCredentials(source, timeouts.credentials, signal);
    const onUnauthorized = () => source.invalidate();
    return createSession(config, credentials, { timeouts, observer, onUnauthorized, signal });
  };
}

async function readCredentials(
  source: CredentialSource,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<Credentials> {
  const timer = new AbortController();
  const late = sleep(timeoutMs, undefined, { signal: AbortSignal.any([signal, timer.signal]) });
  try {
    const credentials = await Promise.race([source.read(), late]);
    if (credentials !== undefined) return credentials;
    // A hanging plugin is not started again; the next read waits for the running plugin.
    throw new Error(`reading credentials timed out after ${timeoutMs / 1000} s`);
  } catch (cause) {
    throw new ConnectionError(cause);
  } finally {
    timer.abort();
    late.catch(() => {});
  }
}

interface RequestForm {
  readonly accept?: string;
  readonly method?: 'GET' | WriteMethod;
  readonly body?: object;
}

interface SessionContext {
  readonly timeouts: Timeouts;
  readonly observer: RequestObserver | undefined;
  readonly onUnauthorized: () => void;
  readonly signal: AbortSignal;
}

function createSession(
  { server, cluster }: ClusterConfig,
  credentials: Credentials,
  { timeouts, observer, onUnauthorized, signal }: SessionContext,
): Session {
  const target = { server, proxyUrl: cluster.proxyUrl };
  const failureOf = (error: unknown) =>
    isApiServerFailure(error) ? error : new ConnectionError(error, target);
  const agent = createAgent(server, credentials, cluster.proxyUrl);
  const headers = { 'user-agent': 'portwide', ...credentials.headers };

  const request = async (
    path: string,
    query: QueryParameters,
    { accept = JSON_TYPE, method = 'GET', body }: RequestForm = {},
  ): Promise<HttpResponse> => {
    const url = new URL(server + path);
    for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
    const content = method !== 'GET' && { 'content-type': CONTENT_TYPES[method] };
    const started = performance.now();
    const observe = (code: number | undefined) => {
      const seconds = (performance.now() - started) / 1000;
      observer?.request({ method, host: url.host, code, seconds });
    };
    const answer = await sendRequest(url, {
      agent,
      method,
      headers: { accept, ...headers, ...content },
      body: body && JSON.stringify(body),
      signal,
      timeoutMs: timeouts.response,
    }).catch((error: unknown) => {
      observe(undefined);
      throw failureOf(error);
    });
    const { statusCode = 0, headers: responseHeaders } = answer.response;
    observe(statusCode);
    if (statusCode >= 200 && statusCode < 300) return answer;
    try {
      if (statusCode === 401) onUnauthorized();
      const responseBody = await text(answer.response);
      const status = parseOrUndefined(responseBody);
      const advice =
        statusAdvice(statusCode, responseBody, { method, path, query }) ||
        (isRecord(status)
          ? ''
          : nonStatusAdvice(statusCode, responseBody, responseHeaders.location));
      throw statusError(status, statusCode, { retryAfter: responseHeaders['retry-after'], advice });
    } catch (error) {
      throw failureOf(error);
    } finally {
      answer.close();
    }
  };

  return {
    async *list(path, query, form = 'objects') {
      const accept = form === 'metadata' ? METADATA_TYPE : JSON_TYPE;
      const answer = await request(path, query, { accept });
      try {
        answer.setTimeout(timeouts.list);
        const splitter = new ListSplitter();
        for await (const chunk of chunks(answer.response)) yield* splitter.push(chunk);
        yield* splitter.end();
      } catch (error) {
        throw failureOf(error);
      } finally {
        answer.close();
      }
    },
    async watch(path, query) {
      const answer = await request(path, query);
      answer.setTimeout(undefined);
      return { events: eventsOf(answer, failureOf), close: answer.close };
    },
    async send(method, path, body) {
      const answer = await request(path, {}, { method, body });
      try {
        // Read the complete body, so that the connection can be reused.
        return parseOrUndefined(await text(answer.response));
      } catch (error) {
        throw failureOf(error);
      } finally {
        answer.close();
      }
    },
    close: () => agent.destroy(),
  };
}

/** @throws ConnectionError, MalformedResponse */
async function* eventsOf(
  { response, close }: HttpResponse,
  failureOf: (error: unknown) => Error,
): AsyncGenerator<unknown> {
  try {
    for await (const line of readLines(chunks(response))) yield parseJson(line);
  } catch (error) {
    throw failureOf(error);
  } finally {
    close();
  }
}

/**
 * Yields a response in chunks of at most 64 KiB, each in its own turn of the event loop. Otherwise
 * one turn would handle all data buffered by the kernel, possibly megabytes.
 */
async function* chunks(response: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  for await (const chunk of response) {
    yield chunk;
    await nextTurn();
  }
}

function parseOrUndefined(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch {
    return undefined; // an error page of a proxy; the HTTP status is sufficient
  }
}
