/**
 * Comments of rules and elements. nf_tables stores them as opaque user data, in the TLV format that
 * nft displays (libnftnl/udata.h): u8 type, u8 length, text with a NUL.
 */
import { readText } from '../core/text.ts';

/** NFTNL_UDATA_RULE_COMMENT, NFTNL_UDATA_SET_ELEM_COMMENT */
const COMMENT = 0;
const HEADER = 2;

/** Longest comment that nft accepts, with the NUL. */
const NFT_COMMENT_LIMIT = 128;
/** Longest comment that the kernel stores with an element, with the NUL. */
export const ELEMENT_COMMENT_LIMIT = 252;

/**
 * Encodes a comment as user data.
 * @param limit Bytes, with the NUL; longer text is cut after the last complete character.
 */
export function encodeComment(text: string, limit = NFT_COMMENT_LIMIT): Buffer {
  const bytes = Buffer.from(text);
  let length = Math.min(bytes.length, limit - 1);
  while (isContinuation(bytes[length])) length -= 1;
  const data = Buffer.alloc(HEADER + length + 1);
  data[0] = COMMENT;
  data[1] = length + 1;
  bytes.copy(data, HEADER, 0, length);
  return data;
}

/** The comment in the user data of a rule or an element; undefined without one. */
export function readComment(data: Buffer): string | undefined {
  let start = 0;
  while (start + HEADER <= data.length) {
    const [type, length = 0] = data.subarray(start, start + HEADER);
    const value = data.subarray(start + HEADER, start + HEADER + length);
    if (type === COMMENT) return readText(value);
    start += HEADER + length;
  }
  return undefined;
}

/** Whether a byte continues a UTF-8 character. */
function isContinuation(byte: number | undefined): boolean {
  return byte !== undefined && (byte & 0xc0) === 0x80;
}
