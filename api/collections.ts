/** Helpers for maps, sorting and long-lived lists. */
/** Returns the value of a key, creating it on first use. */
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

/** Sets the list of a key. An empty list deletes the key. */
export function setList<Key, Value>(
  map: Map<Key, readonly Value[]>,
  key: Key,
  list: readonly Value[],
): void {
  if (list.length > 0) map.set(key, list);
  else map.delete(key);
}

/**
 * Sets an entry of an LRU map. If the map then has more than `maxEntries` entries, evicts the least
 * recently set entry.
 */
export function setLruEntry<Key, Value>(
  map: Map<Key, Value>,
  key: Key,
  value: Value,
  maxEntries: number,
): void {
  map.delete(key);
  map.set(key, value);
  const [first] = map.keys();
  if (map.size > maxEntries && first !== undefined) map.delete(first);
}

/** Orders text by code unit, independent of locale. */
export function compareText(a: string, b: string): number {
  if (a === b) return 0;
  return a < b ? -1 : 1;
}

const EMPTY_LIST: readonly never[] = [];

/**
 * Copies a list without spare capacity, for lists with a long lifetime. V8 reserves memory for 17
 * elements in an array built with `push`. All empty lists share one instance.
 */
export function trimmedCopy<T>(list: readonly T[]): readonly T[] {
  return list.length === 0 ? EMPTY_LIST : list.slice();
}
