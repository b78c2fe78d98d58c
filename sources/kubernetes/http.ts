/** HTTP: one request, and the connections that requests share. */
import type { Agent, ClientRequest, IncomingMessage } from 'node:http';
import { Agent as TlsAgent, request as tlsRequest } from 'node:https';
import type { Credentials } from './credentials.ts';

// Importing node:http as an ES module reads all that it has, and so loads undici (http.WebSocket): 13 MiB.
const { Agent: PlainAgent, request } = process.getBuiltinModule('node:http');

/**
 * To ask a peer that has said nothing for so long whether it is there; the kernel gives up ten
 * seconds later. As client-go.
 */
const KEEP_ALIVE_MS = 30_000;

/** Connections with one set of credentials; used again for requests that follow each other. */
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
  /** Ends the request; so does the time, unless it is put off. */
  readonly signal: AbortSignal;
  readonly timeoutMs: number;
}

/** An answer that has begun. */
export interface HttpResponse {
  readonly response: IncomingMessage;
  /** Puts the end off: so many milliseconds from now, or until it is closed. */
  setTimeout(timeoutMs: number | undefined): void;
  /** To be called when the answer has been read, or is of no interest any more. */
  close(): void;
}

/**
 * Sends a request and waits for the head of its answer.
 * @throws Error of any kind; also from reading the response.
 */
export async function sendRequest(url: URL, options: HttpRequestOptions): Promise<HttpResponse> {
  const { agent, method, headers, body, signal } = options;
  signal.throwIfAborted();
  const send = url.protocol === 'https:' ? tlsRequest : request;
  const outgoing = send(url, { agent, method, headers });
  // Errors come by the promise below, or by the response.
  outgoing.on('error', () => {});
  // Once there is a response it is what tells its reader why.
  let open: { destroy(error?: Error): unknown } = outgoing;
  const stop = () => open.destroy(new Error('stopped'));
  signal.addEventListener('abort', stop, { once: true });
  let timer: NodeJS.Timeout | undefined;
  const restartTimeout = (timeoutMs: number | undefined) => {
    clearTimeout(timer);
    if (timeoutMs === undefined) return;
    const late = Object.assign(new Error(`nothing for ${timeoutMs / 1000} s`), {
      code: 'ETIMEDOUT',
    });
    timer = setTimeout(() => open.destroy(late), timeoutMs);
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
    // To Node it is no error when the server speaks of something else than HTTP (status 101).
    outgoing.once('close', () => reject(new Error('the connection was closed without an answer')));
  });
}
