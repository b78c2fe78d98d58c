/** When the changes of EndpointSlices were triggered, for the network programming latency. */
import { getOrCreate } from '../api/collections.ts';
import type { EndpointSlice, IpFamily, ObjectKey } from '../api/objects.ts';

/** When something happened in the cluster that the rules of a family have to follow. */
export interface ChangeTrigger {
  readonly family: IpFamily;
  /** Milliseconds since 1970, by the clock of the control plane. */
  readonly time: number;
}

/** Milliseconds that the control plane's clock may be ahead of ours; more is nonsense. */
const MAX_AHEAD = 60_000;

/**
 * Collects, by Service, what made its EndpointSlices change, to measure how long it takes until the
 * rules follow (the network programming latency SLI). As in kube-proxy's EndpointsChangeTracker,
 * what happened before this agent began says nothing about it, and neither does a slice that goes,
 * for it only knows of the change before. Unlike there, each trigger counts once, however often its
 * slice is written.
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

  /** All slices that there were have been listed; from now on they change. */
  start(): void {
    this.#isStarted = true;
  }

  /** A slice came, or is no longer as it was `before`. */
  record(slice: EndpointSlice, before: EndpointSlice | undefined): void {
    const { serviceKey, family, triggerTime: time } = slice;
    if (!this.#isStarted || time === undefined || time === before?.triggerTime) return;
    if (time <= this.#start || time > this.#now() + MAX_AHEAD) return;
    getOrCreate(this.#pending, serviceKey, () => []).push({ family, time });
  }

  /** A slice of the Service went. */
  discard(serviceKey: ObjectKey): void {
    this.#pending.delete(serviceKey);
  }

  /** What was collected for a Service since the last call. */
  take(serviceKey: ObjectKey): readonly ChangeTrigger[] {
    const triggers = this.#pending.get(serviceKey) ?? [];
    this.#pending.delete(serviceKey);
    return triggers;
  }
}
