import type { Leftover } from '../../takeover/attempt.ts';

const nothing: Leftover = async () => {};

/** Kinds of leftovers of a node that has none. */
export const NOTHING_LEFT = {
  nftTables: () => nothing,
  iptablesRules: () => nothing,
  ipvs: () => nothing,
  policyRules: nothing,
};
