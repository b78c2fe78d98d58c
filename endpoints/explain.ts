/** Says why endpoint selection uses an endpoint or not. Pure. */
import {
  type Candidate,
  type EndpointPolicy,
  isDraining,
  type NodeTopology,
  selectEndpoints,
  type TopologyHints,
  topologyHints,
} from './select.ts';
import type { EndpointWithoutSlice, SliceOwners } from './slice-owners.ts';

/** Why this node sends clients to an endpoint or not. */
export type EndpointReason =
  | 'ready'
  | 'terminating, and no endpoint is ready'
  | 'not ready'
  | 'terminating, and another endpoint is ready'
  | 'terminating and not serving'
  | 'hinted for another zone'
  | 'hinted for another node'
  | 'on another node'
  | 'traffic policy not in use'
  | 'owns ports'
  | 'owns ports, but does not serve'
  | EndpointWithoutSlice['reason'];

/** The decision about one endpoint for the clients of one traffic policy. */
export interface EndpointDecision {
  readonly used: boolean;
  readonly reason: EndpointReason;
}

/** An endpoint with the decisions of `selectEndpoints` about it. */
export interface ExplainedEndpoint {
  readonly endpoint: Candidate;
  readonly isLocal: boolean;
  /** For clients that traffic policy Cluster serves. */
  readonly cluster: EndpointDecision;
  /** For clients that traffic policy Local serves. */
  readonly local: EndpointDecision;
}

/** Explains `selectEndpoints` for the same arguments. */
export function explainEndpoints(
  candidates: readonly Candidate[],
  policy: EndpointPolicy,
  node: NodeTopology,
): ExplainedEndpoint[] {
  const selected = selectEndpoints(candidates, policy, node);
  const key = ({ address, port }: Pick<Candidate, 'address' | 'port'>) => `${address} ${port}`;
  const cluster = new Set(selected.cluster.map(key));
  const local = new Set(selected.local.map(key));
  const ready = candidates.filter((endpoint) => endpoint.ready);
  const { by } = topologyHints(ready, node);
  const unused: EndpointDecision = { used: false, reason: 'traffic policy not in use' };
  return candidates.map((endpoint) => {
    const isLocal = endpoint.nodeName === node.name;
    const isUsed = { cluster: cluster.has(key(endpoint)), local: local.has(key(endpoint)) };
    const localReason = isLocal ? reason(endpoint, isUsed.local, undefined) : 'on another node';
    return {
      endpoint,
      isLocal,
      cluster: policy.usesCluster
        ? { used: isUsed.cluster, reason: reason(endpoint, isUsed.cluster, by) }
        : unused,
      local: policy.usesLocal ? { used: isUsed.local, reason: localReason } : unused,
    };
  });
}

/** Explains `sliceOwners` for the same candidates. Traffic policies have no effect on owned ports. */
export function explainOwners(
  candidates: readonly Candidate[],
  { owners, others }: SliceOwners,
  node: NodeTopology,
): ExplainedEndpoint[] {
  const serving = new Map(owners.map(({ address, serves }) => [address, serves]));
  const without = new Map(others.map(({ address, reason }) => [address, reason]));
  return candidates.map((endpoint): ExplainedEndpoint => {
    const serves = serving.get(endpoint.address);
    const owned = serves === true ? 'owns ports' : 'owns ports, but does not serve';
    return {
      endpoint,
      isLocal: endpoint.nodeName === node.name,
      cluster: { used: serves === true, reason: without.get(endpoint.address) ?? owned },
      local: { used: false, reason: 'traffic policy not in use' },
    };
  });
}

function reason(endpoint: Candidate, used: boolean, hints: TopologyHints['by']): EndpointReason {
  if (used) return endpoint.ready ? 'ready' : 'terminating, and no endpoint is ready';
  // Only hints exclude a ready endpoint.
  if (endpoint.ready) return `hinted for another ${hints ?? 'zone'}`;
  if (isDraining(endpoint)) return 'terminating, and another endpoint is ready';
  return endpoint.terminating ? 'terminating and not serving' : 'not ready';
}
