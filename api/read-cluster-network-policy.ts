import type { Policy } from './policy-objects.ts';
import { priority } from './read-admin-network-policy.ts';
import { type Dialect, readClusterPolicy } from './read-cluster-policy.ts';
import { child, word } from './read-field.ts';
import { clusterPort } from './read-port-match.ts';

const CLUSTER: Dialect = {
  kind: 'ClusterNetworkPolicy',
  specMembers: ['tier', 'priority'],
  tier: (spec) => word(child(spec, 'tier'), ['Admin', 'Baseline']),
  priority,
  check: () => {},
  actions: new Map([
    ['Accept', 'Allow'],
    ['Deny', 'Deny'],
    ['Pass', 'Pass'],
  ]),
  egressPeers: ['namespaces', 'pods', 'nodes', 'networks', 'domainNames'],
  ports: 'protocols',
  port: clusterPort,
  most: 25,
  needsNamespaceSelector: false,
};

/**
 * A ClusterNetworkPolicy of `policy.networking.k8s.io`, v1beta1 or v1alpha2, with `networks` in all of its forms.
 * @throws InvalidObject, see `readClusterPolicy`.
 */
export function readClusterNetworkPolicy(raw: unknown): Policy {
  return readClusterPolicy(raw, CLUSTER);
}
