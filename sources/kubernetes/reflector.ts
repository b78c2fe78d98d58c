/** Lists and watches one resource of the API server, and keeps a sink in sync with it. */
import type { ApiObject, Kind } from '../../api/objects.ts';
import { describeValue, isRecord } from '../../api/read-field.ts';
import type { ObjectSink, SourceFault, SourceLog } from '../source.ts';
import { jitteredBackoffMs, jitteredSilenceMs, type RetryClock } from './backoff.ts';
import {
  ApiError,
  type ApiServerFailure,
  ConnectionError,
  isApiServerFailure,
  MalformedResponse,
  statusError,
} from './errors.ts';
import { EtcdHistory } from './etcd-history.ts';
import { InformerStore, type OnProblem } from './informer-store.ts';
import { Lister, watchQuery } from './lister.ts';
import { LiveWatch } from './live-watch.ts';
import { isOlder, resourceVersionOf } from './metadata.ts';
import type { Resource, ResourceObserver } from './resources.ts';
import { type AttemptOutcome, INITIAL_RETRY_STATE, nextRetry, type RetryStep } from './retry.ts';
import type { OpenSession, Session, Timeouts, WatchStream } from './session.ts';
import { WatchDelivery } from './watch-delivery.ts';

export interface ReflectorOptions {
  readonly resource: Resource;
  readonly open: OpenSession;
  readonly sink: ObjectSink;
  readonly onProblem: OnProblem;
  readonly observer: ResourceObserver | undefined;
  /** Called when etcd was restored from a snapshot, which invalidates the known history. */
  readonly onEtcdRestored: () => void;
  /**
   * Called after each attempt that the API server forbids, except the first in a row: while RBAC rules are applied, or reach
   * the API server, a 403 is temporary.
   */
  readonly onForbidden?: () => void;
  readonly log: SourceLog;
  readonly backoff: RetryClock;
  readonly timeouts: Pick<Timeouts, 'silence'>;
}

/**
 * After this many consecutive 404 responses the objects of a CRD are removed, and later checks are
 * rare. A CRD without known objects counts as not installed after the first 404.
 */
const NOT_FOUND_LIMIT = 3;
/** Longest wait between these checks. */
const NOT_INSTALLED_POLL_MS = 60_000;
/** Milliseconds for a new watch to deliver the expected DELETED event. */
const DELETED_EVENT_MS = 2000;
/**
 * Milliseconds for a new watch to deliver a change that a list has shown. Longer than
 * DELETED_EVENT_MS, because the watch cache of another API server may lag behind.
 */
const UNDELIVERED_EVENT_MS = 10_000;

/**
 * Keeps the sink in sync with one resource: lists the resource, watches from the version of the
 * list, and relists when the version has expired or etcd was restored. Calls `synced` after the
 * first list, or when an optional resource is not installed.
 *
 * Objects are removed only on a DELETED event, when missing from a complete list, when a change makes
 * them unused, or when their CRD is no longer installed.
 */
export class Reflector {
  readonly #options: ReflectorOptions;
  readonly #objects: InformerStore;
  readonly #history = new EtcdHistory();
  readonly #lister: Lister;
  readonly #delivery: WatchDelivery;
  /** The resource version to watch from; undefined to list first. */
  #version: string | undefined;
  /** The resource path to request. After a 404 the next path is tried. */
  #path: string;
  #watch: LiveWatch | undefined;
  /** The watch state last reported to the observer. */
  #isWatching = false;
  /** Whether `renew` has requested a new watch, even if the open watch is live. */
  #mustRenew = false;
  /** Ends the wait before the next attempt. */
  #endWait: () => void = () => {};
  /** Consecutive attempts in which every path of an optional resource returned 404. */
  #notFoundCount = 0;
  /** Whether the observer was told last that the CRD is not installed. */
  #isNotInstalled = false;
  #isSynced = false;
  readonly #synced = Promise.withResolvers<void>();

