/** Whether watches tell of changes, or something on the way to the API server holds them back. */
import type { Kind, ObjectKey } from '../../api/objects.ts';
import type { SourceLog } from '../source.ts';
import { jitteredSilenceMs, type RetryClock } from './backoff.ts';

export interface WatchDeliveryOptions {
  readonly kind: Kind;
  readonly clock: Pick<RetryClock, 'now' | 'random'>;
  readonly log: SourceLog;
  /** Counts each time that a watch was found to be deaf. */
  readonly onStalled: () => void;
}

/** Milliseconds without a word of any watch after which all objects are compared; up to half of that more by chance. */
const COMPARE_MS = 25 * 60_000;
/** The same once a watch was found to be deaf: then there is no other way to hear of changes. */
const STALLED_COMPARE_MS = 10 * 60_000;

/**
 * Whether the watches of one resource deliver anything.
 *
 * A proxy or load balancer may let watches open and hold back what they bring. Silence alone does not prove
 * that: on an idle cluster there is nothing to bring. So after a long silence the agent compares what it
 * knows with what the API server has; a difference that a watch does not tell proves it.
 *
 * An etcd reports its progress every 10 to 11 minutes by default, but not after an interval with an event. Then
 * kube-apiservers send bookmarks. So even on an idle cluster one comes within 23 minutes, and nothing is compared.
 */
export class WatchDelivery {
  readonly #options: WatchDeliveryOptions;
  #isStalled = false;
  /** When what is known was last known to be what the server has. */
  #confirmedAt: number;
  #compareAt = 0;

  constructor(options: WatchDeliveryOptions) {
    this.#options = options;
    this.#confirmedAt = options.clock.now();
  }

  /** Whether all objects are to be compared with what the API server has. */
  get isComparisonDue(): boolean {
    return this.#options.clock.now() >= this.#compareAt;
  }

  /** A complete list was read, or a comparison found no difference. */
  recordComparison(): void {
    const { now, random } = this.#options.clock;
    this.#confirmedAt = now();
    this.#compareAt =
      this.#confirmedAt + jitteredSilenceMs(this.#isStalled ? STALLED_COMPARE_MS : COMPARE_MS, random);
  }

  /** A watch has brought something. */
  recordDelivery(): void {
    const { kind, log } = this.#options;
    if (this.#isStalled) log.info({ kind }, 'the watch delivers again');
    this.#isStalled = false;
    this.recordComparison();
  }

  /**
   * A watch did not tell of a change that the API server has.
   * @param object whose change it was.
   */
  recordMissedChange(object: ObjectKey): void {
    const { kind, log, clock, onStalled } = this.#options;
    onStalled();
    if (this.#isStalled) return;
    this.#isStalled = true;
    const seconds = Math.round((clock.now() - this.#confirmedAt) / 1000);
    log.warn(
      { kind, object, seconds },
      'the watch delivers nothing, though objects change; listing them now, and comparing now and then, so changes ' +
        'take effect up to 19 minutes late: a proxy or load balancer before the API server holds back ' +
        'watches; let it pass them on unbuffered, or connect to the API server without it',
    );
  }
}
