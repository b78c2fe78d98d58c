/** Errors that the user can put right: shown without a stack. */

/** Something the user can put right; shown as its text alone. */
export class UserError extends Error {
  override readonly name: string = 'UserError';

  /** What is shown, in one line or several. */
  get text(): string {
    return this.message;
  }
}
