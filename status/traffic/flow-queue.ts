/** The events that wait for one client, in bounded memory. */
import type { Route } from '../../services/route.ts';
import type { FlowEvent, FlowLine } from '../api/traffic.ts';
import { matchesDenied } from './denial.ts';
import type { FlowFilter } from './flow-filter.ts';

/** Events that wait; an event takes about 1 KiB. */
const MAX_WAITING = 1000;

/** A queue with one reader. */
export class FlowQueue {
  readonly filter: FlowFilter;
  readonly #max: number;
  readonly #now: () => number;
  #waiting: FlowLine[] = [];
  #lost = 0;
  #isEnded = false;
  #wake: (() => void) | undefined;

  /** @param now milliseconds since 1970. */
  constructor(filter: FlowFilter, now: () => number, max = MAX_WAITING) {
    this.filter = filter;
    this.#now = now;
    this.#max = max;
  }

  /** Adds an event if the filter selects it and it fits. @param possible see `matchesDenied`. */
  push(event: FlowEvent, possible: readonly Route[] = []): void {
    if (!matchesDenied(event, possible, this.filter)) return;
    if (this.#waiting.length >= this.#max) this.#lost += 1;
    else this.#waiting.push(event);
    this.#wake?.();
  }

  /** Tells the client that later flows are reported. */
  start(notes: readonly string[]): void {
    const at = new Date(this.#now()).toISOString();
    this.#waiting.push({ at, event: 'started', lost: 0, notes });
    this.#wake?.();
  }

  /** Tells the client that what is not shown has changed. */
  note(notes: readonly string[]): void {
    const at = new Date(this.#now()).toISOString();
    this.#waiting.push({ at, event: 'notes', lost: 0, notes });
    this.#wake?.();
  }

  /** Tells the client that the times of the next events may be late. */
  late(seconds: number): void {
    const at = new Date(this.#now()).toISOString();
    this.#waiting.push({ at, event: 'late', lost: 0, notes: [], seconds });
    this.#wake?.();
  }

  /** Reports events that the kernel could not deliver. */
  lose(count: number): void {
    this.#lost += count;
    this.#wake?.();
  }

  /** Ends `lines` after the waiting events. */
  end(): void {
    this.#isEnded = true;
    this.#wake?.();
  }

  /** The events in order. Lost events are reported where they are missing. */
  async *lines(): AsyncGenerator<FlowLine, void, undefined> {
    for (;;) {
      const ready = this.#waiting;
      const lost = this.#lost;
      this.#waiting = [];
      this.#lost = 0;
      yield* ready;
      if (lost > 0) {
        const at = new Date(this.#now()).toISOString();
        yield { at, event: 'lost', lost, notes: [] };
      }
      if (this.#waiting.length > 0 || this.#lost > 0) continue;
      if (this.#isEnded) return;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
      this.#wake = undefined;
    }
  }
}
