/** The whole agent with `--network-policy`, fed by an API server. */

import { manifestOf } from '../test/e2e/truth/manifests.ts';
import { type AgentRun, measureAgentWith } from './api-jobs.ts';
import { apiNode } from './api-objects.ts';
import { type ClusterSize, HERE, policyCluster } from './policy-cluster.ts';

export type PolicyAgentRun = AgentRun;

/** From its start until both families enforce, and then at rest. */
export function measurePolicyAgent(size: ClusterSize): Promise<PolicyAgentRun> {
  const objects = policyCluster(size).map(manifestOf);
  return measureAgentWith([...objects, apiNode(HERE)], {
    flags: ['--network-policy', '--proxy-mode=nftables'],
    message: 'enforcing network policies',
  });
}
