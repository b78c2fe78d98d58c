/** Checks of the node: rights, versions, proxy mode, sysctls, ports. */
import { isUnspecified, socketAddress } from '../api/addresses.ts';
import type { IpFamily } from '../api/objects.ts';
import type { ProxyMode } from '../config/node-settings.ts';
import type { RunOptions } from '../config/settings.ts';
import { type CheckResult, type Fact, fail, notSeen, ok, warn } from './result.ts';

/** A version, and why the nftables mode does not support it. */
export interface SupportedVersion {
  readonly version: string;
  readonly problem: string | undefined;
}

/** The proxy mode that the agent would use. */
export interface ModeFact {
  readonly name: ProxyMode;
  readonly reason: string;
  /** Families that the mode supports on this node, or why the agent would not start. */
  readonly support: { readonly families: readonly IpFamily[] } | { readonly error: string };
}

/** A line that the agent would log at its start. */
export interface StartWarning {
  readonly message: string;
  readonly details: Readonly<Record<string, unknown>>;
}

const ALTERNATIVE = 'use --proxy-mode=iptables without --network-policy, or upgrade';

export function checkCapability(hasNetAdmin: boolean): CheckResult[] {
  if (hasNetAdmin) return [ok('CAP_NET_ADMIN', 'this process has it')];
  const action =
    'run this check as root or in the pod of the agent: rules and the proxy mode cannot be read without it';
  return [fail('CAP_NET_ADMIN', 'this process lacks it', action)];
}

/** @param isRequired whether the agent exits without nftables support: by its mode, or for network policy. */
export function checkKernel(fact: Fact<SupportedVersion>, isRequired: boolean): CheckResult[] {
  const name = 'kernel';
  if ('notSeen' in fact) return [notSeen(name, fact)];
  const { version, problem } = fact.value;
  if (problem === undefined) return [ok(name, version)];
  if (isRequired) return [fail(name, problem, ALTERNATIVE)];
  return [ok(name, `${problem}: the agent uses another mode`)];
}

export function checkMode(mode: Fact<ModeFact>): CheckResult[] {
  if ('notSeen' in mode) return [notSeen('proxy mode', mode)];
  const { name, reason, support } = mode.value;
  if ('error' in support) {
    return [
      fail('proxy mode', `${name}: ${support.error}`, 'correct this, or set another --proxy-mode'),
    ];
  }
  return [ok('proxy mode', `${name} for ${support.families.join(' and ')} (${reason})`)];
}

/** @param problem why the node does not support network policy; undefined if it does. */
export function checkPolicySupport(problem: Fact<string | undefined>): CheckResult[] {
  if ('notSeen' in problem) return [notSeen('network policy', problem)];
  if (problem.value === undefined) return [ok('network policy', 'the node supports it')];
  return [fail('network policy', problem.value, 'upgrade, or run without --network-policy')];
}

/** `unknown`: not loaded, and the files that list all modules are not readable. */
export type ModuleState = 'loaded' | 'available' | 'missing' | 'unknown';

interface ModuleFiles {
  /** Entries of /sys/module. */
  readonly loaded: readonly string[];
  /** Content of modules.builtin and modules.dep in /lib/modules; empty if unreadable. */
  readonly builtin: string;
  readonly dep: string;
}

/** The state of a kernel module. @param name with underscores, such as `ip_vs_rr`. */
export function moduleState(name: string, { loaded, builtin, dep }: ModuleFiles): ModuleState {
  // File names may have dashes.
  const file = new RegExp(`/${name.replaceAll('_', '[-_]')}\\.ko`, 'm');
  if (loaded.includes(name) || file.test(builtin)) return 'loaded';
  if (file.test(dep)) return 'available';
  return builtin === '' || dep === '' ? 'unknown' : 'missing';
}

/** The kernel modules of mode ipvs. */
export function checkIpvsModules(modules: Fact<ReadonlyMap<string, ModuleState>>): CheckResult[] {
  const name = 'IPVS modules';
  if ('notSeen' in modules) return [notSeen(name, modules)];
  const ofState = (state: ModuleState) =>
    [...modules.value].filter(([, each]) => each === state).map(([module]) => module);
  const states = [...modules.value].map(([module, state]) => `${module} ${state}`).join(', ');
  const [missing, unknown] = [ofState('missing'), ofState('unknown')];
  if (missing.length > 0) {
    return [fail(name, states, `install the modules, and run modprobe -a ${missing.join(' ')}`)];
  }
  if (unknown.length === 0) return [ok(name, states)];
  const action = `modprobe -a ${unknown.join(' ')}; in a pod, mount /lib/modules to see all modules`;
  return [warn(name, states, action)];
}

