/** State that stays because the program that removes it is not installed. */
import type { Log } from '../process/log.ts';

/** Chains stay because iptables is not installed, as in an image without it. */
export class MissingProgramError extends Error {
  override readonly name = 'MissingProgramError';
  readonly reason = 'program';

  /** @param command such as `iptables-nft`. */
  constructor(command: string, tables: readonly string[], options?: ErrorOptions) {
    super(
      `${command} is not installed, so chains of kube-proxy or Portwide stay in its tables ${tables.join(', ')}: ` +
        'roll out the image with iptables until they are removed, or restart the node',
      options,
    );
  }

  warn(log: Log): void {
    const effect =
      'Services are served; addresses of deleted Services may still lead to their last endpoints';
    log.warn({ err: this, effect }, 'leftover state stays, because a program is not installed');
  }
}
