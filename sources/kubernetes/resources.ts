import type { Resource } from './reflector.ts';

/** Services, EndpointSlices and the node's own Node, selected as kube-proxy selects them. */
export function servingResources(nodeName: string): Resource[] {
  return [
    {
      kind: 'Service',
      path: '/api/v1/services',
      selectors: {
        labelSelector: '!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name',
      },
    },
    {
      kind: 'EndpointSlice',
      path: '/apis/discovery.k8s.io/v1/endpointslices',
      selectors: { labelSelector: '!service.kubernetes.io/headless' },
    },
    {
      kind: 'Node',
      path: '/api/v1/nodes',
      selectors: { fieldSelector: `metadata.name=${nodeName}` },
    },
  ];
}
