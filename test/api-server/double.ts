/**
 * A test double of the API server: paginated lists, watches, Events, and injected faults. Objects
 * are manifests as a user writes them. Runs inside a test's process, or with `process.ts` as its
 * own process in a network namespace.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import { text as textOf } from 'node:stream/consumers';
import type { Manifest } from '../e2e/manifests.ts';
import { EventStore } from './events.ts';
import {
  cutWithin,
  type Fault,
  type FaultRule,
  Faults,
  half,
  statusBody,
  trickle,
  type Verb,
} from './faults.ts';
import { type Request, requestOf } from './request.ts';
import { type ObjectFilter, selectorOf, UnknownSelector } from './selectors.ts';
import {
  type Change,
  keyOf,
  metadataOf,
  type ResourceType,
  resourceOf,
  type Snapshot,
  Store,
} from './store.ts';

export interface DoubleOptions {
  /** PEM. With `clientCa`, clients need a certificate of that authority. */
  readonly tls?: { readonly key: string; readonly cert: string; readonly clientCa?: string };
  /** Accepted bearer tokens; by default there is no authentication. */
  readonly tokens?: readonly string[];
  /**
   * Milliseconds between bookmarks; by default one minute, as in the API server. A resource without
   * a change since the server started gets none.
   */
  readonly bookmarkMs?: number;
  /** Address of the listener; by default loopback. */
  readonly address?: string;
}

/** A recorded request, for tests of what the agent requests and needs permission for. */
export interface RecordedRequest {
  readonly verb: Verb;
  /** Empty for the core group. */
  readonly group: string;
  readonly resource: string;
  readonly path: string;
  readonly query: Readonly<Record<string, string>>;
  readonly authorization: string | undefined;
  /** Identifies the connection, which shows reuse. */
  readonly clientPort: number;
  /** The request asks for metadata only. */
  readonly metadataOnly: boolean;
}

/** How open watches end or fail. With `half`, half of an event precedes the end. */
export type WatchBreakage = 'end' | 'end half' | 'cut' | 'cut half' | 'expire' | 'silence';

interface Watcher {
  readonly response: ServerResponse;
  readonly type: ResourceType;
  readonly selects: ObjectFilter;
  /** Changes up to this version are not sent. */
  version: number;
  /** The connection stays open, but nothing more is sent. */
  silent: boolean;
}

/** A list of several pages, as of the request for the first. */
interface Pages {
  readonly version: number;
  readonly items: readonly Manifest[];
}

const BOOKMARK_MS = 60_000;
export const LOOPBACK = '127.0.0.1';
const META_V1 = { apiVersion: 'meta.k8s.io/v1' };

export class ApiServerDouble {
  readonly #options: DoubleOptions;
  readonly #store = new Store((change) => this.#publish(change));
  readonly #faults = new Faults();
  readonly #watchers = new Set<Watcher>();
  readonly #pages = new Map<string, Pages>();
  readonly #sockets = new Set<Socket>();
  readonly #events = new EventStore();
  readonly #requests: RecordedRequest[] = [];
  /** Served apiVersions of a resource; by default all known ones. */
  readonly #served = new Map<string, readonly string[]>();
  #tokens: readonly string[] | undefined;
  #server: Server | undefined;
  #port = 0;
  #changesToDrop = 0;
  #snapshot: Snapshot | undefined;
  #listIds = 0;
  #released = Promise.withResolvers<void>();
  /** Resources with a change since the server started; others get no bookmarks. */
  readonly #changed = new Set<string>();

  constructor(options: DoubleOptions = {}) {
    this.#options = options;
    this.#tokens = options.tokens;
  }

  /** @returns the port; by default the same as last time. */
  async listen(port = this.#port): Promise<number> {
    const { tls } = this.#options;
    const onRequest = (request: IncomingMessage, response: ServerResponse) =>
      void this.#handleRequest(request, response);
    const server =
      tls === undefined
        ? createServer(onRequest)
        : createTlsServer(
            {
              key: tls.key,
              cert: tls.cert,
              ...(tls.clientCa !== undefined && {
                ca: tls.clientCa,
                requestCert: true,
                rejectUnauthorized: true,
              }),
            },
            onRequest,
          );
    server.keepAliveTimeout = 3_600_000; // clients decide when to close
    server.on('connection', (socket: Socket) => {
      this.#sockets.add(socket);
      socket.on('close', () => this.#sockets.delete(socket));
      socket.on('error', () => {});
    });
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen(port, this.#options.address ?? LOOPBACK, resolve);
    });
    this.#changed.clear();
    this.#server = server;
    this.#port = (server.address() as AddressInfo).port;
    return this.#port;
  }

