/** Connections and their rates, from conntrack, IPVS statistics or counters. */
import type { IpFamily } from '../../api/objects.ts';
import type { Page, Time } from './common.ts';

/** Traffic of a Service, an endpoint or a port. */
export interface TrafficRates {
  /** Connections in conntrack now. */
  readonly connections: number;
  /** New connections a second, over the last sample interval; null before the second sample. */
  readonly connectionsPerSecond: number | null;
  /** Packets and bytes a second in both directions; null where the kernel does not count (`nf_conntrack_acct`). */
  readonly packetsPerSecond: number | null;
  readonly bytesPerSecond: number | null;
}

/** Traffic since `TrafficSample.since`, both directions. Equals what conntrack counted. */
export interface TrafficTotals {
  /** Connections opened. */
  readonly connections: number;
  /** null where the kernel does not count (`nf_conntrack_acct`). */
  readonly packets: number | null;
  readonly bytes: number | null;
}

/** One row of `GET /api/v1/top`: a Service, one of its endpoints, or one of its destination ports. */
export interface TopRow extends TrafficRates {
  /** `namespace/name` */
  readonly service: string;
  /** `address:port`, or `address` where packets keep their port. null unless `by=endpoint`. */
  readonly endpoint: string | null;
  /** The destination port of clients. null unless `by=port`, and for `otherPorts`. */
  readonly protocol: string | null;
  readonly port: number | null;
  /** The row sums the ports beyond the number of ports of a Service that are counted one by one. */
  readonly otherPorts: boolean;
  readonly total: TrafficTotals;
}

/** When and how traffic was measured. */
export interface TrafficSample {
  /** The agent counts from here on, because a client asked. It stops 15 s after the last request. */
  readonly since: Time;
  /** Time of the values. They are renewed each second, or less often while conntrack is large. */
  readonly sampledAt: Time;
  /** Seconds that rates are averaged over; null before the second sample. */
  readonly intervalSeconds: number | null;
  /** Whether the kernel counts packets and bytes (`net.netfilter.nf_conntrack_acct=1`). */
  readonly countsBytes: boolean;
  /** What the values lack, and what to do about it. */
  readonly notes: readonly string[];
}

/** `GET /api/v1/top`: the busiest first. */
export interface TopList extends Page<TopRow> {
  readonly sample: TrafficSample;
}

/** One conntrack entry of a Service. */
export interface FlowEntry {
  readonly family: IpFamily;
  /** `TCP`, `UDP`, `SCTP`, `ICMP`, or the number of the protocol. */
  readonly protocol: string;
  readonly source: string;
  readonly sourcePort: number;
  readonly destination: string;
  readonly destinationPort: number;
  /** The endpoint, or the destination itself if the packet was not translated. */
  readonly endpoint: string;
  readonly endpointPort: number;
  /** Whether the source address is replaced by this node's. */
  readonly masqueraded: boolean;
  /** `ESTABLISHED` and the like; null for protocols without states. */
  readonly state: string | null;
  /** null where the kernel does not count (`nf_conntrack_acct`). */
  readonly packets: number | null;
  readonly bytes: number | null;
  /** The connection is open, and its endpoint does not serve the Service any longer. */
  readonly stale: boolean;
}

/** One line of `GET /api/v1/flows`: a flow. */
export interface FlowEvent {
  /** When it happened, if the kernel tells (`net.netfilter.nf_conntrack_timestamp`); otherwise when the agent read it. */
  readonly at: Time;
  /**
   * `opened`, `closed`: a conntrack entry was confirmed or removed. `rejected`, `dropped`: a packet to a VIP or node
   * port was not translated; at most 200 a second are shown for each of input, forward and output. In mode ipvs, packets
   * outside of the port ranges of a VIP may be missing. `denied`: a network policy dropped a packet.
   */
  readonly event: 'opened' | 'closed' | 'rejected' | 'dropped' | 'denied';
  /**
   * `namespace/name`; null if no Service has the destination. Of `denied`: the Service that translated the packet, else the
   * first by name whose endpoint is the destination.
   */
  readonly service: string | null;
  /** The policy or the decision that caused the event; empty for `opened` and `closed`. */
  readonly reason: string;
  /**
   * Of `denied`: the policy with the rule that denied the packet, such as `NetworkPolicy default/web`, or the policies
   * that isolate the pod and do not allow the packet, at most 10. Empty for other events, and if policies have just changed.
   */
  readonly policies: readonly string[];
  readonly flow: FlowEntry;
}

/** One line of `GET /api/v1/flows`: about the stream itself. */
export interface FlowNotice {
  readonly at: Time;
  /**
   * `started`: later flows are reported. `lost`: some were not, because the kernel or the client was too slow. `notes`:
   * `notes` has changed. `late`: the agent was stopped or busy until now, so times of the next flows may be late.
   */
  readonly event: 'started' | 'lost' | 'notes' | 'late';
  /** Number of lost events; 0 for others. */
  readonly lost: number;
  /** What the stream does not show, and what to do about it. Empty for `lost` and `late`. */
  readonly notes: readonly string[];
  /** Only with `late`: how long the agent was stopped or busy. */
  readonly seconds?: number;
}

export type FlowLine = FlowEvent | FlowNotice;
