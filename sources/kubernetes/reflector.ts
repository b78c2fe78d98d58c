import { isDeepStrictEqual } from 'node:util';
import { InvalidObject } from '../../api/errors.ts';
import type { ApiObject, Kind, ObjectKey } from '../../api/objects.ts';
import { isRecord, shown } from '../../api/read-field.ts';
import { asListed, readIdentity, readObject } from '../../api/read-object.ts';
import type { ObjectSink } from '../store.ts';
import { type Backoff, backoffMs, waitMs } from './backoff.ts';
import {
  ApiError,
  type Failure,
  isFailure,
  MalformedAnswer,
  StaleList,
  statusError,
} from './errors.ts';
import type { ListMetadata } from './list-splitter.ts';
import { isOlder } from './resource-version.ts';
import type { OpenSession, Query, Session } from './session.ts';

/** Takes pino's loggers as they are. */
export interface SourceLog {
  info(details: object, message: string): void;
  warn(details: object, message: string): void;
}

/** What to list and watch. */
export interface Resource {
  readonly kind: Kind;
  /** The same objects, in versions that mean the same; that which is to be asked for first. */
  readonly paths: readonly [string, ...string[]];
  /** `labelSelector`, `fieldSelector`. */
  readonly selectors: Query;
  /** Of a CRD, which need not be installed: then there is nothing of it. */
  readonly optional?: boolean;
}

/** Which object of the API server it is that cannot be read. */
export interface UnreadableObject {
  readonly kind: Kind;
  readonly key: ObjectKey;
  /** Empty when it has none. */
  readonly uid: string;
}

/**
 * Told of an object that cannot be read; its last readable version stays in force. Told once, until it
 * can be read, is gone, or cannot be read for another reason.
 * @param object undefined when not even its name can be read: then it is told each time.
 */
export type OnProblem = (problem: InvalidObject, object: UnreadableObject | undefined) => void;

export interface ReflectorOptions {
  readonly resource: Resource;
  readonly open: OpenSession;
  readonly sink: ObjectSink;
  readonly onProblem: OnProblem;
  /** An optional resource is not installed, or not any more. */
  readonly onAbsent: () => void;
  readonly log: SourceLog;
  readonly backoff: Backoff;
}

const PAGE_SIZE = 500;
/** As client-go, a watch lasts 5 to 10 minutes. */
const WATCH_SECONDS = 300;
/**
 * After each so many failures in a row it lists again. A server that was away, or silent, may have
 * been restored from a backup: its history is then another one, which no watch tells.
 */
const LIST_AFTER_FAILURES = 3;
/** So many lists in a row that are older than what was seen are the truth: a backup, restored. */
const BELIEVE_STALE_LISTS = 3;
/** So many answers in a row that a CRD is not installed are the truth, and looks after them are rare. */
const BELIEVE_ABSENCES = 3;
const ABSENT_MS = 60_000;

/**
 * Keeps the sink in step with one resource of the API server: lists it, watches from there, lists
 * again when the server has forgotten the version we know. Calls `synced` after the first list, or
 * when there is nothing to list because an optional resource is not installed.
 *
 * Nothing is taken away but what the server says is deleted, or what a complete list has not got, or
 * all that was of a CRD that is gone.
 */
export class Reflector {
  readonly #options: ReflectorOptions;
  /** What the sink has. */
  readonly #known = new Map<ObjectKey, ApiObject>();
  /** What cannot be read as it is now, and why. */
  readonly #unreadable = new Map<ObjectKey, string>();
  /** The resource version to watch from; undefined: list first. */
  #version: string | undefined;
  /** Of the resource's paths the one that is there, as far as is known. */
  #path: string;
  /** The last resource version that the server told. */
  #seen = '';
  #staleLists = 0;
  /** Attempts in a row in which an optional resource was at none of its paths. */
  #absences = 0;
  #absent = false;
  /** Whether the watch has brought anything since the last wait. */
  #progress = false;
  #paged = true;
  #synced = false;

  constructor(options: ReflectorOptions) {
    this.#options = options;
    this.#path = options.resource.paths[0];
  }

  get kind(): Kind {
    return this.#options.resource.kind;
  }

