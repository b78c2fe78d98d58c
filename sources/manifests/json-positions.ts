/**
 * Finds line numbers in JSON text, which `JSON.parse` does not report. Lines are counted from 1.
 */
export interface JsonPositions {
  /** The line on which the top-level object or array starts; 1 for any other value. */
  readonly line: number;
  /** The line on which each value in the top-level `items` starts. */
  readonly itemLines: readonly number[];
  /** The first repeated key of an object; `JSON.parse` would use its last value. */
  readonly duplicate: { readonly key: string; readonly line: number } | undefined;
}

interface Frame {
  /** The keys seen so far; undefined in an array. */
  readonly keys: Set<string> | undefined;
  readonly isItems: boolean;
  lastKey: string;
  atKey: boolean;
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const CLOSING_BRACKET = 0x5d;
/** Tab, line feed, carriage return and space (RFC 8259, section 2). */
const WHITE_SPACE = new Set([0x09, 0x0a, 0x0d, 0x20]);

/** @param text JSON that `JSON.parse` accepts; for other text the result is meaningless. */
export function jsonPositions(text: string): JsonPositions {
  const stack: Frame[] = [];
  const itemLines: number[] = [];
  let duplicate: JsonPositions['duplicate'];
  let line = 1;
  let firstLine = 0;
  let isBeforeItem = false;
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    const top = stack.at(-1);
    if (isBeforeItem && !WHITE_SPACE.has(code) && code !== CLOSING_BRACKET) {
      itemLines.push(line);
      isBeforeItem = false;
    }
    if (code === QUOTE) {
      const end = endOfString(text, at);
      if (top?.keys !== undefined && top.atKey) {
        const key = keyOf(text.slice(at, end + 1));
        if (top.keys.has(key)) duplicate ??= { key, line };
        top.keys.add(key);
        top.lastKey = key;
        top.atKey = false;
      }
      at = end;
    } else if (code === 0x7b /* { */ || code === 0x5b /* [ */) {
      if (firstLine === 0) firstLine = line;
      const isObject = code === 0x7b;
      const isItems = !isObject && stack.length === 1 && top?.lastKey === 'items';
      isBeforeItem = isItems;
      stack.push({
        keys: isObject ? new Set() : undefined,
        isItems,
        lastKey: '',
        atKey: isObject,
      });
    } else if (code === 0x7d /* } */ || code === CLOSING_BRACKET) {
      isBeforeItem = false;
      stack.pop();
    } else if (code === 0x2c /* , */) {
      if (top?.keys !== undefined) top.atKey = true;
      isBeforeItem = top?.isItems === true;
    } else if (code === 0x0a) {
      line++;
    }
  }
  return { line: firstLine === 0 ? 1 : firstLine, itemLines, duplicate };
}

/** The offset of the closing quote; the length of the text if there is no closing quote. */
function endOfString(text: string, start: number): number {
  for (let at = start + 1; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) return at;
    if (code === BACKSLASH) at++;
  }
  return text.length;
}

/** Decodes escapes, because two spellings of a key are the same key. */
function keyOf(quoted: string): string {
  return quoted.includes('\\') ? String(JSON.parse(quoted)) : quoted.slice(1, -1);
}
