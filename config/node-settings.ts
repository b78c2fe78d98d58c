/** Settings that decide what rules a node gets; `run` and `render` share them. */
import type { AllPortsBy } from '../ipvs/plan.ts';
import { boolean, choice, choiceOr, integer, optional } from './kinds.ts';
import { FEATURE_GATES, featureGates } from './map-kinds.ts';
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
export type DetectLocalMode = (typeof DETECT_LOCAL_MODES)[number];

export const NODE_SETTINGS = {
  hostnameOverride: setting({
    group: 'node',
    field: 'hostnameOverride',
    kind: optional(nodeName),
    default: undefined,
    shownDefault: 'the host name',
    winsOverFile: true,
    text: 'name of this Node',
  }),
  bindAddress: setting({
    group: 'node',
    field: 'bindAddress',
    kind: address,
    default: '0.0.0.0',
    text: 'node IP of its family, in place of that of the Node object; no socket is bound to it',
    more: '0.0.0.0 and :: change nothing. Of a file, an IPv6 address makes the defaults of the two server addresses below `[::]` and `[::1]`.',
  }),
  proxyMode: setting({
    group: 'rules',
    field: 'mode',
    kind: optional(choice('<mode>', PROXY_MODES)),
    default: undefined,
    shownDefault: 'nftables where nft and the kernel can, else iptables',
    text: 'how the kernel is programmed: nftables, iptables or ipvs',
    more: 'kube-proxy takes iptables when it is not told. A mode that is named is never left for another: where the node lacks something for it, the agent ends and says what.',
  }),
  masqueradeAll: setting({
    group: 'rules',
    field: 'iptables.masqueradeAll',
    kind: boolean,
    default: false,
    text: 'masquerade everything that goes to a cluster IP',
  }),
  iptablesMasqueradeBit: setting({
    group: 'rules',
    field: 'iptables.masqueradeBit',
    kind: integer(0, 31, '<bit>'),
    default: 14,
    keepsZero: true,
    text: 'bit of the mark for masquerade: of packets, or in mode ipvs of connections; mode nftables has its own',
  }),
  nodeportAddresses: setting({
    group: 'rules',
    field: 'nodePortAddresses',
    kind: nodePortAddresses,
    default: 'all',
    shownDefault: 'all local addresses; mode nftables: the primary one',
    text: 'addresses of the node that serve node ports: CIDRs, or "primary"',
    more: 'A family without a CIDR is not restricted.',
  }),
  featureGates: setting({
    group: 'rules',
    field: 'featureGates',
    kind: featureGates,
    default: FEATURE_GATES,
    shownDefault: 'AllPorts=true',
    text: 'such as AllPorts=false, with which all-ports Services are refused',
    more: '`ComponentStatusz` and `ComponentFlagz`, which are on, switch `/statusz` and `/flagz` ([metrics.md](metrics.md)). Other gates are accepted and switch nothing: clusters give all their components one list. kube-proxy does not start with a file that names `AllPorts`: take it out before going back.',
  }),
  detectLocalMode: setting({
    group: 'pods',
    field: 'detectLocalMode',
    kind: choiceOr('ClusterCIDR', choice('<mode>', DETECT_LOCAL_MODES)),
    default: 'ClusterCIDR',
    text: `how traffic of local pods is told: ${DETECT_LOCAL_MODES.join(', ')}`,
    more: 'With NodeCIDR the agent waits until the Node has pod CIDRs, and ends for a restart when they change.',
  }),
  clusterCidr: setting({
    group: 'pods',
    field: 'clusterCIDR',
    kind: clusterCidrs,
    default: [],
    shownDefault: 'none',
    text: 'pod addresses of the cluster, at most one CIDR a family; what comes from elsewhere to a cluster IP is masqueraded',
    more: 'Without a way to tell pods, nothing is masqueraded, as in kube-proxy: then clients outside the cluster cannot use cluster IPs.',
  }),
  podBridgeInterface: setting({
    group: 'pods',
    field: 'detectLocal.bridgeInterface',
    kind: optional(interfaceName),
    default: undefined,
    text: 'bridge of the pods, for BridgeInterface',
  }),
  podInterfaceNamePrefix: setting({
    group: 'pods',
    field: 'detectLocal.interfaceNamePrefix',
    kind: optional(interfacePrefix),
    default: undefined,
    text: 'start of the names of pod interfaces, for InterfaceNamePrefix',
  }),
  iptablesLocalhostNodeports: setting({
    group: 'iptables',
    field: 'iptables.localhostNodePorts',
    kind: boolean,
    default: true,
    keepsZero: true,
    text: 'serve node ports on 127.0.0.1',
  }),
  nftablesMasqueradeAll: setting({
    group: 'nftables',
    field: 'nftables.masqueradeAll',
    kind: boolean,
    default: false,
    text: 'masquerade everything that goes to a cluster IP; --masquerade-all does so too',
  }),
  nftablesMasqueradeBit: setting({
    group: 'nftables',
    field: 'nftables.masqueradeBit',
    kind: integer(0, 31, '<bit>'),
    default: 14,
    keepsZero: true,
    text: 'bit of the mark of packets to be masqueraded',
  }),
  serviceCidrs: setting({
    group: 'nftables',
    field: 'portwide.nftables.serviceCIDRs',
    kind: cidrs,
    default: [],
    shownDefault: 'none',
    text: 'where cluster IPs come from; packets to one that no Service has are dropped',
  }),
  ipvsScheduler: setting({
    group: 'ipvs',
    field: 'ipvs.scheduler',
    kind: scheduler,
    default: 'rr',
    text: 'how IPVS chooses an endpoint, such as rr, wrr, lc, sh or mh',
    more: 'Checked at the start; a change edits services and cuts nothing. `sh` and `mh` get the flags to look at ports, and to pass over endpoints that drain.',
  }),
  ipvsExcludeCidrs: setting({
    group: 'ipvs',
    field: 'ipvs.excludeCIDRs',
    kind: cidrs,
    default: [],
    shownDefault: 'none',
    text: 'addresses whose IPVS services belong to others and stay',
    more: "Of `portwide cleanup`, and of another mode that takes over, too. All other services of a protocol, address and port are taken for kube-proxy's or Portwide's own, and removed if no Service asks for them.",
  }),
  ipvsFwmarkRange: setting({
    group: 'ipvs',
    field: 'portwide.ipvs.fwmarkRange',
    kind: markRange,
    default: { first: 0x1000, last: 0x3fff },
    text: 'packet marks for all-ports Services',
    more: 'The first two serve nobody. [ipvs.md](ipvs.md#marks) says what to heed.',
  }),
  ipvsAllPorts: setting({
    group: 'ipvs',
    field: 'portwide.ipvs.allPorts',
    kind: choice<AllPortsBy>('<how>', ['fwmark', 'iptables']),
    default: 'fwmark',
    text: 'who serves all-ports Services: fwmark (services of IPVS) or iptables (rules)',
  }),
};
