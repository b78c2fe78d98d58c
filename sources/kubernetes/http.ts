/** Sends HTTP requests over shared connections. */
import type { Agent, ClientRequest, IncomingMessage } from 'node:http';
import { Agent as TlsAgent, request as tlsRequest } from 'node:https';
import type { Credentials } from './credentials.ts';

// Importing node:http as an ES module evaluates all of its exports and so loads undici
// (http.WebSocket): 13 MiB.
const { Agent: PlainAgent, request } = process.getBuiltinModule('node:http');

/**
 * Milliseconds of idle time before TCP keepalive probes, as in client-go. Without a reply the kernel
 * gives up ten seconds later.
 */
const KEEP_ALIVE_MS = 30_000;

/** Creates a connection pool for one set of credentials. */
export function createAgent(
  server: string,
  { tls }: Credentials,
  proxyUrl: string | undefined,
): Agent {
  const options = {
    keepAlive: true,
    keepAliveMsecs: KEEP_ALIVE_MS,
    ...(proxyUrl ? { proxyEnv: { HTTP_PROXY: proxyUrl, HTTPS_PROXY: proxyUrl } } : {}),
  };
  return server.startsWith('https:')
    ? new TlsAgent({ ...options, ...tls })
    : new PlainAgent(options);
}

export interface HttpRequestOptions {
  readonly agent: Agent;
  readonly method: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string | undefined;
  /** Aborts the request or the response. */
  readonly signal: AbortSignal;
  /** Milliseconds for request and response, until `HttpResponse.setTimeout` replaces the timeout. */
  readonly timeoutMs: number;
}

/** A response whose head has arrived. */
export interface HttpResponse {
  readonly response: IncomingMessage;
  /** Replaces the timeout: milliseconds from now, or undefined for none until `close`. */
  setTimeout(timeoutMs: number | undefined): void;
  /** Releases the connection. Call it when the response was read or is no longer needed. */
  close(): void;
}

/**
 * Sends a request and waits for the head of the response.
 * @throws Error of any type; reading the response can also throw.
 */
export async function sendRequest(url: URL, options: HttpRequestOptions): Promise<HttpResponse> {
  const { agent, method, headers, body, signal } = options;
  signal.throwIfAborted();
  const send = url.protocol === 'https:' ? tlsRequest : request;
  const outgoing = send(url, { agent, method, headers });
  // Errors are reported by the promise below or by the response.
  outgoing.on('error', () => {});
  // The stream to destroy on abort or timeout: the request until the response arrives, then the
  // response.
  let open: { destroy(error?: Error): unknown } = outgoing;
  const stop = () => open.destroy(new Error('request aborted'));
  signal.addEventListener('abort', stop, { once: true });
  let timer: NodeJS.Timeout | undefined;
  const restartTimeout = (timeoutMs: number | undefined) => {
    clearTimeout(timer);
    if (timeoutMs === undefined) return;
    const timeoutError = Object.assign(new Error(`no data for ${timeoutMs / 1000} s`), {
      code: 'ETIMEDOUT',
    });
    timer = setTimeout(() => open.destroy(timeoutError), timeoutMs);
  };
  const finish = () => {
    clearTimeout(timer);
    signal.removeEventListener('abort', stop);
  };
  restartTimeout(options.timeoutMs);
  try {
    const response = await responseTo(outgoing.end(body));
    open = response;
    const close = () => {
      finish();
      if (!response.readableEnded) response.destroy();
    };
    return { response, setTimeout: restartTimeout, close };
  } catch (error) {
    finish();
    throw error;
  }
}

function responseTo(outgoing: ClientRequest): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    outgoing.once('response', resolve);
    outgoing.once('error', reject);
    // Node emits no error when the server switches to another protocol (status 101).
    outgoing.once('close', () => reject(new Error('connection closed without a response')));
  });
}
