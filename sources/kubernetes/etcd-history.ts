/** Whether the API server still has the history that was followed, or etcd was restored. */
import type { ObjectKey } from '../../api/objects.ts';
import { isOlder, metadataOf, resourceVersionOf } from './metadata.ts';

/** The object that changed last, as far as the agent was told. */
export interface LastChange {
  /** Empty for what has no namespace. */
  readonly namespace: string;
  readonly name: string;
  /** Its resource version; undefined when the change was that it was deleted, or stopped to match. */
  readonly version: string | undefined;
}

/** What the agent knows of the server's history of one resource. */
export interface HistoryPosition {
  /** The last resource version that the server told; empty before the first. */
  readonly version: string;
  readonly lastChange: LastChange | undefined;
}

/** What the server says when it is asked for the object that changed last. */
export interface ServerState {
  /** Resource version of the answer, which is that of all of etcd. */
  readonly version: string;
  /** The object's resource version; undefined when the server has no such object. */
  readonly lastChange: string | undefined;
  /** Key of an object that has changed since, or was deleted, as far as was looked. */
  readonly changed: ObjectKey | undefined;
}

/**
 * - `same`: the server still has the history that the agent followed.
 * - `older`: the server is at an older version than the agent. Either etcd was restored from a
 *   snapshot, or this API server lags behind.
 * - `other`: etcd was restored, and has been written to until its version was ahead again.
 * - `gone`: the object that changed last is not there. Either it was deleted since, which a watch from
 *   the agent's version tells; or etcd was restored from a snapshot that did not have it.
 */
export type HistoryComparison = 'same' | 'older' | 'other' | 'gone';

/**
 * Compares the server's history with the one that was followed.
 *
 * This cannot tell a history whose versions are ahead again, and in which the very object that changed
 * last was changed once more.
 *
 * A watch cannot tell that etcd was restored from a snapshot: a kube-apiserver takes a watch from a
 * version of the future, sends neither events nor bookmarks until etcd is past that version, and
 * then goes on as if nothing had been missed. Versions of one etcd can be compared (KEP-5504).
 */
function compareHistory(known: HistoryPosition, present: ServerState): HistoryComparison {
  if (isOlder(present.version, known.version)) return 'older';
  if (known.lastChange === undefined) return 'same';
  const version = present.lastChange;
  if (version === known.lastChange.version) return 'same';
  if (version === undefined) return 'gone';
  // It may have changed since, which a watch tells.
  return isOlder(known.version, version) ? 'same' : 'other';
}

/** The object that changed last is gone. A watch has to tell that it was deleted, or it was never there. */
export interface UnconfirmedDeletion {
  readonly about: LastChange;
  /** The resource version at which it was gone: a watch that is past it does not tell any more. */
  readonly goneAt: string;
}

/** So many answers in a row that are older than what was seen are the truth: etcd was restored. */
const STALE_RESPONSE_LIMIT = 3;

/** Follows the server's history of one resource. */
export class EtcdHistory {
  #version = '';
  #lastChange: LastChange | undefined;
  #staleResponses = 0;
  #unconfirmedDeletion: UnconfirmedDeletion | undefined;
  #undeliveredChange: ObjectKey | undefined;

  /** Whether a watch from the last version has to show that this history is still the server's. */
  get hasUnconfirmedDeletion(): boolean {
    return this.#unconfirmedDeletion !== undefined;
  }

  /** Key of an object that has changed on the server, of which a watch has not told yet. */
  get undeliveredChange(): ObjectKey | undefined {
    return this.#undeliveredChange;
  }

  get position(): HistoryPosition {
    return { version: this.#version, lastChange: this.#lastChange };
  }

  /** Answers in a row that were older than what was seen. */
  get staleResponses(): number {
    return this.#staleResponses;
  }

  /** Whether the answers so far prove that etcd was restored. One alone may come from a server that lags. */
  get isRestored(): boolean {
    return this.#staleResponses >= STALE_RESPONSE_LIMIT;
  }

  /**
   * Compares the history with what the server says of it.
   * @param known what was known when the server was asked.
   */
  compare(known: HistoryPosition, present: ServerState): HistoryComparison {
    const verdict = compareHistory(known, present);
    this.recordResponse(verdict === 'older');
    const { lastChange: about } = known;
    // A watch may have told meanwhile what has become of the object.
    const isGone = verdict === 'gone' && about !== undefined && about === this.#lastChange;
    this.#unconfirmedDeletion = isGone ? { about, goneAt: present.version } : undefined;
    const hasTold = this.#version !== known.version;
    this.#undeliveredChange = hasTold ? undefined : present.changed;
    return verdict;
  }

  /** Records whether what the server said was older than what was seen. */
  recordResponse(isOlderAnswer: boolean): void {
    this.#staleResponses = isOlderAnswer ? this.#staleResponses + 1 : 0;
  }

  /** A list begins: what was followed before does not count any more. */
  startList(version: string): void {
    this.#version = version;
    this.#lastChange = undefined;
    this.#unconfirmedDeletion = undefined;
    this.#undeliveredChange = undefined;
  }

  /** An object of the list that has begun. */
  recordListItem(item: unknown): void {
    const version = resourceVersionOf(item);
    if (this.#lastChange === undefined || isOlder(this.#lastChange.version ?? '', version)) {
      this.#lastChange = toLastChange(item, version);
    }
  }

  /**
   * An event of a watch, in the order of versions.
   * @returns false when it proves that the server has another history.
   */
  recordEvent(type: string, object: unknown, version: string): boolean {
    this.#version = version;
    this.#undeliveredChange = undefined;
    const doubt = this.#unconfirmedDeletion;
    if (type !== 'BOOKMARK') {
      const change = toLastChange(object, type === 'DELETED' ? undefined : version);
      this.#lastChange = change;
      if (doubt !== undefined && isSameObject(change, doubt.about)) this.#unconfirmedDeletion = undefined;
    }
    return this.#unconfirmedDeletion === undefined || !isOlder(this.#unconfirmedDeletion.goneAt, version);
  }

  /** The history that was followed has ended; any other is as good. */
  reset(): void {
    this.startList('');
    this.#staleResponses = 0;
  }
}

/** Whether this is the object that changed last. */
export function isLastChange(lastChange: LastChange | undefined, object: unknown): boolean {
  return lastChange !== undefined && isSameObject(toLastChange(object, undefined), lastChange);
}

function isSameObject(change: LastChange | undefined, other: LastChange): boolean {
  return change?.namespace === other.namespace && change.name === other.name;
}

/** @returns undefined for an object without a name, which cannot be asked for. */
function toLastChange(object: unknown, version: string | undefined): LastChange | undefined {
  const { namespace, name } = metadataOf(object);
  if (typeof name !== 'string' || name === '' || version === '') return undefined;
  return { namespace: typeof namespace === 'string' ? namespace : '', name, version };
}
