/**
 * Objects needed for network policy: pods, namespaces, CIDR groups, and policies of all kinds in
 * one form. Small, immutable, validated values, as in `objects.ts`.
 */
import type { ObjectKey, Protocol } from './objects.ts';

export type Labels = Readonly<Record<string, string>>;

/**
 * One requirement of a label selector. An entry of `matchLabels` becomes operator `In` with one
 * value.
 */
export interface SelectorRequirement {
  readonly key: string;
  readonly operator: 'In' | 'NotIn' | 'Exists' | 'DoesNotExist';
  /** Sorted; empty for Exists and DoesNotExist. */
  readonly values: readonly string[];
}

/**
 * A metav1.LabelSelector: all requirements must match, and an empty list selects everything.
 * Sorted.
 */
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
  /** Canonical, at most one per IP family; empty until the pod has an address. */
  readonly addresses: readonly string[];
  readonly nodeName: string | undefined;
  /**
   * Whether the pod uses the node's addresses. Policies neither select such a pod nor match it as a
   * pod peer.
   */
  readonly hostNetwork: boolean;
  /**
   * Whether the pod is in phase Succeeded or Failed. Its addresses may already belong to another
   * pod.
   */
  readonly finished: boolean;
  /** Named ports of containers and sidecars, in the order of Kubernetes' FindPort. */
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

/** Selects pods in one namespace (by name) or in all namespaces that match a selector. */
export interface PodSelection {
  readonly namespaces: string | LabelSelector;
  readonly pods: LabelSelector;
}

export type PolicyPeer =
  | { readonly kind: 'pods'; readonly selection: PodSelection }
  /** Entries of `except` are canonical and within `cidr` (ipBlock). */
  | { readonly kind: 'network'; readonly cidr: string; readonly except: readonly string[] }
  | { readonly kind: 'cidrGroups'; readonly selector: LabelSelector }
  /** Addresses of nodes, not of the pods on them. */
  | { readonly kind: 'nodes'; readonly selector: LabelSelector }
  /** Lower case, without the trailing dot. A leading `*.` matches one or more labels. */
  | { readonly kind: 'domainName'; readonly pattern: string };

export type PortMatch =
  | { readonly protocol: Protocol; readonly first: number; readonly last: number }
  /** The port with this name in the destination pod. An undefined protocol matches any protocol. */
  | { readonly protocol: Protocol | undefined; readonly name: string };

export interface PolicyRule {
  /** Path of the rule, such as `spec.egress[2]`. */
  readonly path: string;
  /** Name given in the policy; empty if there is none. */
  readonly name: string;
  readonly action: 'Allow' | 'Deny' | 'Pass';
  /** undefined matches every peer; an empty list matches no peer. */
  readonly peers: readonly PolicyPeer[] | undefined;
  /** undefined matches all ports of all protocols; an empty list matches no port. */
  readonly ports: readonly PortMatch[] | undefined;
}

/** A part of a policy that cannot be enforced as written and therefore fails closed. */
export interface PolicyFault {
  readonly field: string;
  readonly reason: string;
}

/**
 * A policy of any kind. Parts that could not be read already fail closed: an Allow rule matches
 * nothing, a Deny or Pass rule denies everything, and `faults` lists the reasons.
 */
export interface Policy {
  readonly kind: PolicyKind;
  /** `namespace/name`, or `name` for a cluster-scoped policy. */
  readonly key: ObjectKey;
  /** Empty for cluster-scoped policies. */
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
  readonly tier: 'Admin' | 'NetworkPolicy' | 'Baseline';
  /** Priority within the tier; a lower number is evaluated first. 0 for kinds without priority. */
  readonly priority: number;
  /** The pods that the policy selects. */
  readonly subject: PodSelection;
  /**
   * undefined: the policy does not apply to this direction. A NetworkPolicy with a list, even an
   * empty list, isolates its pods in this direction (default deny): traffic then needs an allowing
   * rule of a NetworkPolicy.
   */
  readonly ingress: readonly PolicyRule[] | undefined;
  readonly egress: readonly PolicyRule[] | undefined;
  readonly faults: readonly PolicyFault[];
}

export type PolicyObject = Pod | Namespace | CidrGroup | Policy;
