/** Cases of the checks of the API server and the cluster. */
import {
  BRIDGE,
  type Case,
  mode,
  NODE,
  objectsWith,
  optionsWith,
  serviceWith,
  sliceOf,
  traces,
  UNKNOWN,
} from './facts.ts';

const DUAL = serviceWith({ clusterIPs: ['10.96.0.10', 'fd00:96::a'] });

export const CLUSTER_CASES: readonly Case[] = [
  ['healthy', {}],
  [
    'API server away',
    { objects: UNKNOWN },
    /^fail API server it broke -> check --kubeconfig/,
    /^warn local pods not seen/,
  ],
  [
    'manifests unreadable',
    { objects: UNKNOWN, options: optionsWith({ manifests: '/m' }) },
    /^fail manifests it broke/,
    /^warn local pods not seen/,
  ],
  [
    'no Node',
    { objects: objectsWith({ node: undefined }) },
    /^fail node object no Node "node" -> set --hostname-override/,
  ],
  [
    'no Node in manifests',
    { objects: objectsWith({ node: undefined }), options: optionsWith({ manifests: '/m' }) },
    /^warn node object/,
  ],
  [
    'Node without addresses',
    { objects: objectsWith({ node: { ...NODE, addresses: [] } }) },
    /^warn node object .*no addresses/,
  ],
  [
    'unreadable objects',
    { objects: objectsWith({ unreadable: ['a', 'b', 'c', 'd'] }) },
    /^warn unreadable objects a, b, c and 1 more/,
  ],
  ['RBAC unknown', { access: UNKNOWN }, /^warn RBAC not seen: it broke/],
  [
    'RBAC lacks rules',
    {
      access: {
        value: [
          { verb: 'list', group: '', resource: 'services', allowed: true },
          { verb: 'watch', group: '', resource: 'services', allowed: false },
          { verb: 'list', group: 'discovery.k8s.io', resource: 'endpointslices', allowed: false },
          { verb: 'watch', group: 'discovery.k8s.io', resource: 'endpointslices', allowed: false },
          { verb: 'list', group: '', resource: 'pods', allowed: false },
          { verb: 'patch', group: 'events.k8s.io', resource: 'events', allowed: false },
          {
            ...{ verb: 'list', group: 'networking.k8s.io', resource: 'servicecidrs' },
            allowed: false,
          },
        ],
      },
    },
    /^fail RBAC not allowed: watch services -> apply and bind ClusterRole portwide,/,
    /^fail RBAC not allowed: list, watch endpointslices\.discovery\.k8s\.io/,
    /^fail RBAC not allowed: list pods -> .*portwide-network-policy/,
    /^warn RBAC not allowed: patch events\.events\.k8s\.io/,
    /^warn RBAC not allowed: list servicecidrs\.networking\.k8s\.io/,
  ],
  [
    'wrong cluster CIDR, pod CIDR',
    { options: optionsWith({ clusterCidr: ['10.20.0.0/16'] }) },
    /^fail local pods --cluster-cidr=10\.20\.0\.0\/16 does not contain pod CIDR 10\.244\.1\.0\/24/,
  ],
  [
    'wrong cluster CIDR, endpoints',
    {
      options: optionsWith({ clusterCidr: ['10.20.0.0/16'] }),
      objects: objectsWith({
        node: { ...NODE, podCIDRs: [] },
        slices: [
          sliceOf(['10.244.1.5', 'node'], ['192.168.77.10', 'node'], ['172.16.0.1', 'other']),
        ],
      }),
    },
    /^fail local pods .* does not contain 10\.244\.1\.5 of this node/,
  ],
  [
    'cluster CIDR of the other family only',
    { options: optionsWith({ clusterCidr: ['fd00::/48'] }) },
    /^warn local pods --cluster-cidr=fd00::\/48 has no IPv4 CIDR, but there is pod CIDR 10\.244\.1\.0\/24/,
  ],
  [
    'cluster CIDR of one family, Services of both',
    { objects: objectsWith({ services: [DUAL] }) },
    /^warn local pods --cluster-cidr=10\.244\.0\.0\/16 has no IPv6 CIDR, but there is cluster IP fd00:96::a \(default\/web\) -> add the pod CIDR of this family/,
  ],
  [
    'cluster CIDR of one family, pods of both',
    { objects: objectsWith({ node: { ...NODE, podCIDRs: ['10.244.1.0/24', 'fd00:1::/64'] } }) },
    /^warn local pods .* has no IPv6 CIDR, but there is pod CIDR fd00:1::\/64/,
  ],
  [
    'cluster CIDRs of both families',
    {
      options: optionsWith({ clusterCidr: ['10.244.0.0/16', 'fd00::/48'] }),
      objects: objectsWith({ services: [DUAL] }),
    },
  ],
  [
    'NodeCIDR of one family, Services of both',
    {
      options: optionsWith({ detectLocalMode: 'NodeCIDR' }),
      objects: objectsWith({ services: [DUAL] }),
    },
    /^warn local pods --detect-local-mode=NodeCIDR: 10\.244\.1\.0\/24 has no IPv6 CIDR/,
  ],
  [
    'NodeCIDR without pod CIDRs',
    {
      options: optionsWith({ detectLocalMode: 'NodeCIDR' }),
      objects: objectsWith({ node: { ...NODE, podCIDRs: [] } }),
    },
    /^fail local pods .*no pod CIDRs/,
  ],
  ['NodeCIDR', { options: optionsWith({ detectLocalMode: 'NodeCIDR' }) }],
  ['bridge missing', { options: optionsWith(BRIDGE) }, /^warn local pods .*no interface cni0/],
  [
    'bridge exists',
    { options: optionsWith(BRIDGE), ...traces({ interfaces: { value: ['cni0'] } }) },
  ],
  [
    'interface prefix missing',
    {
      options: optionsWith({
        detectLocalMode: 'InterfaceNamePrefix',
        podInterfaceNamePrefix: 'veth',
      }),
    },
    /^warn local pods .*no interface veth\*/,
  ],
  ['Service CIDR', { options: optionsWith({ serviceCidrs: ['10.96.0.0/12'] }) }],
  [
    'Service CIDR of a cluster IP is missing',
    { options: optionsWith({ serviceCidrs: ['10.100.0.0/16'] }) },
    /^fail Service CIDRs .* does not contain 10\.96\.0\.10 \(default\/web\); ServiceCIDRs: 10\.96\.0\.0\/12/,
  ],
  [
    'Service CIDR contains the node',
    { options: optionsWith({ serviceCidrs: ['10.96.0.0/12', '192.168.0.0/16'] }) },
    /^fail Service CIDRs .* contains node address 192\.168\.77\.10/,
  ],
  [
    'Service CIDR overlaps pods',
    { options: optionsWith({ serviceCidrs: ['10.0.0.0/8'] }) },
    /^fail Service CIDRs .* contains pod CIDR 10\.244\.1\.0\/24, pod CIDR 10\.244\.0\.0\/16/,
  ],
  [
    'a second ServiceCIDR',
    {
      options: optionsWith({ serviceCidrs: ['10.96.0.0/12'] }),
      serviceRanges: { value: ['10.96.0.0/12', '10.50.0.0/16'] },
    },
  ],
  [
    'Service CIDR in mode iptables',
    { ...mode('iptables'), options: optionsWith({ serviceCidrs: ['10.0.0.0/8'] }) },
  ],
];
