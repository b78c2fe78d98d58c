/**
 * Encoded rules as text, to compare rules that were written with rules that the kernel has, and to
 * show rules of other programs. `nft --debug=netlink list` has a similar form:
 * `[ payload to=8 base=1 offset=16 length=4 ] [ lookup set=service-ips key=8 to=0 ]`.
 */
import { readAttributes, walkAttributes } from '../core/attribute.ts';
import { readNumber } from '../core/network-order.ts';
import { readText } from '../core/text.ts';
import {
  NFTA_DATA_VALUE,
  NFTA_DATA_VERDICT,
  NFTA_VERDICT_CHAIN,
  NFTA_VERDICT_CODE,
  VERDICT_CODES,
} from './element.ts';
import { NFTA_EXPR_DATA, NFTA_EXPR_NAME, registerNumber } from './rule.ts';

type AttributeKind = 'register' | 'number' | 'text' | 'data';
type Field = readonly [type: number, name: string, kind: AttributeKind];

/** Attributes of linux/netfilter/nf_tables.h by expression. Others are shown as hexadecimal. */
const FIELDS: Readonly<Record<string, readonly Field[]>> = {
  payload: [
    [1, 'to', 'register'],
    [2, 'base', 'number'],
    [3, 'offset', 'number'],
    [4, 'length', 'number'],
    [5, 'from', 'register'],
    [6, 'checksum', 'number'],
    [7, 'checksum-offset', 'number'],
    [8, 'checksum-flags', 'number'],
  ],
  meta: [
    [1, 'to', 'register'],
    [2, 'key', 'number'],
    [3, 'from', 'register'],
  ],
  ct: [
    [1, 'to', 'register'],
    [2, 'key', 'number'],
    [3, 'direction', 'number'],
    [4, 'from', 'register'],
  ],
  cmp: [
    [1, 'from', 'register'],
    [2, 'op', 'number'],
    [3, 'value', 'data'],
  ],
  bitwise: [
    [1, 'from', 'register'],
    [2, 'to', 'register'],
    [3, 'length', 'number'],
    [4, 'mask', 'data'],
    [5, 'xor', 'data'],
  ],
  byteorder: [
    [1, 'from', 'register'],
    [2, 'to', 'register'],
    [3, 'op', 'number'],
    [4, 'length', 'number'],
    [5, 'size', 'number'],
  ],
  flow_offload: [[1, 'flowtable', 'text']],
  range: [
    [1, 'from', 'register'],
    [2, 'op', 'number'],
    [3, 'first', 'data'],
    [4, 'last', 'data'],
  ],
  immediate: [
    [1, 'to', 'register'],
    [2, 'value', 'data'],
  ],
  objref: [
    [1, 'type', 'number'],
    [2, 'name', 'text'],
  ],
  lookup: [
    [1, 'set', 'text'],
    [2, 'key', 'register'],
    [3, 'to', 'register'],
    [5, 'flags', 'number'],
  ],
  numgen: [
    [1, 'to', 'register'],
    [2, 'modulus', 'number'],
    [3, 'type', 'number'],
    [4, 'offset', 'number'],
  ],
  hash: [
    [1, 'from', 'register'],
    [2, 'to', 'register'],
    [3, 'length', 'number'],
    [4, 'modulus', 'number'],
    [5, 'seed', 'number'],
    [6, 'offset', 'number'],
    [7, 'type', 'number'],
  ],
  nat: [
    [1, 'type', 'number'],
    [2, 'family', 'number'],
    [3, 'address', 'register'],
    [4, 'last-address', 'register'],
    [5, 'port', 'register'],
    [6, 'last-port', 'register'],
    [7, 'flags', 'number'],
  ],
  masq: [[1, 'flags', 'number']],
  reject: [
    [1, 'type', 'number'],
    [2, 'code', 'number'],
  ],
  fib: [
    [1, 'to', 'register'],
    [2, 'result', 'number'],
    [3, 'flags', 'number'],
  ],
  dynset: [
    [1, 'set', 'text'],
    [3, 'op', 'number'],
    [4, 'key', 'register'],
    [5, 'data', 'register'],
    [6, 'timeout', 'number'],
    [9, 'flags', 'number'],
  ],
};

