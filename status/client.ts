/** A client of the status API on the agent's Unix socket. */
import { statSync } from 'node:fs';
import type { ClientRequest, IncomingMessage } from 'node:http';
import { printableAscii } from '../api/read-field.ts';
import { socketOwner } from '../process/socket-owner.ts';
import type { ErrorBody, Page } from './api/common.ts';
import {
  AgentEndedError,
  AgentTimeoutError,
  ApiError,
  BadAnswerError,
  NoAgentError,
  NoSocketError,
  SocketPermissionError,
} from './client-errors.ts';

// Do not use an import statement, which would also load undici (see sources/kubernetes/http.ts).
const { request: sendRequest } = process.getBuiltinModule('node:http');

/** Query parameters; undefined ones are left out. */
export type Query = Readonly<Record<string, string | number | undefined>>;

export interface StatusClientOptions {
  /** Path of the agent's socket. */
  readonly socketPath: string;
  /** Milliseconds without any byte from the agent before `AgentTimeoutError`. */
  readonly timeoutMs?: number;
  /** Milliseconds without an answer before a ping, and then until its answer. */
  readonly pingAfterMs?: number;
  readonly pingMs?: number;
  /** Milliseconds without a line of a stream before a ping. */
  readonly silenceMs?: number;
}

/** Long enough to compare the rules of 10,000 Services with the kernel four times. */
const TIMEOUT_MS = 30_000;
/** A cheap request tells an agent that hangs from one that works on the answer. */
const PING_PATH = '/api/v1';
const PING_AFTER_MS = 1000;
/** More than a request waits in the agent for its turn (2 s). */
const PING_MS = 4000;
const SILENCE_MS = 3000;
/** Items in a page: the most that the agent sends. */
const PAGE_LIMIT = 1000;
/** A list that changes between two pages is read again, at most this often. */
const LIST_ATTEMPTS = 3;
/** Bytes of one answer, and of one line of a stream. The largest page has about 1 MB. */
const MAX_BYTES = 64 * 1024 * 1024;

/** Reads resources of the status API. Each request has its own connection. */
export class StatusClient {
  readonly #path: string;
  readonly #timeoutMs: number;
  readonly #pingAfterMs: number;
  readonly #pingMs: number;
  readonly #silenceMs: number;

  constructor(options: StatusClientOptions) {
    this.#path = options.socketPath;
    this.#timeoutMs = options.timeoutMs ?? TIMEOUT_MS;
    this.#pingAfterMs = options.pingAfterMs ?? PING_AFTER_MS;
    this.#pingMs = options.pingMs ?? PING_MS;
    this.#silenceMs = options.silenceMs ?? SILENCE_MS;
  }

  /**
   * Reads one resource.
   * @param path such as `/api/v1/status`; variable parts must be percent-encoded.
   * @param fields fields of the answer that the caller needs.
   * @throws StatusClientError
   */
  async get<T extends object>(
    path: string,
    fields: readonly (keyof T & string)[],
    query: Query = {},
  ): Promise<T> {
    const response = await this.#send(path, query);
    const body = this.#parse(await this.#text(response));
    const missing = fields.find((field) => !(field in body));
    if (missing === undefined) return body as T;
    throw this.#bad(`field "${missing}" is missing; the agent may have another version`);
  }

  /**
   * Reads all pages of a list. Any other field has its value on the last page.
   * @throws StatusClientError
   */
  async list<T extends Page<unknown>>(path: string, query: Query = {}): Promise<T> {
    for (let attempt = 1; ; attempt += 1) {
      const { list, isConsistent } = await this.#pages<T>(path, query);
      if (isConsistent || attempt === LIST_ATTEMPTS) return list;
    }
  }

  /**
   * Reads a stream of objects, one a line, until the agent ends it, `signal` is aborted, or the caller stops. Waits
   * without limit for the next line.
   * @param onSilence called with an error when no line comes and the agent does not answer a ping either, and without
   * when it is back.
   * @throws StatusClientError also if the connection breaks.
   */
  async *lines<T extends object>(
    path: string,
    query: Query = {},
    signal?: AbortSignal,
    onSilence?: (error: AgentTimeoutError | undefined) => void,
  ): AsyncGenerator<T, void, undefined> {
    const response = await this.#send(path, query, signal);
    response.socket.setTimeout(0);
    const silence = onSilence && this.#watchSilence(onSilence);
    let rest = '';
    try {
      for await (const chunk of response.setEncoding('utf8')) {
        silence?.heard();
        const lines = (rest + String(chunk)).split('\n');
        rest = lines.pop() ?? '';
        if (rest.length > MAX_BYTES) throw this.#bad(`a line has more than ${MAX_BYTES} bytes`);
        for (const line of lines) if (line !== '') yield this.#parse(line) as T;
      }
    } catch (error) {
      if (signal?.aborted) return;
      throw error instanceof BadAnswerError ? error : this.#failure(error);
    } finally {
      silence?.end();
      response.destroy();
    }
    if (rest !== '') throw this.#bad('the stream ended within a line');
  }