/** Warnings without which Services do not work at all. */
const FATAL = /forwarding is disabled/;

/** What the agent would warn about at its start: settings, bridges, forwarding, the other iptables variant. */
export function checkStartWarnings(warnings: readonly StartWarning[]): CheckResult[] {
  if (warnings.length === 0)
    return [ok('start of the agent', 'no warnings about settings or sysctls')];
  return warnings.map(({ message, details }) => {
    const { hint, sysctl, setting, ...rest } = details;
    const name = String(sysctl ?? setting ?? 'start of the agent').replace(/ \(.*/, '');
    const fields = Object.entries(rest).map(([key, value]) => `${key}: ${String(value)}`);
    const seen = [message, ...fields].join('; ');
    const action = hint === undefined ? 'see the configuration page' : String(hint);
    return FATAL.test(message) ? fail(name, seen, action) : warn(name, seen, action);
  });
}

/** A feature as `kernelFeatures` of the agent reports it. */
interface Feature {
  readonly name: string;
  readonly value: string;
  readonly ok: boolean;
  readonly note: string;
}

/**
 * Room in the conntrack table.
 * @param planned nf_conntrack_max that the agent sets; undefined: unchanged.
 */
export function checkConntrack(
  features: readonly Feature[],
  count: string | undefined,
  planned: number | undefined,
): CheckResult[] {
  const results = features
    .filter(({ name }) => name.includes('conntrack'))
    .map(({ name, value, ok: isOk, note }) =>
      isOk ? ok(name, note === '' ? value : `${value}: ${note}`) : warn(name, value, note),
    );
  if (planned !== undefined && Number(count) >= planned) {
    results.push(
      fail(
        'nf_conntrack_max',
        `the agent sets ${planned}, and the table has ${count} entries`,
        'raise --conntrack-max-per-core or --conntrack-min, or set --conntrack-max-per-core=0',
      ),
    );
  }
  return results;
}

/** Sysctls by name; a sysctl that the kernel does not have is absent. */
export type Sysctls = ReadonlyMap<string, string>;

/** Sysctls of packet handling that the agent's own warnings do not cover. */
export function checkSysctls(sysctls: Sysctls, mode: ProxyMode | undefined): CheckResult[] {
  return [
    rpFilter(sysctls),
    routeLocalnet(sysctls, mode),
    conntrackStrictness(sysctls, mode),
    ...ipvs(sysctls, mode),
  ];
}

/** Strict reverse path filtering (RFC 3704). The kernel applies the larger value of `all` and the interface. */
function rpFilter(sysctls: Sysctls): CheckResult {
  const names = [...sysctls.keys()].flatMap(
    (name) => /^net\.ipv4\.conf\.(.+)\.rp_filter$/.exec(name)?.[1] ?? [],
  );
  const value = (each: string) => Number(sysctls.get(`net.ipv4.conf.${each}.rp_filter`) ?? 0);
  const strict = names.filter(
    (each) => !['all', 'default', 'lo'].includes(each) && Math.max(value('all'), value(each)) === 1,
  );
  if (strict.length === 0) return ok('rp_filter', 'no interface filters strictly');
  const more = strict.length > 5 ? ` and ${strict.length - 5} more` : '';
  return warn(
    'rp_filter',
    `strict (1) on ${strict.slice(0, 5).join(', ')}${more}: packets that arrive on another interface than the route back are dropped`,
    'if replies to clients of VIPs take another interface, set rp_filter=2 there',
  );
}

function routeLocalnet(sysctls: Sysctls, mode: ProxyMode | undefined): CheckResult {
  const name = 'net.ipv4.conf.all.route_localnet';
  const isOn = sysctls.get(name) === '1';
  if (!isOn || mode === 'iptables') return ok('route_localnet', sysctls.get(name) ?? 'unknown');
  return warn(
    'route_localnet',
    `1: other hosts can reach 127.0.0.0/8 unless rules drop it, and mode ${mode ?? 'nftables'} does not need it`,
    `run \`portwide run --init-only\`, or set ${name}=0 (CVE-2020-8558)`,
  );
}

function conntrackStrictness(sysctls: Sysctls, mode: ProxyMode | undefined): CheckResult {
  const name = 'nf_conntrack_tcp_be_liberal';
  const value = sysctls.get(`net.netfilter.${name}`);
  if (value === undefined) return ok(name, 'nf_conntrack is not loaded yet');
  const effect =
    value === '1' || mode !== 'iptables'
      ? ''
      : ': mode iptables drops packets outside the TCP window';
  return ok(name, `${value}${effect}`);
}

/** Sysctls that mode ipvs sets at its start, so a wrong value needs the right to write it. */
function ipvs(sysctls: Sysctls, mode: ProxyMode | undefined): CheckResult[] {
  const name = 'net.ipv4.vs.conntrack';
  if (mode !== 'ipvs') return [];
  const value = sysctls.get(name);
  if (value === '1') return [ok(name, '1')];
  const seen = value === undefined ? 'not present: ip_vs is not loaded yet' : value;
  return [warn(name, seen, 'the agent sets 1 at its start, and exits if /proc/sys is read-only')];
}

/** The API server's default of --service-node-port-range. */
const NODE_PORTS: PortSpan = [30_000, 32_767];
type PortSpan = readonly [from: number, to: number];

/**
 * Ports that the kernel chooses for processes of this node do not overlap node ports. A warning, not a fault: only
 * connections to a process that lets the kernel choose its port, and gets a node port, would go to a Service instead.
 * @param used node ports of Services.
 */
export function checkLocalPorts(sysctls: Sysctls, used: readonly number[]): CheckResult[] {
  const name = 'ip_local_port_range';
  const [from = 0, to = 0] = (sysctls.get(`net.ipv4.${name}`) ?? '').split(/\s+/).map(Number);
  if (from === 0) return [notSeen(name, { notSeen: 'no such sysctl' })];
  const reserved = readSpans(sysctls.get('net.ipv4.ip_local_reserved_ports') ?? '');
  const isFree = (port: number) => reserved.some(([first, last]) => first <= port && port <= last);
  const ports = Array.from({ length: to - from + 1 }, (_, index) => from + index).filter(
    (port) => !isFree(port),
  );
  const inRange = ports.filter((port) => port >= NODE_PORTS[0] && port <= NODE_PORTS[1]);
  const taken = used.filter((port) => ports.includes(port));
  if (inRange.length === 0 && taken.length === 0) return [ok(name, `${from}-${to}`)];
  const what =
    taken.length > 0
      ? `node port ${taken.slice(0, 3).join(', ')} of Services`
      : `${inRange.length} ports of 30000-32767`;
  return [
    warn(
      name,
      `${from}-${to} contains ${what}: the kernel may choose a node port for a process, whose clients then reach a Service`,
      'start the range at 32768, or set net.ipv4.ip_local_reserved_ports=30000-32767',
    ),
  ];
}

/** Reads `8080,30000-32767`. */
function readSpans(text: string): PortSpan[] {
  return text
    .split(',')
    .filter((item) => item.trim() !== '')
    .map((item) => {
      const [from = 0, to = from] = item.split('-').map(Number);
      return [from, to];
    });
}

/** A listening TCP socket. */
export interface Listener {
  readonly host: string;
  readonly port: number;
}

/** The ports of the agent's servers are free, or become free with kube-proxy. */
export function checkListeners(
  options: Pick<
    RunOptions,
    'healthzBindAddress' | 'metricsBindAddress' | 'statusBindAddress' | 'bindAddressHardFail'
  >,
  listeners: Fact<readonly Listener[]>,
  {
    isAgentRunning,
    isKubeProxyRunning,
  }: { readonly isAgentRunning: boolean; readonly isKubeProxyRunning: boolean },
): CheckResult[] {
  const name = 'ports of the agent';
  if ('notSeen' in listeners) return [notSeen(name, listeners)];
  const wanted = [
    ['--healthz-bind-address', options.healthzBindAddress],
    ['--metrics-bind-address', options.metricsBindAddress],
    ['--status-bind-address', options.statusBindAddress],
  ] as const;
  const texts = wanted.flatMap(([, address]) =>
    address === undefined ? [] : [socketAddress(address.host, address.port)],
  );
  if (isAgentRunning) return [ok(name, `${texts.join(', ')}: the agent runs`)];
  const taken = wanted.flatMap(([flag, address]) => {
    const other = address && listeners.value.find((each) => conflicts(each, address));
    return other === undefined ? [] : [{ flag, text: socketAddress(other.host, other.port) }];
  });
  if (taken.length === 0) return [ok(name, `${texts.join(', ')}: free`)];
  return taken.map(({ flag, text }) => {
    const seen = `${flag}: another process listens on ${text}`;
    if (isKubeProxyRunning) return warn(name, seen, 'kube-proxy runs; stop it before the swap');
    const action = `find the process with \`ss -ltnp\`, or change ${flag}`;
    return options.bindAddressHardFail && flag !== '--status-bind-address'
      ? fail(name, `${seen}; the agent exits (--bind-address-hard-fail)`, action)
      : warn(name, `${seen}; the agent serves Services and retries`, action);
  });
}

function conflicts(listener: Listener, { host, port }: Listener): boolean {
  if (listener.port !== port) return false;
  return listener.host === host || isUnspecified(listener.host) || isUnspecified(host);
}
