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
