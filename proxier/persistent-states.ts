/** Tells a state that lasts from one that is over in a moment. */
import type { ObjectKey } from '../api/objects.ts';
import type { Timers } from '../sync/timers.ts';

export class PersistentStates {
  readonly #timers: Timers | undefined;
  readonly #delay: number;
  readonly #onDue: (key: ObjectKey) => void;
  /** Objects in the state. */
  readonly #states = new Map<ObjectKey, { isDue: boolean; timer: unknown }>();

  /**
   * @param timers without timers, each state lasts.
   * @param delay milliseconds after which a state lasts.
   * @param onDue Called when the state of an object has lasted that long.
   */
  constructor(timers: Timers | undefined, delay: number, onDue: (key: ObjectKey) => void) {
    this.#timers = timers;
    this.#delay = delay;
    this.#onDue = onDue;
  }

  /** Records whether an object is in the state now. @returns whether the state has lasted. */
  update(key: ObjectKey, isInState: boolean): boolean {
    if (this.#timers === undefined) return isInState;
    const known = this.#states.get(key);
    if (known !== undefined) {
      if (isInState) return known.isDue;
      this.#timers.clear(known.timer);
      this.#states.delete(key);
      return false;
    }
    if (!isInState) return false;
    const state = { isDue: false, timer: undefined as unknown };
    state.timer = this.#timers.set(() => {
      state.isDue = true;
      this.#onDue(key);
    }, this.#delay);
    this.#states.set(key, state);
    return false;
  }
}
