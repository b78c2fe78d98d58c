/** Settings that determine the rules of a node; `run` and `render` share them. */

import { FEATURE_GATES, featureGates } from './map-types.ts';
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
    defaultText: 'the host name',
    overridesFile: true,
    help: 'name of the Node object of this node',
  }),
  bindAddress: setting('node', {
    field: 'bindAddress',
    type: ipAddress,
    default: '0.0.0.0',
    help: "node IP to use instead of the Node object's address of the same family; no server listens on it",
    details:
      '0.0.0.0 and :: mean: use the address of the Node object. In a file, an IPv6 address changes defaults: `healthzBindAddress` to `[::]:10256` and `metricsBindAddress` to `[::1]:10249`.',
  }),
  proxyMode: setting('rules', {
    field: 'mode',
    type: optional(oneOf('<mode>', PROXY_MODES)),
    default: undefined,
    defaultText: 'nftables where nft and the kernel can, else iptables',
    help: 'kernel interface that is programmed: nftables, iptables or ipvs',
    details:
      'The default of kube-proxy is iptables. If a mode is set and the node cannot run it, the agent exits with an error that names what is missing; it never uses another mode instead.',
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
    help: 'bit of the packet mark (mode ipvs: connection mark) that requests masquerade; mode nftables uses --nftables-masquerade-bit',
  }),
  nodeportAddresses: setting('rules', {
    field: 'nodePortAddresses',
    type: nodePortSelection,
    default: [],
    defaultText: 'all local addresses; mode nftables: the primary one',
    help: 'node addresses that accept NodePort connections: CIDRs, "primary", "localhost" and "all", in any combination',
    details:
      '`primary` is the first address of its family in the Node object, `localhost` is 127.0.0.0/8 and ::1. If all entries are CIDRs of one family, the other family is not restricted. [operating.md](operating.md#node-ports-on-localhost) says what `localhost` does in each mode.',
  }),
  resetDeletedEndpointConnections: setting('rules', {
    field: 'portwide.resetDeletedEndpointConnections',
    type: boolean,
    default: false,
    help: 'reset TCP connections to a deleted endpoint on their next packet',
    details:
      'Clients then reconnect at once instead of sending to a deleted pod until they time out. No effect in mode ipvs. [operating.md](operating.md#connections-to-endpoints-that-were-deleted) lists the connections that are reset.',
  }),
  featureGates: setting('rules', {
    field: 'featureGates',
    type: featureGates,
    default: FEATURE_GATES,
    defaultText: 'AllPorts=true',
    help: 'feature gates; AllPorts=false refuses all-ports Services',
    details:
      '`ComponentStatusz` and `ComponentFlagz` (default: on) control `/statusz` and `/flagz` ([metrics.md](metrics.md)). All other gates are accepted and ignored, because clusters pass one list to all components. kube-proxy does not start with a file that contains `AllPorts`: remove it before switching back.',
  }),
  detectLocalMode: setting('pods', {
    field: 'detectLocalMode',
    type: oneOfOrDefault('ClusterCIDR', oneOf('<mode>', DETECT_LOCAL_MODES)),
    default: 'ClusterCIDR',
    help: `how traffic from local pods is recognised: ${DETECT_LOCAL_MODES.join(', ')}`,
    details:
      'With NodeCIDR the agent waits until the Node has pod CIDRs, and exits to be restarted when they change.',
  }),
  clusterCidr: setting('pods', {
    field: 'clusterCIDR',
    type: clusterCidrs,
    default: [],
    defaultText: 'none',
    help: 'CIDRs of the pods, at most one per IP family; traffic from other sources to cluster IPs is masqueraded',
    details:
      'As in kube-proxy, traffic to cluster IPs is not masqueraded if the agent cannot recognise local pods. Clients outside the cluster then cannot use cluster IPs.',
  }),
  podBridgeInterface: setting('pods', {
    field: 'detectLocal.bridgeInterface',
    type: optional(interfaceName),
    default: undefined,
    help: 'bridge interface of the local pods, for --detect-local-mode=BridgeInterface',
  }),
  podInterfaceNamePrefix: setting('pods', {
    field: 'detectLocal.interfaceNamePrefix',
    type: optional(interfacePrefix),
    default: undefined,
    help: 'name prefix of the pod interfaces, for --detect-local-mode=InterfaceNamePrefix',
  }),
  iptablesLocalhostNodeports: setting('iptables', {
    field: 'iptables.localhostNodePorts',
    type: boolean,
    default: true,
    keepsZero: true,
    help: 'serve node ports on 127.0.0.1 too',
    details:
      'Requires that `--nodeport-addresses` includes 127.0.0.1. `false` overrides `localhost` in that list.',
  }),
  nftablesMasqueradeAll: setting('nftables', {
    field: 'nftables.masqueradeAll',
    type: boolean,
    default: false,
    help: 'masquerade all traffic to cluster IPs; same as --masquerade-all',
  }),
  nftablesMasqueradeBit: setting('nftables', {
    field: 'nftables.masqueradeBit',
    type: wholeNumber(0, 31, '<bit>'),
    default: 14,
    keepsZero: true,
    help: 'bit of the packet mark that requests masquerade',
  }),
  serviceCidrs: setting('nftables', {
    field: 'portwide.nftables.serviceCIDRs',
    type: cidrs,
    default: [],
    defaultText: 'none',
    help: 'CIDRs of cluster IPs; packets to cluster IPs without a Service are dropped',
  }),
  ipvsScheduler: setting('ipvs', {
    field: 'ipvs.scheduler',
    type: scheduler,
    default: 'rr',
    help: 'IPVS scheduler, such as rr, wrr, lc, sh or mh',
    details:
      'Checked when the agent starts. A change does not cut connections. `sh` and `mh` get the flags that hash ports and skip draining endpoints.',
  }),
  ipvsExcludeCidrs: setting('ipvs', {
    field: 'ipvs.excludeCIDRs',
    type: cidrs,
    default: [],
    defaultText: 'none',
    help: 'CIDRs of IPVS services that Portwide must not remove',
    details:
      "Also respected by `portwide cleanup` and by a takeover in another mode. All other IPVS services with protocol, address and port count as kube-proxy's or Portwide's, and are removed if no Service needs them.",
  }),
  ipvsFwmarkRange: setting('ipvs', {
    field: 'portwide.ipvs.fwmarkRange',
    type: markRange,
    default: { first: 0x1000, last: 0x3fff },
    help: 'range of packet marks for all-ports Services',
    details:
      'The first two marks are reserved for drop and reject. [ipvs.md](ipvs.md#marks) says what to consider.',
  }),
  ipvsAllPorts: setting('ipvs', {
    field: 'portwide.ipvs.allPorts',
    type: oneOf<IpvsAllPortsMode>('<how>', ['fwmark', 'iptables']),
    default: 'fwmark',
    help: 'how all-ports Services are served: fwmark (fwmark services of IPVS) or iptables (rules)',
  }),
};
