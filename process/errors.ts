/** Something the user can put right; shown as its message alone. */
export class UserError extends Error {
  override readonly name = 'UserError';
}
