/** Lists one resource, and checks whether a relist is needed. */
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
  /** Called when the known objects are confirmed to match the server. */
  readonly onUpToDate: () => void;
  /** Called when etcd was restored from a snapshot, which invalidates the known history. */
  readonly onEtcdRestored: () => void;
}

interface ListRequest {
  readonly path: string;
  readonly query: QueryParameters;
  readonly form?: 'objects' | 'metadata';
}

const PAGE_SIZE = '500';
/** Minimum seconds that a watch lasts. With jitter it lasts 5 to 10 minutes, as in client-go. */
const WATCH_SECONDS = 300;

/** Lists one resource, and checks whether a relist is needed. */
export class Lister {
  readonly #options: ListerOptions;
  #usePages = true;

  constructor(options: ListerOptions) {
    this.#options = options;
  }

  /**
   * Checks whether the server still has the known history, and whether an object has changed whose
   * event the watch has not delivered (`history.undeliveredChange`).
   * @param scope `all` compares every object, `last change` only the object that changed last.
   * @returns false when a relist is needed.
   * @throws StaleResponse when the server's version is older than the known version, until enough
   * consecutive stale responses prove that etcd was restored.
   */
  async checkHistory(
    session: Session,
    path: string,
    scope: 'all' | 'last change',
  ): Promise<boolean> {
    const { history, onUpToDate, onEtcdRestored } = this.#options;
    const known = history.position;
    const present = await this.#readServerState(session, path, known, scope);
    const verdict = history.compare(known, present);
    // Do not report "up to date" while a change is still undelivered: the watch may be stalled.
    if (verdict === 'same' && present.changed === undefined) onUpToDate();
    if (verdict === 'older' && !history.isRestored) throw this.#staleResponse(present.version);
    if (verdict === 'other') onEtcdRestored();
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
   * Reads a complete list page by page, then removes objects that the list does not contain.
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
      // The continue token expired before the last page. As in client-go, retry without pagination.
      if (error instanceof ApiError && error.isExpired) this.#usePages = false;
      throw error;
    }
    objects.retainOnly(present);
    this.#usePages = true;
    return version;
  }

  /**
   * Reads a list and passes on its parts as they arrive.
   * @param take.page returns whether to read the next page, too.
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

  /**
   * Checks the version of a page before any of its items is used.
   * @throws StaleResponse, as `checkHistory` does.
   */
  #checkList(metadata: ListMetadata, isFirstPage: boolean): void {
    const { history, onEtcdRestored } = this.#options;
    const { resourceVersion } = metadata;
    const isStale = isOlder(resourceVersion, history.position.version);
    if (isFirstPage || isStale) history.recordResponse(isStale);
    if (isStale && !history.isRestored) throw this.#staleResponse(resourceVersion);
    if (isStale) {
      history.reset();
      onEtcdRestored();
    }
    if (isFirstPage || isStale) history.startList(resourceVersion);
  }

  #staleResponse(version: string): StaleResponse {
    const { position, staleResponses } = this.#options.history;
    return new StaleResponse(version, position.version, staleResponses);
  }
}

/** @throws MalformedResponse for a list of another kind. */
export function expectList(kind: Kind, metadata: ListMetadata, form?: ListRequest['form']): void {
  // A server that does not support PartialObjectMetadataList sends complete objects.
  if (form === 'metadata' && metadata.kind === 'PartialObjectMetadataList') return;
  if (metadata.kind === `${kind}List`) return;
  throw new MalformedResponse(`API server: expected a ${kind}List, got ${metadata.kind}`);
}

/**
 * Builds the cheapest request that returns the server's version and the current state of the object
 * that changed last. Without `resourceVersion` the response is as recent as etcd. One name in one
 * namespace reads a single key; a field selector over all namespaces would scan every object.
 */
export function historyCheckRequest(
  path: string,
  selectors: QueryParameters,
  lastChange: LastChange | undefined,
): ListRequest {
  if (lastChange === undefined) return { path, query: { ...selectors, limit: '1' } };
  const { namespace, name } = lastChange;
  const slash = path.lastIndexOf('/');
  const isInNamespace = namespace === '' || path.includes('/namespaces/');
  const inNamespace = `${path.slice(0, slash)}/namespaces/${namespace}${path.slice(slash)}`;
  const byName = `metadata.name=${name}`;
  const { fieldSelector = byName } = selectors;
  const terms = new Set([...fieldSelector.split(','), byName]);
  return {
    path: isInNamespace ? path : inNamespace,
    query: { ...selectors, fieldSelector: [...terms].join(','), limit: '1' },
  };
}

/**
 * Builds the query parameters of a watch.
 * @param from The watch delivers changes after this resource version.
 */
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
