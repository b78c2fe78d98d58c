/** `GET /api/v1/checks`: what `portwide check` finds on this node with the flags of the agent. */
import type { Time } from './common.ts';

export interface NodeChecks {
  /** When the checks ended. The answer is kept for a while. */
  readonly at: Time;
  /** The worst status of the checks. */
  readonly status: NodeCheck['status'];
  readonly checks: readonly NodeCheck[];
  /** Number of further checks that the agent left out, because there are too many. */
  readonly omitted: number;
}

export interface NodeCheck {
  /** `warn`: may limit what the agent does, or was not seen. `fail`: Services will not work. */
  readonly status: 'ok' | 'warn' | 'fail';
  /** Short name of the subject, such as `node object`. */
  readonly name: string;
  /** What the check found. */
  readonly seen: string;
  /** What to do; empty for `ok`. */
  readonly action: string;
}
