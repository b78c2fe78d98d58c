/** Equal texts of many objects, kept once. */
const known = new Map<string, string>();
/** A cluster has fewer names of nodes, and values of labels that several objects have. */
const MAX_INTERNED = 20_000;

/**
 * One and the same text for equal ones: a large cluster has the name of each node in hundreds of
 * endpoints and pods, and the same labels on pods by the hundred.
 */
export function intern(text: string): string {
  const first = known.get(text);
  if (first !== undefined) return first;
  // Objects come and go; what is lost is but the sharing.
  if (known.size >= MAX_INTERNED) known.clear();
  known.set(text, text);
  return text;
}