  /** URL, also while the server is closed. */
  get url(): string {
    const scheme = this.#options.tls === undefined ? 'http' : 'https';
    return `${scheme}://${this.#options.address ?? LOOPBACK}:${this.#port}`;
  }

  /** Closes the server and all connections. The objects remain for another `listen`. */
  async close(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    if (server === undefined) return;
    const closed = new Promise<void>((resolve) => server.close(() => resolve()));
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  get version(): number {
    return this.#store.version;
  }

  requests(): readonly RecordedRequest[] {
    return this.#requests;
  }

  /** The current Events of events.k8s.io/v1. */
  events(): readonly Manifest[] {
    return this.#events.list();
  }

  /** Number of open watches. */
  watching(resource: string): number {
    return [...this.#watchers].filter(({ type }) => type.name === resource).length;
  }

  list(resource: string): readonly Manifest[] {
    return this.#store.list(resource);
  }

  /** Creates or replaces objects. */
  put(...manifests: Manifest[]): void {
    for (const manifest of manifests) this.#store.put(manifest);
  }

  /** Deletes objects by name; the rest of the manifest is ignored. */
  delete(...manifests: Manifest[]): void {
    for (const manifest of manifests) {
      this.#store.delete(resourceOf(manifest).name, keyOf(metadataOf(manifest)));
    }
  }

  /** Removes a CRD with its objects and watches; later requests get a 404. */
  uninstall(resource: string): void {
    for (const object of this.#store.list(resource)) {
      this.#store.delete(resource, keyOf(metadataOf(object)));
    }
    this.serve(resource);
  }

  install(resource: string): void {
    this.#served.delete(resource);
  }

  /** Sets the served apiVersions of a CRD without changing its objects. All its watches end. */
  serve(resource: string, ...apiVersions: string[]): void {
    this.#served.set(resource, apiVersions);
    this.breakWatches('end', resource);
  }

  fail(rule: FaultRule): void {
    this.#faults.add(rule);
  }

  /** Responds to the requests on hold. */
  release(): void {
    this.#released.resolve();
    this.#released = Promise.withResolvers();
  }

  /** Removes the faults that were not used yet. */
  recover(): void {
    this.#faults.clear();
    this.#changesToDrop = 0;
  }

  /** Replaces the accepted tokens; open watches continue. */
  setTokens(tokens: readonly string[] | undefined): void {
    this.#tokens = tokens;
  }

  /** Hides the given number of following changes from all watches. */
  dropChanges(changes: number): void {
    this.#changesToDrop += changes;
  }

  /** Discards the history, so that older watches and continue tokens expire. */
  compact(): void {
    this.#store.compact();
    this.#pages.clear();
  }

  /** Saves the objects for `restore` and the fault `stale`. */
  takeSnapshot(): void {
    this.#snapshot = this.#store.snapshot();
  }

  /** Restores etcd to the snapshot. Watches stay open and receive later changes. */
  restore(): void {
    if (this.#snapshot === undefined) return;
    this.#store.restore(this.#snapshot);
    for (const watcher of this.#watchers) watcher.version = this.#snapshot.version;
  }

  breakWatches(how: WatchBreakage, resource?: string): void {
    for (const watcher of this.#watchers) {
      if (resource === undefined || watcher.type.name === resource) this.#break(watcher, how);
    }
  }

  /** Writes text unchanged to all watches of a resource. */
  sendRaw(resource: string, text: string | Buffer): void {
    for (const { type, response } of this.#watchers) {
      if (type.name === resource) response.write(text);
    }
  }

  bookmark(): void {
    for (const watcher of this.#watchers) this.#bookmark(watcher);
  }

  async #handleRequest(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const request = requestOf(incoming);
    if (request === undefined) {
      sendStatus(response, 404, 'NotFound', 'no such path');
      return;
    }
    const { verb, group, type, path, query, metadataOnly } = request;
    const { authorization } = incoming.headers;
    const clientPort = incoming.socket.remotePort ?? 0;
    const resource = type.name;
    this.#requests.push({
      verb,
      group,
      resource,
      path,
      query,
      authorization,
      clientPort,
      metadataOnly,
    });
    let fault = this.#faults.take({ verb, resource, query, metadataOnly });
    if (fault?.kind === 'hold') {
      await this.#released.promise;
      fault = fault.next;
    }
    if (fault !== undefined && failAtOnce(fault, response)) return;
    if (this.#tokens !== undefined && !this.#tokens.some((t) => authorization === `Bearer ${t}`)) {
      sendStatus(response, 401, 'Unauthorized', 'Unauthorized');
      return;
    }
    if (this.#served.get(resource)?.includes(type.apiVersion) === false) {
      response.writeHead(404, { 'content-type': 'text/plain' }).end('404 page not found\n');
      return;
    }
    try {
      if (verb === 'list') this.#respondToList(request, response, fault);
      else if (verb === 'watch') this.#respondToWatch(request, response, fault);
      else if (verb === 'get') this.#respondToGet(request, response);
      else {
        const body = JSON.parse(await textOf(incoming)) as Manifest;
        const { code, body: responseBody } = this.#events.write(
          verb,
          request.namespace,
          request.name,
          body,
        );
        sendJson(response, code, responseBody);
      }
    } catch (error) {
      if (!(error instanceof UnknownSelector || error instanceof SyntaxError)) throw error;
      sendStatus(response, 400, 'BadRequest', error.message);
    }
  }

  #respondToGet({ type, namespace, name }: Request, response: ServerResponse): void {
    const key = namespace === undefined ? name : `${namespace}/${name}`;
    const object = this.#store.get(type.name, key);
    if (object === undefined) sendStatus(response, 404, 'NotFound', `${type.name} "${name}"`);
    else sendJson(response, 200, { ...object, apiVersion: type.apiVersion });
  }

