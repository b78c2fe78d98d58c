import type { CleanupStep } from '../../takeover/cleanup-attempt.ts';

const nothing: CleanupStep = async () => {};

/** Cleanup steps on a node with nothing to remove. */
export const NO_LEFTOVERS = {
  nftTables: () => nothing,
  iptablesRules: () => nothing,
  ipvs: () => nothing,
  policyRules: nothing,
  dnsRules: nothing,
};
