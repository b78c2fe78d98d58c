import type { Policy } from './policy-objects.ts';
import { type Dialect, readClusterPolicy } from './read-cluster-policy.ts';
import { child, type Field, fail, integer } from './read-field.ts';
import { adminPort } from './read-port-match.ts';

const SHARED = {
  ports: 'ports',
  port: adminPort,
  most: 100,
  needsNamespaceSelector: true,
} as const;

const ADMIN: Dialect = {
  ...SHARED,
  kind: 'AdminNetworkPolicy',
  specMembers: ['priority'],
  tier: () => 'Admin',
  priority,
  check: () => {},
  actions: new Map([
    ['Allow', 'Allow'],
    ['Deny', 'Deny'],
    ['Pass', 'Pass'],
  ]),
  egressPeers: ['namespaces', 'pods', 'nodes', 'networks', 'domainNames'],
};

/** Without domain names: NetworkPolicies could not override these (NPEP-133). */
const BASELINE: Dialect = {
  ...SHARED,
  kind: 'BaselineAdminNetworkPolicy',
  specMembers: [],
  tier: () => 'Baseline',
  priority: () => 0,
  check: ({ metadata, name }) => {
    if (name !== 'default') fail(child(metadata, 'name'), 'must be default: there is only one');
  },
  actions: new Map([
    ['Allow', 'Allow'],
    ['Deny', 'Deny'],
  ]),
  egressPeers: ['namespaces', 'pods', 'nodes', 'networks'],
};

/** @throws InvalidObject, see `readClusterPolicy`. */
export function readAdminNetworkPolicy(raw: unknown): Policy {
  return readClusterPolicy(raw, ADMIN);
}

/** @throws InvalidObject, see `readClusterPolicy`. */
export function readBaselineAdminNetworkPolicy(raw: unknown): Policy {
  return readClusterPolicy(raw, BASELINE);
}

/** `spec.priority`; lower goes first. */
export function priority(spec: Field): number {
  return integer(child(spec, 'priority'), 0, 1000);
}
