/** The interface that each proxy mode implements for the proxier: one backend per IP family. */
import type { IpFamily, ObjectKey, Protocol } from '../api/objects.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import type { Route } from '../services/route.ts';
import type { Comparison } from './compared-object.ts';
import type { BackendTraffic, KernelRule, RulePurpose } from './kernel-rule.ts';

/** The result of one `apply`, for logs and metrics. */
export interface ApplyReport {
  /** Number of changed kernel objects, such as chains, map elements or ipset entries; 0 if the kernel was up to date. */
  readonly written: number;
  /** iptables rules written, by table; undefined in modes other than iptables. */
  readonly rulesWritten?: ReadonlyMap<string, number>;
}

/** Counts of one backend for metrics. Read at each metrics scrape, so backends keep the counts up to date. */
export interface BackendStats {
  /** Number of the agent's iptables rules, by table; undefined in modes other than iptables. */
  readonly rules?: ReadonlyMap<string, number>;
  /** Packet marks of mode ipvs: for all-ports Services, and for Services with externalTrafficPolicy Local. */
  readonly marks?: {
    /** Number of marks in use; a Service may have several. */
    readonly inUse: number;
    /**
     * Number of Services without a mark because all marks are in use. Packets to an all-ports Service are then
     * rejected.
     */
    readonly waiting: number;
  };
  /** Number of VIPs that no Service is served on and that remain bound until their connections end. */
  readonly drainingVips?: number;
  /** Number of nf_tables elements, by map. */
  readonly elements?: ReadonlyMap<string, number>;
  /** Number of failed attempts to remove unknown objects from the agent's nf_tables table. */
  readonly cleanupFailures?: number;
}

/** State of a Service that is or was refused as a whole. */
export type RefusalState = 'refused' | 'served' | 'deleted';

/**
 * One proxy mode in one IP family. `update` and `setNodeAddresses` only change the desired state and are quick;
 * `apply` writes the desired state to the kernel. A failed `apply` may have written part of the changes: in modes
 * nftables and iptables whole transactions, each of them consistent. The next `apply` must be full.
 */
export interface Backend {
  readonly family: IpFamily;
  setNodeAddresses(nodeAddresses: NodeAddresses): void;
  update(upserts: Iterable<Route>, removals: Iterable<string>): void;
  /** Sets the CIDRs of cluster IPs. Implemented by modes that drop packets to cluster IPs that no Service has. */
  setServiceCidrs?(cidrs: readonly string[]): void;
  /**
   * Reports changed states of Services that are or were refused as a whole. Call it before the `update` that changes
   * Routes of a reported Service. Implemented by modes in which connections of a refused Service need kernel state
   * besides conntrack entries.
   */
  setRefusedServices?(changes: ReadonlyMap<ObjectKey, RefusalState>): void;
  /** Writes the desired state. @param full resync: compare with the kernel, and repair all drift and stale rules. */
  apply(full: boolean): Promise<ApplyReport>;
  /**
   * Looks for drift with a cheap check, which finds for example rules that another program removed.
   * @returns a description for the log (`chain KUBE-PROXY-CANARY of table nat`); undefined without drift.
   */
  findDrift(): Promise<string | undefined>;
  /**
   * Registers a callback that the backend calls when the kernel notifies it of an external change. The proxier then
   * calls `findDrift` at once.
   */
  onDrift?(callback: () => void): void;
  /**
   * Registers a callback that the backend calls when the kernel may hold external changes that it did not notify of.
   * The proxier then requests a full sync.
   */
  onMissedChanges?(callback: () => void): void;
  /** Whether the kernel currently notifies the backend of all external changes, so that periodic resyncs can be rare. */
  readonly watchesChanges?: boolean;
  /**
   * Compares objects in the kernel with the applied desired state, and changes nothing. Yields to the event loop.
   * May run during `apply`; the result may then contain changes in progress. Skips changes that no `apply` has begun to
   * write, and has nothing to compare before the first `apply`.
   * @param service undefined: all Services, and the rules that belong to none.
   * @param signal stops the comparison, which then throws the reason of the signal.
   * @param namespace Only differences in objects of Services in this namespace, and of no Service, count.
   * @throws errors of reading the kernel.
   */
  compare?(service?: ObjectKey, signal?: AbortSignal, namespace?: string): Promise<Comparison>;
  /** How packets are treated, besides the TrafficPlans of the Routes. */
  traffic?(): BackendTraffic;
  /** What a rule of nf_tables is for; undefined if it is not a rule of this backend. */
  describeRule?(rule: KernelRule): RulePurpose | undefined;
  /** Why the kernel's trace does not show the rules of this backend, and what to do; undefined if it shows them. */
  readonly untraceable?: string | undefined;
  /** Counts for metrics; each mode reports only counts of objects that it uses. */
  stats?(): BackendStats;
  /** Packets to node ports on the loopback address that rules rejected since the table was created, by protocol. */
  localhostRejections?(): Promise<ReadonlyMap<Protocol, number>>;
  /** Stops timers and closes sockets. Call it after the last `apply` has ended. The rules remain in the kernel. */
  close(): Promise<void>;
}
