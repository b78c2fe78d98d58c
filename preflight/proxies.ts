/** Checks for other programs that serve Services: kube-proxy, another Portwide, Cilium, Calico, kube-router. */
import { IPVS_DEVICE } from '../api/vip-device.ts';
import type { ProxyMode } from '../config/node-settings.ts';
import type { BpfProgram } from '../netlink/route/bpf-programs.ts';
import {
  bpfPrograms,
  CALICO_PROGRAM,
  CILIUM_PROGRAM,
  pinNames,
  programTexts,
} from './bpf-traces.ts';
import { type CheckResult, type Fact, fail, notSeen, ok, warn } from './result.ts';

/** Objects below /sys/fs/bpf, where Cilium and Calico pin maps, programs and links. */
export interface BpfPins {
  readonly paths: readonly string[];
  /** Why others were not read; undefined if these are all. */
  readonly missing: string | undefined;
}

/** Traces of other programs on the node. */
export interface ProxyTraces {
  /** Names of processes (`comm`), at most 15 characters each. In a pod without hostPID only its own. */
  readonly processes: Fact<readonly string[]>;
  /** Names of network interfaces. */
  readonly interfaces: Fact<readonly string[]>;
  /** iptables variants that have chain KUBE-SERVICES. */
  readonly serviceRules: Fact<readonly ('nft' | 'legacy')[]>;
  /** Names of nf_tables tables. */
  readonly tables: Fact<readonly string[]>;
  /** Names of ipsets. */
  readonly ipsets: Fact<readonly string[]>;
  /** Number of IPVS services. */
  readonly ipvsServices: Fact<number>;
  readonly bpfPins: Fact<BpfPins>;
  /** BPF programs on network interfaces. */
  readonly bpfPrograms: Fact<readonly BpfProgram[]>;
  /** Whether an agent holds the node lock. */
  readonly isAgentRunning: boolean;
}

/** Names of other proxies' tables in nf_tables. */
export interface TableNames {
  readonly portwide: string;
  readonly kubeProxy: string;
}

export function checkProxies(
  traces: ProxyTraces,
  mode: ProxyMode | undefined,
  names: TableNames,
): CheckResult[] {
  return [
    agent(traces),
    kubeProxy(traces, mode, names),
    cilium(traces),
    calico(traces),
    kubeRouter(traces),
    bpfPrograms(listOf(traces.bpfPrograms)),
    unseen(traces),
  ];
}

export function isKubeProxyRunning({ processes }: Pick<ProxyTraces, 'processes'>): boolean {
  return listOf(processes).includes('kube-proxy');
}

function listOf<T>(fact: Fact<readonly T[]>): readonly T[] {
  return 'value' in fact ? fact.value : [];
}

function pathsOf(pins: ProxyTraces['bpfPins']): readonly string[] {
  return 'value' in pins ? pins.value.paths : [];
}

function agent({ isAgentRunning }: ProxyTraces): CheckResult {
  return isAgentRunning
    ? ok('Portwide', 'an agent runs on this node (node lock); a second one waits for it to exit')
    : ok('Portwide', 'no agent runs on this node');
}

function kubeProxy(
  traces: ProxyTraces,
  mode: ProxyMode | undefined,
  { kubeProxy: table }: TableNames,
): CheckResult {
  const name = 'kube-proxy';
  const { serviceRules, tables, ipvsServices, interfaces, isAgentRunning } = traces;
  const count = 'value' in ipvsServices ? ipvsServices.value : 0;
  const rules = [
    ...listOf(serviceRules).map((variant) => `chain KUBE-SERVICES (iptables-${variant})`),
    ...(listOf(tables).includes(table) ? [`nf_tables table ${table}`] : []),
    ...(count > 0 ? [`${count} IPVS services`] : []),
    ...(listOf(interfaces).includes(IPVS_DEVICE) ? [`interface ${IPVS_DEVICE}`] : []),
  ];
  const seen = rules.length === 0 ? 'no rules' : rules.join(', ');
  if (isKubeProxyRunning(traces)) {
    const text = `the process runs; ${seen}`;
    return isAgentRunning
      ? fail(name, text, 'remove kube-proxy: it and Portwide undo the rules of each other')
      : warn(
          name,
          text,
          'stop kube-proxy before Portwide starts; its rules stay until the takeover',
        );
  }
  if (rules.length === 0) return ok(name, seen);
  if (!isAgentRunning) return ok(name, `${seen}: Portwide takes these over at its start`);
  // Modes iptables and ipvs use kube-proxy's names themselves.
  const isForeign = mode === 'nftables' || listOf(tables).includes(table);
  return isForeign
    ? warn(
        name,
        `${seen}, although Portwide runs`,
        'see "removed leftover state" in the log of the agent',
      )
    : ok(name, `${seen}: of Portwide in mode ${mode}`);
}

