/**
 * Domain name patterns: `www.example.com`, or `*.example.com` for all subdomains of example.com.
 */

/**
 * Removes the final dot and converts ASCII letters to lower case, for comparison. `toLowerCase` on
 * the whole name would map the Kelvin sign (U+212A) to `k`.
 */
export function normalizeName(text: string): string {
  const plain = text.endsWith('.') ? text.slice(0, -1) : text;
  return plain.replaceAll(/[A-Z]+/g, (letters) => letters.toLowerCase());
}

/** A map from patterns to values. Matching a name takes one lookup for each of its labels. */
export class NamePatterns<T> {
  readonly #exact = new Map<string, T>();
  /** Keyed by the part after `*.`. */
  readonly #wildcards = new Map<string, T>();

  constructor(entries: Iterable<readonly [pattern: string, value: T]> = []) {
    for (const [pattern, value] of entries) this.set(pattern, value);
  }

  get size(): number {
    return this.#exact.size + this.#wildcards.size;
  }

  get(pattern: string): T | undefined {
    const { map, key } = this.#slot(pattern);
    return map.get(key);
  }

  set(pattern: string, value: T): void {
    const { map, key } = this.#slot(pattern);
    map.set(key, value);
  }

  /** Values of all patterns that match a name, the most specific pattern first. */
  *match(name: string): Generator<T> {
    const plain = normalizeName(name);
    const exact = this.#exact.get(plain);
    if (exact !== undefined) yield exact;
    // The asterisk stands for one or more labels, so `*.example.com` does not match `example.com`.
    for (let dot = plain.indexOf('.', 1); dot !== -1; dot = plain.indexOf('.', dot + 1)) {
      const wildcard = this.#wildcards.get(plain.slice(dot + 1));
      if (wildcard !== undefined) yield wildcard;
    }
  }

  matches(name: string): boolean {
    return this.match(name).next().done !== true;
  }

  #slot(pattern: string): { map: Map<string, T>; key: string } {
    const plain = normalizeName(pattern);
    return plain.startsWith('*.')
      ? { map: this.#wildcards, key: plain.slice(2) }
      : { map: this.#exact, key: plain };
  }
}
