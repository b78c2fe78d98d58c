/** State that stays because the program that removes it is not installed. */

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
}
