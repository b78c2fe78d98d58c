/** What a command that failed says on standard error. */
import { NetlinkError, UnsupportedError } from '../netlink/core/error.ts';
import { NET_ADMIN_HINT } from './capabilities.ts';
import { UserError } from './errors.ts';

/**
 * The message for an error that the user can fix: what is wrong and what to do.
 * @returns undefined for any other error; its stack should be shown.
 */
export function userMessage(error: unknown): string | undefined {
  if (error instanceof UserError) return error.text;
  if (error instanceof UnsupportedError) {
    return `${error.message}: load its module (modprobe), or install the kernel's package of modules`;
  }
  if (error instanceof NetlinkError && ['EPERM', 'EACCES'].includes(error.code)) {
    return `the kernel refuses it (${error.message}): ${NET_ADMIN_HINT}`;
  }
  return undefined;
}
