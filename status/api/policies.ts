/** Network policies as this node enforces them. */
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
}
