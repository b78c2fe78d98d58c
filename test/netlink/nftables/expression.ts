/** Expressions of rules that the agent itself does not write. */
import fc from 'fast-check';
import { type Attribute, encodeAttributes } from '../../../netlink/core/attribute.ts';
import { encodeNumber } from '../../../netlink/core/network-order.ts';
import { nulTerminated } from '../../../netlink/core/text.ts';
import type { NftExpression } from '../../../netlink/nftables/rule.ts';

export const text = (type: number, value: string): Attribute => ({
  type,
  value: nulTerminated(value),
});

export const expression = (name: string, data: readonly Attribute[]): NftExpression => ({
  type: 1,
  value: [text(1, name), { type: 2, value: data }],
});

const NAMES = [
  ...['payload', 'meta', 'ct', 'fib', 'exthdr', 'immediate', 'bitwise', 'byteorder', 'cmp'],
  ...['range', 'lookup', 'target', 'match', 'nat', 'masq', 'redir', 'reject', 'queue', 'limit'],
  ...['quota', 'connlimit', 'objref', 'dynset', 'log', 'counter', 'dup', 'numgen', 'unknown'],
];
const attribute = fc.record({
  type: fc.integer({ min: 1, max: 10 }),
  value: fc.oneof(
    fc.constantFrom(1, 2, 8, 9, 20).map((number) => encodeNumber(number, 4)),
    fc.uint8Array({ maxLength: 40 }).map((bytes) => Buffer.from(bytes)),
    fc
      .uint8Array({ maxLength: 20 })
      .map((bytes) => encodeAttributes([{ type: 1, value: Buffer.from(bytes) }])),
  ),
});
const anyExpression = fc
  .tuple(fc.constantFrom(...NAMES), fc.array(attribute, { maxLength: 7 }))
  .map(([name, data]) => expression(name, data));

/** Expressions of any attributes, as no kernel has them. */
export const anyRule = fc.array(anyExpression, { maxLength: 6 });
