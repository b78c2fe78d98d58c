/** Keeps work of many small steps from holding the event loop. */
import { setImmediate as nextTurn } from 'node:timers/promises';

/** Milliseconds of work after which the event loop gets a turn. */
const SLICE = 8;
/**
 * Steps for which the clock is asked once. Where that is a system call it costs more than a step
 * does: 20 µs in user-mode-linux, and some virtual machines have no better clock.
 */
const STEPS_PER_CLOCK_READ = 16;

/** To be asked after each step: `if (slice.isOver()) await slice.yield();` */
export class TimeSlice {
  #start = performance.now();
  #steps = 0;

  /** One step is done. @returns whether the event loop should get a turn. */
  isOver(): boolean {
    this.#steps += 1;
    return this.#steps % STEPS_PER_CLOCK_READ === 0 && performance.now() - this.#start > SLICE;
  }

  /** The next slice begins. */
  restart(): void {
    this.#start = performance.now();
  }

  /** Gives the event loop a turn. */
  async yield(): Promise<void> {
    await nextTurn();
    this.restart();
  }
}
