/** The HTTP side of the status API: paths, checks and errors. Reads only; GET is the only method. */
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';
import { asError } from '../../api/errors.ts';
import type { ErrorBody } from '../api/common.ts';
import { File, type FileAnswer } from './file.ts';
import { refuse, SECURITY_HEADERS } from './guard.ts';
import { BadParameter, type Parsers, readParameters, type Values } from './parameters.ts';
import { type RequestBudget, TooManyRequests, type WaitOutside } from './request-budget.ts';

/** A request for one resource. */
export interface ResourceRequest {
  /** The variable parts of the path, such as namespace and name; decoded. */
  readonly path: readonly string[];
  /** Aborted when the client is gone. */
  readonly signal: AbortSignal;
  /** Whether it came over the Unix socket, which only root can open. */
  readonly isRoot?: boolean;
  /** Waits while other requests run: for another program, or for work with a bound of its own. */
  readonly waitOutside: WaitOutside;
}

/** An object that does not exist; the answer is 404. */
export class NotFound extends Error {
  override readonly name = 'NotFound';
}

/** A request that cannot be answered now or on this node. 409: something else is running. 501: not possible here. */
export class Unanswerable extends Error {
  override readonly name = 'Unanswerable';
  readonly code: 409 | 501;

  constructor(code: 409 | 501, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
  }
}

/** A request that needs root: it changes something in the kernel. The answer is 403. */
class NeedsRoot extends Error {
  override readonly name = 'NeedsRoot';

  /** @param socket path of the Unix socket; undefined: there is none. */
  constructor(command: string, socket: string | undefined) {
    const where =
      socket === undefined ? 'the Unix socket of --status-socket, which is off' : socket;
    super(`needs root: run \`${command}\` on the node, which uses ${where}`);
  }
}

/** Media types of answers: one object, or a stream with one object a line. A `File` has its own. */
type MediaType = 'application/json' | 'application/x-ndjson';

/** A resource of the API. */
export interface Resource {
  /** What the resource is, for the OpenAPI document. */
  readonly summary: string;
  /** The type of the answer in `status/api/`, or of each line of a stream; undefined for files. */
  readonly response: string | undefined;
  /**
   * Only for a resource with a change in the kernel that its parameters select: the command that reads it. Such a resource
   * is on the Unix socket only, which only root can open. Every process of the node reaches the other server; `flows` is
   * there too, and adds rules that log a bounded number of refused packets.
   */
  readonly rootCommand?: string;
  /** The `content-type` of the answer, also in the OpenAPI document. */
  readonly mediaType: MediaType;
  readonly parameters: Parsers;
  /**
   * The version of the answer, which clients send back (`If-None-Match`) to get an answer only if it changed.
   * @returns undefined if answers are new each time.
   */
  version?(query: URLSearchParams): string | undefined;
  /** @returns an object that becomes JSON, an async iterable of objects (one line each), or a `File`. */
  answer(query: URLSearchParams, request: ResourceRequest): Promise<object> | object;
}

/** Definition of a resource whose answer is an `Answer`. `handle` gets the parsed parameters. */
interface Definition<P extends Parsers, Answer extends object>
  extends Pick<Resource, 'summary' | 'response' | 'rootCommand' | 'version'> {
  readonly parameters: P;
  readonly handle: (given: Values<P>, request: ResourceRequest) => Promise<Answer> | Answer;
}

/** Defines a resource that answers with one object or a `File`. */
export function resource<P extends Parsers>(definition: Definition<P, object>): Resource {
  return resourceOf(definition, 'application/json');
}

/** Defines a resource that answers with a stream of objects, one JSON object a line. */
export function streamResource<P extends Parsers>(
  definition: Definition<P, AsyncIterable<object>>,
): Resource {
  return resourceOf(definition, 'application/x-ndjson');
}

function resourceOf<P extends Parsers>(
  { handle, ...definition }: Definition<P, object>,
  mediaType: MediaType,
): Resource {
  return {
    ...definition,
    mediaType,
    answer: (query, request) => handle(readParameters(query, definition.parameters), request),
  };
}

/** Resources by path. A part in braces, such as `{name}`, is variable. */
export type Resources = Readonly<Record<string, Resource>>;

export interface HandlerOptions {
  readonly resources: Resources;
  /** The address on which the server listens; undefined for a Unix socket, which only root can reach. */
  readonly bindHost: string | undefined;
  /** Path of the Unix socket, for messages; undefined: there is none. */
  readonly statusSocket: string | undefined;
  readonly budget: Pick<RequestBudget, 'run'>;
  /** Called for an error that is a bug or a failure of the kernel, after the client got status 500. */
  readonly onError: (error: unknown, path: string) => void;
}

interface CompiledPath {
  readonly pattern: RegExp;
  readonly resource: Resource;
}

