/** Patterns of domain names: `www.example.com`, or `*.example.com` for what is below it. */

/** As patterns and names are compared: without the final dot, ASCII letters in lower case. */
export function normalizeName(text: string): string {
  const plain = text.endsWith('.') ? text.slice(0, -1) : text;
  return plain.replaceAll(/[A-Z]+/g, (letters) => letters.toLowerCase());
}

/** What belongs to patterns, found by a name in a step for each of its labels. */
export class NamePatterns<T> {
  readonly #exact = new Map<string, T>();
  /** By what comes after `*.`. */
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

  /** What belongs to the patterns that a name matches; of the closest one first. */
  *match(name: string): Generator<T> {
    const plain = normalizeName(name);
    const exact = this.#exact.get(plain);
    if (exact !== undefined) yield exact;
    // The apex is not below itself, and one label or more stand for the asterisk.
    for (let dot = plain.indexOf('.', 1); dot !== -1; dot = plain.indexOf('.', dot + 1)) {
      const below = this.#wildcards.get(plain.slice(dot + 1));
      if (below !== undefined) yield below;
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