/** Optional attributes that the kernel adds to a dump with value 0, by expression. */
const ADDED_BY_KERNEL: Readonly<Record<string, number>> = { lookup: 5, bitwise: 6, dynset: 9 };

/** NF_NAT_RANGE_MAP_IPS and NF_NAT_RANGE_PROTO_SPECIFIED, which the kernel derives. */
const NAT_FLAGS = { address: 1, port: 2 };

/**
 * The expressions of a rule. A rule has the same text before it is written and in a dump, where the
 * kernel adds default values and numbers registers in another way. Does not show counts and limits
 * that change with each packet.
 * @param expressions value of NFTA_RULE_EXPRESSIONS.
 * @throws MalformedMessage
 */
export function encodedRuleText(expressions: Buffer): string {
  const texts: string[] = [];
  walkAttributes(expressions, 0, expressions.length, (_, start, end) => {
    const expression = readAttributes(expressions, start, end);
    const name = expression.get(NFTA_EXPR_NAME);
    const what = name === undefined ? '' : readText(name, 0, name.length);
    texts.push(expressionText(what, expression.get(NFTA_EXPR_DATA)));
  });
  return texts.join(' ');
}

function expressionText(name: string, bytes: Buffer = Buffer.alloc(0)): string {
  // Packets change the value of a counter.
  const attributes = name === 'counter' ? new Map<number, Buffer>() : readAttributes(bytes, 0);
  if (name === 'nat') removeDerivedNatFields(attributes);
  const fields = new Map(FIELDS[name]?.map(([type, ...field]) => [type, field]));
  const texts = [...attributes]
    .filter(([type, value]) => ADDED_BY_KERNEL[name] !== type || value.some((byte) => byte !== 0))
    .sort(([a], [b]) => a - b)
    .map(([type, value]) => {
      const [label, kind] = fields.get(type) ?? [String(type), undefined];
      return `${label}=${valueText(value, kind)}`;
    });
  return ['[', name, ...texts, ']'].join(' ');
}

function removeDerivedNatFields(attributes: Map<number, Buffer>): void {
  const isRange = (first: number, last: number) =>
    attributes.get(last)?.equals(attributes.get(first) ?? Buffer.alloc(0)) === false;
  const flags = NAT_FLAGS.address | (attributes.has(5) ? NAT_FLAGS.port : 0);
  if (!isRange(3, 4)) attributes.delete(4);
  if (!isRange(5, 6)) attributes.delete(6);
  if (attributes.get(7)?.readUInt32BE(0) === flags) attributes.delete(7);
}

function valueText(value: Buffer, kind: AttributeKind | undefined): string {
  switch (kind) {
    case 'register':
      return String(registerNumber(readNumber(value, 0, value.length, 4)));
    case 'number':
      return BigInt(`0x${value.toString('hex') || '0'}`).toString();
    case 'text':
      return readText(value, 0, value.length);
    case 'data':
      return dataText(value);
    case undefined:
      return `0x${value.toString('hex')}`;
  }
}

function dataText(value: Buffer): string {
  const data = readAttributes(value, 0);
  const verdict = data.get(NFTA_DATA_VERDICT);
  if (verdict === undefined) return `0x${(data.get(NFTA_DATA_VALUE) ?? value).toString('hex')}`;
  const fields = readAttributes(verdict, 0);
  const code = fields.get(NFTA_VERDICT_CODE)?.readInt32BE(0);
  const chain = fields.get(NFTA_VERDICT_CHAIN);
  const kind = Object.entries(VERDICT_CODES).find(([, each]) => each === code)?.[0] ?? code;
  return chain === undefined ? String(kind) : `${kind}(${readText(chain, 0, chain.length)})`;
}
