/** health/ says whether the node and its Services are fit for traffic; here, whether the kernel follows the API. */
import { IP_FAMILIES, type IpFamily, type Node } from '../api/objects.ts';

/** Time, as `ProxyHealth` needs it. */
export const systemClock = {
  /** What time it is, for people. */
  wall: () => new Date(),
  /** Milliseconds since some moment, which steps of the wall clock do not touch. */
  elapsed: () => performance.now(),
};

export type Clock = typeof systemClock;

/** Health of one IP family, as kube-proxy's JSON has it. */
interface FamilyHealth {
  /** Of the last successful sync; of its beginning before the first, as in kube-proxy. */
  readonly lastUpdated: Date;
  readonly healthy: boolean;
}

export type HealthReport = ReturnType<ProxyHealth['report']>;

/**
 * The Cluster Autoscaler marks nodes with it that it is about to delete
 * (cluster-autoscaler/utils/taints).
 */
const TO_BE_DELETED_TAINT = 'ToBeDeletedByClusterAutoscaler';

interface ProxyHealthOptions {
  /** Milliseconds; kube-proxy's is twice the sync period. */
  readonly timeout: number;
  readonly clock: Clock;
  /** Whether the node is eligible only with a Node object; one that is fed by manifests needs none. */
  readonly needsNode: boolean;
  /** What rules are made from and is not there yet, in words for an operator. */
  readonly missingInputs: () => readonly string[];
}

/**
 * Whether the kernel follows the API, by kube-proxy's rules (pkg/proxy/healthcheck): a family is
 * unhealthy when something has been queued for `timeout` without a successful sync since. One that has
 * nothing to do is healthy, and so is one that has not begun.
 *
 * Besides, it knows whether every family has synced once: rules of an agent that has just started are
 * missing, or those of another time.
 */
export class ProxyHealth {
  readonly #options: ProxyHealthOptions;
  /** Families whose first sync is still to come; undefined until it is known which there are. */
  #unsynced: Set<IpFamily> | undefined;
  readonly #lastUpdated = new Map<IpFamily, Date>();
  /** `elapsed()` when the oldest of what waits was queued. */
  readonly #queuedSince = new Map<IpFamily, number>();
  #node: Node | undefined;
  #hadNode = false;

  constructor(options: ProxyHealthOptions) {
    this.#options = options;
  }

  /**
   * Which families the node serves. Each is judged from now on, as in kube-proxy, in case its first
   * sync never succeeds.
   */
  begin(families: readonly IpFamily[]): void {
    this.#unsynced = new Set(families);
    for (const family of families) this.#lastUpdated.set(family, this.#options.clock.wall());
  }

  /** The kernel has everything. */
  updated(family: IpFamily): void {
    this.#queuedSince.delete(family);
    this.#lastUpdated.set(family, this.#options.clock.wall());
    this.#unsynced?.delete(family);
  }

  /** Every family that the node serves has synced once; from then on it stays so. */
  get hasSynced(): boolean {
    return this.#unsynced?.size === 0;
  }

  /**
   * What keeps `/healthz` from being good for the first time, in words for an operator. kube-proxy does
   * not listen as long as it waits for the API server, so it has no words for it.
   */
  get waitingFor(): readonly string[] {
    // A Node that is gone, or about to go, is not waited for.
    if (this.hasSynced && (this.nodeEligible || this.#hadNode)) return [];
    const inputs = this.#options.missingInputs();
    const syncs = [...(this.#unsynced ?? [])].map((family) => `the first sync of ${family} rules`);
    const isStarting = this.#unsynced === undefined && inputs.length === 0;
    return isStarting ? ['the start of the proxy mode'] : [...inputs, ...syncs];
  }

  /** There is something that the kernel may not have yet. */
  queued(family: IpFamily): void {
    if (!this.#queuedSince.has(family))
      this.#queuedSince.set(family, this.#options.clock.elapsed());
  }

  /** The own Node as it is now; undefined: there is none. */
  setNode(node: Node | undefined): void {
    this.#node = node;
    this.#hadNode ||= node !== undefined;
  }

  /**
   * Whether load balancers may send this node new connections for Services with
   * `externalTrafficPolicy: Cluster`: not while its Node is being deleted, is about to be by the
   * Cluster Autoscaler, or has been; nor, as in kube-proxy, while there is none of its name.
   */
  get nodeEligible(): boolean {
    if (this.#node === undefined) return !this.#options.needsNode && !this.#hadNode;
    return !this.#node.deleting && !this.#node.taints.includes(TO_BE_DELETED_TAINT);
  }

  /** Health of the proxy, without the node's eligibility. */
  report() {
    const now = this.#options.clock.elapsed();
    const status = new Map<IpFamily, FamilyHealth>();
    let newest: Date | undefined;
    for (const family of IP_FAMILIES) {
      const lastUpdated = this.#lastUpdated.get(family);
      if (lastUpdated === undefined) continue;
      if (newest === undefined || lastUpdated > newest) newest = lastUpdated;
      const since = this.#queuedSince.get(family);
      status.set(family, {
        lastUpdated,
        healthy: since === undefined || now - since < this.#options.timeout,
      });
    }
    return {
      /** The last successful sync of any family; undefined before the first. */
      lastUpdated: newest,
      currentTime: this.#options.clock.wall(),
      healthy: [...status.values()].every(({ healthy }) => healthy),
      /** Families that have begun, IPv4 first. */
      status,
    };
  }
}
