/** Network policies as this node enforces them. */
import type { IpFamily, Protocol } from '../../api/objects.ts';
import type { Page, Time } from './common.ts';

/** `GET /api/v1/policies` */
export interface PolicySummary {
  readonly kind:
    | 'NetworkPolicy'
    | 'AdminNetworkPolicy'
    | 'BaselineAdminNetworkPolicy'
    | 'ClusterNetworkPolicy';
  /** Empty for kinds without a namespace. */
  readonly namespace: string;
  readonly name: string;
  /** Tiers are evaluated in this order: Admin, NetworkPolicy, Baseline. */
  readonly tier: 'Admin' | 'NetworkPolicy' | 'Baseline';
  /** A lower number is evaluated first; 0 for kinds without priority. */
  readonly priority: number;
  /** Directions to which the policy applies, with the number of rules; null if it does not apply. */
  readonly ingressRules: number | null;
  readonly egressRules: number | null;
  /**
   * Pods of this node to which the policy applies. A Baseline policy does not apply to pods that a NetworkPolicy
   * isolates.
   */
  readonly localPods: number;
  /** `faulty`: a part of the policy cannot be read and fails closed. */
  readonly state: 'ok' | 'faulty';
  readonly faults: readonly { readonly field: string; readonly reason: string }[];
}

export type PolicyList = Page<PolicySummary>;

/** State of network policy on this node. */
export interface PolicyStatus {
  readonly policies: number;
  readonly faulty: number;
  /** Pods of this node that a NetworkPolicy isolates. */
  readonly isolatedPods: number;
  /** End of the last successful write of each family; null before the first. */
  readonly lastSync: Time | null;
  /** The last failure; null if the last write succeeded. */
  readonly failure: { readonly at: Time; readonly message: string; readonly count: number } | null;
  /** The last change by another program; null if there was none. */
  readonly lastDrift: { readonly at: Time; readonly change: string; readonly count: number } | null;
}

/** `GET /api/v1/pods`: a pod of this node, and the policies that apply to it. */
export interface LocalPod {
  readonly namespace: string;
  readonly name: string;
  readonly addresses: readonly string[];
  readonly ingress: AppliedPolicies;
  readonly egress: AppliedPolicies;
}

/** The policies that apply to a pod in one direction. */
export interface AppliedPolicies {
  /** In order of evaluation, such as `NetworkPolicy default/web`; at most 20. */
  readonly policies: readonly string[];
  readonly total: number;
  /** Whether a NetworkPolicy isolates the pod: it denies what no rule allows. */
  readonly isolated: boolean;
}

export type LocalPodList = Page<LocalPod>;

/**
 * `GET /api/v1/access`: peers of a pod of this node that its policies cannot tell apart, and what the policies of this
 * pod decide. Policies of the peer may deny, too: `GET /api/v1/policies/explain` evaluates both ends.
 */
export interface PodAccess {
  /** `namespace/name` of the pod of this node. */
  readonly pod: string;
  readonly direction: 'ingress' | 'egress';
  readonly peer: AccessPeer;
  /** Each port is in exactly one decision. */
  readonly decisions: readonly AccessDecision[];
  /** Rules that may decide otherwise, because their networks may contain the address of a domain name. */
  readonly uncertain: readonly string[];
}

export interface AccessPeer {
  /** `ownNode`: the node of the pod, which may always connect to it. `addresses`: addresses outside of pods. */
  readonly kind: 'pods' | 'nodes' | 'addresses' | 'domainName' | 'ownNode';
  /** Pods, addresses of nodes, CIDRs and ranges, or the domain name; at most 10. */
  readonly names: readonly string[];
  /** Number of all names. */
  readonly total: number;
  /** Namespaces of the pods; at most 10. */
  readonly namespaces: readonly string[];
  /** Only addresses of this IP family; null: of all families. */
  readonly family: IpFamily | null;
  /** Whether no rule names these peers. */
  readonly rest: boolean;
}

export interface AccessDecision {
  /** Such as `all`, `TCP 80`, `UDP 1000-2000`, `TCP all` or `other protocols`; at most 50. */
  readonly ports: readonly string[];
  /** Number of all port ranges. */
  readonly portsTotal: number;
  readonly verdict: 'allow' | 'deny';
  /** null: no policy decides. */
  readonly tier: PolicySummary['tier'] | null;
  /** The deciding policy, or all NetworkPolicies that isolate the pod. */
  readonly policies: readonly string[];
  /** Path of the deciding rule, such as `spec.egress[2]`; null if no rule decides. */
  readonly rule: string | null;
  readonly reason: string;
  /** The rule of the Admin tier that passed the decision to the next tier; null if none did. */
  readonly passedBy: string | null;
}

/** Pods of one namespace with the same policies and named ports: they have the same peers, but no pod is its own peer. */
export interface PodGroup {
  /** `namespace/name` of the pod whose peers are listed. */
  readonly pod: string;
  /** The others; at most 100. */
  readonly others: readonly string[];
  /** Number of all pods of the group. */
  readonly total: number;
}

export interface PodAccessList extends Page<PodAccess> {
  /** At most 4; `total` and `continue` are about these. */
  readonly podGroups: readonly PodGroup[];
  /** Parameter `firstPod` for the next groups of pods of the namespace; null: these are the last. */
  readonly nextPod: string | null;
}

/** `GET /api/v1/policies/explain`: whether policies allow a connection after DNAT, one answer for each IP family. */
export interface PolicyExplanation {
  readonly port: number;
  readonly protocol: Protocol;
  /** Allowed in every family that both ends have. */
  readonly verdict: 'allow' | 'deny';
  readonly families: readonly FamilyExplanation[];
}

export interface FamilyExplanation {
  readonly family: IpFamily;
  readonly from: string;
  /** null for a domain name: its address is unknown. */
  readonly to: string | null;
  readonly verdict: 'allow' | 'deny';
  readonly egress: DirectionExplanation;
  readonly ingress: DirectionExplanation;
}

export interface DirectionExplanation {
  readonly verdict: 'allow' | 'deny';
  /** null: no policy decides. */
  readonly tier: PolicySummary['tier'] | null;
  readonly policies: readonly string[];
  readonly rule: string | null;
  readonly reason: string;
  /** Earlier rules that may decide otherwise: it depends on the addresses of a domain name. */
  readonly uncertain: readonly string[];
  /** Earlier rules that would decide otherwise if the agent had seen a DNS answer with the address. */
  readonly notLearned: readonly string[];
}
