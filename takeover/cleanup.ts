/** What `portwide cleanup` and `portwide run --cleanup` do: remove all leftovers, in one attempt. */
import { asError } from '../api/errors.ts';
import { IP_FAMILIES } from '../api/objects.ts';
import { requireNetAdmin } from '../process/capabilities.ts';
import { UserError } from '../process/errors.ts';
import { tryLock } from '../process/lock.ts';
import { ProgramError } from '../process/run-program.ts';
import { CleanupAttempt, type CleanupStep } from './cleanup-attempt.ts';
import { iptablesRules } from './iptables-rules.ts';
import { ipvsDevice, ipvsServices } from './ipvs.ts';
import { nftTables } from './nft-tables.ts';
import { policyRules } from './policy-rules.ts';

/** Rules, tables, sets, virtual servers and devices, whichever mode made them, in the order in which they go. */
export function allLeftovers(excludeCidrs: readonly string[]): CleanupStep[] {
  return [
    // First, or VIPs on it would reach the node's own listeners while their rules go.
    ipvsDevice(excludeCidrs),
    ...IP_FAMILIES.flatMap((family) => [iptablesRules(family), nftTables(family)]),
    policyRules,
    ipvsServices(excludeCidrs),
  ];
}

/**
 * Goes on after a failure: says on standard error what could not be removed, and has the process exit with 1 then.
 * @param excludeCidrs `--ipvs-exclude-cidrs`
 * @throws UserError when an agent runs on this node, or the process lacks CAP_NET_ADMIN.
 */
export async function cleanupAndReport(excludeCidrs: readonly string[]): Promise<void> {
  await requireNetAdmin('removing rules');
  // Held meanwhile, so that none starts either.
  const lock = await tryLock();
  if (lock === undefined) {
    throw new UserError(
      'an agent runs on this node and would write everything again; stop it first',
    );
  }
  const attempt = new CleanupAttempt();
  for (const leftover of allLeftovers(excludeCidrs)) await leftover(attempt);
  lock.close();
  for (const { part, error } of attempt.failures) {
    process.stderr.write(`${part}: not cleaned up: ${reasonOf(error)}\n`);
    process.exitCode = 1;
  }
}

function reasonOf(error: unknown): string {
  if (error instanceof ProgramError && error.code === 'ENOENT') return 'not installed';
  return asError(error).message;
}
