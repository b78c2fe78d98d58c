import type { CleanupStep } from '../../takeover/cleanup-attempt.ts';

const nothing: CleanupStep = async () => {};

/** Kinds of leftovers of a node that has none. */
export const NO_LEFTOVERS = {
  nftTables: () => nothing,
  iptablesRules: () => nothing,
  ipvs: () => nothing,
  policyRules: nothing,
};
