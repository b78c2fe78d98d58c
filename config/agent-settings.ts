/** Settings that `portwide render` does not have: they do not change the rendered rules. */
import type { LogFormat } from '../process/log.ts';
import { IPTABLES_VARIANTS, type IptablesVariant } from './mode-values.ts';
import { bindAddress } from './network-types.ts';
import { setting } from './setting.ts';
import { DEFAULT_STATUS_SOCKET } from './status-socket.ts';
import {
  anyText,
  boolean,
  duration,
  filePath,
  nonNegativeInt32,
  oneOf,
  optional,
  orNone,
  wholeNumber,
} from './value-types.ts';

const LOG_FORMATS: readonly LogFormat[] = ['text', 'json'];

const period = duration({ zero: false });
const periodOrZero = duration({ zero: true });
const RESYNC = 'resync interval: how often the rules are checked for external changes';
const MIN_SYNC = 'minimum interval between rule updates; 0: update after every change';
const FIRST_UPDATE =
  'In a file, 0 means the default. A change after a quiet interval is applied immediately. Updates shorter than a twentieth of the interval may be more frequent.';
const seconds = (value: number) => value * 1000;
const hours = (value: number) => value * 3_600_000;

const ipvsTimeout = (connections: string, field: string) =>
  setting('ipvs', {
    field,
    type: periodOrZero,
    default: 0,
    help: `IPVS timeout of ${connections}; 0: keep the kernel's value`,
  });

