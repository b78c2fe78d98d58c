/** Detects that etcd was restored from a snapshot, which invalidates the known history. */
import type { ObjectKey } from '../../api/objects.ts';
import { isOlder, metadataOf, resourceVersionOf } from './metadata.ts';

/** The object of the last known change. */
export interface LastChange {
  /** Empty for a cluster-scoped object. */
  readonly namespace: string;
  readonly name: string;
  /**
   * Resource version of the object; undefined when the object was deleted or stopped matching the
   * selector.
   */
  readonly version: string | undefined;
}

/** The point up to which the agent knows the server's history of one resource. */
export interface HistoryPosition {
  /** The last resource version received; empty before the first response. */
  readonly version: string;
  readonly lastChange: LastChange | undefined;
}

/** The server's state, read together with the object that changed last. */
export interface ServerState {
  /** Resource version of the response; it applies to the whole etcd. */
  readonly version: string;
  /** Resource version of the object that changed last; undefined if the server does not have it. */
  readonly lastChange: string | undefined;
  /** Key of an object that was changed or deleted after the known version; undefined if none. */
  readonly changed: ObjectKey | undefined;
}

/**
 * - `same`: the server still has the history that the agent followed.
 * - `older`: the server's resource version is older than the agent's. Either etcd was restored from
 *   a snapshot, or this API server lags behind.
 * - `other`: etcd was restored, and its resource version has already overtaken the agent's.
 * - `gone`: the object that changed last does not exist. Either the object was deleted, and a watch
 *   from the agent's version delivers the deletion, or the object is newer than the restored
 *   snapshot.
 */
export type HistoryComparison = 'same' | 'older' | 'other' | 'gone';

/**
 * Compares the server's state with the known history.
 *
 * A watch cannot show that etcd was restored from a snapshot. A kube-apiserver accepts a watch from
 * a future version, sends neither events nor bookmarks until etcd is past that version, and then
 * continues as if nothing were missing. Resource versions of one etcd can be compared (KEP-5504).
 *
 * One case is not detected: the restored etcd is ahead of the known version, and the object that
 * changed last was changed again after the restore.
 */
function compareHistory(known: HistoryPosition, present: ServerState): HistoryComparison {
  if (isOlder(present.version, known.version)) return 'older';
  if (known.lastChange === undefined) return 'same';
  const version = present.lastChange;
  if (version === known.lastChange.version) return 'same';
  if (version === undefined) return 'gone';
  // The watch delivers changes after the known version.
  return isOlder(known.version, version) ? 'same' : 'other';
}

/**
 * The object that changed last is missing. Either a watch delivers its DELETED event, or etcd was
 * restored.
 */
export interface UnconfirmedDeletion {
  readonly about: LastChange;
  /**
   * The resource version at which the object was missing: a watch past this version can no longer
   * deliver the DELETED event.
   */
  readonly missingAt: string;
}

/** After this many consecutive stale responses, etcd is assumed to be restored. */
const STALE_RESPONSE_LIMIT = 3;

/** Tracks the server's history of one resource. */
export class EtcdHistory {
  #version = '';
  #lastChange: LastChange | undefined;
  #staleResponses = 0;
  #unconfirmedDeletion: UnconfirmedDeletion | undefined;
  #undeliveredChange: ObjectKey | undefined;

  /**
   * Whether a watch from the last version must still deliver the DELETED event of the object that
   * changed last.
   */
  get hasUnconfirmedDeletion(): boolean {
    return this.#unconfirmedDeletion !== undefined;
  }

  /**
   * Key of an object that changed on the server and whose event the watch has not delivered yet.
   */
  get undeliveredChange(): ObjectKey | undefined {
    return this.#undeliveredChange;
  }

  get position(): HistoryPosition {
    return { version: this.#version, lastChange: this.#lastChange };
  }

  /** Number of consecutive stale responses. */
  get staleResponses(): number {
    return this.#staleResponses;
  }

  /**
   * Whether the stale responses prove that etcd was restored. A single stale response may come from
   * a lagging API server.
   */
  get isRestored(): boolean {
    return this.#staleResponses >= STALE_RESPONSE_LIMIT;
  }

  /**
   * Compares the known history with the server's state, and records the result.
   * @param known the position when the request was sent.
   */
  compare(known: HistoryPosition, present: ServerState): HistoryComparison {
    const comparison = compareHistory(known, present);
    this.recordResponse(comparison === 'older');
    const { lastChange: about } = known;
    // A watch may have delivered the event of the object during the check.
    const isMissing = comparison === 'gone' && about !== undefined && about === this.#lastChange;
    this.#unconfirmedDeletion = isMissing ? { about, missingAt: present.version } : undefined;
    const hasNewEvents = this.#version !== known.version;
    this.#undeliveredChange = hasNewEvents ? undefined : present.changed;
    return comparison;
  }

  /** Counts a response as stale or current. */
  recordResponse(isStale: boolean): void {
    this.#staleResponses = isStale ? this.#staleResponses + 1 : 0;
  }

  /** A list begins and replaces the known position. */
  startList(version: string): void {
    this.#version = version;
    this.#lastChange = undefined;
    this.#unconfirmedDeletion = undefined;
    this.#undeliveredChange = undefined;
  }

  /** Records an item of the current list. */
  recordListItem(item: unknown): void {
    const version = resourceVersionOf(item);
    if (this.#lastChange === undefined || isOlder(this.#lastChange.version ?? '', version)) {
      this.#lastChange = toLastChange(item, version);
    }
  }

  /**
   * Records a watch event; events arrive in the order of their versions.
   * @returns false when the event proves that etcd was restored.
   */
  recordEvent(type: string, object: unknown, version: string): boolean {
    this.#version = version;
    this.#undeliveredChange = undefined;
    const pending = this.#unconfirmedDeletion;
    if (type !== 'BOOKMARK') {
      const change = toLastChange(object, type === 'DELETED' ? undefined : version);
      this.#lastChange = change;
      if (pending !== undefined && isSameObject(change, pending.about))
        this.#unconfirmedDeletion = undefined;
    }
    return (
      this.#unconfirmedDeletion === undefined ||
      !isOlder(this.#unconfirmedDeletion.missingAt, version)
    );
  }

  /** Forgets the known history; the next list starts a new history. */
  reset(): void {
    this.startList('');
    this.#staleResponses = 0;
  }
}

/** Whether an object is the object that changed last. */
export function isLastChange(lastChange: LastChange | undefined, object: unknown): boolean {
  return lastChange !== undefined && isSameObject(toLastChange(object, undefined), lastChange);
}

function isSameObject(change: LastChange | undefined, other: LastChange): boolean {
  return change?.namespace === other.namespace && change.name === other.name;
}

/**
 * @param version empty when the object has no resource version; undefined for a deleted object.
 * @returns undefined for an object without a name or resource version.
 */
function toLastChange(object: unknown, version: string | undefined): LastChange | undefined {
  const { namespace, name } = metadataOf(object);
  if (typeof name !== 'string' || name === '' || version === '') return undefined;
  return { namespace: typeof namespace === 'string' ? namespace : '', name, version };
}
