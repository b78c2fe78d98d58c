/** Remembers the Events that the agent recorded, for the status API. Memory is bounded. */
import type { ObjectRef } from '../events/event.ts';
import type { Events } from '../events/recorder.ts';

const MAX_EVENTS = 500;

/** An Event that the agent recorded, whether or not the API server has it. */
export interface RecentEvent {
  /** Milliseconds since 1970. */
  readonly at: number;
  readonly type: 'Normal' | 'Warning';
  readonly regarding: ObjectRef;
  readonly reason: string;
  readonly message: string;
}

export class RecentEvents {
  readonly #now: () => number;
  readonly #events: RecentEvent[] = [];

  /** @param now milliseconds since 1970. */
  constructor(now: () => number = Date.now) {
    this.#now = now;
  }

  /** The Events on an object, the newest first. */
  of({ kind, namespace, name }: Pick<ObjectRef, 'kind' | 'namespace' | 'name'>): RecentEvent[] {
    const isOf = ({ regarding }: RecentEvent) =>
      regarding.kind === kind && regarding.namespace === namespace && regarding.name === name;
    return this.#events.filter(isOf).reverse();
  }

  /** Wraps a recorder. Forwards all calls. */
  observing(events: Events): Events {
    const record =
      (type: RecentEvent['type'], method: keyof Events) =>
      (...args: Parameters<Events['normal']>) => {
        const [regarding, reason, message] = args;
        events[method](...args);
        this.#events.push({ at: this.#now(), type, regarding, reason, message });
        if (this.#events.length > MAX_EVENTS) this.#events.shift();
      };
    return {
      normal: record('Normal', 'normal'),
      warning: record('Warning', 'warning'),
      sharedWarning: record('Warning', 'sharedWarning'),
    };
  }
}
