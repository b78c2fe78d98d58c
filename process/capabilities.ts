/** The capability needed to program the network: CAP_NET_ADMIN. */
import { readFile } from 'node:fs/promises';
import { UserError } from './errors.ts';

/** Bit number, from linux/capability.h. */
const CAP_NET_ADMIN = 12n;

/**
 * Checks for CAP_NET_ADMIN at startup. Without the check, each later step would fail with a
 * different error.
 * @param what What needs the capability; subject of the error message.
 * @throws UserError if the process lacks CAP_NET_ADMIN.
 */
export async function requireNetAdmin(what: string): Promise<void> {
  if (hasNetAdmin(await readFile('/proc/self/status', 'utf8'))) return;
  throw new UserError(`${what} needs CAP_NET_ADMIN, which this process lacks: ${NET_ADMIN_HINT}`);
}

/** What to do about EPERM. */
export const NET_ADMIN_HINT =
  'run as root, or in a pod with NET_ADMIN in securityContext.capabilities.add';

/**
 * Whether the process has CAP_NET_ADMIN.
 * @param status Content of /proc/PID/status. Without a CapEff line the result is true.
 */
export function hasNetAdmin(status: string): boolean {
  const effective = /^CapEff:\s*([0-9a-f]+)$/m.exec(status)?.[1];
  return effective === undefined || ((BigInt(`0x${effective}`) >> CAP_NET_ADMIN) & 1n) === 1n;
}
