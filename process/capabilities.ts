/** The capability that programming the network takes. */
import { readFile } from 'node:fs/promises';
import { UserError } from './errors.ts';

/** Bit number, from linux/capability.h. */
const CAP_NET_ADMIN = 12n;

/**
 * Checks for CAP_NET_ADMIN up front; without it every later step would fail with an error of its own.
 * @param what needs it: the subject of the error message.
 * @throws UserError if the process lacks it.
 */
export async function requireNetAdmin(what: string): Promise<void> {
  if (hasNetAdmin(await readFile('/proc/self/status', 'utf8'))) return;
  throw new UserError(
    `${what} needs CAP_NET_ADMIN, which this process does not have: ${NET_ADMIN_HINT}`,
  );
}

/** What to do about EPERM. */
export const NET_ADMIN_HINT =
  'run it as root, or in a pod with NET_ADMIN in securityContext.capabilities.add';

/** @param status content of /proc/PID/status; true if it has no line about capabilities. */
export function hasNetAdmin(status: string): boolean {
  const effective = /^CapEff:\s*([0-9a-f]+)$/m.exec(status)?.[1];
  return effective === undefined || ((BigInt(`0x${effective}`) >> CAP_NET_ADMIN) & 1n) === 1n;
}
