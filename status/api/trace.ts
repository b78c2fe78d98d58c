/** `GET /api/v1/trace` and `GET /api/v1/trace/live`: the path of a connection, computed and as the kernel reports it. */
import type { IpFamily, Protocol } from '../../api/objects.ts';
import type { Time } from './common.ts';

/** One decision on the path of a packet. */
export interface TraceStep {
  /** Stable identifier. */
  readonly step:
    | 'refusal'
    | 'source'
    | 'service'
    | 'sourceRanges'
    | 'endpoints'
    | 'slice'
    | 'affinity'
    | 'hash'
    | 'translation'
    | 'masquerade'
    | 'answer'
    | 'speaker'
    | 'egressPolicy'
    | 'ingressPolicy'
    | 'forwarding'
    | 'foreignRules'
    | 'result';
  readonly title: string;
  /** What is decided, in one sentence. */
  readonly decision: string;
  /** The object that decides, such as `Service default/web` or `NetworkPolicy default/deny`; null for settings. */
  readonly object: string | null;
  /** Reasons and single cases, such as one line an endpoint. */
  readonly detail: readonly string[];
}

/**
 * `translated`: sent to one of `endpoints`. `rejected`, `dropped`: by the proxy, by a node that does not forward, or by rules of another
 * program on the way to every endpoint that policies allow. `denied`: a policy denies the connection to every endpoint. `untouched`: the packet is not for a Service.
 */
export type TraceVerdict = 'translated' | 'rejected' | 'dropped' | 'denied' | 'untouched';

/**
 * Whether connections arrive. `reached`: at each endpoint that the client may get, or at the untranslated destination.
 * `partly`: at some endpoints only. `failed`: nowhere, also if this node does not serve the destination. `uncertain`: it
 * depends on what `uncertain` lists.
 */
export type TraceOutcome = 'reached' | 'partly' | 'failed' | 'uncertain';

/** An endpoint that the client may get. */
export interface TraceEndpoint {
  readonly address: string;
  readonly port: number;
  /** Whether the endpoint is on this node, as far as the agent knows. */
  readonly local: boolean;
  /** Whether the source address is replaced by this node's. */
  readonly masqueraded: boolean;
  /** Verdict of network policies on the connection to this endpoint. `depends`: on the unknown source. null: they are not enforced here. */
  readonly policy: 'allow' | 'deny' | 'depends' | null;
  /** What rules of other programs certainly do to packets to this endpoint (`drop`: also with an error to the source); null if they were not evaluated. */
  readonly foreignRules: 'pass' | 'drop' | null;
}

/** The path of the first packet of a connection, computed from the objects that the agent has. */
export interface ComputedTrace {
  readonly family: IpFamily;
  /** null: an unknown address outside the cluster. */
  readonly source: string | null;
  readonly destination: string;
  readonly steps: readonly TraceStep[];
  readonly verdict: TraceVerdict;
  /**
   * Whether this node does not serve the destination: a refused Service, or an address of one or of the Service range.
   * The verdict says what happens to the packet all the same.
   */
  readonly unserved: boolean;
  /** Empty if the proxy does not translate the packet. */
  readonly endpoints: readonly TraceEndpoint[];
  /** UDP ports from which the source speaks as a VIP, because it owns them; empty for other sources and protocols. */
  readonly speaksAs: readonly { readonly vip: string; readonly ports: readonly string[] }[];
  /** What the result depends on and the agent does not know; empty if the result is certain. */
  readonly uncertain: readonly string[];
}

/** A computed path with its outcome, which also depends on rules of other programs. */
export interface TracePath extends ComputedTrace {
  readonly outcome: TraceOutcome;
}

/** `GET /api/v1/trace` */
export interface TraceAnswer {
  readonly from: string;
  readonly to: string;
  readonly protocol: Protocol;
  readonly port: number;
  /** One for each IP family that both ends have. */
  readonly paths: readonly TracePath[];
}

