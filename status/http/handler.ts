/** The HTTP side of the status API: paths, checks and errors. Reads only; GET is the only method. */
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';
import { asError } from '../../api/errors.ts';
import type { ErrorBody } from '../api/common.ts';
import { File, type FileAnswer } from './file.ts';
import { refuse, SECURITY_HEADERS } from './guard.ts';
import { BadParameter, type Parsers, readParameters, type Values } from './parameters.ts';
import { type RequestBudget, TooManyRequests } from './request-budget.ts';

/** A request for one resource. */
export interface ResourceRequest {
  /** The variable parts of the path, such as namespace and name; decoded. */
  readonly path: readonly string[];
  /** Aborted when the client is gone. */
  readonly signal: AbortSignal;
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

/** A resource of the API. */
export interface Resource {
  /** What the resource is, for the OpenAPI document. */
  readonly summary: string;
  /** The type of the answer in `status/api/`; undefined for files. */
  readonly response: string | undefined;
  readonly parameters: Parsers;
  /** @returns an object that becomes JSON, an async iterable of objects (one line each), or a `File`. */
  answer(query: URLSearchParams, request: ResourceRequest): Promise<object> | object;
}

/** Defines a resource. `handle` gets the parsed parameters. */
export function resource<P extends Parsers>({
  handle,
  ...definition
}: Omit<Resource, 'answer' | 'parameters'> & {
  readonly parameters: P;
  readonly handle: (given: Values<P>, request: ResourceRequest) => Promise<object> | object;
}): Resource {
  return {
    ...definition,
    answer: (query, request) => handle(readParameters(query, definition.parameters), request),
  };
}

/** Resources by path. A part in braces, such as `{name}`, is variable. */
export type Resources = Readonly<Record<string, Resource>>;

export interface HandlerOptions {
  readonly resources: Resources;
  /** The address on which the server listens; undefined for a Unix socket, which only root can reach. */
  readonly bindHost: string | undefined;
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
  const { resources, bindHost, budget, onError } = options;
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
    void answer(paths, budget, request, response).catch((error: unknown) => {
      if (response.headersSent) {
        response.destroy();
      } else if (error instanceof BadParameter) {
        sendError(response, 400, error.message, error.parameter);
      } else if (error instanceof TooManyRequests) {
        response.setHeader('retry-after', '1');
        sendError(response, 503, error.message);
      } else if (error instanceof NotFound) {
        sendError(response, 404, error.message);
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
  budget: HandlerOptions['budget'],
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const [path = '', search = ''] = (request.url ?? '').split('?', 2);
  for (const { pattern, resource } of paths) {
    const match = pattern.exec(path);
    if (match === null) continue;
    const gone = new AbortController();
    response.on('close', () => gone.abort());
    const given = { path: match.slice(1).map(decodePart), signal: gone.signal };
    const body = await budget.run(async () => {
      // The client may have gone while the request waited.
      if (gone.signal.aborted) return undefined;
      const object = await resource.answer(new URLSearchParams(search), given);
      return object instanceof File || isLines(object) ? object : jsonOf(object);
    });
    if (body === undefined) return;
    if (body instanceof File) return sendFile(response, await body.answer(request.headers));
    if (Buffer.isBuffer(body)) return send(response, 200, JSON_TYPE, body);
    return await sendLines(response, body, gone.signal);
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
  lines: AsyncIterable<object>,
  signal: AbortSignal,
): Promise<void> {
  response.writeHead(200, { ...SECURITY_HEADERS, 'content-type': 'application/x-ndjson' });
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

const JSON_TYPE = 'application/json';

function jsonOf(body: object): Buffer {
  return Buffer.from(`${JSON.stringify(body)}\n`);
}

function send(response: ServerResponse, code: number, type: string, content: Buffer): void {
  const headers = { ...SECURITY_HEADERS, 'content-type': type, 'content-length': content.length };
  response.writeHead(code, headers).end(response.req.method === 'HEAD' ? undefined : content);
}
