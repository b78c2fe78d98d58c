/** Health of the proxy: whether the kernel is in sync with the API. */
import { IP_FAMILIES, type IpFamily, type Node } from '../api/objects.ts';

/** The system clock, for `ProxyHealth`. */
export const systemClock = {
  /** Wall-clock time, for display. */
  wall: () => new Date(),
  /** Monotonic time in milliseconds, not affected by steps of the wall clock. */
  elapsed: () => performance.now(),
};

export type Clock = typeof systemClock;

/** Health of one IP family, as in kube-proxy's JSON. */
interface FamilyHealth {
  /**
   * Time of the last successful sync; before the first sync, the time of `begin`, as in kube-proxy.
   */
  readonly lastUpdated: Date;
  readonly healthy: boolean;
}

export type HealthReport = ReturnType<ProxyHealth['report']>;

/**
 * Taint of nodes that the Cluster Autoscaler is about to delete (cluster-autoscaler/utils/taints).
 */
const TO_BE_DELETED_TAINT = 'ToBeDeletedByClusterAutoscaler';

interface ProxyHealthOptions {
  /**
   * Milliseconds without a successful sync after which a queued change makes a family unhealthy; in
   * kube-proxy twice the sync period.
   */
  readonly timeout: number;
  readonly clock: Clock;
  /**
   * Whether the node is eligible only with a Node object. An agent that reads manifests needs none.
   */
  readonly needsNode: boolean;
  /** Inputs of the rules that are still missing, in words for an operator. */
  readonly missingInputs: () => readonly string[];
}

/**
 * Tracks whether the kernel is in sync with the API, by kube-proxy's rules (pkg/proxy/healthcheck).
 * A family is unhealthy if a change has been queued for `timeout` without a successful sync since.
 * A family without pending changes is healthy. Before `begin` every family is healthy.
 *
 * Also tracks whether every family has synced once. Before its first sync, rules of a family are
 * missing or come from an earlier agent.
 */
export class ProxyHealth {
  readonly #options: ProxyHealthOptions;
  /** Families without a first sync; undefined until the families are known. */
  #unsynced: Set<IpFamily> | undefined;
  readonly #lastUpdated = new Map<IpFamily, Date>();
  /** `elapsed()` when the oldest pending change was queued. */
  readonly #queuedSince = new Map<IpFamily, number>();
  #node: Node | undefined;
  #hadNode = false;

  constructor(options: ProxyHealthOptions) {
    this.#options = options;
  }

  /**
   * Sets the IP families that the node serves. Their `lastUpdated` starts at the current time, as
   * in kube-proxy.
   */
  begin(families: readonly IpFamily[]): void {
    this.#unsynced = new Set(families);
    for (const family of families) this.#lastUpdated.set(family, this.#options.clock.wall());
  }

  /** A sync has succeeded: the kernel has all changes. */
  updated(family: IpFamily): void {
    this.#queuedSince.delete(family);
    this.#lastUpdated.set(family, this.#options.clock.wall());
    this.#unsynced?.delete(family);
  }

  /** Whether every family that the node serves has synced once; stays true. */
  get hasSynced(): boolean {
    return this.#unsynced?.size === 0;
  }

  /**
   * Conditions that `/healthz` waits for before it first succeeds, in words for an operator.
   * kube-proxy does not listen while it waits for the API server, so its response lacks this field.
   */
  get waitingFor(): readonly string[] {
    // Do not wait for a Node that was deleted or is about to be deleted.
    if (this.hasSynced && (this.nodeEligible || this.#hadNode)) return [];
    const inputs = this.#options.missingInputs();
    const syncs = [...(this.#unsynced ?? [])].map((family) => `the first sync of ${family} rules`);
    const isStarting = this.#unsynced === undefined && inputs.length === 0;
    return isStarting ? ['the start of the proxy mode'] : [...inputs, ...syncs];
  }

  /** A change was queued that the kernel may not have yet. */
  queued(family: IpFamily): void {
    if (!this.#queuedSince.has(family))
      this.#queuedSince.set(family, this.#options.clock.elapsed());
  }

  /** Sets the Node object of this node; undefined if the Node object does not exist. */
  setNode(node: Node | undefined): void {
    this.#node = node;
    this.#hadNode ||= node !== undefined;
  }

  /**
   * Whether load balancers may send new connections for Services with `externalTrafficPolicy:
   * Cluster` to this node. False while its Node is being deleted, while the Cluster Autoscaler is
   * about to delete the Node, and after the Node was deleted. With `needsNode`, also false while no
   * Node has this node's name, as in kube-proxy.
   */
  get nodeEligible(): boolean {
    if (this.#node === undefined) return !this.#options.needsNode && !this.#hadNode;
    return !this.#node.deleting && !this.#node.taints.includes(TO_BE_DELETED_TAINT);
  }

  /** Health of the proxy, without the eligibility of the node. */
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
      /** The newest `lastUpdated` of all families; undefined before `begin`. */
      lastUpdated: newest,
      currentTime: this.#options.clock.wall(),
      healthy: [...status.values()].every(({ healthy }) => healthy),
      /** Health of each family since `begin`, IPv4 first. */
      status,
    };
  }
}
