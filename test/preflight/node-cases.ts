/** Cases of the checks of the node and its other programs. */
import type { BaseChain } from '../../preflight/packet-walk.ts';
import {
  type Case,
  HEALTHY,
  mode,
  objectsWith,
  optionsWith,
  pins,
  port,
  serviceWith,
  sysctl,
  tooOld,
  traces,
  UNKNOWN,
} from './facts.ts';

/** Accepts /healthz only. */
const INPUT_FIREWALL: BaseChain = {
  ...{ table: 'ip filter', chain: 'INPUT', hook: 'input', priority: 0, policy: 'drop' },
  chains: new Map([
    [
      'INPUT',
      [
        {
          matches: [{ kind: 'port', ranges: [[10_256, 10_256]], negated: false }],
          verdict: { kind: 'accept' },
        },
      ],
    ],
  ]),
};
const LOCAL = {
  type: 'LoadBalancer',
  externalTrafficPolicy: 'Local',
  healthCheckNodePort: 30_500,
} as const;

export const NODE_CASES: readonly Case[] = [
  ['no capability', { hasNetAdmin: false }, /^fail CAP_NET_ADMIN/],
  ['old kernel, any mode', { kernel: tooOld }],
  [
    'old kernel, mode nftables',
    { kernel: tooOld, options: optionsWith({ proxyMode: 'nftables' }) },
    /^fail kernel Linux 5\.4 is too old/,
  ],
  [
    'old kernel, network policy',
    { kernel: tooOld, options: optionsWith({ networkPolicy: true }) },
    /^fail kernel Linux 5\.4 is too old/,
  ],
  ['mode unknown', { mode: UNKNOWN }, /^warn proxy mode not seen/],
  [
    'mode unsupported',
    { mode: { value: { name: 'nftables', reason: '', support: { error: 'no' } } } },
    /^fail proxy mode nftables: no/,
  ],
  ['policy unsupported', { policyProblem: { value: 'IPv6: no' } }, /^fail network policy IPv6: no/],
  ['policy supported', { policyProblem: { value: undefined } }],
  [
    'IPVS module missing',
    {
      ...mode('ipvs'),
      ...sysctl('net.ipv4.vs.conntrack', '1'),
      modules: {
        value: new Map([
          ['ip_vs', 'missing'],
          ['dummy', 'loaded'],
        ]),
      },
    },
    /^fail IPVS modules ip_vs missing, dummy loaded -> install the modules, and run modprobe -a ip_vs$/,
  ],
  ['IPVS not loaded yet', mode('ipvs'), /^warn net\.ipv4\.vs\.conntrack not present/],
  [
    'forwarding off',
    {
      startWarnings: [
        {
          message: 'IP forwarding is disabled: x',
          details: { sysctl: 'net.ipv4.ip_forward', value: '0', hint: 'set it to 1' },
        },
      ],
    },
    /^fail net\.ipv4\.ip_forward IP forwarding is disabled: x; value: 0 -> set it to 1/,
  ],
  [
    'bridge off',
    {
      startWarnings: [
        { message: 'traffic bypasses', details: { sysctl: 'net.bridge.x', hint: 'set it to 1' } },
      ],
    },
    /^warn net\.bridge\.x traffic bypasses/,
  ],
  [
    'setting',
    {
      startWarnings: [
        {
          message: 'all addresses',
          details: { setting: '--nodeport-addresses (nodePortAddresses)', reason: 'unset' },
        },
      ],
    },
    /^warn --nodeport-addresses all addresses; reason: unset/,
  ],
  [
    'kube-proxy before the swap',
    traces({ processes: { value: ['kube-proxy'] }, serviceRules: { value: ['nft'] } }),
    /^warn kube-proxy the process runs; chain KUBE-SERVICES \(iptables-nft\) -> stop kube-proxy/,
  ],
  [
    'kube-proxy after the swap',
    traces({ processes: { value: ['kube-proxy'] }, isAgentRunning: true }),
    /^fail kube-proxy the process runs/,
  ],
  [
    'rules of kube-proxy, stopped',
    traces({
      tables: { value: ['kube-proxy'] },
      ipvsServices: { value: 3 },
      interfaces: { value: ['kube-ipvs0'] },
    }),
  ],
  [
    'leftover rules after the swap',
    traces({ serviceRules: { value: ['legacy'] }, isAgentRunning: true }),
    /^warn kube-proxy chain KUBE-SERVICES \(iptables-legacy\), although Portwide runs/,
  ],
  [
    'own rules in mode iptables',
    { ...mode('iptables'), ...traces({ serviceRules: { value: ['nft'] }, isAgentRunning: true }) },
  ],
  [
    'Cilium maps',
    traces({ bpfPins: pins('tc/globals/cilium_lb4_services_v2') }),
    /^warn Cilium BPF maps of its load balancer: cilium_lb4_services_v2/,
  ],
  [
    'Cilium interface',
    traces({ interfaces: { value: ['cilium_host'] } }),
    /^warn Cilium interface cilium_host/,
  ],
  [
    'Calico eBPF',
    traces({ bpfPins: pins('tc/globals/cali_v4_nat_fe3') }),
    /^warn Calico eBPF BPF maps of its Service NAT: cali_v4_nat_fe3/,
  ],
  [
    'Cilium socket load balancer',
    traces({
      bpfPins: pins(
        'cilium/socketlb/links/cgroup/cil_sock4_connect',
        'cilium/socketlb/links/cgroup/cil_sock4_getpeername',
        'cilium/socketlb/links/cgroup/cil_sock6_connect',
      ),
    }),
    /^warn Cilium BPF programs of its socket load balancer: cil_sock4_connect, cil_sock6_connect -> set kubeProxyReplacement=false and socketLB\.enabled=false/,
  ],
  [
    'Cilium programs on interfaces',
    traces({
      bpfPrograms: {
        value: [
          { interfaceName: 'eth0', hook: 'ingress', name: 'cil_from_netdev-eth0' },
          { interfaceName: 'lxc1', hook: 'ingress', name: 'bpf_lxc.o:[from-container]' },
        ],
      },
    }),
    /^warn Cilium BPF program cil_from_netdev-eth0 on eth0 \(ingress\), bpf_lxc\.o:\[from-container\] on lxc1/,
  ],
  [
    'Calico connect-time load balancer',
    traces({ bpfPins: pins('calico_connect4'), interfaces: { value: ['bpfin.cali'] } }),
    /^warn Calico eBPF BPF programs of its connect-time load balancer: calico_connect4; interface bpfin\.cali -> set bpfEnabled=false/,
  ],
  [
    'Calico programs on interfaces',
    traces({
      bpfPrograms: {
        value: [
          { interfaceName: 'eth0', hook: 'egress', name: 'cali_tc_preamble' },
          { interfaceName: 'eth0', hook: 'ingress', name: 'to_hep_no_log.o:[calico_to_host_ep]' },
        ],
      },
    }),
    /^warn Calico eBPF BPF program cali_tc_preamble on eth0 \(egress\), to_hep/,
  ],
  [
    'BPF programs of others',
    traces({
      bpfPrograms: {
        value: [
          { interfaceName: 'eth0', hook: 'xdp', name: '' },
          { interfaceName: 'eth1', hook: 'egress', name: '' },
        ],
      },
    }),
    /^warn BPF programs XDP on eth0, without a name on eth1 \(egress\) -> they handle packets/,
  ],
  [
    'Calico without eBPF',
    traces({
      interfaces: { value: ['cali123'] },
      bpfPins: pins('tc/globals/cali_v4_fsafes2'),
    }),
  ],
  [
    'kube-router',
    traces({ interfaces: { value: ['kube-dummy-if'] } }),
    /^warn kube-router interface kube-dummy-if/,
  ],
  [
    'pins not all read',
    traces({
      bpfPins: { value: { paths: ['tc/globals/cilium_lb4_services_v2'], missing: 'too many' } },
    }),
    /^warn Cilium BPF maps of its load balancer: cilium_lb4_services_v2/,
    /^warn other proxies not seen: pinned BPF objects \(too many\), BPF programs/,
  ],
  [
    'traces not seen',
    traces({ bpfPins: UNKNOWN }),
    /^warn other proxies not seen: pinned BPF objects \(it broke\), BPF programs/,
  ],
  [
    'two iptables variants',
    { ruleCounts: { value: { nft: 3, legacy: 1 } } },
    /^warn iptables variants 3 rules of iptables-nft, 1 rules/,
  ],
  ['lock in mode nftables', { lockProblem: 'EROFS' }, /^warn xtables lock EROFS/],
  [
    'lock in mode iptables',
    { ...mode('iptables'), lockProblem: 'EROFS' },
    /^fail xtables lock EROFS/,
  ],
  [
    'strict rp_filter on one interface',
    sysctl('net.ipv4.conf.eth0.rp_filter', '1'),
    /^warn rp_filter strict \(1\) on eth0:/,
  ],
  [
    'strict rp_filter by all',
    {
      sysctls: new Map([
        ...HEALTHY.sysctls,
        ['net.ipv4.conf.all.rp_filter', '1'],
        ['net.ipv4.conf.eth0.rp_filter', '0'],
        ['net.ipv4.conf.lo.rp_filter', '0'],
      ]),
    },
    /^warn rp_filter strict \(1\) on eth0:/,
  ],
  [
    'loose rp_filter',
    {
      sysctls: new Map([
        ...HEALTHY.sysctls,
        ['net.ipv4.conf.all.rp_filter', '2'],
        ['net.ipv4.conf.eth0.rp_filter', '1'],
      ]),
    },
  ],
  ['route_localnet', sysctl('net.ipv4.conf.all.route_localnet', '1'), /^warn route_localnet 1:/],
  [
    'route_localnet in mode iptables',
    { ...mode('iptables'), ...sysctl('net.ipv4.conf.all.route_localnet', '1') },
  ],
  [
    'conntrack almost full',
    { features: [{ name: 'nf_conntrack_count', value: '95 of 100', ok: false, note: 'raise it' }] },
    /^warn nf_conntrack_count 95 of 100 -> raise it/,
  ],
  [
    'conntrack limit below the count',
    { plannedConntrackMax: 10 },
    /^fail nf_conntrack_max the agent sets 10, and the table has 10 entries/,
  ],
  ['conntrack limit unchanged', { plannedConntrackMax: undefined }],
  [
    'local ports overlap',
    sysctl('net.ipv4.ip_local_port_range', '32000 60999'),
    /^warn ip_local_port_range 32000-60999 contains 768 ports of 30000-32767/,
  ],
  [
    'overlap is reserved',
    {
      sysctls: new Map([
        ...HEALTHY.sysctls,
        ['net.ipv4.ip_local_port_range', '1024 60999'],
        ['net.ipv4.ip_local_reserved_ports', '8080,30000-32767'],
      ]),
    },
  ],
  [
    'overlap is partly reserved',
    {
      sysctls: new Map([
        ...HEALTHY.sysctls,
        ['net.ipv4.ip_local_port_range', '1024 60999'],
        ['net.ipv4.ip_local_reserved_ports', '30000-32766'],
      ]),
    },
    /contains 1 ports of/,
  ],
  [
    'node port of a Service outside the default range',
    { objects: objectsWith({ services: [serviceWith({ ports: [port(0), port(40_000)] })] }) },
    /^warn ip_local_port_range .* contains node port 40000 of Services/,
  ],
  [
    'port taken',
    { listeners: { value: [{ host: '127.0.0.1', port: 10_249 }] } },
    /^warn ports of the agent --metrics-bind-address: another process listens on 127\.0\.0\.1:10249/,
  ],
  [
    'port taken on all addresses',
    { listeners: { value: [{ host: '::', port: 10_270 }] } },
    /^warn ports of the agent --status-bind-address/,
  ],
  [
    'port taken on another address',
    { listeners: { value: [{ host: '192.0.2.1', port: 10_249 }] } },
  ],
  [
    'port taken, hard fail',
    {
      options: optionsWith({ bindAddressHardFail: true }),
      listeners: { value: [{ host: '::', port: 10_256 }] },
    },
    /^fail ports of the agent --healthz-bind-address.*the agent exits/,
  ],
  [
    'port of kube-proxy',
    {
      listeners: { value: [{ host: '::', port: 10_256 }] },
      ...traces({ processes: { value: ['kube-proxy'] } }),
    },
    /^warn kube-proxy/,
    /^warn ports of the agent .*stop it before the swap/,
  ],
  [
    'port of the agent',
    { listeners: { value: [{ host: '::', port: 10_256 }] }, ...traces({ isAgentRunning: true }) },
  ],
  [
    'port disabled',
    {
      options: optionsWith({ healthzBindAddress: undefined }),
      listeners: { value: [{ host: '::', port: 10_256 }] },
    },
  ],
  [
    'health check node port behind a firewall',
    {
      foreignChains: { value: [INPUT_FIREWALL] },
      objects: objectsWith({ services: [serviceWith(LOCAL)] }),
    },
    /^warn foreign drop rules .*base chain INPUT .*by its policy drops health checks of load balancers \(port 30500\) -> accept these packets/,
  ],
  [
    'health check node port that no node answers',
    {
      foreignChains: { value: [INPUT_FIREWALL] },
      objects: objectsWith({
        services: [serviceWith({ ...LOCAL, externalTrafficPolicy: 'Cluster' })],
      }),
    },
  ],
  [
    'facts not seen',
    { foreignChains: UNKNOWN, ruleCounts: UNKNOWN, listeners: UNKNOWN },
    /^warn CNI masquerade not seen/,
    /^warn foreign drop rules not seen/,
    /^warn iptables variants not seen/,
    /^warn ports of the agent not seen/,
  ],
];
