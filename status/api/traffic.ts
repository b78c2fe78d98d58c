/** Connections and their rates, from conntrack, IPVS statistics or counters. */
import type { IpFamily } from '../../api/objects.ts';
import type { Time } from './common.ts';

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
  /** The endpoint does not serve the Service any longer. */
  readonly stale: boolean;
}

/** One line of `GET /api/v1/flows`. */
export interface FlowEvent {
  readonly at: Time;
  readonly event: 'opened' | 'closed' | 'rejected' | 'dropped' | 'denied';
  /** `namespace/name`; null if no Service has the destination. */
  readonly service: string | null;
  /** The policy or the decision that caused the event; empty for `opened` and `closed`. */
  readonly reason: string;
  readonly flow: FlowEntry;
}
