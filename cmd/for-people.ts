import { ConfigurationError, formatNotice } from '../config/errors.ts';
import { NetlinkError, UnsupportedError } from '../netlink/core/error.ts';
import { UserError } from '../process/errors.ts';
import { ADVICE } from '../process/rights.ts';
import { ProgramTimeoutError } from '../process/run-program.ts';
import { ClusterConfigError } from '../sources/kubernetes/config.ts';
import { ManifestDirectoryError } from '../sources/manifests/directory.ts';

const SAY_ALL = [UserError, ManifestDirectoryError, ClusterConfigError, ProgramTimeoutError];

/**
 * The message for an error that the user can fix: what is wrong and what to do.
 * @returns undefined for any other error; its stack should be shown.
 */
export function forPeople(error: unknown): string | undefined {
  if (error instanceof ConfigurationError) {
    const { message, warnings } = error;
    return [message, ...warnings.map((each) => `warning: ${formatNotice(each)}`)].join('\n');
  }
  if (SAY_ALL.some((expected) => error instanceof expected)) return (error as Error).message;
  if (error instanceof UnsupportedError) {
    return `${error.message}: load its module (modprobe), or install the kernel's package of modules`;
  }
  if (error instanceof NetlinkError && ['EPERM', 'EACCES'].includes(error.code)) {
    return `the kernel refuses it (${error.message}): ${ADVICE}`;
  }
  return undefined;
}
