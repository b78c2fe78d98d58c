/** Objects and manifests that cannot be read as problems of the status API. Pure. */
import type { SourceFault } from '../../sources/source.ts';
import type { Problem } from '../api/common.ts';

/** Characters of one message: the fields of an object are as long as its author likes. */
const MAX_MESSAGE = 500;

export function unreadableProblem({ object, message }: SourceFault): Problem {
  const text = message.length > MAX_MESSAGE ? `${message.slice(0, MAX_MESSAGE)}...` : message;
  return {
    reason: 'Unreadable',
    message: `${text}; the last readable version stays in force`,
    object: object ?? null,
    family: null,
  };
}
