/** Objects and manifests that cannot be read as problems of the status API. Pure. */
import { IN_FORCE, type SourceFault } from '../../sources/source.ts';
import type { Problem } from '../api/common.ts';

/** Characters of one message: the fields of an object are as long as its author likes. */
const MAX_MESSAGE = 500;

export function unreadableProblem({ object, message, inForce }: SourceFault): Problem {
  const text = message.length > MAX_MESSAGE ? `${message.slice(0, MAX_MESSAGE)}...` : message;
  return {
    reason: 'Unreadable',
    message: inForce === undefined ? text : `${text}; ${IN_FORCE[inForce]}`,
    object: object ?? null,
    family: null,
  };
}
