/** Lists and watches one resource of the API server, and keeps a sink in step with it. */
import type { Kind } from '../../api/objects.ts';
import { isRecord } from '../../api/read-field.ts';
import type { ObjectSink, SourceLog } from '../source.ts';
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
  /** The server's history is not the one that was followed: etcd was restored from a snapshot. */
  readonly onEtcdRestored: () => void;
  readonly log: SourceLog;
  readonly backoff: RetryClock;
  readonly timeouts: Pick<Timeouts, 'silence'>;
}

/** So many answers in a row that a CRD is not installed are the truth, and looks after them are rare. */
const NOT_FOUND_LIMIT = 3;
const NOT_INSTALLED_POLL_MS = 60_000;
/** In which a watch has to tell what has happened before it was opened. */
const DELETED_EVENT_MS = 2000;
/** The same of a change on the server; longer, for the watch cache of another API server may lag behind. */
const UNDELIVERED_EVENT_MS = 10_000;

/**
 * Keeps the sink in step with one resource of the API server: lists it, watches from there, lists
 * again when the server has forgotten the version we know, or has another history. Calls `synced` after
 * the first list, or when there is nothing to list because an optional resource is not installed.
 *
 * Nothing is taken away but what the server says is deleted, or what a complete list has not got, or
 * all that was of a CRD that is gone.
 */
export class Reflector {
  readonly #options: ReflectorOptions;
  readonly #objects: InformerStore;
  readonly #history = new EtcdHistory();
  readonly #lister: Lister;
  readonly #delivery: WatchDelivery;
  /** The resource version to watch from; undefined: list first. */
  #version: string | undefined;
  /** Of the resource's paths the one that is there, as far as is known. */
  #path: string;
  #watch: LiveWatch | undefined;
  /** What the observer was told last. */
  #isWatching = false;
  /** A new watch is asked for, also when the one that is open is live. */
  #mustRenew = false;
  /** Ends the wait before the next attempt. */
  #endWait: () => void = () => {};
  /** Attempts in a row in which an optional resource was at none of its paths. */
  #notFoundCount = 0;
  #isNotInstalled = false;
  #isSynced = false;
  readonly #synced = Promise.withResolvers<void>();