  /** How many objects cannot be read as they are now. */
  get unreadable(): number {
    return this.#unreadable.size;
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
      // The regular end of a watch.
      if (this.#progress && failure === undefined) continue;
      if (this.#isAbsent(failure)) {
        failures = 0;
        await backoff.delay(absenceMs(this.#absences, backoff.random), signal);
        continue;
      }
      failures++;
      const asked = failure instanceof ApiError ? failure.retryAfterMs : 0;
      if (asksForList(failure, failures)) this.#version = undefined;
      const wait = waitMs(failures, asked, backoff.random);
      const details = { kind: resource.kind, failures, waitMs: wait, err: failure };
      if (failure === undefined) log.info(details, 'watch ended without any event, trying again');
      else log.warn(details, 'list or watch failed, trying again');
      await backoff.delay(wait, signal);
    }
  }

  /** One session's worth of it, until that ends. Returns why, or undefined for the regular end. */
  async #attempt(signal: AbortSignal): Promise<Failure | undefined> {
    let session: Session | undefined;
    try {
      session = await this.#options.open(signal);
      await this.#follow(session, signal);
      return undefined;
    } catch (error) {
      if (isFailure(error)) return error;
      throw error;
    } finally {
      session?.close();
    }
  }

  /** Lists and watches at the path that was there last; each other one is tried once for a 404. */
  async #follow(session: Session, signal: AbortSignal): Promise<void> {
    const { paths } = this.#options.resource;
    const others = paths.filter((path) => path !== this.#path);
    for (;;) {
      try {
        this.#version ??= await this.#list(session, signal);
        return await this.#watch(session, this.#version, signal);
      } catch (error) {
        if (!(error instanceof ApiError && error.isMissing)) throw error;
        const next = others.shift();
        this.#path = next ?? paths[0];
        if (next === undefined) throw error;
        this.#version = undefined;
      }
    }
  }

  /**
   * Whether there is nothing of an optional resource, because it is not installed. An API server that
   * is starting, or a proxy before it, may not know a CRD for a moment: what is in force does not
   * go for one such answer.
   */
  #isAbsent(failure: Failure | undefined): boolean {
    const { resource, sink, log, onAbsent } = this.#options;
    const isMissing = failure instanceof ApiError && failure.isMissing;
    this.#absences = resource.optional === true && isMissing ? this.#absences + 1 : 0;
    if (this.#absences === 0) return false;
    this.#version = undefined;
    if (this.#known.size > 0 && this.#absences < BELIEVE_ABSENCES) return false;
    const { kind } = resource;
    const objects = this.#known.size;
    for (const key of this.#known.keys()) this.#drop(key);
    this.#unreadable.clear();
    // Somebody may have upgraded a CRD to one without any version that is asked for.
    if (objects > 0) log.warn({ kind, objects }, 'not installed any more; these are gone');
    else if (!this.#absent) log.info({ kind }, 'not installed; looking for it now and then');
    if (!this.#absent) onAbsent();
    this.#absent = true;
    if (!this.#synced) sink.synced(kind);
    this.#synced = true;
    return true;
  }

  /** @returns the resource version of the list. */
  async #list(session: Session, signal: AbortSignal): Promise<string> {
    const { resource, sink, log } = this.#options;
    const present = new Set<ObjectKey>();
    let first: ListMetadata | undefined;
    let next = '';
    do {
      const query: Record<string, string> = { ...resource.selectors };
      if (this.#paged) query.limit = String(PAGE_SIZE);
      if (next !== '') query.continue = next;
      const page = await this.#takePage(session, query, present, signal);
      first ??= page;
      next = page.continue;
    } while (next !== '');
    for (const known of [this.#known, this.#unreadable]) {
      for (const key of known.keys()) if (!present.has(key)) this.#drop(key);
    }
    this.#paged = true;
    this.#absent = false;
    this.#absences = 0;
    this.#staleLists = 0;
    this.#seen = first.resourceVersion;
    log.info({ kind: resource.kind, objects: this.#known.size }, 'listed');
    if (!this.#synced) sink.synced(resource.kind);
    this.#synced = true;
    return first.resourceVersion;
  }

  /** @param present gets the keys of what the page has. */
  async #takePage(
    session: Session,
    query: Query,
    present: Set<ObjectKey>,
    signal: AbortSignal,
  ): Promise<ListMetadata> {
    let metadata: ListMetadata | undefined;
    try {
      for await (const part of session.list(this.#path, query, signal)) {
        if ('metadata' in part) {
          metadata = part.metadata;
          this.#checkList(metadata);
          continue;
        }
        const item = this.#whole(part.item);
        const key = item === undefined ? undefined : this.#take(item);
        if (key !== undefined) present.add(key);
      }
    } catch (error) {
      // The rest of the pages expired: too slow for pages, as client-go sees it.
      if (error instanceof ApiError && error.isGone) this.#paged = false;
      throw error;
    }
    if (metadata === undefined) throw new MalformedAnswer('API server: a list without metadata');
    return metadata;
  }

  /** Before anything of a list is taken. */
  #checkList({ kind, resourceVersion }: ListMetadata): void {
    const expected = `${this.#options.resource.kind}List`;
    if (kind !== expected) throw new MalformedAnswer(`API server: ${kind} is no ${expected}`);
    const isStale = isOlder(resourceVersion, this.#seen);
    this.#staleLists = isStale ? this.#staleLists + 1 : 0;
    if (isStale && this.#staleLists < BELIEVE_STALE_LISTS) {
      throw new StaleList(resourceVersion, this.#seen);
    }
    this.#seen = resourceVersion;
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
    for await (const event of session.watch(this.#path, query, signal)) {
      const { type, object } = isRecord(event) ? event : {};
      if (type === 'ERROR') throw statusError(object, 500);
      const seen = versionOf(object);
      if (isOlder(seen, this.#seen)) {
        // Events come in the order of versions, so this is another history: etcd was restored.
        this.#seen = '';
        throw new MalformedAnswer(`API server: an event of version ${seen}, after ${version}`);
      }
      if (type === 'ADDED' || type === 'MODIFIED') this.#take(object);
      else if (type === 'DELETED') this.#takeAway(object);
      else if (type !== 'BOOKMARK') throw new MalformedAnswer('API server: an unknown event');
      this.#version = seen;
      this.#seen = seen;
      this.#progress = true;
    }
  }

  #whole(item: unknown): Record<string, unknown> | undefined {
    const { kind } = this.#options.resource;
    if (!isRecord(item)) {
      this.#options.onProblem(
        new InvalidObject(kind, 'items', `must be objects, not ${shown(item)}`),
        undefined,
      );
      return undefined;
    }
    return asListed(kind, item);
  }

  /** @returns the object's key, as far as it has one. */
  #take(raw: unknown): ObjectKey | undefined {
    let object: ApiObject | undefined;
    try {
      object = readObject(raw, [this.#options.resource.kind]);
    } catch (error) {
      if (!(error instanceof InvalidObject)) throw error;
      return this.#passOver(raw, error);
    }
    if (object === undefined) {
      const key = this.#keyOf(raw);
      if (key !== undefined) this.#drop(key);
      return key;
    }
    this.#unreadable.delete(object.key);
    if (!isDeepStrictEqual(this.#known.get(object.key), object)) {
      this.#known.set(object.key, object);
      this.#options.sink.upsert(object);
    }
    return object.key;
  }

  /** @returns the object's key, as far as it has one. */
  #passOver(raw: unknown, problem: InvalidObject): ObjectKey | undefined {
    // Why it cannot be named is part of the problem.
    const key = this.#keyOf(raw, () => {});
    if (key === undefined) {
      this.#options.onProblem(problem, undefined);
    } else if (this.#unreadable.get(key) !== problem.message) {
      this.#unreadable.set(key, problem.message);
      this.#options.onProblem(problem, { kind: this.kind, key, uid: uidOf(raw) });
    }
    return key;
  }

  #takeAway(raw: unknown): void {
    const key = this.#keyOf(raw);
    if (key !== undefined) this.#drop(key);
  }

  #drop(key: ObjectKey): void {
    this.#unreadable.delete(key);
    if (this.#known.delete(key)) this.#options.sink.remove(this.#options.resource.kind, key);
  }

  /** @param report is told of an object that cannot even be named. */
  #keyOf(raw: unknown, report = this.#options.onProblem): ObjectKey | undefined {
    try {
      const identity = readIdentity(raw, [this.#options.resource.kind]);
      if (identity !== undefined) return identity.key;
    } catch (error) {
      if (!(error instanceof InvalidObject)) throw error;
      report(error, undefined);
      return undefined;
    }
    throw new MalformedAnswer(`API server: not a ${this.#options.resource.kind}`);
  }
}

/** Until the next look; as after failures at first, then about once a minute. */
function absenceMs(absences: number, random: () => number): number {
  if (absences < BELIEVE_ABSENCES) return backoffMs(absences, random);
  return Math.round(ABSENT_MS * (0.5 + random()));
}

/** Whether what we know can no longer be watched on from. */
function asksForList(failure: Failure | undefined, failures: number): boolean {
  if (failure instanceof MalformedAnswer) return true;
  if (failure instanceof ApiError && failure.isGone) return true;
  // Who asks to be left alone for a while knows what he does, and needs no list on top.
  if (failure instanceof ApiError && failure.retryAfterMs > 0) return false;
  return failures % LIST_AFTER_FAILURES === 0;
}

function metadataOf(object: unknown): Record<string, unknown> {
  return isRecord(object) && isRecord(object.metadata) ? object.metadata : {};
}

function uidOf(object: unknown): string {
  const { uid } = metadataOf(object);
  return typeof uid === 'string' ? uid : '';
}

/** @throws MalformedAnswer for an event without one. */
function versionOf(object: unknown): string {
  const { resourceVersion } = metadataOf(object);
  if (typeof resourceVersion === 'string' && resourceVersion !== '') return resourceVersion;
  throw new MalformedAnswer('API server: an event without a resource version');
}