export const AGENT_SETTINGS = {
  kubeconfig: setting('node', {
    field: 'clientConnection.kubeconfig',
    type: optional(filePath),
    default: undefined,
    defaultText: "the pod's service account",
    help: 'kubeconfig file for the API server',
  }),
  master: setting('node', {
    type: optional({ ...anyText, argument: '<url>' }),
    default: undefined,
    overridesFile: true,
    help: 'URL of the API server; overrides the URL in the kubeconfig',
  }),
  manifests: setting('node', {
    type: optional({ ...anyText, argument: '<dir>' }),
    default: undefined,
    overridesFile: true,
    help: 'directory of manifests (.yaml, .yml, .json; not recursive) to read instead of an API server',
    details: 'See [manifests](node.md#manifests). `clientConnection` is ignored.',
  }),
  iptablesSyncPeriod: setting('iptables', {
    field: 'iptables.syncPeriod',
    type: period,
    default: seconds(30),
    help: RESYNC,
    details:
      'A resync checks the jumps and canary chains. It also compares all rules, using at most 1% of the time, but at least once an hour.',
  }),
  iptablesMinSyncPeriod: setting('iptables', {
    field: 'iptables.minSyncPeriod',
    type: periodOrZero,
    default: seconds(1),
    help: MIN_SYNC,
    details: FIRST_UPDATE,
  }),
  iptablesVariant: setting('iptables', {
    field: 'portwide.iptables.variant',
    type: optional(oneOf<IptablesVariant>('<variant>', IPTABLES_VARIANTS)),
    default: undefined,
    defaultText: 'the variant in use on the node',
    help: `iptables variant for modes iptables and ipvs: ${IPTABLES_VARIANTS.join(' or ')}`,
  }),
  nftablesSyncPeriod: setting('nftables', {
    field: 'nftables.syncPeriod',
    type: period,
    default: seconds(30),
    help: RESYNC,
    details: 'The agent also repairs external changes [immediately](node.md#mode-nftables).',
  }),
  nftablesMinSyncPeriod: setting('nftables', {
    field: 'nftables.minSyncPeriod',
    type: periodOrZero,
    default: seconds(0.1),
    help: MIN_SYNC,
    details: `${FIRST_UPDATE} kube-proxy's default is \`1s\`.`,
  }),
  ipvsSyncPeriod: setting('ipvs', {
    field: 'ipvs.syncPeriod',
    type: period,
    default: seconds(30),
    help: 'resync interval: how often IPVS services and rules are checked for external changes',
  }),
  ipvsMinSyncPeriod: setting('ipvs', {
    field: 'ipvs.minSyncPeriod',
    type: periodOrZero,
    default: 0,
    help: 'minimum interval between IPVS updates; 0: update after every change',
  }),
  ipvsStrictArp: setting('ipvs', {
    field: 'ipvs.strictARP',
    type: boolean,
    default: false,
    help: 'strict ARP (arp_ignore=1, arp_announce=2): the node does not answer ARP requests for VIPs',
    details: 'Required if another program, such as MetalLB, announces VIPs on the LAN.',
  }),
  ipvsTcpTimeout: ipvsTimeout('idle TCP connections', 'ipvs.tcpTimeout'),
  ipvsTcpfinTimeout: ipvsTimeout('TCP connections after a FIN', 'ipvs.tcpFinTimeout'),
  ipvsUdpTimeout: ipvsTimeout('UDP flows', 'ipvs.udpTimeout'),
  conntrackMaxPerCore: setting('conntrack', {
    field: 'conntrack.maxPerCore',
    type: nonNegativeInt32,
    default: 32 * 1024,
    keepsZero: true,
    help: 'maximum conntrack entries per CPU; 0: keep nf_conntrack_max and ignore --conntrack-min',
    details:
      'Sets `nf_conntrack_max` to this value times the number of CPUs, and grows the hash table to at least `nf_conntrack_max`/4 buckets.',
  }),
  conntrackMin: setting('conntrack', {
    field: 'conntrack.min',
    type: nonNegativeInt32,
    default: 128 * 1024,
    keepsZero: true,
    help: 'lower bound of nf_conntrack_max; unused if --conntrack-max-per-core is 0',
  }),
  conntrackTcpTimeoutEstablished: setting('conntrack', {
    field: 'conntrack.tcpEstablishedTimeout',
    type: periodOrZero,
    default: hours(24),
    keepsZero: true,
    help: "conntrack timeout of idle established TCP connections; 0: keep the kernel's value",
  }),
  conntrackTcpTimeoutCloseWait: setting('conntrack', {
    field: 'conntrack.tcpCloseWaitTimeout',
    type: periodOrZero,
    default: hours(1),
    keepsZero: true,
    help: "conntrack timeout of TCP connections in CLOSE_WAIT; 0: keep the kernel's value",
  }),
  conntrackTcpBeLiberal: setting('conntrack', {
    field: 'conntrack.tcpBeLiberal',
    type: boolean,
    default: false,
    help: 'set nf_conntrack_tcp_be_liberal=1, so that TCP packets outside the window are not invalid',
    details: '`false` leaves the sysctl unchanged.',
  }),
  conntrackUdpTimeout: setting('conntrack', {
    field: 'conntrack.udpTimeout',
    type: periodOrZero,
    default: 0,
    help: "conntrack timeout of UDP flows without replies; 0: keep the kernel's value",
  }),
  conntrackUdpTimeoutStream: setting('conntrack', {
    field: 'conntrack.udpStreamTimeout',
    type: periodOrZero,
    default: 0,
    help: "conntrack timeout of UDP flows with replies; 0: keep the kernel's value",
  }),
  healthzBindAddress: setting('servers', {
    field: 'healthzBindAddress',
    type: bindAddress(10256),
    default: { host: '0.0.0.0', port: 10256 },
    help: 'address and port that serve /healthz and /livez; empty: disabled (flag only)',
  }),
  metricsBindAddress: setting('servers', {
    field: 'metricsBindAddress',
    type: bindAddress(10249),
    default: { host: '127.0.0.1', port: 10249 },
    help: 'address and port that serve /metrics; empty: disabled (flag only)',
  }),
  statusBindAddress: setting('servers', {
    field: 'portwide.status.bindAddress',
    type: orNone(bindAddress(10270)),
    default: { host: '127.0.0.1', port: 10270 },
    help: 'address and port of the read-only status API; none: disabled',
    details: 'Keep a loopback address: [security](security.md#what-to-know).',
  }),
  statusSocket: setting('servers', {
    field: 'portwide.status.socket',
    type: orNone(optional(filePath)),
    default: DEFAULT_STATUS_SOCKET,
    help: 'Unix socket of the status API, for root; none: disabled',
  }),
  bindAddressHardFail: setting('servers', {
    field: 'bindAddressHardFail',
    type: boolean,
    default: false,
    help: 'exit, instead of retrying, if --healthz-bind-address or --metrics-bind-address cannot be bound',
  }),
  configRestartJitter: setting('process', {
    field: 'portwide.configRestartJitter',
    type: periodOrZero,
    default: seconds(30),
    keepsZero: true,
    help: 'maximum random delay before a restart for a changed configuration file; 0: no delay',
    details: 'Spreads restarts, because a ConfigMap changes on all nodes at once.',
  }),
  oomScoreAdj: setting('process', {
    field: 'oomScoreAdj',
    type: wholeNumber(-1000, 1000),
    default: -999,
    keepsZero: true,
    help: 'oom_score_adj of the process: -1000 (never killed when memory runs out) to 1000 (killed first)',
  }),
  loggingFormat: setting('process', {
    field: 'logging.format',
    type: optional(oneOf<LogFormat>('<format>', LOG_FORMATS)),
    default: undefined,
    defaultText: 'text on a terminal, otherwise json',
    overridesFile: true,
    help: 'format of the log on standard output: text or json',
  }),
  v: setting('process', {
    field: 'logging.verbosity',
    type: { ...nonNegativeInt32, argument: '<level>' },
    default: 0,
    overridesFile: true,
    help: 'log verbosity; 0 to 2: messages for operators, 3 and above: also every sync and error stacks',
  }),
};
