/** What backends tell the status API about their rules, to explain and trace packets. */
import type { ObjectKey } from '../api/objects.ts';
import type { Route } from '../services/route.ts';
import type { TrafficOptions } from '../traffic/options.ts';

/** How a proxy mode treats packets in each IP family. Known before its backends exist. */
export interface ModeTraffic {
  /**
   * Whether IPVS translates packets, not NAT rules. IPVS takes packets at hook input, or at hook output from the node,
   * after the rules that refuse packets. It sends them on through hook output. Its conntrack entries lack IPS_DST_NAT, and
   * it rejects packets to a Service without endpoints itself, by no rule.
   */
  readonly forwardsWithIpvs: boolean;
  /** VIPs on which packets to ports that no Service lists are rejected. Otherwise such packets are not translated. */
  readonly rejectsOtherPorts: 'none' | 'cluster IPs' | 'vips';
}

/** How a backend treats packets, besides the TrafficPlans. */
export interface BackendTraffic extends ModeTraffic {
  /** Whether NAT rules translate packets of a Route although the mode forwards with IPVS. Default: for none. */
  readonly translatesByRules?: (route: Route) => boolean;
  readonly options: TrafficOptions;
  /** Whether node ports are served on an address of the node. */
  readonly isNodePortAddress: (address: string) => boolean;
  /**
   * Whether the agent itself serves TCP node ports on 127.0.0.1 or ::1, and rules reject UDP and SCTP there. Default: no;
   * `isNodePortAddress` says whether rules serve node ports there.
   */
  readonly proxiesLocalhost?: boolean;
  /** Packets to addresses in these CIDRs that no Service has are dropped. */
  readonly serviceCidrs: readonly string[];
}

/** A rule of nf_tables in the kernel. iptables-nft chains are nf_tables chains. */
export interface KernelRule {
  readonly table: string;
  readonly chain: string;
  /** Position in the chain, from 0; undefined for the chain itself. */
  readonly index: number | undefined;
}

/** What a rule of the agent is for. */
export interface RulePurpose {
  readonly purpose: string;
  /** The rule as the mode's tool prints it; undefined if the agent has no such rule. */
  readonly text: string | undefined;
  /** The address that the rule replaces without connection tracking, if it replaces one. */
  readonly rewrites?: 'source' | 'destination';
  /** undefined if the rule does not belong to one Service. */
  readonly service: ObjectKey | undefined;
}