/** Handles requests for resources. */
export function statusHandler(options: HandlerOptions): RequestListener {
  const { resources, bindHost, onError } = options;
  const paths = Object.entries(resources).map(([path, resource]): CompiledPath => {
    const source = path.replaceAll('.', '\\.').replaceAll(/\{\w+\}/g, '([^/]{1,300})');
    return { pattern: new RegExp(`^${source}$`), resource };
  });
  return (request, response) => {
    const refusal = bindHost === undefined ? undefined : refuse(request.headers, bindHost);
    if (refusal !== undefined) return sendError(response, refusal.code, refusal.message);
    if (request.method !== 'GET' && request.method !== 'HEAD') {
      response.setHeader('allow', 'GET, HEAD');
      return sendError(response, 405, 'the status API is read-only; use GET');
    }
    void answer(paths, options, request, response).catch((error: unknown) => {
      if (response.headersSent) {
        response.destroy();
      } else if (response.destroyed && asError(error).name === 'AbortError') {
        // The client has gone, so the request stopped.
      } else if (error instanceof BadParameter) {
        sendError(response, 400, error.message, error.parameter);
      } else if (error instanceof TooManyRequests) {
        if (error.retryAfter !== undefined) response.setHeader('retry-after', error.retryAfter);
        sendError(response, 503, error.message);
      } else if (error instanceof NotFound) {
        sendError(response, 404, error.message);
      } else if (error instanceof NeedsRoot) {
        sendError(response, 403, error.message);
      } else if (error instanceof Unanswerable) {
        sendError(response, error.code, error.message);
      } else {
        sendError(response, 500, asError(error).message);
        onError(error, request.url ?? '');
      }
    });
  };
}

async function answer(
  paths: readonly CompiledPath[],
  { budget, bindHost, statusSocket }: HandlerOptions,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const [path = '', search = ''] = (request.url ?? '').split('?', 2);
  for (const { pattern, resource } of paths) {
    const match = pattern.exec(path);
    if (match === null) continue;
    if (bindHost !== undefined && resource.rootCommand !== undefined)
      throw new NeedsRoot(resource.rootCommand, statusSocket);
    const gone = new AbortController();
    response.on('close', () => gone.abort());
    const given = {
      path: match.slice(1).map(decodePart),
      signal: gone.signal,
      isRoot: bindHost === undefined,
    };
    const query = new URLSearchParams(search);
    // Before the answer: a change while it is computed must not look known.
    const version = resource.version?.(query);
    const etag = version === undefined ? undefined : `"${version}"`;
    if (etag !== undefined && request.headers['if-none-match'] === etag) {
      await budget.run(() => {}, gone.signal);
      response.writeHead(304, { ...SECURITY_HEADERS, etag }).end();
      return;
    }
    const body = await budget.run(async (waitOutside) => {
      // The client may have gone while the request waited.
      if (gone.signal.aborted) return undefined;
      const object = await resource.answer(query, { ...given, waitOutside });
      return object instanceof File || isLines(object) ? object : jsonOf(object);
    }, gone.signal);
    if (body === undefined) return;
    if (etag !== undefined) response.setHeader('etag', etag);
    if (body instanceof File) return sendFile(response, await body.answer(request.headers));
    if (Buffer.isBuffer(body)) return send(response, 200, resource.mediaType, body);
    return await sendLines(response, resource.mediaType, body, gone.signal);
  }
  throw new NotFound('no such resource; GET /api/v1/openapi.json describes all');
}

function isLines(body: object): body is AsyncIterable<object> {
  return Symbol.asyncIterator in body;
}

function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    throw new BadParameter('path', 'must be percent-encoded UTF-8');
  }
}

/** Sends one JSON object a line, and waits while the client does not read. */
async function sendLines(
  response: ServerResponse,
  mediaType: MediaType,
  lines: AsyncIterable<object>,
  signal: AbortSignal,
): Promise<void> {
  response.writeHead(200, { ...SECURITY_HEADERS, 'content-type': mediaType });
  response.flushHeaders();
  for await (const line of lines) {
    if (signal.aborted) break;
    if (response.write(`${JSON.stringify(line)}\n`)) continue;
    await new Promise<void>((resolve) => {
      response.once('drain', resolve);
      response.once('close', resolve);
    });
  }
  response.end();
}

function sendFile(response: ServerResponse, { status, headers, content }: FileAnswer): void {
  response.writeHead(status, { ...SECURITY_HEADERS, ...headers });
  response.end(response.req.method === 'HEAD' ? undefined : content);
}

function sendError(
  response: ServerResponse,
  code: number,
  message: string,
  parameter: string | null = null,
): void {
  const body = { error: { code, message, parameter } } satisfies ErrorBody;
  send(response, code, JSON_TYPE, jsonOf(body));
}

const JSON_TYPE = 'application/json' satisfies MediaType;

function jsonOf(body: object): Buffer {
  return Buffer.from(`${JSON.stringify(body)}\n`);
}

function send(response: ServerResponse, code: number, type: string, content: Buffer): void {
  const headers = { ...SECURITY_HEADERS, 'content-type': type, 'content-length': content.length };
  response.writeHead(code, headers).end(response.req.method === 'HEAD' ? undefined : content);
}
