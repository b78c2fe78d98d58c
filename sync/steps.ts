/** Long computations as generators, which yield after each step so that the caller can give the event loop a turn. */
import { TimeSlice } from './time-slice.ts';

export type Steps<T> = Generator<undefined, T, undefined>;

/** Runs a computation without a pause. */
export function finish<T>(steps: Steps<T>): T {
  for (;;) {
    const { done, value } = steps.next();
    if (done === true) return value;
  }
}

/**
 * Runs a computation in time slices, so that it does not block the event loop.
 * @param slice of the caller, if the computation is a part of its work.
 */
export async function finishInSlices<T>(steps: Steps<T>, slice = new TimeSlice()): Promise<T> {
  for (;;) {
    const { done, value } = steps.next();
    if (done === true) return value;
    if (slice.isOver()) await slice.yield();
  }
}
