import { isDeepStrictEqual } from 'node:util';
import { InvalidObject } from '../../api/errors.ts';
import type { ApiObject, Kind, ObjectKey } from '../../api/objects.ts';
import { isRecord } from '../../api/read-field.ts';
import { API_VERSIONS, readIdentity, readObject } from '../../api/read-object.ts';
import type { ObjectSink } from '../store.ts';
import { type Backoff, backoffMs } from './backoff.ts';
import {
  ApiError,
  ConnectionError,
  MalformedAnswer,
  type OpenSession,
  type Query,
  type Session,
  statusError,
} from './session.ts';

/** Takes pino's loggers as they are. */
export interface SourceLog {
  info(details: object, message: string): void;
  warn(details: object, message: string): void;
}

/** What to list and watch. */
export interface Resource {
  readonly kind: Kind;
  readonly path: string;
  /** `labelSelector`, `fieldSelector`. */
  readonly selectors: Query;
}

export interface ReflectorOptions {
  readonly resource: Resource;
  readonly open: OpenSession;
  readonly sink: ObjectSink;
  /** An object that cannot be read; its last readable version stays in force. */
  readonly onProblem: (problem: InvalidObject) => void;
  readonly log: SourceLog;
  readonly backoff: Backoff;
}

const PAGE_SIZE = 500;
/** As client-go, a watch lasts 5 to 10 minutes. */
const WATCH_SECONDS = 300;

/**
 * Keeps the sink in step with one resource of the API server: lists it, watches from there, lists
 * again when the server has forgotten the version we know. Calls `synced` after the first list.
 *
 * Nothing is taken away but what the server says is deleted, or what a complete list has not got.
 */
export class Reflector {
  readonly #options: ReflectorOptions;
  /** What the sink has. */
  readonly #known = new Map<ObjectKey, ApiObject>();
  /** The resource version to watch from; undefined: list first. */
  #version: string | undefined;
  /** Whether the watch has brought anything since the last wait. */
  #progress = false;
  #paged = true;
  #synced = false;

  constructor(options: ReflectorOptions) {
    this.#options = options;
  }

