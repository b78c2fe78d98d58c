/**
 * What network policy reads: pods, namespaces, groups of CIDRs, and policies of all kinds in one form.
 * Slim, immutable, already validated values, as those of `objects.ts`.
 */
import type { ObjectKey, Protocol } from './objects.ts';

export type Labels = Readonly<Record<string, string>>;

/** One of `matchExpressions`; `matchLabels` are `In` with one value. */
export interface SelectorRequirement {
  readonly key: string;
  readonly operator: 'In' | 'NotIn' | 'Exists' | 'DoesNotExist';
  /** Sorted; empty for Exists and DoesNotExist. */
  readonly values: readonly string[];
}

/** All requirements have to hold (metav1.LabelSelector); none selects everything. Sorted. */
export type LabelSelector = readonly SelectorRequirement[];

export interface NamedPort {
  readonly name: string;
  readonly protocol: Protocol;
  readonly port: number;
}

export interface Pod {
  readonly kind: 'Pod';
  readonly key: ObjectKey;
  readonly namespace: string;
  readonly name: string;
  readonly creationTimestamp: string;
  readonly labels: Labels;
  /** Canonical, at most one a family; empty while it has none. */
  readonly addresses: readonly string[];
  readonly nodeName: string | undefined;
  /** It has the node's addresses: never subject to a policy, never a peer as a pod. */
  readonly hostNetwork: boolean;
  /** Phase Succeeded or Failed: its addresses may be another pod's by now. */
  readonly finished: boolean;
  /** Of all its containers. */
  readonly namedPorts: readonly NamedPort[];
}

export interface Namespace {
  readonly kind: 'Namespace';
  readonly key: ObjectKey;
  readonly name: string;
  readonly labels: Labels;
}

export interface CidrGroup {
  readonly kind: 'CIDRGroup';
  readonly key: ObjectKey;
  readonly name: string;
  readonly labels: Labels;
  /** Canonical. */
  readonly cidrs: readonly string[];
}

export type PolicyKind =
  | 'NetworkPolicy'
  | 'AdminNetworkPolicy'
  | 'BaselineAdminNetworkPolicy'
  | 'ClusterNetworkPolicy';

/** Pods in a namespace, or in those that are selected. */
export interface PodSelection {
  readonly namespaces: string | LabelSelector;
  readonly pods: LabelSelector;
}

export type PolicyPeer =
  | { readonly kind: 'pods'; readonly selection: PodSelection }
  /** `except` lies within `cidr` (ipBlock). Canonical. */
  | { readonly kind: 'network'; readonly cidr: string; readonly except: readonly string[] }
  | { readonly kind: 'cidrGroups'; readonly selector: LabelSelector }
  /** Addresses of nodes, not of the pods on them. */
  | { readonly kind: 'nodes'; readonly selector: LabelSelector }
  /** Lower-case, without the final dot; `*.` in front stands for one or more labels. */
  | { readonly kind: 'domainName'; readonly pattern: string };

export type PortMatch =
  | { readonly protocol: Protocol; readonly first: number; readonly last: number }
  /** The port that the destination pod gives this name; undefined: in any protocol. */
  | { readonly protocol: Protocol | undefined; readonly name: string };

export interface PolicyRule {
  /** Where it is written: `spec.egress[2]`. */
  readonly path: string;
  /** As its author calls it; empty for none. */
  readonly name: string;
  readonly action: 'Allow' | 'Deny' | 'Pass';
  /** undefined: whoever. None: nobody. */
  readonly peers: readonly PolicyPeer[] | undefined;
  /** undefined: all ports of all protocols. None: nothing. */
  readonly ports: readonly PortMatch[] | undefined;
}

/** What of a policy cannot be enforced as it is written, and so fails closed. */
export interface PolicyFault {
  readonly field: string;
  readonly reason: string;
}

/**
 * A policy of any kind. What of it is not understood has failed closed by now: an Allow of it matches
 * nothing, a Deny or Pass of it denies everything, and `faults` say so.
 */
export interface Policy {
  readonly kind: PolicyKind;
  /** `namespace/name`, or the name of one without a namespace. */
  readonly key: ObjectKey;
  /** Empty for those without. */
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
  readonly tier: 'Admin' | 'NetworkPolicy' | 'Baseline';
  /** Within the tier; lower goes first. 0 where the kind has none. */
  readonly priority: number;
  /** Pods that it is about. */
  readonly subject: PodSelection;
  /**
   * undefined: it says nothing on this direction. A NetworkPolicy with a list, be it empty, isolates
   * its pods: what no rule of any NetworkPolicy allows is denied.
   */
  readonly ingress: readonly PolicyRule[] | undefined;
  readonly egress: readonly PolicyRule[] | undefined;
  readonly faults: readonly PolicyFault[];
}

export type PolicyObject = Pod | Namespace | CidrGroup | Policy;
