/**
 * `portwide cleanup` and `portwide run --cleanup`: remove all state of every mode, in one attempt.
 */
import { asError } from '../api/errors.ts';
import { IP_FAMILIES } from '../api/objects.ts';
import { requireNetAdmin } from '../process/capabilities.ts';
import { UserError } from '../process/errors.ts';
import { tryLock } from '../process/lock.ts';
import { CleanupAttempt, type CleanupStep } from './cleanup-attempt.ts';
import { iptablesCleanup } from './iptables-rules.ts';
import { ipvsDeviceCleanup, ipvsServicesCleanup } from './ipvs.ts';
import { nftTablesCleanup } from './nft-tables.ts';
import { policyCleanup } from './policy-rules.ts';

/** Steps that remove rules, tables, sets, IPVS services and the device of all modes, in order. */
export function allCleanupSteps(excludeCidrs: readonly string[]): CleanupStep[] {
  return [
    // Remove the device first: without rules, packets to VIPs on the device would reach the node's
    // own listeners.
    ipvsDeviceCleanup(excludeCidrs),
    ...IP_FAMILIES.flatMap((family) => [iptablesCleanup(family), nftTablesCleanup(family)]),
    policyCleanup,
    ipvsServicesCleanup(excludeCidrs),
  ];
}

/**
 * Removes all state, and continues after errors. Prints state that cannot be removed to standard
 * error, and sets exit code 1.
 * @param excludeCidrs `--ipvs-exclude-cidrs`
 * @throws UserError if an agent runs on this node, or the process lacks CAP_NET_ADMIN.
 */
export async function cleanupAndReport(excludeCidrs: readonly string[]): Promise<void> {
  await requireNetAdmin('removing rules');
  // Hold the lock, so that no agent starts meanwhile.
  const lock = await tryLock();
  if (lock === undefined) {
    throw new UserError(
      'an agent is running on this node and would restore the removed rules; stop the agent first',
    );
  }
  const attempt = new CleanupAttempt();
  for (const step of allCleanupSteps(excludeCidrs)) await step(attempt);
  lock.close();
  for (const { part, error } of attempt.failures) {
    process.stderr.write(`cannot clean up ${part}: ${asError(error).message}\n`);
    process.exitCode = 1;
  }
}