  constructor(options: ReflectorOptions) {
    const { resource, sink, onProblem, onEtcdRestored, observer, log, backoff } = options;
    const { kind, paths } = resource;
    this.#options = options;
    this.#path = paths[0];
    this.#objects = new InformerStore({ kind, sink, onProblem });
    this.#lister = new Lister({
      resource,
      objects: this.#objects,
      history: this.#history,
      onUpToDate: () => this.#reportUpToDate(),
      onEtcdRestored,
    });
    const onStalled = () => observer?.watchStalled(kind);
    this.#delivery = new WatchDelivery({ kind, log, clock: backoff, onStalled });
    // Do not report a missing watch of an optional resource before the resource is known to exist.
    if (resource.optional !== true) this.#reportWatchOpen(false);
  }

  get kind(): Kind {
    return this.#options.resource.kind;
  }

  /** Whether the sink's `synced` was called. */
  get isSynced(): boolean {
    return this.#isSynced;
  }

  /** The readable objects that the sink has. */
  objects(): Iterable<ApiObject> {
    return this.#objects.values();
  }

  /** Resolves after the call of the sink's `synced`. */
  get synced(): Promise<void> {
    return this.#synced.promise;
  }

  /** Number of objects that currently cannot be read. */
  get unreadable(): number {
    return this.#objects.unreadable;
  }

  /** The objects that currently cannot be read. */
  faults(): Iterable<SourceFault> {
    return this.#objects.faults();
  }

  /**
   * Checks the server's history, then replaces the watch. The current watch stays open until the
   * new watch is open.
   */
  renew(): void {
    this.#mustRenew = true;
    this.#watch?.markSilent();
    this.#endWait();
  }

  /**
   * Runs until the signal is aborted, then resolves. Failures of the server and the connection are
   * logged and retried. Rejects only with errors of the sink or `onProblem`.
   */
  async run(signal: AbortSignal): Promise<void> {
    const { backoff, onForbidden } = this.#options;
    let retry = INITIAL_RETRY_STATE;
    let wasForbidden = false;
    try {
      while (!signal.aborted) {
        const outcome = await this.#attempt(signal);
        if (signal.aborted) return;
        const isForbidden = outcome.failure instanceof ApiError && outcome.failure.isForbidden;
        if (isForbidden && wasForbidden) onForbidden?.();
        wasForbidden = isForbidden;
        if (this.#handleNotFound(outcome.failure)) {
          retry = INITIAL_RETRY_STATE;
          await this.#wait(notInstalledPollMs(this.#notFoundCount, backoff.random), signal);
          continue;
        }
        // A silent watch may no longer reach the API server, so do not report it as open.
        if (outcome.failure !== undefined && this.#watch?.state !== 'live')
          this.#reportWatchOpen(false);
        const step = nextRetry(retry, outcome, backoff.random);
        retry = step.state;
        if (step.mustRelist || (outcome.isSilent && this.#hasMissedEvent()))
          this.#version = undefined;
        this.#report(outcome, step);
        if (step.waitMs > 0) await this.#wait(step.waitMs, signal);
      }
    } finally {
      this.#watch?.close();
    }
  }

  /**
   * Opens a watch unless a live watch exists, then waits until the watch is silent or has ended.
   */
  async #attempt(signal: AbortSignal): Promise<AttemptOutcome> {
    let hasResponse = false;
    let watch: LiveWatch | undefined;
    let failure: ApiServerFailure | undefined;
    try {
      if (this.#watch?.state !== 'live' || this.#mustRenew) {
        await this.#renewWatch(signal, () => {
          hasResponse = true;
        });
      }
      hasResponse = true;
      watch = this.#watch;
      await watch?.untilSilentOrEnded();
    } catch (error) {
      if (!isApiServerFailure(error)) throw error;
      failure = error;
    }
    if (watch?.state === 'ended' && this.#watch === watch) this.#watch = undefined;
    return {
      failure,
      isSilent: failure === undefined && watch?.state === 'silent',
      hasResponse,
      hasEvents: watch?.hasEvents === true,
      watchEndedAtOnce: watch?.endedAtOnce === true,
    };
  }

  /**
   * Replaces the watch. Reads the old watch until the new watch is open, because the old watch may
   * just be idle. The new watch has its own session and connection, because the old connection may
   * be broken.
   */
  async #renewWatch(signal: AbortSignal, onListed: () => void): Promise<void> {
    const { open } = this.#options;
    const before = this.#watch;
    const wasRequested = this.#mustRenew;
    this.#mustRenew = false;
    let session: Session | undefined;
    try {
      session = await open(signal);
      const { stream, from } = await this.#openStream(session, onListed);
      // An error of the old watch ends the attempt, unless it is a broken connection.
      const { failure } = before ?? {};
      if (failure !== undefined && !(failure instanceof ConnectionError)) {
        stream.close();
        throw failure;
      }
      this.#watch = this.#follow(session, stream, from);
      // `renew` may have been called after the check of the history, so check again.
      if (this.#mustRenew) this.#watch.markSilent();
      before?.close();
      this.#reportWatchOpen(true);
    } catch (error) {
      session?.close();
      this.#mustRenew ||= wasRequested;
      const current = this.#watch;
      if (current?.state === 'ended') {
        this.#watch = undefined;
        if (current.failure !== undefined && !isApiServerFailure(current.failure))
          throw current.failure;
      }
      // The old watch has delivered an event meanwhile, so it works: ignore the failed new watch.
      if (current?.state === 'live' && !this.#mustRenew && isApiServerFailure(error)) return;
      throw error;
    }
  }

  /** Opens a watch at `#path`. On 404 tries each other path once. */
  async #openStream(
    session: Session,
    onListed: () => void,
  ): Promise<{ stream: WatchStream; from: string }> {
    const { paths } = this.#options.resource;
    const otherPaths = paths.filter((path) => path !== this.#path);
    for (;;) {
      try {
        if (this.#version !== undefined) {
          const isUsable = await this.#check(session);
          if (!isUsable) this.#version = undefined;
        }
        if (this.#version === undefined) {
          // Events of the old watch would interleave with the items of the list.
          this.#closeWatch();
          this.#version = await this.#list(session);
          onListed();
        }
        const from = this.#version;
        const query = watchQuery(this.#options.resource.selectors, from, this.#options.backoff);
        return { stream: await session.watch(this.#path, query), from };
      } catch (error) {
        if (!(error instanceof ApiError && error.isNotFound)) throw error;
        const next = otherPaths.shift();
        this.#path = next ?? paths[0];
        if (next === undefined) throw error;
        this.#version = undefined;
      }
    }
  }

  /**
   * Reads events from an open watch.
   * @param from Resource version that the watch was opened with.
   */
  #follow(session: Session, stream: WatchStream, from: string): LiveWatch {
    const { timeouts, backoff } = this.#options;
    // The old watch delivered the events from `from` to `until` while the new watch was opened.
    const until = this.#version ?? from;
    let last = from;
    const watch: LiveWatch = new LiveWatch({
      stream,
      silenceMs: () => {
        const { undeliveredChange, hasUnconfirmedDeletion } = this.#history;
        if (undeliveredChange !== undefined)
          return Math.min(UNDELIVERED_EVENT_MS, timeouts.silence);
        if (hasUnconfirmedDeletion) return Math.min(DELETED_EVENT_MS, timeouts.silence);
        return jitteredSilenceMs(timeouts.silence, backoff.random);
      },
      onEvent: (event) => {
        const { type, object } = isRecord(event) ? event : {};
        if (type === 'ERROR') throw statusError(object, 500);
        const version = resourceVersionOf(object);
        if (version === '') {
          throw new MalformedResponse('API server: watch event without a resource version');
        }
        // Events arrive in the order of their versions, unless etcd was restored.
        if (isOlder(version, last)) this.#resetHistory(`${version}, after ${last}`);
        last = version;
        const wasDelivered = isOlder(from, until) && !isOlder(until, version);
        if (!wasDelivered) this.#handleEvent(type, object, version);
        // The watch may have been reported as closed while it was silent.
        if (!this.#isWatching) this.#reportWatchOpen(true);
        this.#delivery.recordDelivery();
        this.#reportUpToDate();
      },
      onClose: () => {
        session.close();
        if (this.#watch === watch) this.#reportWatchOpen(false);
      },
    });
    return watch;
  }

  #handleEvent(type: unknown, object: unknown, version: string): void {
    const seen = this.#history.position.version;
    if (isOlder(version, seen)) this.#resetHistory(`${version}, after ${seen}`);
    if (type === 'ADDED' || type === 'MODIFIED') this.#objects.put(object);
    else if (type === 'DELETED') this.#objects.remove(object);
    else if (type !== 'BOOKMARK')
      throw new MalformedResponse(`API server: watch event of unknown type ${describeValue(type)}`);
    this.#version = version;
    const isConsistent = this.#history.recordEvent(type, object, version);
    if (!isConsistent) this.#resetHistory(`${version}, without the expected DELETED event`);
  }

  /** @param what The resource version that contradicts the known history, for the error message. */
  #resetHistory(what: string): never {
    this.#history.reset();
    this.#version = undefined;
    this.#options.onEtcdRestored();
    throw new MalformedResponse(
      `API server: watch event with resource version ${what}: etcd was restored from a snapshot`,
    );
  }

  #reportWatchOpen(isOpen: boolean): void {
    this.#isWatching = isOpen;
    this.#isNotInstalled = false;
    this.#options.observer?.watchOpen(this.kind, isOpen);
  }

  #reportUpToDate(): void {
    this.#options.observer?.upToDate(this.kind);
  }

  #reportSynced(): void {
    if (this.#isSynced) return;
    this.#isSynced = true;
    this.#options.sink.synced(this.kind);
    this.#synced.resolve();
  }

  #closeWatch(): void {
    this.#watch?.close();
    this.#watch = undefined;
  }

  /** @returns false when a relist is needed. */
  async #check(session: Session): Promise<boolean> {
    const scope = this.#delivery.isComparisonDue ? 'all' : 'last change';
    const isUsable = await this.#lister.checkHistory(session, this.#path, scope);
    if (scope === 'all' && this.#history.undeliveredChange === undefined)
      this.#delivery.recordComparison();
    return isUsable;
  }

  /** Whether the silence of the watch proves that it misses a change. */
  #hasMissedEvent(): boolean {
    // `renew` marked the watch as silent before its time to deliver the event was over, so the silence
    // proves nothing.
    if (this.#mustRenew) return false;
    const { undeliveredChange, hasUnconfirmedDeletion } = this.#history;
    if (undeliveredChange !== undefined) this.#delivery.recordMissedChange(undeliveredChange);
    return undeliveredChange !== undefined || hasUnconfirmedDeletion;
  }

  /** @returns the resource version of the list. */
  async #list(session: Session): Promise<string> {
    const version = await this.#lister.list(session, this.#path);
    this.#isNotInstalled = false;
    this.#notFoundCount = 0;
    this.#options.log.info({ kind: this.kind, objects: this.#objects.size }, 'listed objects');
    this.#reportSynced();
    this.#delivery.recordComparison();
    this.#reportUpToDate();
    return version;
  }

  /**
   * Handles a 404, or a 403 if the agent may lack the right, for an optional resource. While an API server starts, it or a
   * proxy may return 404 for an existing CRD, so objects in force are only removed after several such responses.
   * @returns whether the resource counts as not installed.
   */
  #handleNotFound(failure: ApiServerFailure | undefined): boolean {
    const { resource, observer } = this.#options;
    const isForbidden =
      resource.mayBeForbidden === true && failure instanceof ApiError && failure.isForbidden;
    const isMissing = isForbidden || (failure instanceof ApiError && failure.isNotFound);
    this.#notFoundCount = resource.optional === true && isMissing ? this.#notFoundCount + 1 : 0;
    if (this.#notFoundCount === 0) return false;
    this.#version = undefined;
    const objects = this.#objects.size;
    if (objects > 0 && this.#notFoundCount < NOT_FOUND_LIMIT) return false;
    this.#objects.retainOnly(new Set());
    if (objects > 0 || !this.#isNotInstalled) this.#logMissing(objects, isForbidden);
    if (!this.#isNotInstalled) observer?.notInstalled(this.kind);
    this.#isNotInstalled = true;
    this.#reportSynced();
    return true;
  }

  /** @param objects number of objects that were in use. */
  #logMissing(objects: number, isForbidden: boolean): void {
    const { resource, log } = this.#options;
    const { kind } = resource;
    if (isForbidden) {
      const plural = this.#path.slice(this.#path.lastIndexOf('/') + 1);
      const hint = `grant the agent's ClusterRole "list" and "watch" on ${plural}`;
      if (objects > 0)
        log.warn({ kind, objects, hint }, 'forbidden; its objects are no longer used');
      else log.warn({ kind, hint }, 'forbidden; going on without, and checking again periodically');
    } else if (objects > 0) {
      // A CRD upgrade may have removed every version that the agent requests.
      const hint = 'install the CRD in a version that the agent supports';
      log.warn({ kind, objects, hint }, 'CRD is no longer served; its objects are no longer used');
    } else log.info({ kind }, 'CRD is not installed; checking again periodically');
  }

  #report({ failure, isSilent }: AttemptOutcome, { failures, waitMs }: RetryStep): void {
    const { log, resource } = this.#options;
    const details = { kind: resource.kind, failures, waitMs, err: failure };
    if (failure !== undefined) {
      if (failures > 0) log.warn(details, 'list or watch failed; retrying');
      else log.info(details, 'watch resource version expired; relisting');
    } else if (!isSilent && waitMs > 0) {
      log.info(details, 'watch ended without events; retrying');
    }
  }

  /**
   * Waits for the given time. Ends earlier if `renew` is called or a silent watch delivers an
   * event.
   */
  async #wait(milliseconds: number, signal: AbortSignal): Promise<void> {
    const waitEnd = new AbortController();
    this.#endWait = () => waitEnd.abort();
    void this.#watch?.stateChanged.then(this.#endWait);
    await this.#options.backoff.delay(milliseconds, AbortSignal.any([signal, waitEnd.signal]));
    this.#endWait = () => {};
  }
}

/**
 * Milliseconds until the next check for a missing CRD: a backoff at first, then half a minute to a
 * minute.
 */
function notInstalledPollMs(notFoundCount: number, random: () => number): number {
  if (notFoundCount < NOT_FOUND_LIMIT) return jitteredBackoffMs(notFoundCount, random);
  return Math.round((NOT_INSTALLED_POLL_MS * (1 + random())) / 2);
}
