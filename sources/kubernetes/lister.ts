import type { ObjectKey } from '../../api/objects.ts';
import type { Backoff } from './backoff.ts';
import { ApiError, MalformedAnswer, StaleAnswer } from './errors.ts';
import {
  type History,
  isLastChange,
  type LastChange,
  type Position,
  type Present,
} from './history.ts';
import type { KnownObjects } from './known-objects.ts';
import type { ListMetadata } from './list-splitter.ts';
import { versionOf } from './metadata.ts';
import type { ReflectorObserver, Resource } from './reflector.ts';
import { isOlder } from './resource-version.ts';
import type { Query, Session } from './session.ts';

export interface ListerOptions {
  readonly resource: Resource;
  readonly objects: KnownObjects;
  readonly history: History;
  readonly observer: Pick<ReflectorObserver, 'current' | 'historyChanged'>;
}

const PAGE_SIZE = 500;
/** As client-go, a watch lasts 5 to 10 minutes. */
const WATCH_SECONDS = 300;

/** Reads lists of one resource, and tells whether one is needed. */
export class Lister {
  readonly #options: ListerOptions;
  #paged = true;

  constructor(options: ListerOptions) {
    this.#options = options;
  }

  /**
   * Asks whether the server still has the history that was followed, and whether something has changed since, which
   * is for a watch to tell (`history.untold`).
   * @param scope `all` looks at each object, otherwise at the one that changed last.
   * @returns false when only a list can tell what there is.
   * @throws StaleAnswer for a server that is at an older version, until it is told often enough.
   */
  async check(
    session: Session,
    path: string,
    signal: AbortSignal,
    scope: 'all' | 'last change',
  ): Promise<boolean> {
    const { history, observer } = this.#options;
    const known = history.position;
    const present = await this.#look(session, path, signal, known, scope);
    const verdict = history.check(known, present);
    // What has changed since is for the watch to bring; one that brings nothing must not count.
    if (verdict === 'same' && present.changed === undefined) observer.current();
    if (verdict === 'older' && !history.wentBack) throw this.#staleAnswer(present.version);
    if (verdict === 'other') observer.historyChanged();
    return verdict === 'same' || verdict === 'gone';
  }

  async #look(
    session: Session,
    path: string,
    signal: AbortSignal,
    known: Position,
    scope: 'all' | 'last change',
  ): Promise<Present> {
    const { resource, objects } = this.#options;
    const isAll = scope === 'all';
    const request = isAll
      ? { path, query: { ...resource.selectors, limit: String(PAGE_SIZE) } }
      : checkRequest(path, resource.selectors, known.lastChange);
    const form = isAll ? 'metadata' : 'objects';
    const present = new Set<ObjectKey>();
    let version = '';
    let lastChange: string | undefined;
    let changed: ObjectKey | undefined;
    let next = '';
    do {
      const query = { ...request.query, ...(next !== '' && { continue: next }) };
      next = '';
      for await (const part of session.list(request.path, query, signal, form)) {
        if ('metadata' in part) {
          this.#expectKind(part.metadata, form);
          version ||= part.metadata.resourceVersion;
          if (isAll) next = part.metadata.continue;
          continue;
        }
        const itemVersion = versionOf(part.item);
        if (isLastChange(known.lastChange, part.item)) lastChange = itemVersion;
        const key = objects.keyOfListed(part.item);
        if (key === undefined) continue;
        present.add(key);
        if (isOlder(known.version, itemVersion)) changed ??= key;
      }
    } while (next !== '');
    if (isAll) changed ??= objects.missingFrom(present);
    return { version, lastChange, changed };
  }

  /**
   * Reads a complete list, page by page, and removes what it has not got.
   * @returns the resource version of the list.
   */
  async list(session: Session, path: string, signal: AbortSignal): Promise<string> {
    const { resource, objects } = this.#options;
    const present = new Set<ObjectKey>();
    let first: ListMetadata | undefined;
    let next = '';
    do {
      const query: Record<string, string> = { ...resource.selectors };
      if (this.#paged) query.limit = String(PAGE_SIZE);
      if (next !== '') query.continue = next;
      const page = await this.#takePage(session, path, query, present, signal);
      first ??= page;
      next = page.continue;
    } while (next !== '');
    objects.keepOnly(present);
    this.#paged = true;
    return first.resourceVersion;
  }

  /** @param present gets the keys of what the page has. */
  async #takePage(
    session: Session,
    path: string,
    query: Query,
    present: Set<ObjectKey>,
    signal: AbortSignal,
  ): Promise<ListMetadata> {
    const { objects, history } = this.#options;
    let metadata: ListMetadata | undefined;
    try {
      for await (const part of session.list(path, query, signal)) {
        if ('metadata' in part) {
          metadata = part.metadata;
          this.#checkList(metadata, query.continue === undefined);
          continue;
        }
        history.listed(part.item);
        const key = objects.putListed(part.item);
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
  #checkList(metadata: ListMetadata, isFirstPage: boolean): void {
    this.#expectKind(metadata);
    const { history, observer } = this.#options;
    const { resourceVersion } = metadata;
    const isStale = isOlder(resourceVersion, history.position.version);
    if (isFirstPage || isStale) history.answered(isStale);
    if (isStale && !history.wentBack) throw this.#staleAnswer(resourceVersion);
    if (isStale) {
      history.forget();
      observer.historyChanged();
    }
    if (isFirstPage || isStale) history.beginList(resourceVersion);
  }

  #staleAnswer(version: string): StaleAnswer {
    const { position, olderAnswers } = this.#options.history;
    return new StaleAnswer(version, position.version, olderAnswers);
  }

  /** @throws MalformedAnswer */
  #expectKind({ kind }: ListMetadata, form: 'objects' | 'metadata' = 'objects'): void {
    // Some may not know how to leave out the rest of the objects.
    if (form === 'metadata' && kind === 'PartialObjectMetadataList') return;
    const expected = `${this.#options.resource.kind}List`;
    if (kind !== expected) throw new MalformedAnswer(`API server: ${kind} is no ${expected}`);
  }
}

/**
 * The cheapest request that tells the server's version, and what the object that changed last is now.
 * Without a `resourceVersion` the answer is as new as etcd. A single name in a single namespace is
 * one key to read, where a field selector over all namespaces would look at each object.
 */
export function checkRequest(
  path: string,
  selectors: Query,
  lastChange: LastChange | undefined,
): { readonly path: string; readonly query: Query } {
  if (lastChange === undefined) return { path, query: { ...selectors, limit: '1' } };
  const { namespace, name } = lastChange;
  const slash = path.lastIndexOf('/');
  const inNamespace = `${path.slice(0, slash)}/namespaces/${namespace}${path.slice(slash)}`;
  const byName = `metadata.name=${name}`;
  const { fieldSelector = byName } = selectors;
  const terms = new Set([...fieldSelector.split(','), byName]);
  return {
    path: namespace === '' ? path : inNamespace,
    query: { ...selectors, fieldSelector: [...terms].join(','), limit: '1' },
  };
}

/** @param from the version after which changes are to be told. */
export function watchQuery(
  selectors: Query,
  from: string,
  { random }: Pick<Backoff, 'random'>,
): Query {
  return {
    ...selectors,
    watch: 'true',
    allowWatchBookmarks: 'true',
    resourceVersion: from,
    timeoutSeconds: String(Math.floor(WATCH_SECONDS * (1 + random()))),
  };
}
