/** Detects stalled watches: watches that are open but deliver no events although objects change. */
import type { Kind, ObjectKey } from '../../api/objects.ts';
import type { SourceLog } from '../source.ts';
import { jitteredSilenceMs, type RetryClock } from './backoff.ts';

export interface WatchDeliveryOptions {
  readonly kind: Kind;
  readonly clock: Pick<RetryClock, 'now' | 'random'>;
  readonly log: SourceLog;
  /**
   * Called each time a watch is found to be stalled; counted in `portwide_api_stalled_watches_total`.
   */
  readonly onStalled: () => void;
}

/** Milliseconds without any watch event before all objects are compared; plus up to 50 % jitter. */
const COMPARE_MS = 25 * 60_000;
/**
 * Milliseconds between two comparisons of all objects while a watch is stalled; plus up to 50 %
 * jitter. While a watch is stalled, only comparisons detect changes.
 */
const STALLED_COMPARE_MS = 10 * 60_000;

/**
 * Detects whether the watches of one resource deliver events.
 *
 * A proxy or load balancer may accept watches and hold back their events. Silence does not prove
 * that events are held back, because an idle cluster has no events. After a long silence the agent
 * therefore compares its objects with the API server. If a difference is found and the watch does
 * not deliver it, the watch is stalled.
 *
 * By default etcd reports its progress every 10 to 11 minutes, except after an interval with an
 * event. The kube-apiserver sends a bookmark after each progress report. So a bookmark arrives
 * within 23 minutes even on an idle cluster, and normally nothing is compared.
 */
export class WatchDelivery {
  readonly #options: WatchDeliveryOptions;
  #isStalled = false;
  /** When the known objects were last confirmed to match the API server. */
  #confirmedAt: number;
  /** When the next comparison of all objects is due; clock time as in `#confirmedAt`. */
  #compareAt = 0;

  constructor(options: WatchDeliveryOptions) {
    this.#options = options;
    this.#confirmedAt = options.clock.now();
  }

  /** Whether all objects have to be compared with the API server. */
  get isComparisonDue(): boolean {
    return this.#options.clock.now() >= this.#compareAt;
  }

  /** A complete list was read, or a comparison found no difference. */
  recordComparison(): void {
    const { now, random } = this.#options.clock;
    this.#confirmedAt = now();
    this.#compareAt =
      this.#confirmedAt +
      jitteredSilenceMs(this.#isStalled ? STALLED_COMPARE_MS : COMPARE_MS, random);
  }

  /** A watch delivered an event or bookmark. */
  recordDelivery(): void {
    const { kind, log } = this.#options;
    if (this.#isStalled) log.info({ kind }, 'stalled watch delivers events again');
    this.#isStalled = false;
    this.recordComparison();
  }

  /**
   * The watch did not deliver a change that the API server has.
   * @param object the changed object.
   */
  recordMissedChange(object: ObjectKey): void {
    const { kind, log, clock, onStalled } = this.#options;
    onStalled();
    if (this.#isStalled) return;
    this.#isStalled = true;
    const seconds = Math.round((clock.now() - this.#confirmedAt) / 1000);
    const effect = 'changes take effect up to 19 minutes late';
    const hint =
      'a proxy or load balancer in front of the API server holds back watch responses; ' +
      'disable response buffering there, or connect to the API server directly';
    log.warn(
      { kind, object, seconds, effect, hint },
      'watch stalled: an object changed but no event arrived; relisting',
    );
  }
}
