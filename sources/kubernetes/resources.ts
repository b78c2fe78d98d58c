/** The resources to list and watch for each feature, and the observer of their watches. */
import type { Kind } from '../../api/objects.ts';
import { API_VERSIONS } from '../../api/read-object.ts';
import type { QueryParameters } from './session.ts';

/** A resource to list and watch. */
export interface Resource {
  readonly kind: Kind;
  /** Paths of the same objects in equivalent API versions, preferred first. */
  readonly paths: readonly [string, ...string[]];
  /** `labelSelector`, `fieldSelector`. */
  readonly selectors: QueryParameters;
  /**
   * Whether the resource may not exist: a CRD that is not installed, or an API that older servers
   * lack. The resource then counts as empty.
   */
  readonly optional?: boolean;
  /** Whether an optional resource counts as empty, too, while the agent may not read it. */
  readonly mayBeForbidden?: boolean;
}

/** Observes the watches of each kind, for metrics. */
export interface ResourceObserver {
  /** Called when a watch opens or closes, or when a silent watch cannot be replaced. */
  watchOpen(kind: Kind, isOpen: boolean): void;
  /**
   * The known objects are up to date: a list was read, a watch delivered an event, or a check of the
   * server's history found no change.
   */
  upToDate(kind: Kind): void;
  /** The kind is not watched: its CRD is not installed, or nothing needs its objects any longer. */
  notInstalled(kind: Kind): void;
  /** An object changed, but an open watch did not deliver the event. */
  watchStalled(kind: Kind): void;
}

/** All objects of a kind that match the selectors. */
function resource(kind: Kind, selectors: QueryParameters = {}): Resource {
  // Kubernetes derives resource names from kinds in the same way (UnsafeGuessKindToResource).
  const name = `${kind.toLowerCase().replace(/y$/, 'ie')}s`;
  const pathIn = (apiVersion: string) =>
    `/${apiVersion.includes('/') ? 'apis' : 'api'}/${apiVersion}/${name}`;
  const [newest, ...older] = API_VERSIONS[kind];
  return {
    kind,
    paths: [pathIn(newest), ...older.map(pathIn)],
    selectors,
    optional: newest.startsWith('policy.networking.k8s.io/'),
  };
}

/** All Services. */
export const ALL_SERVICES: Resource = resource('Service');

/**
 * Services, EndpointSlices and the agent's own Node. Unlike kube-proxy, also Services that kube-proxy ignores: their
 * cluster IPs are theirs, so no other Service may be served there.
 */
export function servingResources(nodeName: string): Resource[] {
  return [
    ALL_SERVICES,
    resource('EndpointSlice', { labelSelector: '!service.kubernetes.io/headless' }),
    resource('Node', { fieldSelector: `metadata.name=${nodeName}` }),
  ];
}

/**
 * ServiceCIDRs, which API servers have since Kubernetes 1.33. The agent serves without them, also when
 * it is newer than its ClusterRole.
 */
export const SERVICE_CIDRS: Resource = {
  ...resource('ServiceCIDR'),
  optional: true,
  mayBeForbidden: true,
};

/** One pod, which a user with rights in its namespace only may read. */
export function podResource(namespace: string, name: string): Resource {
  const fieldSelector = `metadata.name=${name}`;
  return { ...resource('Pod', { fieldSelector }), paths: [`/api/v1/namespaces/${namespace}/pods`] };
}

/** All pods. Finished pods are excluded, because they no longer own their addresses. */
export const ALL_PODS: Resource = resource('Pod', {
  fieldSelector: 'status.phase!=Succeeded,status.phase!=Failed',
});

/** The pods of a namespace that can own ports. */
export function podsIn(namespace: string): Resource {
  return { ...ALL_PODS, paths: [`/api/v1/namespaces/${namespace}/pods`] };
}

/** All Services and EndpointSlices. */
export function dnsResources(): Resource[] {
  return [ALL_SERVICES, resource('EndpointSlice')];
}

/** Resources for network policy. */
export function policyResources(): Resource[] {
  return [
    ALL_PODS,
    resource('Namespace'),
    resource('Node'),
    resource('NetworkPolicy'),
    resource('AdminNetworkPolicy'),
    resource('BaselineAdminNetworkPolicy'),
    resource('ClusterNetworkPolicy'),
    resource('CIDRGroup'),
  ];
}

/**
 * Resources for an agent that serves Services and enforces network policy. Network policy needs all
 * Nodes, so the resource of the agent's own Node is left out.
 */
export function servingAndPolicyResources(nodeName: string): Resource[] {
  const policy = policyResources();
  const serving = servingResources(nodeName).filter(
    ({ kind }) => !policy.some((resource) => resource.kind === kind),
  );
  return [...serving, ...policy];
}
