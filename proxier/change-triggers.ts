/** Collects trigger times of EndpointSlice changes, for the network programming latency metric. */
import { getOrCreate } from '../api/collections.ts';
import type { EndpointSlice, IpFamily, ObjectKey } from '../api/objects.ts';

/** The time of an event in the cluster that changes the rules of a family. */
export interface ChangeTrigger {
  readonly family: IpFamily;
  /** Milliseconds since 1970, by the clock of the control plane. */
  readonly time: number;
}

/** Milliseconds that the control plane's clock may be ahead; later trigger times are ignored as invalid. */
const MAX_AHEAD = 60_000;

/**
 * Collects trigger times by Service, to measure the time until the rules follow (the network programming latency SLI).
 * As in kube-proxy's EndpointsChangeTracker, triggers from before the agent's start do not count. Deleted slices do not
 * count either, because their annotation has the time of the previous change. Unlike kube-proxy, each trigger counts
 * once, however often its slice is written.
 */
export class ChangeTriggers {
  readonly #now: () => number;
  readonly #start: number;
  readonly #pending = new Map<ObjectKey, ChangeTrigger[]>();
  #isStarted = false;

  /** @param now milliseconds since 1970. */
  constructor(now: () => number) {
    this.#now = now;
    this.#start = now();
  }

  /** Starts collecting. Call it once the existing slices have been listed. */
  start(): void {
    this.#isStarted = true;
  }

  /** Records the trigger of an added or changed slice. @param before undefined for an added slice. */
  record(slice: EndpointSlice, before: EndpointSlice | undefined): void {
    const { serviceKey, family, triggerTime: time } = slice;
    if (!this.#isStarted || time === undefined || time === before?.triggerTime) return;
    if (time <= this.#start || time > this.#now() + MAX_AHEAD) return;
    getOrCreate(this.#pending, serviceKey, () => []).push({ family, time });
  }

  /** Discards the triggers of a Service, after one of its slices was deleted. */
  discard(serviceKey: ObjectKey): void {
    this.#pending.delete(serviceKey);
  }

  /** Returns the triggers of a Service, and clears the list. */
  take(serviceKey: ObjectKey): readonly ChangeTrigger[] {
    const triggers = this.#pending.get(serviceKey) ?? [];
    this.#pending.delete(serviceKey);
    return triggers;
  }
}
