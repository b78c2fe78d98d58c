import { readFile } from 'node:fs/promises';
import { UserError } from './errors.ts';

/** Its number in linux/capability.h. */
const CAP_NET_ADMIN = 12n;

/**
 * Says at once what each step would fail of in words of its own.
 * @param what needs it, as the subject of a sentence.
 * @throws UserError where this process has not got CAP_NET_ADMIN.
 */
export async function requireNetAdmin(what: string): Promise<void> {
  if (mayAdministerNetwork(await readFile('/proc/self/status', 'utf8'))) return;
  throw new UserError(`${what} needs CAP_NET_ADMIN, which this process does not have: ${ADVICE}`);
}

/** What to do about EPERM. */
export const ADVICE =
  'run it as root, or in a pod with NET_ADMIN in securityContext.capabilities.add';

/** @param status of a process, as /proc has it; one that says nothing of capabilities is given the benefit of doubt. */
export function mayAdministerNetwork(status: string): boolean {
  const effective = /^CapEff:\s*([0-9a-f]+)$/m.exec(status)?.[1];
  return effective === undefined || ((BigInt(`0x${effective}`) >> CAP_NET_ADMIN) & 1n) === 1n;
}
