/** What is listed and watched of the API server for each use, and who hears how that goes. */
import type { Kind } from '../../api/objects.ts';
import { API_VERSIONS } from '../../api/read-object.ts';
import type { QueryParameters } from './session.ts';

/** What to list and watch. */
export interface Resource {
  readonly kind: Kind;
  /** The same objects, in versions that mean the same; that which is to be asked for first. */
  readonly paths: readonly [string, ...string[]];
  /** `labelSelector`, `fieldSelector`. */
  readonly selectors: QueryParameters;
  /** Of a CRD, which need not be installed: then there is nothing of it. */
  readonly optional?: boolean;
}

/** Hears how the objects of each kind are followed, for metrics. */
export interface ResourceObserver {
  /** Whether a watch is open, as far as that is known. */
  watching(kind: Kind, isOpen: boolean): void;
  /** A list was read, a watch brought something, or the server was asked and had nothing to bring. */
  current(kind: Kind): void;
  /** It is of a CRD that is not installed, so that nobody can watch it. */
  absent(kind: Kind): void;
  /** Objects of it had changed, and a watch that was open did not tell. */
  watchStalled(kind: Kind): void;
}

/** All objects of a kind, or those that are selected. */
function resource(kind: Kind, selectors: QueryParameters = {}): Resource {
  // As Kubernetes makes the name of a resource from its kind (UnsafeGuessKindToResource).
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

/** Services, EndpointSlices and the node's own Node, selected as kube-proxy selects them. */
export function servingResources(nodeName: string): Resource[] {
  return [
    resource('Service', {
      labelSelector: '!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name',
    }),
    resource('EndpointSlice', { labelSelector: '!service.kubernetes.io/headless' }),
    resource('Node', { fieldSelector: `metadata.name=${nodeName}` }),
  ];
}

/** All Services: kube-proxy's selectors leave out those that only DNS tells of. */
export const ALL_SERVICES: Resource = resource('Service');

/** All Services and EndpointSlices. */
export function dnsResources(): Resource[] {
  return [ALL_SERVICES, resource('EndpointSlice')];
}

/** What network policy goes by. Pods that have ended have no address any more, and are not asked for. */
export function policyResources(): Resource[] {
  return [
    resource('Pod', { fieldSelector: 'status.phase!=Succeeded,status.phase!=Failed' }),
    resource('Namespace'),
    resource('Node'),
    resource('NetworkPolicy'),
    resource('AdminNetworkPolicy'),
    resource('BaselineAdminNetworkPolicy'),
    resource('ClusterNetworkPolicy'),
    resource('CIDRGroup'),
  ];
}

/** For an agent that does both: all Nodes, once, instead of its own. */
export function servingAndPolicyResources(nodeName: string): Resource[] {
  const policy = policyResources();
  const others = servingResources(nodeName).filter(
    ({ kind }) => !policy.some((resource) => resource.kind === kind),
  );
  return [...others, ...policy];
}