  #respondToList(request: Request, response: ServerResponse, fault: Fault | undefined): void {
    const { type, query, metadataOnly } = request;
    const selects = filterOf(request);
    const [id = '', start = '0'] = (query.continue ?? '').split(' ');
    const snapshot = fault?.kind === 'stale' ? this.#snapshot : undefined;
    const pages =
      query.continue === undefined
        ? {
            version: snapshot?.version ?? this.#store.version,
            items: this.#store.list(type.name, snapshot).filter(selects),
          }
        : this.#pages.get(id);
    if (pages === undefined) {
      sendStatus(response, 410, 'Expired', 'the provided continue parameter is too old');
      return;
    }
    const first = Number(start);
    const end = query.limit === undefined ? pages.items.length : first + Number(query.limit);
    const metadata: Record<string, unknown> = { resourceVersion: String(pages.version) };
    if (end < pages.items.length) {
      const next = id === '' ? `list-${++this.#listIds}` : id;
      this.#pages.set(next, pages);
      metadata.continue = `${next} ${end}`;
      metadata.remainingItemCount = pages.items.length - end;
    }
    // Items of a list have no kind and apiVersion.
    const items = pages.items
      .slice(first, end)
      .map((item) =>
        metadataOnly
          ? { kind: 'PartialObjectMetadata', ...META_V1, metadata: item.metadata }
          : { ...item, kind: undefined, apiVersion: undefined },
      );
    const list = metadataOnly
      ? { kind: 'PartialObjectMetadataList', ...META_V1 }
      : { kind: `${type.kind}List`, apiVersion: type.apiVersion };
    const body = JSON.stringify({ ...list, metadata, items });
    response.writeHead(200, { 'content-type': 'application/json' });
    if (fault?.kind === 'cut') cutWithin(response, body);
    else if (fault?.kind === 'trickle') trickle(response, body, fault.everyMs);
    else response.end(fault?.kind === 'truncate' ? half(body) : body);
  }

  #respondToWatch(request: Request, response: ServerResponse, fault: Fault | undefined): void {
    const { type, query } = request;
    const version = Number(query.resourceVersion ?? this.#store.version);
    const silent = fault?.kind === 'trickle' || fault?.kind === 'mute';
    const watcher = { response, type, selects: filterOf(request), version, silent };
    response.writeHead(200, { 'content-type': 'application/json' }).flushHeaders();
    const changes = this.#store.changesAfter(type.name, version);
    if (changes === undefined) {
      this.#break(watcher, 'expire');
      return;
    }
    this.#watchers.add(watcher);
    for (const change of changes) this.#sendChange(watcher, change);
    const timers = [
      setInterval(() => {
        // A kube-apiserver's watch cache has no version before its first change.
        if (this.#changed.has(type.name)) this.#bookmark(watcher);
      }, this.#options.bookmarkMs ?? BOOKMARK_MS),
      setTimeout(() => response.end(), Number(query.timeoutSeconds ?? 1800) * 1000),
    ];
    response.on('close', () => {
      this.#watchers.delete(watcher);
      for (const timer of timers) clearTimeout(timer);
    });
    if (fault?.kind === 'cut') this.#break(watcher, 'cut half');
    else if (fault?.kind === 'truncate') this.#break(watcher, 'end half');
    else if (fault?.kind === 'trickle') {
      trickle(response, '{"type":"MODIFIED","object":{', fault.everyMs);
    }
  }

  #publish(change: Change): void {
    this.#changed.add(change.resource);
    if (this.#changesToDrop > 0) {
      this.#changesToDrop--;
      return;
    }
    for (const watcher of this.#watchers) {
      if (watcher.type.name === change.resource) this.#sendChange(watcher, change);
    }
  }

  /**
   * Sends a change as seen through the selector of the watch: an object that starts to match is
   * ADDED, one that stops is DELETED.
   */
  #sendChange(watcher: Watcher, { version, before, after }: Change): void {
    if (watcher.silent || version <= watcher.version) return;
    watcher.version = version;
    const had = before !== undefined && watcher.selects(before) ? before : undefined;
    const has = after !== undefined && watcher.selects(after) ? after : undefined;
    if (has !== undefined) send(watcher, had === undefined ? 'ADDED' : 'MODIFIED', has);
    else if (had !== undefined) {
      const metadata = { ...metadataOf(had), resourceVersion: String(version) };
      send(watcher, 'DELETED', { ...had, metadata });
    }
  }

  #bookmark(watcher: Watcher): void {
    const { type, silent } = watcher;
    // The API server never sends a bookmark with an older version.
    if (silent || this.#store.version < watcher.version) return;
    watcher.version = this.#store.version;
    const metadata = { resourceVersion: String(watcher.version), creationTimestamp: null };
    send(watcher, 'BOOKMARK', { kind: type.kind, apiVersion: type.apiVersion, metadata });
  }

  #break(watcher: Watcher, how: WatchBreakage): void {
    const { response } = watcher;
    if (how === 'silence') {
      watcher.silent = true;
      return;
    }
    // Text written before is still delivered before the end.
    if (how === 'expire') {
      const status = statusBody(410, 'Expired', `too old resource version: ${watcher.version}`);
      response.end(`${JSON.stringify({ type: 'ERROR', object: status })}\n`);
    } else if (how === 'end') response.end();
    else if (how === 'cut') response.socket?.destroy();
    else {
      const event = `{"type":"DELETED","object":{"kind":"${watcher.type.kind}","metadata":{"name":"x"}}}`;
      if (how === 'end half') response.end(half(event));
      else cutWithin(response, event);
    }
    this.#watchers.delete(watcher);
  }
}