function cilium({ bpfPins, bpfPrograms: programs, interfaces }: ProxyTraces): CheckResult {
  const pins = pinNames(pathsOf(bpfPins));
  const sockets = pins.filter((pin) => /^cil_sock[46]_(connect|sendmsg)$/.test(pin));
  const maps = pins.filter((pin) => pin.startsWith('cilium_lb'));
  const attached = programTexts(listOf(programs), CILIUM_PROGRAM);
  const links = listOf(interfaces).filter((each) => each.startsWith('cilium_'));
  const found = [
    ...evidence('BPF programs of its socket load balancer:', sockets),
    ...evidence('BPF maps of its load balancer:', maps),
    ...evidence('BPF program', attached),
    ...evidence('interface', links),
  ].join('; ');
  if (found === '') return ok('Cilium', 'no interface cilium_*, no BPF map, no BPF program');
  const isServing = sockets.length + maps.length > 0;
  const also = sockets.length > 0 ? ' and socketLB.enabled=false' : '';
  return warn(
    'Cilium',
    found,
    isServing
      ? `set kubeProxyReplacement=false${also}: otherwise Cilium serves Services before any rule`
      : 'set kubeProxyReplacement=false in Cilium',
  );
}

function calico({ bpfPins, bpfPrograms: programs, interfaces, ipsets }: ProxyTraces): CheckResult {
  const pins = pinNames(pathsOf(bpfPins));
  const links = listOf(interfaces).filter((each) => each.startsWith('cali'));
  const found = [
    ...evidence(
      'BPF maps of its Service NAT:',
      pins.filter((pin) => /^cali_.*nat/.test(pin)),
    ),
    ...evidence(
      'BPF programs of its connect-time load balancer:',
      pins.filter((pin) => /^calico_(connect|sendmsg)|^cali_ctlb/.test(pin)),
    ),
    ...evidence('BPF program', programTexts(listOf(programs), CALICO_PROGRAM)),
    ...evidence(
      'interface',
      listOf(interfaces).filter((each) => /^bpf(in|out)\.cali$/.test(each)),
    ),
  ].join('; ');
  if (found !== '') {
    const action =
      'set bpfEnabled=false in FelixConfiguration: the eBPF data plane serves Services itself';
    return warn('Calico eBPF', found, action);
  }
  const traces = [...links, ...listOf(ipsets).filter((each) => each.startsWith('cali'))];
  return traces.length === 0
    ? ok('Calico eBPF', 'no BPF map cali_*nat*, no interface bpfin.cali')
    : ok('Calico eBPF', `Calico is in use (${traces[0]}), without its eBPF data plane`);
}

/** @returns at most one text, with at most three names. */
function evidence(what: string, names: readonly string[]): string[] {
  return names.length === 0 ? [] : [`${what} ${[...new Set(names)].slice(0, 3).join(', ')}`];
}

function kubeRouter({ interfaces, ipsets }: ProxyTraces): CheckResult {
  const links = listOf(interfaces).filter((each) => each === 'kube-dummy-if');
  if (links.length > 0) {
    const action =
      'run kube-router with --run-service-proxy=false, and `kube-router --cleanup-config`';
    return warn('kube-router', 'interface kube-dummy-if of its service proxy', action);
  }
  const sets = listOf(ipsets).filter((each) => each.startsWith('kube-router-'));
  return ok(
    'kube-router',
    sets.length === 0 ? 'no interface kube-dummy-if' : `only ipset ${sets[0]}`,
  );
}

/** What the checks above could not read. */
function unseen(traces: ProxyTraces): CheckResult {
  const facts = Object.entries(traces).flatMap(([what, fact]) =>
    typeof fact === 'object' && 'notSeen' in fact ? [{ what, reason: fact.notSeen }] : [],
  );
  const { bpfPins } = traces;
  if ('value' in bpfPins && bpfPins.value.missing !== undefined)
    facts.push({ what: 'bpfPins', reason: bpfPins.value.missing });
  const always =
    'BPF programs that are not pinned: on cgroups, and by TCX (see `bpftool net`, `bpftool cgroup tree`)';
  if (facts.length === 0) return ok('not seen', always);
  const list = facts.map(({ what, reason }) => `${LABELS[what] ?? what} (${reason})`);
  return notSeen('other proxies', { notSeen: [...list, always].join(', ') });
}

const LABELS: Readonly<Record<string, string>> = {
  processes: 'processes',
  serviceRules: 'iptables rules',
  tables: 'nf_tables tables',
  ipvsServices: 'IPVS services',
  bpfPins: 'pinned BPF objects',
  bpfPrograms: 'BPF programs on interfaces',
};
