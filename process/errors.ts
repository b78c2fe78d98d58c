/** Errors that the user can fix. They are shown without a stack trace. */

/** An error that the user can fix. Only `text` is shown, never the stack. */
export class UserError extends Error {
  override readonly name: string = 'UserError';

  /** The text to show; one line or several. */
  get text(): string {
    return this.message;
  }
}
