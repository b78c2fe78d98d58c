/** Settings of `portwide run` only, which do not affect the rules. */
import type { LogFormat } from '../process/log.ts';
import { boolean, choice, count, duration, file, integer, optional, text } from './kinds.ts';
import { VARIANTS, type Variant } from './mode-values.ts';
import { bindAddress } from './network-kinds.ts';
import { setting } from './setting.ts';

const LOG_FORMATS: readonly LogFormat[] = ['text', 'json'];

const period = duration({ zero: false });
const least = duration({ zero: true });
const seconds = (value: number) => value * 1000;
const hours = (value: number) => value * 3_600_000;

const ipvsTimeout = (what: string, field: string) =>
  setting('ipvs', {
    field,
    kind: least,
    default: 0,
    text: `timeout of ${what} in IPVS; 0: leave the kernel's value`,
  });

export const AGENT_SETTINGS = {
  kubeconfig: setting('node', {
    field: 'clientConnection.kubeconfig',
    kind: optional(file),
    default: undefined,
    shownDefault: 'the service account of the pod',
    text: 'kubeconfig file of the API server',
  }),
  master: setting('node', {
    kind: optional({ ...text, argument: '<url>' }),
    default: undefined,
    winsOverFile: true,
    text: 'URL of the API server; overrides the kubeconfig',
  }),
  manifests: setting('node', {
    kind: optional({ ...text, argument: '<dir>' }),
    default: undefined,
    winsOverFile: true,
    text: 'read objects from this directory (its .yaml, .yml and .json files), not from a cluster',
    more: 'It has to contain Services and EndpointSlices, and [what network policy needs](policy.md#from-a-directory-of-manifests). Subdirectories are not read. The `clientConnection` of a `--config` file is ignored.',
  }),
  iptablesSyncPeriod: setting('iptables', {
    field: 'iptables.syncPeriod',
    kind: period,
    default: seconds(30),
    text: 'interval of checks that the rules are unchanged',
    more: 'Each check covers the jumps and the canary chains. It covers every rule if that takes less than a hundredth of the interval, and in any case once an hour.',
  }),
  iptablesMinSyncPeriod: setting('iptables', {
    field: 'iptables.minSyncPeriod',
    kind: least,
    default: seconds(1),
    text: 'minimum interval between two changes of the rules',
    more: 'The first change after a quiet interval is applied at once.',
  }),
  iptablesVariant: setting('iptables', {
    field: 'portwide.iptables.variant',
    kind: optional(choice<Variant>('<variant>', VARIANTS)),
    default: undefined,
    shownDefault: 'the variant that the node uses',
    text: `iptables variant, for modes iptables and ipvs: ${VARIANTS.join(' or ')}`,
  }),
  nftablesSyncPeriod: setting('nftables', {
    field: 'nftables.syncPeriod',
    kind: period,
    default: seconds(30),
    text: 'interval of checks that the rules are unchanged',
    more: 'Independently of this interval, changes of the table by others are noticed and repaired at once.',
  }),
  nftablesMinSyncPeriod: setting('nftables', {
    field: 'nftables.minSyncPeriod',
    kind: least,
    default: seconds(0.1),
    text: 'minimum interval between two changes of the rules',
    more: 'The first change after a quiet interval is applied at once. (The default of kube-proxy is `1s`, because its changes cost more.)',
  }),
  ipvsSyncPeriod: setting('ipvs', {
    field: 'ipvs.syncPeriod',
    kind: period,
    default: seconds(30),
    text: 'interval of checks that IPVS services and rules are unchanged',
  }),
  ipvsMinSyncPeriod: setting('ipvs', {
    field: 'ipvs.minSyncPeriod',
    kind: least,
    default: 0,
    text: 'minimum interval between two changes',
  }),
  ipvsStrictArp: setting('ipvs', {
    field: 'ipvs.strictARP',
    kind: boolean,
    default: false,
    text: 'set arp_ignore and arp_announce so that the node does not answer ARP requests for VIPs',
    more: 'Sets `arp_ignore=1` and `arp_announce=2`. Required if another program, such as MetalLB, announces VIPs on the LAN.',
  }),
  ipvsTcpTimeout: ipvsTimeout('idle TCP connections', 'ipvs.tcpTimeout'),
  ipvsTcpfinTimeout: ipvsTimeout('TCP connections after a FIN', 'ipvs.tcpFinTimeout'),
  ipvsUdpTimeout: ipvsTimeout('UDP flows', 'ipvs.udpTimeout'),
  conntrackMaxPerCore: setting('conntrack', {
    field: 'conntrack.maxPerCore',
    kind: count,
    default: 32 * 1024,
    keepsZero: true,
    text: 'conntrack entries per CPU; 0: leave the limit unchanged and ignore --conntrack-min',
    more: '`nf_conntrack_max` is set to the larger of this value times the number of CPUs and `--conntrack-min`. If the hash table has fewer than a quarter of that many buckets, it is enlarged to it.',
  }),
  conntrackMin: setting('conntrack', {
    field: 'conntrack.min',
    kind: count,
    default: 128 * 1024,
    keepsZero: true,
    text: 'minimum of conntrack entries, regardless of --conntrack-max-per-core',
  }),
  conntrackTcpTimeoutEstablished: setting('conntrack', {
    field: 'conntrack.tcpEstablishedTimeout',
    kind: least,
    default: hours(24),
    keepsZero: true,
    text: 'conntrack timeout of idle TCP connections; 0: leave it unchanged',
  }),
  conntrackTcpTimeoutCloseWait: setting('conntrack', {
    field: 'conntrack.tcpCloseWaitTimeout',
    kind: least,
    default: hours(1),
    keepsZero: true,
    text: 'conntrack timeout of TCP connections in CLOSE_WAIT; 0: leave it unchanged',
  }),
  conntrackTcpBeLiberal: setting('conntrack', {
    field: 'conntrack.tcpBeLiberal',
    kind: boolean,
    default: false,
    text: 'do not treat TCP packets outside of the window as invalid',
    more: 'If false, the sysctl is left unchanged. Mode iptables drops packets that conntrack treats as invalid.',
  }),
  conntrackUdpTimeout: setting('conntrack', {
    field: 'conntrack.udpTimeout',
    kind: least,
    default: 0,
    text: 'conntrack timeout of UDP flows without a reply; 0: leave it unchanged',
  }),
  conntrackUdpTimeoutStream: setting('conntrack', {
    field: 'conntrack.udpStreamTimeout',
    kind: least,
    default: 0,
    text: 'conntrack timeout of UDP flows with replies; 0: leave it unchanged',
  }),
  healthzBindAddress: setting('servers', {
    field: 'healthzBindAddress',
    kind: bindAddress(10256),
    default: { host: '0.0.0.0', port: 10256 },
    text: 'address and port of /healthz and /livez; empty: not served',
  }),
  metricsBindAddress: setting('servers', {
    field: 'metricsBindAddress',
    kind: bindAddress(10249),
    default: { host: '127.0.0.1', port: 10249 },
    text: 'address and port of /metrics; empty: not served',
  }),
  bindAddressHardFail: setting('servers', {
    field: 'bindAddressHardFail',
    kind: boolean,
    default: false,
    text: 'exit if --healthz-bind-address or --metrics-bind-address cannot be listened on, instead of retrying',
  }),
  configRestartJitter: setting('process', {
    field: 'portwide.configRestartJitter',
    kind: least,
    default: seconds(30),
    keepsZero: true,
    text: 'longest random delay before the agent restarts for a changed configuration file; 0: none',
    more: 'A ConfigMap changes on all nodes at once, and every start lists all Services.',
  }),
  oomScoreAdj: setting('process', {
    field: 'oomScoreAdj',
    kind: integer(-1000, 1000),
    default: -999,
    keepsZero: true,
    text: 'oom_score_adj of the process, from -1000 (never killed when memory runs out) to 1000 (killed first)',
  }),
  loggingFormat: setting('process', {
    field: 'logging.format',
    kind: optional(choice<LogFormat>('<format>', LOG_FORMATS)),
    default: undefined,
    shownDefault: 'text on a terminal, json elsewhere',
    winsOverFile: true,
    text: 'format of the log on standard output: text or json',
    more: '[operating.md](operating.md#the-log) shows both.',
  }),
  v: setting('process', {
    field: 'logging.verbosity',
    kind: { ...count, argument: '<level>' },
    default: 0,
    winsOverFile: true,
    text: 'log verbosity: 0 to 2 log what operators act on; 3 adds every sync and the stacks of errors',
  }),
};
