/** Holds the objects of one kind and passes changes on to the sink. */
import { isDeepStrictEqual } from 'node:util';
import { InvalidObject } from '../../api/errors.ts';
import type { ApiObject, Kind, ObjectKey } from '../../api/objects.ts';
import { describeValue, isRecord } from '../../api/read-field.ts';
import { readIdentity, readObject, withListKind } from '../../api/read-object.ts';
import type { ObjectSink, SourceFault } from '../source.ts';
import { MalformedResponse } from './errors.ts';
import { metadataOf } from './metadata.ts';

/** Identifies an object that cannot be read. */
export interface UnreadableObject {
  readonly kind: Kind;
  readonly key: ObjectKey;
  /** Empty when the object has no uid. */
  readonly uid: string;
}

/**
 * Called for an object that cannot be read; the last readable version of the object stays in force.
 * Called again when the reason changes, or when the object becomes unreadable again.
 * @param object undefined when the name cannot be read either. `OnProblem` is then called each time
 * the object is received.
 */
export type OnProblem = (problem: InvalidObject, object: UnreadableObject | undefined) => void;

export interface InformerStoreOptions {
  readonly kind: Kind;
  readonly sink: ObjectSink;
  readonly onProblem: OnProblem;
}

/** The objects of one kind that the sink has. Passes only changed objects to the sink. */
export class InformerStore {
  readonly #options: InformerStoreOptions;
  readonly #objects = new Map<ObjectKey, ApiObject>();
  /** Errors of objects that currently cannot be read. */
  readonly #unreadable = new Map<ObjectKey, InvalidObject>();

  constructor(options: InformerStoreOptions) {
    this.#options = options;
  }

  get size(): number {
    return this.#objects.size;
  }

  /** The objects that the sink has. */
  values(): Iterable<ApiObject> {
    return this.#objects.values();
  }

  /** Number of objects that currently cannot be read. */
  get unreadable(): number {
    return this.#unreadable.size;
  }

  /** The objects that currently cannot be read. */
  *faults(): Iterable<SourceFault> {
    for (const [key, { field, reason }] of this.#unreadable) {
      const inForce = this.#objects.has(key) ? 'last' : 'none';
      yield { object: `${this.#options.kind} ${key}`, message: `${field}: ${reason}`, inForce };
    }
  }

  /**
   * Stores an item of a list. List items have no kind; the list has the kind of all items.
   * @returns the object's key, if the key can be read.
   */
  putListItem(item: unknown): ObjectKey | undefined {
    const { kind, onProblem } = this.#options;
    if (isRecord(item)) return this.put(withListKind(kind, item));
    const reason = `must contain objects, not ${describeValue(item)}`;
    onProblem(new InvalidObject(kind, 'items', reason), undefined);
    return undefined;
  }

  /**
   * Stores an object. Removes an object that is not used, such as an EndpointSlice of no Service.
   * @returns the object's key, if the key can be read.
   * @throws MalformedResponse for an object of another kind.
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

  /** @throws MalformedResponse for an object of another kind. */
  remove(raw: unknown): void {
    const key = this.#keyOf(raw);
    if (key !== undefined) this.#drop(key);
  }

  /** The key of a list item, which may consist of metadata only. */
  keyOfListItem(item: unknown): ObjectKey | undefined {
    // Ignore errors: reading the complete object reports them.
    return isRecord(item)
      ? this.#keyOf(withListKind(this.#options.kind, item), () => {})
      : undefined;
  }

  /**
   * @param present keys of all objects in a complete list.
   * @returns the key of one known object that a complete list does not contain; undefined if the
   * list contains all known objects.
   */
  firstMissingFrom(present: ReadonlySet<ObjectKey>): ObjectKey | undefined {
    for (const known of [this.#objects, this.#unreadable]) {
      for (const key of known.keys()) if (!present.has(key)) return key;
    }
    return undefined;
  }

  /** Removes all objects that a complete list does not contain. */
  retainOnly(present: ReadonlySet<ObjectKey>): void {
    for (const known of [this.#objects, this.#unreadable]) {
      for (const key of known.keys()) if (!present.has(key)) this.#drop(key);
    }
  }

  /** @returns the object's key, if the key can be read. */
  #recordUnreadable(raw: unknown, problem: InvalidObject): ObjectKey | undefined {
    // Do not report the name again: `problem` already explains why the name cannot be read.
    const key = this.#keyOf(raw, () => {});
    if (key === undefined) {
      this.#options.onProblem(problem, undefined);
    } else if (this.#unreadable.get(key)?.message !== problem.message) {
      this.#unreadable.set(key, problem);
      this.#options.onProblem(problem, { kind: this.#options.kind, key, uid: uidOf(raw) });
    }
    return key;
  }

  #drop(key: ObjectKey): void {
    this.#unreadable.delete(key);
    if (this.#objects.delete(key)) this.#options.sink.remove(this.#options.kind, key);
  }

  /** @param report receives the error if the name cannot be read. */
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
    throw new MalformedResponse(`API server: object is not a ${kind}`);
  }
}

function uidOf(object: unknown): string {
  const { uid } = metadataOf(object);
  return typeof uid === 'string' ? uid : '';
}
