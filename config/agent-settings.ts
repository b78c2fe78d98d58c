/** Settings of `portwide run` only, which do not affect the rules. */
import type { LogFormat } from '../process/log.ts';
import { IPTABLES_VARIANTS, type IptablesVariant } from './mode-values.ts';
import { bindAddress } from './network-types.ts';
import { setting } from './setting.ts';
import {
  boolean,
  duration,
  filePath,
  nonNegativeInt32,
  oneOf,
  optional,
  text,
  wholeNumber,
} from './value-types.ts';

const LOG_FORMATS: readonly LogFormat[] = ['text', 'json'];

const period = duration({ zero: false });
const least = duration({ zero: true });
const seconds = (value: number) => value * 1000;
const hours = (value: number) => value * 3_600_000;

const ipvsTimeout = (what: string, field: string) =>
  setting('ipvs', {
    field,
    type: least,
    default: 0,
    help: `timeout of ${what} in IPVS; 0: leave the kernel's value`,
  });

export const AGENT_SETTINGS = {
  kubeconfig: setting('node', {
    field: 'clientConnection.kubeconfig',
    type: optional(filePath),
    default: undefined,
    defaultText: 'the service account of the pod',
    help: 'kubeconfig file of the API server',
  }),
  master: setting('node', {
    type: optional({ ...text, argument: '<url>' }),
    default: undefined,
    overridesFile: true,
    help: 'URL of the API server; overrides the kubeconfig',
  }),
  manifests: setting('node', {
    type: optional({ ...text, argument: '<dir>' }),
    default: undefined,
    overridesFile: true,
    help: 'read objects from this directory (its .yaml, .yml and .json files), not from a cluster',
    details:
      'It has to contain Services and EndpointSlices, and [what network policy needs](policy.md#from-a-directory-of-manifests). Subdirectories are not read. The `clientConnection` of a `--config` file is ignored.',
  }),
  iptablesSyncPeriod: setting('iptables', {
    field: 'iptables.syncPeriod',
    type: period,
    default: seconds(30),
    help: 'interval of checks that the rules are unchanged',
    details:
      'Each check covers the jumps and the canary chains. It covers every rule if that takes less than a hundredth of the interval, and in any case once an hour.',
  }),
  iptablesMinSyncPeriod: setting('iptables', {
    field: 'iptables.minSyncPeriod',
    type: least,
    default: seconds(1),
    help: 'minimum interval between two changes of the rules',
    details: 'The first change after a quiet interval is applied at once.',
  }),
  iptablesVariant: setting('iptables', {
    field: 'portwide.iptables.variant',
    type: optional(oneOf<IptablesVariant>('<variant>', IPTABLES_VARIANTS)),
    default: undefined,
    defaultText: 'the variant that the node uses',
    help: `iptables variant, for modes iptables and ipvs: ${IPTABLES_VARIANTS.join(' or ')}`,
  }),
  nftablesSyncPeriod: setting('nftables', {
    field: 'nftables.syncPeriod',
    type: period,
    default: seconds(30),
    help: 'interval of checks that the rules are unchanged',
    details:
      'Independently of this interval, changes of the table by others are noticed and repaired at once.',
  }),
  nftablesMinSyncPeriod: setting('nftables', {
    field: 'nftables.minSyncPeriod',
    type: least,
    default: seconds(0.1),
    help: 'minimum interval between two changes of the rules',
    details:
      'The first change after a quiet interval is applied at once. (The default of kube-proxy is `1s`, because its changes cost more.)',
  }),
  ipvsSyncPeriod: setting('ipvs', {
    field: 'ipvs.syncPeriod',
    type: period,
    default: seconds(30),
    help: 'interval of checks that IPVS services and rules are unchanged',
  }),
  ipvsMinSyncPeriod: setting('ipvs', {
    field: 'ipvs.minSyncPeriod',
    type: least,
    default: 0,
    help: 'minimum interval between two changes',
  }),
  ipvsStrictArp: setting('ipvs', {
    field: 'ipvs.strictARP',
    type: boolean,
    default: false,
    help: 'set arp_ignore and arp_announce so that the node does not answer ARP requests for VIPs',
    details:
      'Sets `arp_ignore=1` and `arp_announce=2`. Required if another program, such as MetalLB, announces VIPs on the LAN.',
  }),
  ipvsTcpTimeout: ipvsTimeout('idle TCP connections', 'ipvs.tcpTimeout'),
  ipvsTcpfinTimeout: ipvsTimeout('TCP connections after a FIN', 'ipvs.tcpFinTimeout'),
  ipvsUdpTimeout: ipvsTimeout('UDP flows', 'ipvs.udpTimeout'),
  conntrackMaxPerCore: setting('conntrack', {
    field: 'conntrack.maxPerCore',
    type: nonNegativeInt32,
    default: 32 * 1024,
    keepsZero: true,
    help: 'conntrack entries per CPU; 0: leave the limit unchanged and ignore --conntrack-min',
    details:
      '`nf_conntrack_max` is set to the larger of this value times the number of CPUs and `--conntrack-min`. If the hash table has fewer than a quarter of that many buckets, it is enlarged to it.',
  }),
  conntrackMin: setting('conntrack', {
    field: 'conntrack.min',
    type: nonNegativeInt32,
    default: 128 * 1024,
    keepsZero: true,
    help: 'minimum of conntrack entries, regardless of --conntrack-max-per-core',
  }),
  conntrackTcpTimeoutEstablished: setting('conntrack', {
    field: 'conntrack.tcpEstablishedTimeout',
    type: least,
    default: hours(24),
    keepsZero: true,
    help: 'conntrack timeout of idle TCP connections; 0: leave it unchanged',
  }),
  conntrackTcpTimeoutCloseWait: setting('conntrack', {
    field: 'conntrack.tcpCloseWaitTimeout',
    type: least,
    default: hours(1),
    keepsZero: true,
    help: 'conntrack timeout of TCP connections in CLOSE_WAIT; 0: leave it unchanged',
  }),
  conntrackTcpBeLiberal: setting('conntrack', {
    field: 'conntrack.tcpBeLiberal',
    type: boolean,
    default: false,
    help: 'do not treat TCP packets outside of the window as invalid',
    details:
      'If false, the sysctl is left unchanged. Mode iptables drops packets that conntrack treats as invalid.',
  }),
  conntrackUdpTimeout: setting('conntrack', {
    field: 'conntrack.udpTimeout',
    type: least,
    default: 0,
    help: 'conntrack timeout of UDP flows without a reply; 0: leave it unchanged',
  }),
  conntrackUdpTimeoutStream: setting('conntrack', {
    field: 'conntrack.udpStreamTimeout',
    type: least,
    default: 0,
    help: 'conntrack timeout of UDP flows with replies; 0: leave it unchanged',
  }),
  healthzBindAddress: setting('servers', {
    field: 'healthzBindAddress',
    type: bindAddress(10256),
    default: { host: '0.0.0.0', port: 10256 },
    help: 'address and port of /healthz and /livez; empty: not served',
  }),
  metricsBindAddress: setting('servers', {
    field: 'metricsBindAddress',
    type: bindAddress(10249),
    default: { host: '127.0.0.1', port: 10249 },
    help: 'address and port of /metrics; empty: not served',
  }),
  bindAddressHardFail: setting('servers', {
    field: 'bindAddressHardFail',
    type: boolean,
    default: false,
    help: 'exit if --healthz-bind-address or --metrics-bind-address cannot be listened on, instead of retrying',
  }),
  configRestartJitter: setting('process', {
    field: 'portwide.configRestartJitter',
    type: least,
    default: seconds(30),
    keepsZero: true,
    help: 'longest random delay before the agent restarts for a changed configuration file; 0: none',
    details: 'A ConfigMap changes on all nodes at once, and every start lists all Services.',
  }),
  oomScoreAdj: setting('process', {
    field: 'oomScoreAdj',
    type: wholeNumber(-1000, 1000),
    default: -999,
    keepsZero: true,
    help: 'oom_score_adj of the process, from -1000 (never killed when memory runs out) to 1000 (killed first)',
  }),
  loggingFormat: setting('process', {
    field: 'logging.format',
    type: optional(oneOf<LogFormat>('<format>', LOG_FORMATS)),
    default: undefined,
    defaultText: 'text on a terminal, json elsewhere',
    overridesFile: true,
    help: 'format of the log on standard output: text or json',
    details: '[operating.md](operating.md#the-log) shows both.',
  }),
  v: setting('process', {
    field: 'logging.verbosity',
    type: { ...nonNegativeInt32, argument: '<level>' },
    default: 0,
    overridesFile: true,
    help: 'log verbosity: 0 to 2 log what operators act on; 3 adds every sync and the stacks of errors',
  }),
};
