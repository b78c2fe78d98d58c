/** Settings of `portwide run` alone: what does not decide what the rules are. */
import { VARIANTS, type Variant } from '../iptables/variants.ts';
import { boolean, choice, count, duration, file, integer, optional, text } from './kinds.ts';
import { bindAddress } from './network-kinds.ts';
import { setting } from './setting.ts';

export const LOG_FORMATS = ['text', 'json'] as const;
export type LogFormat = (typeof LOG_FORMATS)[number];

const period = duration({ zero: false });
const least = duration({ zero: true });
const seconds = (value: number) => value * 1000;
const hours = (value: number) => value * 3_600_000;

const ipvsTimeout = (what: string, field: string) =>
  setting({
    group: 'ipvs',
    field,
    kind: least,
    default: 0,
    text: `when IPVS forgets ${what}; 0: as the kernel has it`,
  });

export const AGENT_SETTINGS = {
  kubeconfig: setting({
    group: 'node',
    field: 'clientConnection.kubeconfig',
    kind: optional(file),
    default: undefined,
    shownDefault: 'the service account of the pod',
    text: 'how to reach the API server',
  }),
  master: setting({
    group: 'node',
    kind: optional({ ...text, argument: '<url>' }),
    default: undefined,
    winsOverFile: true,
    text: 'URL of the API server; overrides the kubeconfig',
  }),
  manifests: setting({
    group: 'node',
    kind: optional({ ...text, argument: '<dir>' }),
    default: undefined,
    winsOverFile: true,
    text: 'read objects from this directory (its .yaml, .yml and .json files), not from a cluster',
    more: 'Services and EndpointSlices, and [what network policy needs](policy.md#from-a-directory-of-manifests). Directories in it are not looked into. With `--config`, its `clientConnection` is not used then.',
  }),
  iptablesSyncPeriod: setting({
    group: 'iptables',
    field: 'iptables.syncPeriod',
    kind: period,
    default: seconds(30),
    text: 'how often to look whether the rules still stand',
    more: 'At the jumps and the canaries always, at every rule as long as that takes less than a hundredth of the time, and once an hour in any case.',
  }),
  iptablesMinSyncPeriod: setting({
    group: 'iptables',
    field: 'iptables.minSyncPeriod',
    kind: least,
    default: seconds(1),
    text: 'least time between two changes of the rules',
    more: 'At rest there is no wait.',
  }),
  iptablesVariant: setting({
    group: 'iptables',
    field: 'portwide.iptables.variant',
    kind: optional(choice<Variant>('<variant>', VARIANTS)),
    default: undefined,
    shownDefault: 'the one that the node uses',
    text: `iptables to use, in mode ipvs too: ${VARIANTS.join(' or ')}`,
  }),
  nftablesSyncPeriod: setting({
    group: 'nftables',
    field: 'nftables.syncPeriod',
    kind: period,
    default: seconds(30),
    text: 'how often to look whether all still stands',
    more: 'What somebody changes in the table is noticed and mended at once all the same.',
  }),
  nftablesMinSyncPeriod: setting({
    group: 'nftables',
    field: 'nftables.minSyncPeriod',
    kind: least,
    default: seconds(0.1),
    text: 'least time between two changes',
    more: 'At rest there is no wait. (kube-proxy waits for `1s`, for its changes cost more.)',
  }),
  ipvsSyncPeriod: setting({
    group: 'ipvs',
    field: 'ipvs.syncPeriod',
    kind: period,
    default: seconds(30),
    text: 'how often to look whether services and rules still stand',
  }),
  ipvsMinSyncPeriod: setting({
    group: 'ipvs',
    field: 'ipvs.minSyncPeriod',
    kind: least,
    default: 0,
    text: 'least time between two changes',
  }),
  ipvsStrictArp: setting({
    group: 'ipvs',
    field: 'ipvs.strictARP',
    kind: boolean,
    default: false,
    text: 'set arp_ignore and arp_announce, so that the node answers no ARP for VIPs',
    more: '`arp_ignore=1`, `arp_announce=2`: needed where something else announces VIPs on the LAN (MetalLB).',
  }),
  ipvsTcpTimeout: ipvsTimeout('idle TCP connections', 'ipvs.tcpTimeout'),
  ipvsTcpfinTimeout: ipvsTimeout('TCP connections after a FIN', 'ipvs.tcpFinTimeout'),
  ipvsUdpTimeout: ipvsTimeout('UDP flows', 'ipvs.udpTimeout'),
  conntrackMaxPerCore: setting({
    group: 'conntrack',
    field: 'conntrack.maxPerCore',
    kind: count,
    default: 32 * 1024,
    keepsZero: true,
    text: 'entries for each CPU; 0: leave the limit as it is, whatever the next says',
    more: '`nf_conntrack_max` becomes the greater of this, times CPUs, and the next; the hash table gets a quarter of that many buckets if it has fewer.',
  }),
  conntrackMin: setting({
    group: 'conntrack',
    field: 'conntrack.min',
    kind: count,
    default: 128 * 1024,
    keepsZero: true,
    text: 'entries at least, however few CPUs there are',
  }),
  conntrackTcpTimeoutEstablished: setting({
    group: 'conntrack',
    field: 'conntrack.tcpEstablishedTimeout',
    kind: least,
    default: hours(24),
    keepsZero: true,
    text: 'when idle TCP connections are forgotten; 0: as it is',
  }),
  conntrackTcpTimeoutCloseWait: setting({
    group: 'conntrack',
    field: 'conntrack.tcpCloseWaitTimeout',
    kind: least,
    default: hours(1),
    keepsZero: true,
    text: 'when TCP connections that one side closed are forgotten; 0: as it is',
  }),
  conntrackTcpBeLiberal: setting({
    group: 'conntrack',
    field: 'conntrack.tcpBeLiberal',
    kind: boolean,
    default: false,
    text: 'do not take TCP packets outside of the window for invalid',
    more: 'Without it, packets that conntrack takes for invalid are dropped in mode iptables. False leaves the sysctl as it is.',
  }),
  conntrackUdpTimeout: setting({
    group: 'conntrack',
    field: 'conntrack.udpTimeout',
    kind: least,
    default: 0,
    text: 'when UDP flows without a reply are forgotten; 0: as it is',
  }),
  conntrackUdpTimeoutStream: setting({
    group: 'conntrack',
    field: 'conntrack.udpStreamTimeout',
    kind: least,
    default: 0,
    text: 'when UDP flows with replies are forgotten; 0: as it is',
  }),
  healthzBindAddress: setting({
    group: 'servers',
    field: 'healthzBindAddress',
    kind: bindAddress(10256),
    default: { host: '0.0.0.0', port: 10256 },
    text: 'where /healthz and /livez are served; empty: nowhere',
  }),
  metricsBindAddress: setting({
    group: 'servers',
    field: 'metricsBindAddress',
    kind: bindAddress(10249),
    default: { host: '127.0.0.1', port: 10249 },
    text: 'where /metrics is served; empty: nowhere',
  }),
  bindAddressHardFail: setting({
    group: 'servers',
    field: 'bindAddressHardFail',
    kind: boolean,
    default: false,
    text: 'end when one of them cannot listen, instead of trying again every five seconds',
  }),
  configRestartJitter: setting({
    group: 'process',
    field: 'portwide.configRestartJitter',
    kind: least,
    default: seconds(30),
    keepsZero: true,
    text: 'longest random delay before the agent restarts for a changed configuration file; 0: none',
    more: 'A ConfigMap changes on all nodes at once, and each agent that starts lists all Services.',
  }),
  oomScoreAdj: setting({
    group: 'process',
    field: 'oomScoreAdj',
    kind: integer(-1000, 1000),
    default: -999,
    keepsZero: true,
    text: 'how ready the kernel is to end the process when memory runs out',
  }),
  loggingFormat: setting({
    group: 'process',
    field: 'logging.format',
    kind: optional(choice<LogFormat>('<format>', LOG_FORMATS)),
    default: undefined,
    shownDefault: 'text on a terminal, json elsewhere',
    winsOverFile: true,
    text: 'form of log lines on standard output: text or json',
    more: '[operating.md](operating.md#the-log) shows both.',
  }),
  v: setting({
    group: 'process',
    field: 'logging.verbosity',
    kind: { ...count, argument: '<level>' },
    default: 0,
    winsOverFile: true,
    text: 'log level: 0 to 2 tell what operators act on, 3 each sync and where errors arose',
  }),
};
