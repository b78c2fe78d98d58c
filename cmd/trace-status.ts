/** The exit status of `portwide trace`. Pure. */
import type {
  LiveTraceLine,
  LiveTraceSummary,
  TraceOutcome,
  TracePath,
} from '../status/api/trace.ts';
import { EXIT } from './status-command.ts';

export type TraceStatus = (typeof EXIT)[keyof typeof EXIT];

/** An uncertain path has the status of an error, as in `portwide policy explain`: it must not look like success. */
const STATUS: Readonly<Record<TraceOutcome, TraceStatus>> = {
  reached: EXIT.ok,
  partly: EXIT.no,
  failed: EXIT.no,
  uncertain: EXIT.error,
};

/** @param seen the lines of a live trace; undefined: there was none. */
export function traceStatus(
  paths: readonly Pick<TracePath, 'family' | 'outcome'>[],
  seen: readonly LiveTraceLine[] | undefined,
): TraceStatus {
  if (seen !== undefined && !isConfirmed(seen)) return EXIT.no;
  const traced = seen?.find((line) => line.event === 'armed')?.filter.family;
  const statuses = paths.map(({ family, outcome }) =>
    // The kernel has decided the uncertain part.
    family === traced && outcome === 'uncertain' ? EXIT.ok : STATUS[outcome],
  );
  if (statuses.includes(EXIT.no)) return EXIT.no;
  return statuses.includes(EXIT.error) ? EXIT.error : EXIT.ok;
}

const PASSED: readonly string[] = ['pod', 'left', 'delivered'];

/** Without a packet nothing is known about the kernel. */
function isConfirmed(seen: readonly LiveTraceLine[]): boolean {
  const summary = seen.find((line): line is LiveTraceSummary => line.event === 'summary');
  if (summary === undefined || summary.paths.length === 0) return false;
  // The path of a packet is as computed also if a rule drops it that is only known to do so sometimes.
  const passes = summary.paths.every(({ result }) => PASSED.includes(result));
  return passes && summary.differences.length === 0;
}
