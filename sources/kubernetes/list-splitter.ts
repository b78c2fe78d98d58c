/** Parses a list response of the API server item by item as it arrives. */
import { isRecord } from '../../api/read-field.ts';
import { MalformedResponse } from './errors.ts';

/** Metadata of a list. */
export interface ListMetadata {
  /** Kind of the list, such as `ServiceList`. */
  readonly kind: string;
  readonly resourceVersion: string;
  /** Token for the next page; empty on the last page. */
  readonly continue: string;
}

/** A part of a list: first its metadata, then each item. */
export type ListPart = { readonly metadata: ListMetadata } | { readonly item: unknown };

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;
const OPEN_BRACKET = 0x5b;
const CLOSE_BRACKET = 0x5d;
/** Nesting depth inside the `items` array. */
const ITEMS_DEPTH = 2;
/** Advice for the operator on an invalid response. */
const CHECK_ADDRESS = 'check that the address belongs to an API server';
const BEFORE_ITEMS = /(?:^|[^\\])"items"\s*:\s*$/;

/**
 * Parses each item of a Kubernetes list by itself as soon as the item is complete. A list of
 * thousands of objects is therefore not held or parsed as a whole, even if the server does not
 * paginate. Only items that precede the metadata are held until the end.
 *
 *   {"kind":"ServiceList","metadata":{...},"items":[ {...} , {...} ]}
 *   '------------------- frame --------------------'  item    item  '-'
 */
export class ListSplitter {
  /** Text outside the items. */
  #frame: Buffer[] = [];
  /** Text of the current item. */
  #item: Buffer[] = [];
  #depth = 0;
  #inString = false;
  #escaped = false;
  #items: 'not started' | 'started' | 'ended' = 'not started';
  #itemCount = 0;
  #metadata: ListMetadata | undefined;
  /**
   * Items that precede the metadata. The API server sends the metadata first, but some proxies sort
   * the keys.
   */
  readonly #itemsBeforeMetadata: ListPart[] = [];

  /** @throws MalformedResponse */
  push(chunk: Buffer): ListPart[] {
    const parts: ListPart[] = [];
    // This loop visits every byte of tens of megabytes; local variables keep it fast.
    let depth = this.#depth;
    let inString = this.#inString;
    let escaped = this.#escaped;
    let start = 0;
    for (let at = 0; at < chunk.length; at++) {
      const code = chunk[at];
      if (inString) {
        if (escaped) escaped = false;
        else if (code === BACKSLASH) escaped = true;
        else if (code === QUOTE) inString = false;
      } else if (code === QUOTE) {
        inString = true;
      } else if (code === OPEN_BRACE || code === OPEN_BRACKET) {
        depth++;
        if (depth !== ITEMS_DEPTH || code !== OPEN_BRACKET) continue;
        if (!this.#beginItems(chunk.subarray(start, at + 1), parts)) continue;
        start = at + 1;
      } else if (code === CLOSE_BRACE || code === CLOSE_BRACKET) {
        depth--;
        if (depth !== ITEMS_DEPTH - 1 || this.#items !== 'started') continue;
        this.#endItem(chunk.subarray(start, at), parts);
        this.#items = 'ended';
        start = at;
      } else if (code === COMMA && depth === ITEMS_DEPTH && this.#items === 'started') {
        this.#endItem(chunk.subarray(start, at), parts);
        this.#itemCount++;
        start = at + 1;
      }
    }
    this.#depth = depth;
    this.#inString = inString;
    this.#escaped = escaped;
    (this.#items === 'started' ? this.#item : this.#frame).push(chunk.subarray(start));
    return parts;
  }

  /**
   * Ends the text and returns the remaining parts.
   * @throws MalformedResponse when the text is not a list.
   */
  end(): ListPart[] {
    const frame = parseJson(textOf(this.#frame));
    const metadata = metadataOf(frame);
    // Go may encode an empty list as null.
    const hasItems = this.#items === 'ended' || (isRecord(frame) && frame.items === null);
    if (metadata === undefined || !hasItems) throw notAList();
    return this.#metadata === undefined ? [{ metadata }, ...this.#itemsBeforeMetadata] : [];
  }

  /** @returns whether the bracket at the end of the text opens the `items` array. */
  #beginItems(text: Buffer, parts: ListPart[]): boolean {
    const frame = textOf([...this.#frame, text]);
    if (!BEFORE_ITEMS.test(frame.slice(0, -1))) return false;
    if (this.#items === 'ended') throw notAList();
    this.#frame.push(text);
    this.#items = 'started';
    this.#metadata = metadataOf(parseJson(`${frame}]}`));
    if (this.#metadata !== undefined) parts.push({ metadata: this.#metadata });
    return true;
  }

  #endItem(end: Buffer, parts: ListPart[]): void {
    const text = textOf([...this.#item, end]);
    this.#item = [];
    const isEmptyList = this.#itemCount === 0 && text.trim() === '';
    if (isEmptyList) return;
    (this.#metadata === undefined ? this.#itemsBeforeMetadata : parts).push({
      item: parseJson(text),
    });
  }
}

/** @returns undefined when the frame has no kind or no resource version. */
function metadataOf(frame: unknown): ListMetadata | undefined {
  if (!isRecord(frame) || !isRecord(frame.metadata)) return undefined;
  const { resourceVersion, continue: next } = frame.metadata;
  if (typeof frame.kind !== 'string') return undefined;
  if (typeof resourceVersion !== 'string' || resourceVersion === '') return undefined;
  return { kind: frame.kind, resourceVersion, continue: typeof next === 'string' ? next : '' };
}

function textOf(pieces: readonly Buffer[]): string {
  const [only] = pieces;
  return (pieces.length === 1 && only !== undefined ? only : Buffer.concat(pieces)).toString();
}

function notAList(): MalformedResponse {
  return new MalformedResponse(`API server: response is not a Kubernetes list; ${CHECK_ADDRESS}`);
}

/** @throws MalformedResponse for invalid JSON. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new MalformedResponse(`API server: response is not JSON; ${CHECK_ADDRESS}`, { cause });
  }
}
