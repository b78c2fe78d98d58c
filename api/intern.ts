/** Interns strings: equal strings of many objects share one instance in memory. */
const known = new Map<string, string>();
/** More than a cluster's node names and repeated label values. */
const MAX_INTERNED = 20_000;

/**
 * Returns one instance for equal strings. In a large cluster each node name occurs in hundreds of
 * endpoints and pods, and the same labels on hundreds of pods.
 */
export function intern(text: string): string {
  const first = known.get(text);
  if (first !== undefined) return first;
  // Clearing the cache only loses sharing; objects that still exist keep their strings.
  if (known.size >= MAX_INTERNED) known.clear();
  known.set(text, text);
  return text;
}
