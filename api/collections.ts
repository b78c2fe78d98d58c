/** Small helpers for maps, sorted text and lists that are kept for long. */
/** The value of a key, made on first use. */
export function getOrCreate<Key, Value>(
  map: { get(key: Key): Value | undefined; set(key: Key, value: Value): unknown },
  key: Key,
  create: () => Value,
): Value {
  let value = map.get(key);
  if (value === undefined) {
    value = create();
    map.set(key, value);
  }
  return value;
}

/** Puts an entry last in a map of at most `most`, of which the first ones go: those not set for the longest time. */
export function lruSet<Key, Value>(
  map: Map<Key, Value>,
  key: Key,
  value: Value,
  most: number,
): void {
  map.delete(key);
  map.set(key, value);
  const [first] = map.keys();
  if (map.size > most && first !== undefined) map.delete(first);
}

/** Orders text by code unit, the same on every machine. */
export function compareText(a: string, b: string): number {
  if (a === b) return 0;
  return a < b ? -1 : 1;
}

const EMPTY_LIST: readonly never[] = [];

/**
 * A list to be kept for long, in as little memory as it takes: lists that were pushed to have room for
 * 17 members, and there is one of none for all.
 */
export function trimmedCopy<T>(list: readonly T[]): readonly T[] {
  return list.length === 0 ? EMPTY_LIST : list.slice();
}
