/** What a proxy mode is to the proxier: one backend for each family. */
import type { IpFamily, ObjectKey, Protocol } from '../api/objects.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import type { Route } from '../services/route.ts';

/** What one `apply` did, for logs and metrics. */
export interface ApplyReport {
  /** Chains, maps or messages written; 0 when the kernel had everything. */
  readonly written: number;
  /** Rules of iptables among it, by table; missing in modes that do not count them. */
  readonly rulesWritten?: ReadonlyMap<string, number>;
}

/** What a backend has in use. It is asked at each scrape, so it is counted as it changes. */
export interface BackendStats {
  /** Rules of iptables that are ours, by table. */
  readonly rules?: ReadonlyMap<string, number>;
  /** Packet marks of all-ports Services. */
  readonly marks?: {
    readonly inUse: number;
    /** Services that wait for one and are rejected until then. */
    readonly waiting: number;
  };
  /** VIPs on which no Service is served, and that stay bound while connections to them last. */
  readonly drainingVips?: number;
  /** Elements of nf_tables that Services have, by map. */
  readonly elements?: ReadonlyMap<string, number>;
  /** How often something in our table that is of no use could not be removed. */
  readonly cleanupFailures?: number;
}

/**
 * One proxy mode in one family. `update` and `setFacts` only change what is wanted and are quick;
 * `apply` brings the kernel there. After an `apply` that failed the kernel is as it was (or part
 * of the way, each part consistent), and the next has everything still to do.
 */
export interface Backend {
  readonly family: IpFamily;
  setNodeAddresses(facts: NodeAddresses): void;
  update(upserts: Iterable<Route>, removals: Iterable<string>): void;
  /**
   * Services that came to be refused as a whole (true), or are no longer: they are served again or gone
   * (false). Called before the `update` with their Routes, in modes where the connections of a refused
   * Service need more than conntrack to live on.
   */
  setRefusedServices?(changes: ReadonlyMap<ObjectKey, boolean>): void;
  /** @param full compare with the kernel and mend whatever differs, stale rules included. */
  apply(full: boolean): Promise<ApplyReport>;
  /**
   * What somebody else took away, as far as a cheap look can tell, in words for the log (`chain
   * KUBE-PROXY-CANARY of table nat`); undefined: everything stands.
   */
  findDrift(): Promise<string | undefined>;
  /** A mode that hears at once of what somebody took away has `loss` asked at once. */
  onDrift?(callback: () => void): void;
  /** It hears by now of all that others do, so that there is little to find by comparing. */
  readonly watchesChanges?: boolean;
  /** A mode tells the numbers that it has. */
  stats?(): BackendStats;
  /**
   * Packets to node ports on the loopback address that rules rejected since their table was made, of the protocols that
   * are rejected there; the kernel counts them.
   */
  localhostRejections?(): Promise<ReadonlyMap<Protocol, number>>;
  /** Ends timers and sockets, when nothing is under way any more; the rules stay. */
  close(): Promise<void>;
}
