/** Network policies as resources of the status API. */
import { compareText } from '../../api/collections.ts';
import type { Policy } from '../../api/policy-objects.ts';
import type { PolicyModel } from '../../policy/model/model.ts';
import type { ListId } from '../../policy/model/terms.ts';
import type { PolicyStatus, PolicySummary } from '../api/policies.ts';
import type { PolicyActivity } from '../policy-activity.ts';
import { timeText } from './text.ts';

/** What the views read of network policy. */
export interface PolicySources {
  readonly model: PolicyModel;
  readonly activity: PolicyActivity;
  readonly names: FqdnSources;
}

/** What the views read of the domain names in policies. */
export interface FqdnSources {
  /** Whether a peer list has an address because a domain name resolved to it. */
  readonly hasPeer: (list: ListId, address: string) => boolean;
  /** Whether DNS answers are not inspected although policies have domain names. */
  readonly isNotObserving: () => boolean;
}

const TIERS: readonly Policy['tier'][] = ['Admin', 'NetworkPolicy', 'Baseline'];

/** All policies of the cluster in order of evaluation. */
export function policySummaries({ model }: Pick<PolicySources, 'model'>): PolicySummary[] {
  const { byPolicy } = model.localPods();
  return [...model.policies.all()].sort(inOrder).map((policy) => ({
    kind: policy.kind,
    namespace: policy.namespace,
    name: policy.name,
    tier: policy.tier,
    priority: policy.priority,
    ingressRules: policy.ingress?.length ?? null,
    egressRules: policy.egress?.length ?? null,
    localPods: byPolicy.get(policy) ?? 0,
    state: policy.faults.length > 0 ? 'faulty' : 'ok',
    faults: policy.faults,
  }));
}

function inOrder(a: Policy, b: Policy): number {
  return (
    TIERS.indexOf(a.tier) - TIERS.indexOf(b.tier) ||
    a.priority - b.priority ||
    compareText(a.key, b.key)
  );
}

export function policyStatus({ model, activity }: Omit<PolicySources, 'names'>): PolicyStatus {
  const policies = [...model.policies.all()];
  const { lastSync, failure, drift } = activity;
  return {
    policies: policies.length,
    faulty: policies.filter(({ faults }) => faults.length > 0).length,
    isolatedPods: model.localPods().isolated,
    lastSync: lastSync === undefined ? null : timeText(lastSync),
    failure: failure === undefined ? null : { ...failure, at: timeText(failure.at) },
    lastDrift:
      drift === undefined
        ? null
        : { at: timeText(drift.at), change: drift.message, count: drift.count },
  };
}