  /**
   * Runs until the signal is aborted, then resolves. Failures of the server and of the way to it
   * are logged and tried again; it rejects only with what the sink or `onProblem` throw.
   */
  async run(signal: AbortSignal): Promise<void> {
    const { backoff, log, resource } = this.#options;
    let failures = 0;
    while (!signal.aborted) {
      this.#progress = false;
      const failure = await this.#attempt(signal);
      if (signal.aborted) return;
      if (this.#progress) failures = 0;
      // A server that has forgotten our version, or has ended a watch in due time, is well.
      const forgot = failure instanceof ApiError && isGone(failure);
      if (forgot || failure instanceof MalformedAnswer) this.#version = undefined;
      if (this.#progress && (forgot || failure === undefined)) continue;
      failures++;
      const waitMs = backoffMs(failures, backoff.random);
      const details = { kind: resource.kind, failures, waitMs, err: failure };
      if (failure === undefined) log.info(details, 'watch ended without any event, trying again');
      else log.warn(details, 'list or watch failed, trying again');
      await backoff.delay(waitMs, signal);
    }
  }

  /** Lists if need be and watches until that ends. Returns why, or undefined for the regular end. */
  async #attempt(
    signal: AbortSignal,
  ): Promise<ApiError | ConnectionError | MalformedAnswer | undefined> {
    let session: Session | undefined;
    try {
      session = await this.#options.open();
      this.#version ??= await this.#list(session, signal);
      await this.#watch(session, this.#version, signal);
      return undefined;
    } catch (error) {
      if (error instanceof ApiError || error instanceof ConnectionError) return error;
      if (error instanceof MalformedAnswer) return error;
      throw error;
    } finally {
      await session?.close();
    }
  }

  /** @returns the resource version of the list. */
  async #list(session: Session, signal: AbortSignal): Promise<string> {
    const { resource, sink, log } = this.#options;
    const present = new Set<ObjectKey>();
    let version: string | undefined;
    let next = '';
    do {
      const query: Record<string, string> = { ...resource.selectors };
      if (this.#paged) query.limit = String(PAGE_SIZE);
      if (next !== '') query.continue = next;
      const page = await this.#getPage(session, query, signal);
      version ??= page.version;
      for (const item of page.items) {
        const key = this.#take(item);
        if (key !== undefined) present.add(key);
      }
      next = page.next;
    } while (next !== '');
    for (const key of this.#known.keys()) if (!present.has(key)) this.#drop(key);
    this.#paged = true;
    log.info({ kind: resource.kind, objects: this.#known.size }, 'listed');
    if (!this.#synced) sink.synced(resource.kind);
    this.#synced = true;
    return version;
  }

  async #getPage(
    session: Session,
    query: Query,
    signal: AbortSignal,
  ): Promise<{ items: readonly unknown[]; version: string; next: string }> {
    const { kind, path } = this.#options.resource;
    let page: unknown;
    try {
      page = await session.get(path, query, signal);
    } catch (error) {
      // The rest of the pages expired: too slow for pages, as client-go sees it.
      if (error instanceof ApiError && isGone(error)) this.#paged = false;
      throw error;
    }
    const metadata = isRecord(page) && isRecord(page.metadata) ? page.metadata : {};
    const items = isRecord(page) ? (page.items ?? []) : undefined;
    const version = metadata.resourceVersion;
    if (!Array.isArray(items) || typeof version !== 'string' || version === '') {
      throw new MalformedAnswer(`API server: the answer is no list of ${kind}s`);
    }
    const implied = { apiVersion: API_VERSIONS[kind], kind };
    return {
      items: items.map((item: unknown) => (isRecord(item) ? { ...implied, ...item } : item)),
      version,
      next: typeof metadata.continue === 'string' ? metadata.continue : '',
    };
  }

  async #watch(session: Session, version: string, signal: AbortSignal): Promise<void> {
    const { backoff, resource } = this.#options;
    const query = {
      ...resource.selectors,
      watch: 'true',
      allowWatchBookmarks: 'true',
      resourceVersion: version,
      timeoutSeconds: String(Math.floor(WATCH_SECONDS * (1 + backoff.random()))),
    };
    for await (const event of session.stream(resource.path, query, signal)) {
      const { type, object } = isRecord(event) ? event : {};
      if (type === 'ERROR') throw statusError(object, 500);
      const metadata = isRecord(object) && isRecord(object.metadata) ? object.metadata : {};
      const seen = metadata.resourceVersion;
      if (typeof seen !== 'string' || seen === '') {
        throw new MalformedAnswer('API server: an event without a resource version');
      }
      if (type === 'ADDED' || type === 'MODIFIED') this.#take(object);
      else if (type === 'DELETED') this.#takeAway(object);
      else if (type !== 'BOOKMARK') throw new MalformedAnswer('API server: an unknown event');
      this.#version = seen;
      this.#progress = true;
    }
  }

  /** @returns the object's key, as far as it has one. */
  #take(raw: unknown): ObjectKey | undefined {
    const key = this.#keyOf(raw);
    if (key === undefined) return undefined;
    try {
      const object = readObject(raw);
      if (object === undefined) this.#drop(key);
      else if (!isDeepStrictEqual(this.#known.get(key), object)) {
        this.#known.set(key, object);
        this.#options.sink.upsert(object);
      }
    } catch (error) {
      this.#reportInvalid(error);
    }
    return key;
  }

  #takeAway(raw: unknown): void {
    const key = this.#keyOf(raw);
    if (key !== undefined) this.#drop(key);
  }

  #drop(key: ObjectKey): void {
    if (this.#known.delete(key)) this.#options.sink.remove(this.#options.resource.kind, key);
  }

  #keyOf(raw: unknown): ObjectKey | undefined {
    try {
      const identity = readIdentity(raw);
      if (identity?.kind === this.#options.resource.kind) return identity.key;
    } catch (error) {
      this.#reportInvalid(error);
      return undefined;
    }
    throw new MalformedAnswer(`API server: not a ${this.#options.resource.kind}`);
  }

  #reportInvalid(error: unknown): void {
    if (!(error instanceof InvalidObject)) throw error;
    this.#options.onProblem(error);
  }
}

/** The version or the page is older than what the server remembers. */
function isGone(error: ApiError): boolean {
  return error.code === 410 || error.reason === 'Expired' || error.reason === 'Gone';
}
