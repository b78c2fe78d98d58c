/** Settings that determine the rules of a node, shared by `portwide run` and `portwide render`. */

import { FEATURE_GATES, featureGates } from './feature-gates.ts';
import type { IpvsAllPortsMode } from './mode-values.ts';
import {
  cidrs,
  clusterCidrs,
  interfaceName,
  interfacePrefix,
  ipAddress,
  markRange,
  nodeName,
  nodePortSelection,
  scheduler,
} from './network-types.ts';
import { setting } from './setting.ts';
import { boolean, oneOf, oneOfOrDefault, optional, wholeNumber } from './value-types.ts';

export const PROXY_MODES = ['nftables', 'iptables', 'ipvs'] as const;
export type ProxyMode = (typeof PROXY_MODES)[number];

export const DETECT_LOCAL_MODES = [
  'ClusterCIDR',
  'NodeCIDR',
  'BridgeInterface',
  'InterfaceNamePrefix',
] as const;

export const NODE_SETTINGS = {
  hostnameOverride: setting('node', {
    field: 'hostnameOverride',
    type: optional(nodeName),
    default: undefined,
    defaultText: "the node's host name",
    overridesFile: true,
    help: "name of this node's Node object",
  }),
  bindAddress: setting('node', {
    field: 'bindAddress',
    type: ipAddress,
    default: '0.0.0.0',
    help: "primary node IP of its family, overriding the Node object's; no socket is bound to it",
    details:
      '0.0.0.0 and :: do not override. In a file, an IPv6 address changes two defaults: `healthzBindAddress` to `[::]:10256` and `metricsBindAddress` to `[::1]:10249`.',
  }),
  proxyMode: setting('rules', {
    field: 'mode',
    type: optional(oneOf('<mode>', PROXY_MODES)),
    default: undefined,
    defaultText: 'nftables if the kernel supports it, otherwise iptables',
    help: 'proxy mode: nftables, iptables or ipvs',
    details: 'See [choosing a mode](node.md#choosing-a-mode).',
  }),
  masqueradeAll: setting('rules', {
    field: 'iptables.masqueradeAll',
    type: boolean,
    default: false,
    help: 'masquerade all traffic to cluster IPs',
  }),
  iptablesMasqueradeBit: setting('rules', {
    field: 'iptables.masqueradeBit',
    type: wholeNumber(0, 31, '<bit>'),
    default: 14,
    keepsZero: true,
    help: 'bit (0 to 31) that requests masquerade: of the packet mark in mode iptables, of the connection mark in ipvs',
  }),
  nodeportAddresses: setting('rules', {
    field: 'nodePortAddresses',
    type: nodePortSelection,
    default: [],
    defaultText: 'all local addresses; mode nftables: primary',
    help: 'node addresses that accept NodePort connections: any of CIDRs, primary, localhost and all',
    details:
      '`primary`: the first address of each family in the Node object. `localhost`: 127.0.0.0/8 and ::1 ([by mode](node.md#node-ports-on-localhost)). If all CIDRs are of one IP family, the other family is not restricted.',
  }),
  resetDeletedEndpointConnections: setting('rules', {
    field: 'portwide.resetDeletedEndpointConnections',
    type: boolean,
    default: false,
    help: 'reset TCP connections to a deleted endpoint when they send their next packet',
    details: 'Not in mode ipvs. See [which connections](node.md#connections-to-deleted-endpoints).',
  }),
  featureGates: setting('rules', {
    field: 'featureGates',
    type: featureGates,
    default: FEATURE_GATES,
    defaultText: 'AllPorts=true, AllowServiceExternalIPs=true',
    help: 'feature gates; AllPorts=false: all-ports Services are not served; AllowServiceExternalIPs=false: spec.externalIPs are not served',
    details: 'See [feature gates](#feature-gates).',
  }),
  detectLocalMode: setting('pods', {
    field: 'detectLocalMode',
    type: oneOfOrDefault('ClusterCIDR', oneOf('<mode>', DETECT_LOCAL_MODES)),
    default: 'ClusterCIDR',
    help: `how to detect traffic from local pods: ${DETECT_LOCAL_MODES.join(', ')}`,
    details:
      'NodeCIDR: the agent waits until the Node has pod CIDRs, and exits for a restart when they change.',
  }),
  clusterCidr: setting('pods', {
    field: 'clusterCIDR',
    type: clusterCidrs,
    default: [],
    defaultText: 'none',
    help: 'pod CIDRs, at most one per IP family; traffic to cluster IPs from other sources is masqueraded',
    details:
      'Used with --detect-local-mode=ClusterCIDR. If unset, clients outside the cluster cannot use cluster IPs, as with kube-proxy.',
  }),
  podBridgeInterface: setting('pods', {
    field: 'detectLocal.bridgeInterface',
    type: optional(interfaceName),
    default: undefined,
    help: 'bridge interface of local pods, for --detect-local-mode=BridgeInterface',
  }),
  podInterfaceNamePrefix: setting('pods', {
    field: 'detectLocal.interfaceNamePrefix',
    type: optional(interfacePrefix),
    default: undefined,
    help: 'name prefix of local pod interfaces, for --detect-local-mode=InterfaceNamePrefix',
  }),
  iptablesLocalhostNodeports: setting('iptables', {
    field: 'iptables.localhostNodePorts',
    type: boolean,
    default: true,
    keepsZero: true,
    help: 'accept NodePort connections on 127.0.0.1',
    details:
      'Requires that `--nodeport-addresses` selects 127.0.0.1, as the default does; `false` overrides `localhost` there.',
  }),
  nftablesMasqueradeAll: setting('nftables', {
    field: 'nftables.masqueradeAll',
    type: boolean,
    default: false,
    help: 'masquerade all traffic to cluster IPs, like --masquerade-all',
  }),
  nftablesMasqueradeBit: setting('nftables', {
    field: 'nftables.masqueradeBit',
    type: wholeNumber(0, 31, '<bit>'),
    default: 14,
    keepsZero: true,
    help: 'bit (0 to 31) of the packet mark that requests masquerade',
  }),
  nftablesFlowtable: setting('nftables', {
    field: 'portwide.nftables.flowtable',
    type: boolean,
    default: false,
    help: 'established connections of Services bypass the rules, by a flowtable of the kernel',
    details: 'See [the flowtable](node.md#the-flowtable).',
  }),
  serviceCidrs: setting('nftables', {
    field: 'portwide.nftables.serviceCIDRs',
    type: cidrs,
    default: [],
    defaultText: 'none',
    help: 'CIDRs of cluster IPs, in addition to ServiceCIDRs; packets to addresses in them that no Service has are dropped',
    details: 'For API servers before Kubernetes 1.33. See [Service CIDRs](node.md#service-cidrs).',
  }),
  ipvsScheduler: setting('ipvs', {
    field: 'ipvs.scheduler',
    type: scheduler,
    default: 'rr',
    help: 'IPVS scheduler, such as rr, wrr, lc, sh or mh',
    details:
      'The agent exits if the kernel lacks it. Changing the scheduler keeps connections. `sh` and `mh` hash address and port, and skip draining endpoints.',
  }),
  ipvsExcludeCidrs: setting('ipvs', {
    field: 'ipvs.excludeCIDRs',
    type: cidrs,
    default: [],
    defaultText: 'none',
    help: 'CIDRs of IPVS services that Portwide must not remove',
    details:
      '`portwide cleanup` and a takeover by another mode keep them too. All other IPVS services with protocol, address and port are removed if no Service needs them.',
  }),
  ipvsFwmarkRange: setting('ipvs', {
    field: 'portwide.ipvs.fwmarkRange',
    type: markRange,
    default: { first: 0x1000, last: 0x3fff },
    help: 'range of packet marks (fwmarks) for all-ports Services',
    details: 'The first two marks are reserved; see [marks](node.md#fwmarks).',
  }),
  ipvsAllPorts: setting('ipvs', {
    field: 'portwide.ipvs.allPorts',
    type: oneOf<IpvsAllPortsMode>('<how>', ['fwmark', 'iptables']),
    default: 'fwmark',
    help: 'how all-ports Services are served: fwmark (IPVS fwmark services) or iptables (iptables rules)',
  }),
};
