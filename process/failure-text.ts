/** Short texts of failures, for the status API and Events. The log has the whole text. */
import { asError } from '../api/errors.ts';

/** Longest text, in characters. */
const MAX_LENGTH = 300;
const WARNING = /(?:# )?Warning: .*/i;

/** The first error in the message of an error. Omits warnings and further errors that a program printed. */
export function failureText(error: unknown): string {
  const [first = '', ...rest] = asError(error)
    .message.split('\n')
    .filter((line) => line.trim() !== '' && !/^\s*(?:# )?Warning: /i.test(line));
  const isOnlyPrefix = WARNING.test(first) && rest.length > 0;
  const text = isOnlyPrefix ? first.replace(WARNING, '') + rest[0]?.trim() : first;
  return text.length > MAX_LENGTH ? `${text.slice(0, MAX_LENGTH)}...` : text;
}
