/** Lists of one resource, and the question whether one is needed. */
import type { Kind, ObjectKey } from '../../api/objects.ts';
import type { RetryClock } from './backoff.ts';
import { ApiError, MalformedResponse, StaleResponse } from './errors.ts';
import {
  type EtcdHistory,
  type HistoryPosition,
  isLastChange,
  type LastChange,
  type ServerState,
} from './etcd-history.ts';
import type { InformerStore } from './informer-store.ts';
import type { ListMetadata } from './list-splitter.ts';
import { isOlder, resourceVersionOf } from './metadata.ts';
import type { Resource } from './resources.ts';
import type { QueryParameters, Session } from './session.ts';

export interface ListerOptions {
  readonly resource: Resource;
  readonly objects: InformerStore;
  readonly history: EtcdHistory;
  /** What is known is what the server has. */
  readonly onUpToDate: () => void;
  /** The server's history is not the one that was followed: etcd was restored from a snapshot. */
  readonly onEtcdRestored: () => void;
}

interface ListRequest {
  readonly path: string;
  readonly query: QueryParameters;
  readonly form?: 'objects' | 'metadata';
}

const PAGE_SIZE = '500';
/** As client-go, a watch lasts 5 to 10 minutes. */
const WATCH_SECONDS = 300;

/** Reads lists of one resource, and tells whether one is needed. */
export class Lister {
  readonly #options: ListerOptions;
  #usePages = true;

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
  async checkHistory(
    session: Session,
    path: string,
    scope: 'all' | 'last change',
  ): Promise<boolean> {
    const { history, onUpToDate: onCurrent, onEtcdRestored: onOtherHistory } = this.#options;
    const known = history.position;
    const present = await this.#readServerState(session, path, known, scope);
    const verdict = history.compare(known, present);
    // What has changed since is for the watch to bring; one that brings nothing must not count.
    if (verdict === 'same' && present.changed === undefined) onCurrent();
    if (verdict === 'older' && !history.isRestored) throw this.#staleResponse(present.version);
    if (verdict === 'other') onOtherHistory();
    return verdict === 'same' || verdict === 'gone';
  }

  async #readServerState(
    session: Session,
    path: string,
    known: HistoryPosition,
    scope: 'all' | 'last change',
  ): Promise<ServerState> {
    const { resource, objects } = this.#options;
    const isAll = scope === 'all';
    const request = isAll
      ? { path, query: { ...resource.selectors, limit: PAGE_SIZE }, form: 'metadata' as const }
      : historyCheckRequest(path, resource.selectors, known.lastChange);
    const present = new Set<ObjectKey>();
    let version = '';
    let lastChange: string | undefined;
    let changed: ObjectKey | undefined;
    await this.#read(session, request, {
      page: (metadata) => {
        version ||= metadata.resourceVersion;
        return isAll;
      },
      item: (item) => {
        const itemVersion = resourceVersionOf(item);
        if (isLastChange(known.lastChange, item)) lastChange = itemVersion;
        const key = objects.keyOfListItem(item);
        if (key === undefined) return;
        present.add(key);
        if (isOlder(known.version, itemVersion)) changed ??= key;
      },
    });
    if (isAll) changed ??= objects.firstMissingFrom(present);
    return { version, lastChange, changed };
  }

  /**
   * Reads a complete list, page by page, and removes what it has not got.
   * @returns the resource version of the list.
   */
  async list(session: Session, path: string): Promise<string> {
    const { resource, objects, history } = this.#options;
    const query = { ...resource.selectors, ...(this.#usePages && { limit: PAGE_SIZE }) };
    const present = new Set<ObjectKey>();
    let version = '';
    try {
      await this.#read(
        session,
        { path, query },
        {
          page: (metadata) => {
            this.#checkList(metadata, version === '');
            version ||= metadata.resourceVersion;
            return true;
          },
          item: (item) => {
            history.recordListItem(item);
            const key = objects.putListItem(item);
            if (key !== undefined) present.add(key);
          },
        },
      );
    } catch (error) {
      // The rest of the pages expired: too slow for pages, as client-go sees it.
      if (error instanceof ApiError && error.isExpired) this.#usePages = false;
      throw error;
    }
    objects.retainOnly(present);
    this.#usePages = true;
    return version;
  }

  /**
   * Reads a list as it comes.
   * @param take.page says whether the page after this one is to be read, too.
   */
  async #read(
    session: Session,
    { path, query, form }: ListRequest,
    take: { page(metadata: ListMetadata): boolean; item(item: unknown): void },
  ): Promise<void> {
    let next = '';
    do {
      const page = next === '' ? query : { ...query, continue: next };
      next = '';
      for await (const part of session.list(path, page, form)) {
        if ('item' in part) {
          take.item(part.item);
          continue;
        }
        expectList(this.#options.resource.kind, part.metadata, form);
        if (take.page(part.metadata)) next = part.metadata.continue;
      }
    } while (next !== '');
  }

  /** Before anything of a list is taken. */
  #checkList(metadata: ListMetadata, isFirstPage: boolean): void {
    const { history, onEtcdRestored: onOtherHistory } = this.#options;
    const { resourceVersion } = metadata;
    const isStale = isOlder(resourceVersion, history.position.version);
    if (isFirstPage || isStale) history.recordResponse(isStale);
    if (isStale && !history.isRestored) throw this.#staleResponse(resourceVersion);
    if (isStale) {
      history.reset();
      onOtherHistory();
    }
    if (isFirstPage || isStale) history.startList(resourceVersion);
  }

  #staleResponse(version: string): StaleResponse {
    const { position, staleResponses: olderAnswers } = this.#options.history;
    return new StaleResponse(version, position.version, olderAnswers);
  }
}

/** @throws MalformedAnswer for a list of something else. */
export function expectList(kind: Kind, metadata: ListMetadata, form?: ListRequest['form']): void {
  // Some may not know how to leave out the rest of the objects.
  if (form === 'metadata' && metadata.kind === 'PartialObjectMetadataList') return;
  if (metadata.kind === `${kind}List`) return;
  throw new MalformedResponse(`API server: ${metadata.kind} is no ${kind}List`);
}

/**
 * The cheapest request that tells the server's version, and what the object that changed last is now.
 * Without a `resourceVersion` the answer is as new as etcd. A single name in a single namespace is
 * one key to read, where a field selector over all namespaces would look at each object.
 */
export function historyCheckRequest(
  path: string,
  selectors: QueryParameters,
  lastChange: LastChange | undefined,
): ListRequest {
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
  selectors: QueryParameters,
  from: string,
  { random }: Pick<RetryClock, 'random'>,
): QueryParameters {
  return {
    ...selectors,
    watch: 'true',
    allowWatchBookmarks: 'true',
    resourceVersion: from,
    timeoutSeconds: String(Math.floor(WATCH_SECONDS * (1 + random()))),
  };
}
