/** Long computations as generators, which yield after each step so that the caller can give the event loop a turn. */

export type Steps<T> = Generator<undefined, T, undefined>;

/** Runs a computation without a pause. `finishInSlices` of sync/ pauses. */
export function finish<T>(steps: Steps<T>): T {
  for (;;) {
    const { done, value } = steps.next();
    if (done === true) return value;
  }
}
