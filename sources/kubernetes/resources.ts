import type { Kind } from '../../api/objects.ts';
import type { Resource } from './reflector.ts';

const SERVICES = { kind: 'Service', path: '/api/v1/services' } as const;
const ENDPOINT_SLICES = {
  kind: 'EndpointSlice',
  path: '/apis/discovery.k8s.io/v1/endpointslices',
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
      path: '/api/v1/nodes',
      selectors: { fieldSelector: `metadata.name=${nodeName}` },
    },
  ];
}

/** All Services and EndpointSlices: kube-proxy's selectors leave out those that only DNS tells of. */
export function dnsResources(): Resource[] {
  return [
    { ...SERVICES, selectors: {} },
    { ...ENDPOINT_SLICES, selectors: {} },
  ];
}

const POLICY_GROUP = '/apis/policy.networking.k8s.io';
const crd = (kind: Kind, path: string): Resource => ({
  kind,
  path: `${POLICY_GROUP}/${path}`,
  selectors: {},
  optional: true,
});

/** What network policy goes by. Pods that have ended have no address any more, and are not asked for. */
export function policyResources(): Resource[] {
  return [
    {
      kind: 'Pod',
      path: '/api/v1/pods',
      selectors: { fieldSelector: 'status.phase!=Succeeded,status.phase!=Failed' },
    },
    { kind: 'Namespace', path: '/api/v1/namespaces', selectors: {} },
    { kind: 'Node', path: '/api/v1/nodes', selectors: {} },
    {
      kind: 'NetworkPolicy',
      path: '/apis/networking.k8s.io/v1/networkpolicies',
      selectors: {},
    },
    crd('AdminNetworkPolicy', 'v1alpha1/adminnetworkpolicies'),
    crd('BaselineAdminNetworkPolicy', 'v1alpha1/baselineadminnetworkpolicies'),
    crd('ClusterNetworkPolicy', 'v1alpha2/clusternetworkpolicies'),
    crd('CIDRGroup', 'v1alpha1/cidrgroups'),
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