function send({ response, type: requested }: Watcher, type: string, object: Manifest): void {
  const converted = { ...object, apiVersion: requested.apiVersion };
  response.write(`${JSON.stringify({ type, object: converted })}\n`);
}

function sendJson(response: ServerResponse, code: number, value: unknown): void {
  response.writeHead(code, { 'content-type': 'application/json' }).end(JSON.stringify(value));
}

function sendStatus(
  response: ServerResponse,
  code: number,
  reason: string,
  message: string,
  retryAfter?: number | string,
): void {
  if (retryAfter !== undefined) response.setHeader('retry-after', String(retryAfter));
  sendJson(response, code, statusBody(code, reason, message, retryAfter));
}

/** @returns whether the response is complete. */
function failAtOnce(fault: Fault, response: ServerResponse): boolean {
  if (fault.kind === 'refuse') response.socket?.destroy();
  else if (fault.kind === 'status') {
    sendStatus(response, fault.code, fault.reason, 'injected by the test', fault.retryAfter);
  } else if (fault.kind === 'text') {
    response.writeHead(200, { 'content-type': fault.type ?? 'application/json' }).end(fault.text);
  } else return fault.kind === 'silence';
  return true;
}

/** Whether an object is in the namespace of a request, and its selectors match. */
function filterOf({ namespace, query }: Pick<Request, 'namespace' | 'query'>): ObjectFilter {
  const matches = selectorOf(query);
  return (object) =>
    matches(object) && (namespace ?? metadataOf(object).namespace) === metadataOf(object).namespace;
}
