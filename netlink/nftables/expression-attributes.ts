/** Reads the attributes of an expression of a rule (linux/netfilter/nf_tables.h). */
import { readAttributes } from '../core/attribute.ts';
import { MalformedMessage } from '../core/error.ts';
import { readText } from '../core/text.ts';
import { NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_VERDICT_CODE, readVerdict } from './element.ts';
import { REGISTER_BASE, registerNumber } from './rule.ts';
import type { NftVerdict } from './types.ts';

const NFT_CONTINUE = -1;
/** Verdicts that NftVerdict does not have. */
const OTHER_VERDICTS: Readonly<Record<number, string>> = {
  ...{ 2: 'stolen', 3: 'queue', 4: 'repeat', 5: 'stop' },
  [-2]: 'break',
};

/** All readers throw MalformedMessage if the attribute is missing. */
export class ExpressionAttributes {
  readonly #attributes: ReadonlyMap<number, Buffer>;

  /** @param data value of NFTA_EXPR_DATA. */
  constructor(data: Buffer) {
    this.#attributes = readAttributes(data, 0);
  }

  has(type: number): boolean {
    return this.#attributes.has(type);
  }

  bytes(type: number): Buffer {
    const value = this.#attributes.get(type);
    if (value === undefined) throw new MalformedMessage(`nf_tables attribute ${type} is missing`);
    return value;
  }

  /** A number of 1 to 8 bytes; exact up to 2^53. */
  number(type: number): number {
    return this.bytes(type).reduce((number, byte) => number * 256 + byte, 0);
  }

  text(type: number): string {
    return readText(this.bytes(type));
  }

  /** The number of a register in units of 4 bytes; -8 for the verdict. */
  register(type: number): number {
    return registerNumber(this.number(type)) - REGISTER_BASE;
  }

  data(type: number): Buffer {
    const value = readAttributes(this.bytes(type), 0).get(NFTA_DATA_VALUE);
    if (value === undefined) throw new MalformedMessage(`nf_tables attribute ${type} has no data`);
    return value;
  }

  /** @returns `words` for a verdict that is not an end known here; undefined if the data is no verdict. */
  verdict(
    type: number,
  ): NftVerdict | { readonly kind: 'continue' } | { readonly words: string } | undefined {
    const value = readAttributes(this.bytes(type), 0).get(NFTA_DATA_VERDICT);
    if (value === undefined) return undefined;
    const known = readVerdict(value, 0, value.length);
    if (known !== undefined) return known;
    const code = readAttributes(value, 0).get(NFTA_VERDICT_CODE)?.readInt32BE(0) ?? NFT_CONTINUE;
    if (code === NFT_CONTINUE) return { kind: 'continue' };
    return { words: OTHER_VERDICTS[code] ?? `verdict ${code}` };
  }
}
