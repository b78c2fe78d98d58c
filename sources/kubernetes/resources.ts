import type { Kind } from '../../api/objects.ts';
import type { Resource } from './reflector.ts';

const SERVICES = { kind: 'Service', paths: ['/api/v1/services'] } as const;
const ENDPOINT_SLICES = {
  kind: 'EndpointSlice',
  paths: ['/apis/discovery.k8s.io/v1/endpointslices'],
} as const;

/** Services, EndpointSlices and the node's own Node, selected as kube-proxy selects them. */
export function servingResources(nodeName: string): Resource[] {
  return [
    {
      ...SERVICES,
      selectors: {
        labelSelector: '!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name',
      },
    },
    { ...ENDPOINT_SLICES, selectors: { labelSelector: '!service.kubernetes.io/headless' } },
    {
      kind: 'Node',
      paths: ['/api/v1/nodes'],
      selectors: { fieldSelector: `metadata.name=${nodeName}` },
    },
  ];
}

/** All Services: kube-proxy's selectors leave out those that only DNS tells of. */
export const ALL_SERVICES: Resource = { ...SERVICES, selectors: {} };

/** All Services and EndpointSlices. */
export function dnsResources(): Resource[] {
  return [ALL_SERVICES, { ...ENDPOINT_SLICES, selectors: {} }];
}

const POLICY_GROUP = '/apis/policy.networking.k8s.io';
const crd = (kind: Kind, name: string, version: string, ...older: string[]): Resource => ({
  kind,
  paths: [
    `${POLICY_GROUP}/${version}/${name}`,
    ...older.map((each) => `${POLICY_GROUP}/${each}/${name}`),
  ],
  selectors: {},
  optional: true,
});

/** What network policy goes by. Pods that have ended have no address any more, and are not asked for. */
export function policyResources(): Resource[] {
  return [
    {
      kind: 'Pod',
      paths: ['/api/v1/pods'],
      selectors: { fieldSelector: 'status.phase!=Succeeded,status.phase!=Failed' },
    },
    { kind: 'Namespace', paths: ['/api/v1/namespaces'], selectors: {} },
    { kind: 'Node', paths: ['/api/v1/nodes'], selectors: {} },
    {
      kind: 'NetworkPolicy',
      paths: ['/apis/networking.k8s.io/v1/networkpolicies'],
      selectors: {},
    },
    crd('AdminNetworkPolicy', 'adminnetworkpolicies', 'v1alpha1'),
    crd('BaselineAdminNetworkPolicy', 'baselineadminnetworkpolicies', 'v1alpha1'),
    crd('ClusterNetworkPolicy', 'clusternetworkpolicies', 'v1beta1', 'v1alpha2'),
    crd('CIDRGroup', 'cidrgroups', 'v1alpha1'),
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
