import type { Query } from './query.ts';
import type { EncodedAnswer } from './response.ts';

/** So that names that anybody may think of take no more than some ten megabytes. */
const MAX_ENTRIES = 10_000;
/** Bytes; of an answer that does not go by UDP at once, encoding is the least. */
const MAX_LENGTH = 1232;

/** Encoded answers, by what was asked, as long as the records are the same. */
export class AnswerCache {
  readonly #maxEntries: number;
  readonly #answers = new Map<string, EncodedAnswer>();
  #serial: number | undefined;

  constructor(maxEntries = MAX_ENTRIES) {
    this.#maxEntries = maxEntries;
  }

  get size(): number {
    return this.#answers.size;
  }

  /** @param serial of the zone, now. */
  get(query: Query, serial: number): EncodedAnswer | undefined {
    if (serial === this.#serial) return this.#answers.get(keyOf(query));
    this.#answers.clear();
    this.#serial = serial;
    return undefined;
  }

  /** Keeps what `get` did not find. The oldest makes room. */
  set(query: Query, answer: EncodedAnswer): void {
    if (answer.bytes.length > MAX_LENGTH) return;
    if (this.#answers.size >= this.#maxEntries) {
      for (const oldest of this.#answers.keys()) {
        this.#answers.delete(oldest);
        break;
      }
    }
    this.#answers.set(keyOf(query), answer);
  }
}

function keyOf({ type, name }: Query): string {
  return `${type} ${name}`;
}
