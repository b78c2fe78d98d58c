/** The text that a failed command writes to standard error. */
import { NetlinkError, UnsupportedError } from '../netlink/core/error.ts';
import { NET_ADMIN_HINT } from './capabilities.ts';
import { UserError } from './errors.ts';

/**
 * The message for an error that the user can fix: the problem and the remedy.
 * @returns undefined for any other error; show its stack instead.
 */
export function userMessage(error: unknown): string | undefined {
  if (error instanceof UserError) return error.text;
  if (error instanceof UnsupportedError) {
    return `${error.message}: load the module with modprobe, or install the kernel modules package`;
  }
  if (error instanceof NetlinkError && ['EPERM', 'EACCES'].includes(error.code)) {
    return `permission denied by the kernel (${error.message}): ${NET_ADMIN_HINT}`;
  }
  return undefined;
}