/** The packets that a live trace selects. */
export interface LiveTraceFilter {
  readonly family: IpFamily;
  /** Before translation. */
  readonly destination: string;
  /** null: any source outside the cluster, or with `fromNode` any address of this node. */
  readonly source: string | null;
  readonly fromNode: boolean;
  /** CIDR or interface (`veth+`: a prefix) whose packets are left out, because pods send them; null: none, or there is a source. */
  readonly exceptPods: string | null;
  readonly protocol: Protocol;
  readonly port: number;
  /** null: any. */
  readonly sourcePort: number | null;
}

/** The owner of a rule in the kernel. */
export type RuleOwner = 'portwide' | 'network policy' | 'trace' | 'other';

/** A rule that a packet matched, or the end of a chain. */
export interface LiveTraceStep {
  readonly event: 'step';
  /** Number of the packet in this trace, from 1. */
  readonly packet: number;
  readonly owner: RuleOwner;
  /** Family and name, such as `ip filter`. */
  readonly table: string;
  readonly chain: string;
  /** Position in the chain, from 1; null for the end of the chain, or if the rule is gone. */
  readonly rule: number | null;
  /** As `nft -a list ruleset` prints it; null for the end of the chain. */
  readonly handle: number | null;
  /** What the rule or the chain is for; null if the agent does not know. */
  readonly purpose: string | null;
  /** The rule, near to the syntax of nft, or its comment; null if the agent does not know. */
  readonly text: string | null;
  /** `accept`, `drop`, `reject`, `continue`, `jump CHAIN` and so on. */
  readonly verdict: string;
  /** `address:port` of source and destination, where the packet enters a base chain; otherwise null. */
  readonly source: string | null;
  readonly destination: string | null;
  readonly inInterface: string | null;
  readonly outInterface: string | null;
}

/** How one traced packet ended. */
export interface LivePath {
  readonly packet: number;
  readonly source: string;
  readonly destination: string;
  /**
   * `pod`: passed hook postrouting, to a pod of this node. `left`: the same, to another destination. `delivered`: passed
   * hook input, to a process of this node. `lost`: after the last hook in `passed` something other than an nf_tables rule
   * dropped or took it.
   */
  readonly result: 'pod' | 'left' | 'delivered' | 'dropped' | 'rejected' | 'lost';
  /** Hooks whose end the packet reached. */
  readonly passed: readonly string[];
  /** `address:port` after DNAT; null if the destination did not change. */
  readonly translatedTo: string | null;
  /** Address after masquerade; null if the source did not change, or is not known. */
  readonly masqueradedAs: string | null;
  /** The rule that dropped or rejected the packet; null if it got through or was lost. */
  readonly decidedBy: LiveTraceStep | null;
  /** The rules that replaced destination and source; null for a later packet of a connection, which only conntrack changes. */
  readonly translatedBy: LiveTraceStep | null;
  readonly masqueradedBy: LiveTraceStep | null;
  /**
   * Whether a lost packet reached IPVS, and IPVS did not send it on. IPVS rejects packets to a Service without endpoints
   * in this way. True only in mode ipvs.
   */
  readonly lostInIpvs: boolean;
}

/** The last line of a live trace. */
export interface LiveTraceSummary {
  readonly event: 'summary';
  readonly at: Time;
  /** Why the trace ended. */
  readonly ended: 'time' | 'packets' | 'events' | 'client';
  readonly paths: readonly LivePath[];
  /** Number of trace events of the kernel that were lost. */
  readonly lost: number;
  /** Packets of pods and of this node that matched `external`. They are not in `paths`. */
  readonly others: number;
  /** Where the kernel and the computed path differ, one sentence each; empty if they agree. */
  readonly differences: readonly string[];
  /** Limits of this trace, such as rules that it does not show. */
  readonly notes: readonly string[];
}

/** One line of `GET /api/v1/trace/live`. */
export type LiveTraceLine =
  | {
      readonly event: 'armed';
      readonly at: Time;
      readonly filter: LiveTraceFilter;
      readonly seconds: number;
      readonly maxPackets: number;
      /** What to trace for the other IP family of the ends; null: they have none. */
      readonly otherFamily: { readonly family: IpFamily; readonly destination: string } | null;
    }
  | LiveTraceStep
  | LiveTraceSummary;
