/** Cooperative yielding: keeps long computations from blocking the event loop. */
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Steps } from '../api/steps.ts';

/** Milliseconds of work before the event loop gets a turn. */
const SLICE = 8;
/**
 * Steps between two reads of the clock. On some virtual machines reading the clock is a system
 * call, which costs more than a step: 20 µs in user-mode-linux.
 */
const STEPS_PER_CLOCK_READ = 16;

/** A time slice of a long computation. After each step: `if (slice.isOver()) await slice.yield();` */
export class TimeSlice {
  readonly #length: number;
  #start = performance.now();
  #steps = 0;

  /** @param length milliseconds; shorter for work that must not delay other work, such as syncs. */
  constructor(length = SLICE) {
    this.#length = length;
  }

  /** Counts one step. @returns whether the event loop should get a turn. */
  isOver(): boolean {
    this.#steps += 1;
    return (
      this.#steps % STEPS_PER_CLOCK_READ === 0 && performance.now() - this.#start > this.#length
    );
  }

  /** Starts the next slice. */
  restart(): void {
    this.#start = performance.now();
  }

  /** Gives the event loop a turn. */
  async yield(): Promise<void> {
    await nextTurn();
    this.restart();
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
