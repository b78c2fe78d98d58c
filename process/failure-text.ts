/** Short texts of failures, for the status API and Events. The log has the whole text. */
import { asError } from '../api/errors.ts';

/** Longest text, in characters. */
const MAX_LENGTH = 300;
/** The place in a script that is not stored, as nft prints it. */
const PLACE = /\/dev\/stdin:[\d:-]+ /;
const WARNING = /(?:# )?Warning: .*/i;
/** nft marks the fault in the line above. */
const MARKS = /^\s*[\^~][\^~ ]*$/;

/**
 * The first error in the message of an error, such as "nft failed: Error: Could not process rule: No such file or directory:
 * add rule ip a b accept". Omits warnings and further errors that a program printed.
 */
export function failureText(error: unknown): string {
  const [first = '', ...rest] = asError(error)
    .message.split('\n')
    .filter((line) => line.trim() !== '' && !/^\s*(?:# )?Warning: /i.test(line));
  const isOnlyPrefix = WARNING.test(first) && rest.length > 0;
  const start = isOnlyPrefix ? first.replace(WARNING, '') + rest.shift()?.trim() : first;
  const [line = '', marks = ''] = rest;
  const text = `${start.replace(PLACE, '')}${MARKS.test(marks) ? `: ${line.trim()}` : ''}`;
  return text.length > MAX_LENGTH ? `${text.slice(0, MAX_LENGTH)}...` : text;
}
