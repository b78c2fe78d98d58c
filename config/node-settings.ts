/** Settings that determine the rules of a node; `run` and `render` share them. */
import { boolean, choice, choiceOr, integer, optional } from './kinds.ts';
import { FEATURE_GATES, featureGates } from './map-kinds.ts';
import type { AllPortsBy } from './mode-values.ts';
import {
  address,
  cidrs,
  clusterCidrs,
  interfaceName,
  interfacePrefix,
  markRange,
  nodeName,
  nodePortAddresses,
  scheduler,
} from './network-kinds.ts';
import { setting } from './setting.ts';

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
    kind: optional(nodeName),
    default: undefined,
    shownDefault: 'the host name',
    winsOverFile: true,
    text: 'name of the Node object of this node',
  }),
  bindAddress: setting('node', {
    field: 'bindAddress',
    kind: address,
    default: '0.0.0.0',
    text: "node IP to use instead of the Node object's address of the same family; no server listens on it",
    more: '0.0.0.0 and :: mean: use the address of the Node object. In a file, an IPv6 address changes defaults: `healthzBindAddress` to `[::]:10256` and `metricsBindAddress` to `[::1]:10249`.',
  }),
  proxyMode: setting('rules', {
    field: 'mode',
    kind: optional(choice('<mode>', PROXY_MODES)),
    default: undefined,
    shownDefault: 'nftables where nft and the kernel can, else iptables',
    text: 'kernel interface that is programmed: nftables, iptables or ipvs',
    more: 'The default of kube-proxy is iptables. If a mode is set and the node cannot run it, the agent exits with an error that names what is missing; it never uses another mode instead.',
  }),
  masqueradeAll: setting('rules', {
    field: 'iptables.masqueradeAll',
    kind: boolean,
    default: false,
    text: 'masquerade all traffic to cluster IPs',
  }),
  iptablesMasqueradeBit: setting('rules', {
    field: 'iptables.masqueradeBit',
    kind: integer(0, 31, '<bit>'),
    default: 14,
    keepsZero: true,
    text: 'bit of the packet mark (mode ipvs: connection mark) that requests masquerade; mode nftables uses --nftables-masquerade-bit',
  }),
  nodeportAddresses: setting('rules', {
    field: 'nodePortAddresses',
    kind: nodePortAddresses,
    default: [],
    shownDefault: 'all local addresses; mode nftables: the primary one',
    text: 'node addresses that accept NodePort connections: CIDRs, "primary", "localhost" and "all", in any combination',
    more: '`primary` is the first address of its family in the Node object, `localhost` is 127.0.0.0/8 and ::1. If all entries are CIDRs of one family, the other family is not restricted. [operating.md](operating.md#node-ports-on-localhost) says what `localhost` does in each mode.',
  }),
  resetDeletedEndpointConnections: setting('rules', {
    field: 'portwide.resetDeletedEndpointConnections',
    kind: boolean,
    default: false,
    text: 'reset TCP connections to a deleted endpoint on their next packet',
    more: 'Clients then reconnect at once instead of sending to a deleted pod until they time out. No effect in mode ipvs. [operating.md](operating.md#connections-to-endpoints-that-were-deleted) lists the connections that are reset.',
  }),
  featureGates: setting('rules', {
    field: 'featureGates',
    kind: featureGates,
    default: FEATURE_GATES,
    shownDefault: 'AllPorts=true',
    text: 'feature gates; AllPorts=false refuses all-ports Services',
    more: '`ComponentStatusz` and `ComponentFlagz` (default: on) control `/statusz` and `/flagz` ([metrics.md](metrics.md)). All other gates are accepted and ignored, because clusters pass one list to all components. kube-proxy does not start with a file that contains `AllPorts`: remove it before switching back.',
  }),
  detectLocalMode: setting('pods', {
    field: 'detectLocalMode',
    kind: choiceOr('ClusterCIDR', choice('<mode>', DETECT_LOCAL_MODES)),
    default: 'ClusterCIDR',
    text: `how traffic from local pods is recognised: ${DETECT_LOCAL_MODES.join(', ')}`,
    more: 'With NodeCIDR the agent waits until the Node has pod CIDRs, and exits to be restarted when they change.',
  }),
  clusterCidr: setting('pods', {
    field: 'clusterCIDR',
    kind: clusterCidrs,
    default: [],
    shownDefault: 'none',
    text: 'CIDRs of the pods, at most one per IP family; traffic from other sources to cluster IPs is masqueraded',
    more: 'As in kube-proxy, traffic to cluster IPs is not masqueraded if the agent cannot recognise local pods. Clients outside the cluster then cannot use cluster IPs.',
  }),
  podBridgeInterface: setting('pods', {
    field: 'detectLocal.bridgeInterface',
    kind: optional(interfaceName),
    default: undefined,
    text: 'bridge interface of the local pods, for --detect-local-mode=BridgeInterface',
  }),
  podInterfaceNamePrefix: setting('pods', {
    field: 'detectLocal.interfaceNamePrefix',
    kind: optional(interfacePrefix),
    default: undefined,
    text: 'name prefix of the pod interfaces, for --detect-local-mode=InterfaceNamePrefix',
  }),
  iptablesLocalhostNodeports: setting('iptables', {
    field: 'iptables.localhostNodePorts',
    kind: boolean,
    default: true,
    keepsZero: true,
    text: 'serve node ports on 127.0.0.1 too',
    more: 'Requires that `--nodeport-addresses` includes 127.0.0.1. `false` overrides `localhost` in that list.',
  }),
  nftablesMasqueradeAll: setting('nftables', {
    field: 'nftables.masqueradeAll',
    kind: boolean,
    default: false,
    text: 'masquerade all traffic to cluster IPs; same as --masquerade-all',
  }),
  nftablesMasqueradeBit: setting('nftables', {
    field: 'nftables.masqueradeBit',
    kind: integer(0, 31, '<bit>'),
    default: 14,
    keepsZero: true,
    text: 'bit of the packet mark that requests masquerade',
  }),
  serviceCidrs: setting('nftables', {
    field: 'portwide.nftables.serviceCIDRs',
    kind: cidrs,
    default: [],
    shownDefault: 'none',
    text: 'CIDRs of cluster IPs; packets to cluster IPs without a Service are dropped',
  }),
  ipvsScheduler: setting('ipvs', {
    field: 'ipvs.scheduler',
    kind: scheduler,
    default: 'rr',
    text: 'IPVS scheduler, such as rr, wrr, lc, sh or mh',
    more: 'Checked when the agent starts. A change does not cut connections. `sh` and `mh` get the flags that hash ports and skip draining endpoints.',
  }),
  ipvsExcludeCidrs: setting('ipvs', {
    field: 'ipvs.excludeCIDRs',
    kind: cidrs,
    default: [],
    shownDefault: 'none',
    text: 'CIDRs of IPVS services that Portwide must not remove',
    more: "Also respected by `portwide cleanup` and by a takeover in another mode. All other IPVS services with protocol, address and port count as kube-proxy's or Portwide's, and are removed if no Service needs them.",
  }),
  ipvsFwmarkRange: setting('ipvs', {
    field: 'portwide.ipvs.fwmarkRange',
    kind: markRange,
    default: { first: 0x1000, last: 0x3fff },
    text: 'range of packet marks for all-ports Services',
    more: 'The first two marks are reserved for drop and reject. [ipvs.md](ipvs.md#marks) says what to consider.',
  }),
  ipvsAllPorts: setting('ipvs', {
    field: 'portwide.ipvs.allPorts',
    kind: choice<AllPortsBy>('<how>', ['fwmark', 'iptables']),
    default: 'fwmark',
    text: 'how all-ports Services are served: fwmark (fwmark services of IPVS) or iptables (rules)',
  }),
};