  constructor(options: ReflectorOptions) {
    const {
      resource,
      sink,
      onProblem,
      onEtcdRestored: onOtherHistory,
      observer,
      log,
      backoff,
    } = options;
    const { kind, paths } = resource;
    this.#options = options;
    this.#path = paths[0];
    this.#objects = new InformerStore({ kind, sink, onProblem });
    this.#lister = new Lister({
      resource,
      objects: this.#objects,
      history: this.#history,
      onUpToDate: () => this.#reportUpToDate(),
      onEtcdRestored: onOtherHistory,
    });
    const onStalled = () => observer?.watchStalled(kind);
    this.#delivery = new WatchDelivery({ kind, log, clock: backoff, onStalled });
    // Of what need not be installed, that nobody watches it is no news.
    if (resource.optional !== true) this.#reportWatchOpen(false);
  }

  get kind(): Kind {
    return this.#options.resource.kind;
  }

  /** Resolves when `synced` of the sink was called. */
  get synced(): Promise<void> {
    return this.#synced.promise;
  }

  /** How many objects cannot be read as they are now. */
  get unreadable(): number {
    return this.#objects.unreadable;
  }

  /**
   * Opens a new watch soon, and compares the server's history then. The watch before it stays open
   * until the new one is.
   */
  renew(): void {
    this.#mustRenew = true;
    this.#watch?.markSilent();
    this.#endWait();
  }

  /**
   * Runs until the signal is aborted, then resolves. Failures of the server and of the way to it
   * are logged and tried again; it rejects only with what the sink or `onProblem` throw.
   */
  async run(signal: AbortSignal): Promise<void> {
    const { backoff } = this.#options;
    let retry = INITIAL_RETRY_STATE;
    try {
      while (!signal.aborted) {
        const outcome = await this.#attempt(signal);
        if (signal.aborted) return;
        if (this.#handleNotFound(outcome.failure)) {
          retry = INITIAL_RETRY_STATE;
          await this.#wait(notInstalledPollMs(this.#notFoundCount, backoff.random), signal);
          continue;
        }
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

  /** Opens a watch unless one is live, and follows it until it is silent or has ended. */
  async #attempt(signal: AbortSignal): Promise<AttemptOutcome> {
    let answered = false;
    let watch: LiveWatch | undefined;
    let failure: ApiServerFailure | undefined;
    try {
      if (this.#watch?.state !== 'live' || this.#mustRenew) {
        await this.#renewWatch(signal, () => {
          answered = true;
        });
      }
      answered = true;
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
      hasResponse: answered,
      hasEvents: watch?.hasEvents === true,
      watchEndedAtOnce: watch?.endedAtOnce === true,
    };
  }

  /**
   * Opens a watch in the place of the one before, which is read until the new one is open: it may
   * only have had nothing to tell. The new one has a session, and so a connection, of its own, for the
   * connection of the other may be dead.
   */
  async #renewWatch(signal: AbortSignal, onListed: () => void): Promise<void> {
    const { open } = this.#options;
    const before = this.#watch;
    const isAsked = this.#mustRenew;
    this.#mustRenew = false;
    let session: Session | undefined;
    try {
      session = await open(signal);
      const { stream, from } = await this.#openStream(session, onListed);
      // What the server said in the watch before counts, other than that its connection broke.
      const { failure } = before ?? {};
      if (failure !== undefined && !(failure instanceof ConnectionError)) {
        stream.close();
        throw failure;
      }
      this.#watch = this.#follow(session, stream, from);
      // What it was asked for in the meantime may have come after the check of the history.
      if (this.#mustRenew) this.#watch.markSilent();
      before?.close();
      this.#reportWatchOpen(true);
    } catch (error) {
      session?.close();
      this.#mustRenew ||= isAsked;
      const left = this.#watch;
      if (left?.state === 'ended') {
        this.#watch = undefined;
        if (left.failure !== undefined && !isApiServerFailure(left.failure)) throw left.failure;
      }
      // It spoke again, so there is no need for another.
      if (left?.state === 'live' && !this.#mustRenew && isApiServerFailure(error)) return;
      // Nobody knows whether the API server is still behind a watch that is silent.
      if (left?.state !== 'live') this.#reportWatchOpen(false);
      throw error;
    }
  }

  /** Opens a watch at the path that was there last; each other one is tried once for a 404. */
  async #openStream(
    session: Session,
    onListed: () => void,
  ): Promise<{ stream: WatchStream; from: string }> {
    const { paths } = this.#options.resource;
    const others = paths.filter((path) => path !== this.#path);
    for (;;) {
      try {
        if (this.#version !== undefined) {
          const isUsable = await this.#check(session);
          if (!isUsable) this.#version = undefined;
        }
        if (this.#version === undefined) {
          // Its events would come between the items of the list.
          this.#closeWatch();
          this.#version = await this.#list(session);
          onListed();
        }
        const from = this.#version;
        const query = watchQuery(this.#options.resource.selectors, from, this.#options.backoff);
        return { stream: await session.watch(this.#path, query), from };
      } catch (error) {
        if (!(error instanceof ApiError && error.isNotFound)) throw error;
        const next = others.shift();
        this.#path = next ?? paths[0];
        if (next === undefined) throw error;
        this.#version = undefined;
      }
    }
  }

  /** @param from the version that the watch was opened with. */
  #follow(session: Session, stream: WatchStream, from: string): LiveWatch {
    const { timeouts, backoff } = this.#options;
    // Events between these two were told by the watch before, while this one was being opened.
    const until = this.#version ?? from;
    let last = from;
    const watch: LiveWatch = new LiveWatch({
      stream,
      silenceMs: () => {
        const { undeliveredChange: untold, hasUnconfirmedDeletion: inDoubt } = this.#history;
        if (untold !== undefined) return Math.min(UNDELIVERED_EVENT_MS, timeouts.silence);
        if (inDoubt) return Math.min(DELETED_EVENT_MS, timeouts.silence);
        return jitteredSilenceMs(timeouts.silence, backoff.random);
      },
      onEvent: (event) => {
        const { type, object } = isRecord(event) ? event : {};
        if (type === 'ERROR') throw statusError(object, 500);
        const version = resourceVersionOf(object);
        if (version === '') {
          throw new MalformedResponse('API server: an event without a resource version');
        }
        // Events come in the order of versions.
        if (isOlder(version, last)) this.#resetHistory(`${version}, after ${last}`);
        last = version;
        const isKnown = isOlder(from, until) && !isOlder(until, version);
        if (!isKnown) this.#handleEvent(type, object, version);
        // It may have been silent, and not counted as open.
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
    else if (type !== 'BOOKMARK') throw new MalformedResponse('API server: an unknown event');
    this.#version = version;
    const isOfHistory = this.#history.recordEvent(type, object, version);
    if (!isOfHistory) this.#resetHistory(`${version}, and none that an object was deleted before`);
  }

  /** @param what the server told that cannot be of the history that was followed. */
  #resetHistory(what: string): never {
    this.#history.reset();
    this.#version = undefined;
    this.#options.onEtcdRestored();
    throw new MalformedResponse(`API server: an event of version ${what}: etcd was restored`);
  }

  #reportWatchOpen(isOpen: boolean): void {
    this.#isWatching = isOpen;
    this.#options.observer?.watching(this.kind, isOpen);
  }

  #reportUpToDate(): void {
    this.#options.observer?.current(this.kind);
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

  /** @returns false when only a list can tell what there is. */
  async #check(session: Session): Promise<boolean> {
    const scope = this.#delivery.isComparisonDue ? 'all' : 'last change';
    const isUsable = await this.#lister.checkHistory(session, this.#path, scope);
    if (scope === 'all' && this.#history.undeliveredChange === undefined)
      this.#delivery.recordComparison();
    return isUsable;
  }

  /** Of a watch that is silent: whether that proves that it does not tell what has happened. */
  #hasMissedEvent(): boolean {
    // Then it has not had its time.
    if (this.#mustRenew) return false;
    const { undeliveredChange: untold, hasUnconfirmedDeletion: inDoubt } = this.#history;
    if (untold !== undefined) this.#delivery.recordMissedChange(untold);
    return untold !== undefined || inDoubt;
  }

  /** @returns the resource version of the list. */
  async #list(session: Session): Promise<string> {
    const version = await this.#lister.list(session, this.#path);
    this.#isNotInstalled = false;
    this.#notFoundCount = 0;
    this.#options.log.info({ kind: this.kind, objects: this.#objects.size }, 'listed');
    this.#reportSynced();
    this.#delivery.recordComparison();
    this.#reportUpToDate();
    return version;
  }

  /**
   * Whether there is nothing of an optional resource, because it is not installed. An API server that
   * is starting, or a proxy before it, may not know a CRD for a moment: what is in force does not
   * go for one such answer.
   */
  #handleNotFound(failure: ApiServerFailure | undefined): boolean {
    const { resource, log, observer } = this.#options;
    const isMissing = failure instanceof ApiError && failure.isNotFound;
    this.#notFoundCount = resource.optional === true && isMissing ? this.#notFoundCount + 1 : 0;
    if (this.#notFoundCount === 0) return false;
    this.#version = undefined;
    const objects = this.#objects.size;
    if (objects > 0 && this.#notFoundCount < NOT_FOUND_LIMIT) return false;
    const { kind } = resource;
    this.#objects.retainOnly(new Set());
    // Somebody may have upgraded a CRD to one without any version that is asked for.
    if (objects > 0) log.warn({ kind, objects }, 'not installed any more; these are gone');
    else if (!this.#isNotInstalled) log.info({ kind }, 'not installed; looking for it now and then');
    if (!this.#isNotInstalled) observer?.absent(this.kind);
    this.#isNotInstalled = true;
    this.#reportSynced();
    return true;
  }

  #report({ failure, isSilent: silent }: AttemptOutcome, { failures, waitMs }: RetryStep): void {
    const { log, resource } = this.#options;
    const details = { kind: resource.kind, failures, waitMs, err: failure };
    if (failure !== undefined) {
      if (failures > 0) log.warn(details, 'list or watch failed, trying again');
      else log.info(details, 'the version to watch from has expired, listing');
    } else if (!silent && waitMs > 0) {
      log.info(details, 'watch ended without any event, trying again');
    }
  }

  /** Waits so long, or until `renew` is called, or a silent watch is silent no more. */
  async #wait(milliseconds: number, signal: AbortSignal): Promise<void> {
    const early = new AbortController();
    this.#endWait = () => early.abort();
    void this.#watch?.stateChanged.then(this.#endWait);
    await this.#options.backoff.delay(milliseconds, AbortSignal.any([signal, early.signal]));
    this.#endWait = () => {};
  }
}

/** Until the next look; as after failures at first, then about once a minute. */
function notInstalledPollMs(absences: number, random: () => number): number {
  if (absences < NOT_FOUND_LIMIT) return jitteredBackoffMs(absences, random);
  return Math.round(NOT_INSTALLED_POLL_MS * (0.5 + random()));
}
