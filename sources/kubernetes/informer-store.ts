/** The objects of one kind that the API server told of, and what changes in them. */
import { isDeepStrictEqual } from 'node:util';
import { InvalidObject } from '../../api/errors.ts';
import type { ApiObject, Kind, ObjectKey } from '../../api/objects.ts';
import { describeValue, isRecord } from '../../api/read-field.ts';
import { readIdentity, readObject, withListKind } from '../../api/read-object.ts';
import type { ObjectSink } from '../source.ts';
import { MalformedResponse } from './errors.ts';
import { metadataOf } from './metadata.ts';

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

export interface InformerStoreOptions {
  readonly kind: Kind;
  readonly sink: ObjectSink;
  readonly onProblem: OnProblem;
}

/** The objects of one kind that the sink has. Hands on only what differs. */
export class InformerStore {
  readonly #options: InformerStoreOptions;
  readonly #objects = new Map<ObjectKey, ApiObject>();
  /** What cannot be read as it is now, and why. */
  readonly #unreadable = new Map<ObjectKey, string>();

  constructor(options: InformerStoreOptions) {
    this.#options = options;
  }

  get size(): number {
    return this.#objects.size;
  }

  /** How many objects cannot be read as they are now. */
  get unreadable(): number {
    return this.#unreadable.size;
  }

  /**
   * Takes an item of a list, which does not say its own kind.
   * @returns the object's key, as far as it has one.
   */
  putListItem(item: unknown): ObjectKey | undefined {
    const { kind, onProblem } = this.#options;
    if (isRecord(item)) return this.put(withListKind(kind, item));
    const reason = `must be objects, not ${describeValue(item)}`;
    onProblem(new InvalidObject(kind, 'items', reason), undefined);
    return undefined;
  }

  /**
   * @returns the object's key, as far as it has one.
   * @throws MalformedAnswer for an object of another kind.
   */
  put(raw: unknown): ObjectKey | undefined {
    let object: ApiObject | undefined;
    try {
      object = readObject(raw, [this.#options.kind]);
    } catch (error) {
      if (!(error instanceof InvalidObject)) throw error;
      return this.#recordUnreadable(raw, error);
    }
    if (object === undefined) {
      const key = this.#keyOf(raw);
      if (key !== undefined) this.#drop(key);
      return key;
    }
    this.#unreadable.delete(object.key);
    if (!isDeepStrictEqual(this.#objects.get(object.key), object)) {
      this.#objects.set(object.key, object);
      this.#options.sink.upsert(object);
    }
    return object.key;
  }

  /** @throws MalformedAnswer for an object of another kind. */
  remove(raw: unknown): void {
    const key = this.#keyOf(raw);
    if (key !== undefined) this.#drop(key);
  }

  /** The key of an item of a list, of which no more than the metadata need be there. */
  keyOfListItem(item: unknown): ObjectKey | undefined {
    // Whoever reads the whole object reports what is wrong with it.
    return isRecord(item)
      ? this.#keyOf(withListKind(this.#options.kind, item), () => {})
      : undefined;
  }

  /** @returns one of the objects that are not among the keys of a complete list. */
  firstMissingFrom(present: ReadonlySet<ObjectKey>): ObjectKey | undefined {
    for (const known of [this.#objects, this.#unreadable]) {
      for (const key of known.keys()) if (!present.has(key)) return key;
    }
    return undefined;
  }

  /** Removes what is not among the keys of a complete list. */
  retainOnly(present: ReadonlySet<ObjectKey>): void {
    for (const known of [this.#objects, this.#unreadable]) {
      for (const key of known.keys()) if (!present.has(key)) this.#drop(key);
    }
  }

  /** @returns the object's key, as far as it has one. */
  #recordUnreadable(raw: unknown, problem: InvalidObject): ObjectKey | undefined {
    // Why it cannot be named is part of the problem.
    const key = this.#keyOf(raw, () => {});
    if (key === undefined) {
      this.#options.onProblem(problem, undefined);
    } else if (this.#unreadable.get(key) !== problem.message) {
      this.#unreadable.set(key, problem.message);
      this.#options.onProblem(problem, { kind: this.#options.kind, key, uid: uidOf(raw) });
    }
    return key;
  }

  #drop(key: ObjectKey): void {
    this.#unreadable.delete(key);
    if (this.#objects.delete(key)) this.#options.sink.remove(this.#options.kind, key);
  }

  /** @param report is told of an object that cannot even be named. */
  #keyOf(raw: unknown, report = this.#options.onProblem): ObjectKey | undefined {
    const { kind } = this.#options;
    try {
      const identity = readIdentity(raw, [kind]);
      if (identity !== undefined) return identity.key;
    } catch (error) {
      if (!(error instanceof InvalidObject)) throw error;
      report(error, undefined);
      return undefined;
    }
    throw new MalformedResponse(`API server: not a ${kind}`);
  }
}

function uidOf(object: unknown): string {
  const { uid } = metadataOf(object);
  return typeof uid === 'string' ? uid : '';
}