  async #pages<T extends Page<unknown>>(path: string, query: Query) {
    const items: unknown[] = [];
    const totals = new Set<number>();
    let next: string | undefined;
    for (;;) {
      const page = await this.get<T>(path, ['items', 'total', 'continue'], {
        ...query,
        limit: PAGE_LIMIT,
        continue: next,
      });
      if (!Array.isArray(page.items)) throw this.#bad('field "items" is not a list');
      items.push(...(page.items as unknown[]));
      totals.add(page.total);
      if (page.continue === null) {
        const list: T = { ...page, items, total: items.length };
        return { list, isConsistent: totals.size === 1 };
      }
      // Otherwise an agent that repeats itself would never end.
      if (page.continue === next) throw this.#bad('field "continue" repeats');
      next = page.continue;
    }
  }

  /** Sends a request. @returns the answer, if its status is 200. */
  async #send(path: string, query: Query, signal?: AbortSignal): Promise<IncomingMessage> {
    const given = Object.entries(query).flatMap(([name, value]) =>
      value === undefined ? [] : [[name, String(value)] as const],
    );
    const search = given.length === 0 ? '' : `?${new URLSearchParams(Object.fromEntries(given))}`;
    const response = await new Promise<IncomingMessage>((resolve, reject) => {
      const request = sendRequest({
        socketPath: this.#path,
        path: path + search,
        headers: { host: 'localhost' },
        agent: false,
        timeout: this.#timeoutMs,
        ...(signal === undefined ? {} : { signal }),
      });
      let answer: IncomingMessage | undefined;
      // The kernel accepts connections for an agent that hangs.
      let ping: ClientRequest | undefined;
      const quiet = setTimeout(() => {
        ping = this.#ping((error) => request.destroy(error));
      }, this.#pingAfterMs);
      const stopPing = () => {
        clearTimeout(quiet);
        ping?.destroy();
      };
      request.on('response', (response) => {
        stopPing();
        answer = response;
        resolve(response);
      });
      request.on('close', stopPing);
      request.on('error', (error) => reject(this.#failure(error)));
      request.on('timeout', () => {
        const error = new AgentTimeoutError(this.#path, this.#timeoutMs, socketOwner(this.#path));
        // The reader of an answer that has begun gets the error of the answer.
        answer?.destroy(error);
        request.destroy(error);
      });
      request.end();
    });
    if (response.statusCode === 200) return response;
    throw this.#refusal(await this.#text(response), response.statusCode ?? 0);
  }

  /** Pings the agent while a stream is silent. */
  #watchSilence(onSilence: (error: AgentTimeoutError | undefined) => void) {
    let timer: NodeJS.Timeout | undefined;
    let ping: ClientRequest | undefined;
    let [isLost, isOver] = [false, false];
    const wait = () => {
      clearTimeout(timer);
      if (!isOver) timer = setTimeout(ask, this.#silenceMs);
    };
    const heard = () => {
      if (isLost) onSilence(undefined);
      isLost = false;
      ping?.destroy();
      wait();
    };
    const ask = () => {
      const lost = (error: AgentTimeoutError) => {
        if (!isLost) onSilence(error);
        isLost = true;
      };
      ping = this.#ping(lost, this.#silenceMs).on('response', heard).on('close', wait);
    };
    wait();
    const end = () => {
      isOver = true;
      clearTimeout(timer);
      ping?.destroy();
    };
    return { heard, end };
  }

  /**
   * Calls `fail` if the agent does not answer a cheap request. Any answer or other error is a sign of life.
   * @param after milliseconds without an answer before the call, for the message.
   */
  #ping(fail: (error: AgentTimeoutError) => void, after = this.#pingAfterMs): ClientRequest {
    const ping = sendRequest({
      socketPath: this.#path,
      path: PING_PATH,
      headers: { host: 'localhost' },
      agent: false,
      timeout: this.#pingMs,
    });
    ping.on('response', (response) => response.destroy());
    ping.on('error', () => undefined);
    ping.on('timeout', () => {
      ping.destroy();
      const total = after + this.#pingMs;
      fail(new AgentTimeoutError(this.#path, total, socketOwner(this.#path)));
    });
    ping.end();
    return ping;
  }

  async #text(response: IncomingMessage): Promise<string> {
    const chunks: Buffer[] = [];
    let bytes = 0;
    try {
      for await (const chunk of response as AsyncIterable<Buffer>) {
        bytes += chunk.length;
        if (bytes > MAX_BYTES) throw this.#bad(`more than ${MAX_BYTES} bytes`);
        chunks.push(chunk);
      }
    } catch (error) {
      throw error instanceof BadAnswerError ? error : this.#failure(error);
    } finally {
      response.destroy();
    }
    return Buffer.concat(chunks).toString();
  }

  #parse(text: string): object {
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch (error) {
      const start = printableAscii(text.slice(0, 40));
      throw this.#bad(`not JSON, begins with ${JSON.stringify(start)}`, error);
    }
    if (typeof value === 'object' && value !== null) return value;
    throw this.#bad('not an object');
  }

  #refusal(text: string, status: number): Error {
    const { error } = this.#parse(text) as Partial<ErrorBody>;
    if (typeof error?.message === 'string') {
      return new ApiError({ ...error, message: printableAscii(error.message), code: status });
    }
    return this.#bad(`HTTP status ${status} without a message`);
  }

  #failure(error: unknown): Error {
    if (error instanceof AgentTimeoutError) return error;
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') return new NoAgentError(this.#path, false);
    if (code === 'ECONNREFUSED') {
      return isSocket(this.#path)
        ? new NoAgentError(this.#path, true)
        : new NoSocketError(this.#path);
    }
    if (code === 'ECONNRESET' || code === 'EPIPE') return new AgentEndedError(this.#path);
    if (code === 'EACCES' || code === 'EPERM') return new SocketPermissionError(this.#path);
    return this.#bad(message, error);
  }

  #bad(reason: string, cause?: unknown): BadAnswerError {
    return new BadAnswerError(this.#path, reason, cause);
  }
}

/** Whether a path is a socket; also if that is unknown. */
function isSocket(path: string): boolean {
  try {
    return statSync(path).isSocket();
  } catch {
    return true;
  }
}
