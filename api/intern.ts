/** Interns strings: equal strings of many objects share one instance in memory. */
const known = new Map<string, string>();
/**
 * Upper bound on interned strings. Most clusters have fewer distinct node names and label values.
 */
const MAX_INTERNED = 20_000;

/**
 * Returns one instance for equal strings. In a large cluster each node name occurs in hundreds of
 * endpoints and pods, and many label values occur on hundreds of pods.
 */
export function intern(text: string): string {
  const first = known.get(text);
  if (first !== undefined) return first;
  // Clearing the cache only ends sharing with later strings; existing objects keep their strings.
  if (known.size >= MAX_INTERNED) known.clear();
  known.set(text, text);
  return text;
}
