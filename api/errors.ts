/**
 * A Kubernetes object that cannot be read. Names the field and the reason, for logs and `portwide
 * validate`.
 */
export class InvalidObject extends Error {
  override readonly name = 'InvalidObject';
  /** `Service default/web`, with `?` for a name that cannot be read. */
  readonly object: string;
  /** Path of the field, such as `spec.ports[0].port`. */
  readonly field: string;
  readonly reason: string;

  constructor(object: string, field: string, reason: string) {
    super(`${object}: ${field}: ${reason}`);
    this.object = object;
    this.field = field;
    this.reason = reason;
  }
}

/** Converts any thrown value to an Error. */
export function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}
