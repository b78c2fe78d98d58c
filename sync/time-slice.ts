import { setImmediate as nextTurn } from 'node:timers/promises';

/** Milliseconds of work after which the event loop gets a turn. */
const SLICE = 8;
/**
 * Steps for which the clock is asked once. Where that is a system call it costs more than a step
 * does: 20 µs in user-mode-linux, and some virtual machines have no better clock.
 */
const STEPS = 16;

/** Keeps work of many small steps from holding the event loop. */
export class Slices {
  #start = performance.now();
  #steps = 0;

  /** One step is done. @returns whether the event loop should get a turn. */
  isOver(): boolean {
    this.#steps += 1;
    return this.#steps % STEPS === 0 && performance.now() - this.#start > SLICE;
  }

  /** The next slice begins. */
  restart(): void {
    this.#start = performance.now();
  }

  /** Gives the event loop a turn. */
  async turn(): Promise<void> {
    await nextTurn();
    this.restart();
  }
}
