/** Changes of the kernel as resources of the status API. Pure. */
import type { Change } from '../api/activity.ts';
import type { LoggedChange } from '../change-log.ts';
import { timeText } from './text.ts';

export function changeView(change: LoggedChange): Change {
  const { at, seconds, queuedSeconds, undoneAt } = change;
  return {
    ...change,
    at: timeText(at),
    seconds: seconds ?? null,
    queuedSeconds: queuedSeconds ?? null,
    undoneAt: undoneAt === undefined ? null : timeText(undoneAt),
  };
}
