/** Expressions of rules that the agent itself does not write. */
import type { Attribute } from '../../../netlink/core/attribute.ts';
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
