import { IP_FAMILIES, type IpFamily, type Node } from '../api/objects.ts';

/** Time, as `ProxyHealth` needs it. */
export interface Clock {
  /** What time it is, for people. */
  wall(): Date;
  /** Milliseconds since some moment, which steps of the wall clock do not touch. */
  elapsed(): number;
}

export const systemClock: Clock = {
  wall: () => new Date(),
  elapsed: () => performance.now(),
};

/** Health of one IP family, as kube-proxy's JSON has it. */
export interface FamilyHealth {
  /** Of the last successful sync. */
  readonly lastUpdated: Date;
  readonly healthy: boolean;
}

/** Health of the proxy, without the node's eligibility. */
export interface HealthReport {
  /** The last successful sync of any family; undefined before the first. */
  readonly lastUpdated: Date | undefined;
  readonly currentTime: Date;
  readonly healthy: boolean;
  /** Families that have begun, IPv4 first. */
  readonly status: ReadonlyMap<IpFamily, FamilyHealth>;
}

/**
 * The Cluster Autoscaler marks nodes with it that it is about to delete
 * (cluster-autoscaler/utils/taints).
 */
const TO_BE_DELETED_TAINT = 'ToBeDeletedByClusterAutoscaler';

/**
 * Whether the kernel follows the API, by kube-proxy's rules (pkg/proxy/healthcheck): a family is
 * unhealthy when something has been queued for `timeout` without a successful sync since. One that has
 * nothing to do is healthy, and so is one that has not begun.
 */
export class ProxyHealth {
  readonly #timeout: number;
  readonly #clock: Clock;
  readonly #lastUpdated = new Map<IpFamily, Date>();
  /** `elapsed()` when the oldest of what waits was queued. */
  readonly #queuedSince = new Map<IpFamily, number>();
  #node: Node | undefined;
  #hadNode = false;

  /** @param options.timeout milliseconds; kube-proxy's is twice the sync period. */
  constructor(options: { timeout: number; clock: Clock }) {
    this.#timeout = options.timeout;
    this.#clock = options.clock;
  }

  /**
   * The kernel has everything. To be called once at the start too: a family is judged from then on,
   * in case its first sync never succeeds.
   */
  updated(family: IpFamily): void {
    this.#queuedSince.delete(family);
    this.#lastUpdated.set(family, this.#clock.wall());
  }

  /** There is something that the kernel may not have yet. */
  queued(family: IpFamily): void {
    if (!this.#queuedSince.has(family)) this.#queuedSince.set(family, this.#clock.elapsed());
  }

  /** The own Node as it is now; undefined: there is none. */
  setNode(node: Node | undefined): void {
    this.#node = node;
    this.#hadNode ||= node !== undefined;
  }

  /**
   * Whether load balancers may send this node new connections for Services with
   * `externalTrafficPolicy: Cluster`: not while its Node is being deleted, is about to be by the
   * Cluster Autoscaler, or has been. Yes as long as no Node is known (kube-proxy would not have
   * started yet, or has none to wait for).
   */
  get nodeEligible(): boolean {
    if (this.#node === undefined) return !this.#hadNode;
    return !this.#node.deleting && !this.#node.taints.includes(TO_BE_DELETED_TAINT);
  }

  report(): HealthReport {
    const now = this.#clock.elapsed();
    const status = new Map<IpFamily, FamilyHealth>();
    let newest: Date | undefined;
    for (const family of IP_FAMILIES) {
      const lastUpdated = this.#lastUpdated.get(family);
      if (lastUpdated === undefined) continue;
      if (newest === undefined || lastUpdated > newest) newest = lastUpdated;
      const since = this.#queuedSince.get(family);
      status.set(family, {
        lastUpdated,
        healthy: since === undefined || now - since < this.#timeout,
      });
    }
    return {
      lastUpdated: newest,
      currentTime: this.#clock.wall(),
      healthy: [...status.values()].every(({ healthy }) => healthy),
      status,
    };
  }
}
