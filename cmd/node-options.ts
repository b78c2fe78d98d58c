import { hostname } from 'node:os';
import { type Command, InvalidArgumentError, Option } from 'commander';
import type { MarkRange } from '../ipvs/marks.ts';
import type { AllPortsBy } from '../ipvs/plan.ts';
import {
  boolean,
  cidrs,
  clusterCidrs,
  FEATURE_GATES,
  type FeatureGates,
  featureGates,
  interfaceName,
  interfacePrefix,
  markBit,
  markRange,
  nodePortAddresses,
  scheduler,
} from './flag-values.ts';

export const PROXY_MODES = ['iptables', 'ipvs'] as const;
export type ProxyMode = (typeof PROXY_MODES)[number];

export const DETECT_LOCAL_MODES = [
  'ClusterCIDR',
  'NodeCIDR',
  'BridgeInterface',
  'InterfaceNamePrefix',
] as const;
export type DetectLocalMode = (typeof DETECT_LOCAL_MODES)[number];

/** Flags that decide what rules a node gets; `run` and `render` share them. Names are kube-proxy's. */
export interface NodeOptions {
  readonly hostnameOverride?: string;
  readonly proxyMode: ProxyMode;
  readonly clusterCidr: readonly string[];
  readonly detectLocalMode: DetectLocalMode;
  readonly podBridgeInterface?: string;
  readonly podInterfaceNamePrefix?: string;
  readonly nodeportAddresses: 'all' | 'primary' | readonly string[];
  readonly masqueradeAll: boolean;
  readonly iptablesMasqueradeBit: number;
  readonly iptablesLocalhostNodeports: boolean;
  readonly ipvsScheduler: string;
  readonly ipvsExcludeCidrs: readonly string[];
  readonly ipvsFwmarkRange: MarkRange;
  readonly ipvsAllPorts: AllPortsBy;
  readonly featureGates: FeatureGates;
}

export function addNodeOptions(command: Command): Command {
  const flag = (flags: string, text: string) => new Option(flags, text);
  const onOff = (flags: string, text: string, value: boolean) =>
    flag(`${flags} [true|false]`, text).argParser(boolean).preset('true').default(value);
  return command
    .addOption(
      flag('--hostname-override <name>', 'name of this Node, if not its host name').argParser(
        nodeName,
      ),
    )
    .addOption(
      flag('--proxy-mode <mode>', `how the kernel is programmed: ${PROXY_MODES.join(' or ')}`)
        .argParser(proxyMode)
        .default('iptables' as const),
    )
    .addOption(
      flag(
        '--cluster-cidr <cidrs>',
        'pod addresses of the cluster, at most one CIDR a family; what comes from elsewhere to a cluster IP is masqueraded',
      )
        .argParser(clusterCidrs)
        .default([], 'none'),
    )
    .addOption(
      flag('--detect-local-mode <mode>', 'how traffic of local pods is told')
        .choices(DETECT_LOCAL_MODES)
        .default('ClusterCIDR'),
    )
    .addOption(
      flag('--pod-bridge-interface <name>', 'bridge of the pods, for BridgeInterface').argParser(
        interfaceName,
      ),
    )
    .addOption(
      flag(
        '--pod-interface-name-prefix <prefix>',
        'start of the names of pod interfaces, for InterfaceNamePrefix',
      ).argParser(interfacePrefix),
    )
    .addOption(
      flag(
        '--nodeport-addresses <cidrs>',
        'addresses of the node that serve node ports: CIDRs, or "primary"',
      )
        .argParser(nodePortAddresses)
        .default('all'),
    )
    .addOption(onOff('--masquerade-all', 'masquerade everything that goes to a cluster IP', false))
    .addOption(
      flag(
        '--iptables-masquerade-bit <bit>',
        'bit of the mark for masquerade: of packets, or in mode ipvs of connections',
      )
        .argParser(markBit)
        .default(14),
    )
    .addOption(onOff('--iptables-localhost-nodeports', 'serve node ports on 127.0.0.1', true))
    .addOption(
      flag('--ipvs-scheduler <name>', 'how IPVS chooses an endpoint: rr, wrr, lc, sh, mh, ...')
        .argParser(scheduler)
        .default('rr'),
    )
    .addOption(excludeCidrsOption())
    .addOption(
      flag('--ipvs-fwmark-range <first-last>', 'packet marks for all-ports Services')
        .argParser(markRange)
        .default({ first: 0x1000, last: 0x3fff }, '0x1000-0x3fff'),
    )
    .addOption(
      flag(
        '--ipvs-all-ports <how>',
        'who serves all-ports Services in mode ipvs: fwmark services, or rules of iptables',
      )
        .choices(['fwmark', 'iptables'])
        .default('fwmark'),
    )
    .addOption(
      flag('--feature-gates <gates>', 'such as AllPorts=false')
        .argParser(featureGates)
        .default(FEATURE_GATES, 'AllPorts=true'),
    );
}

/** `run` and `cleanup` leave alone what it tells. */
export function excludeCidrsOption(): Option {
  return new Option(
    '--ipvs-exclude-cidrs <cidrs>',
    'addresses whose IPVS services belong to others and stay',
  )
    .argParser(cidrs)
    .default([], 'none');
}

/**
 * What single flags cannot tell.
 * @returns a message that names the flag, or undefined.
 */
export function contradiction(options: NodeOptions): string | undefined {
  const { detectLocalMode } = options;
  if (detectLocalMode === 'BridgeInterface' && options.podBridgeInterface === undefined) {
    return '--detect-local-mode BridgeInterface needs --pod-bridge-interface';
  }
  if (detectLocalMode === 'InterfaceNamePrefix' && options.podInterfaceNamePrefix === undefined) {
    return '--detect-local-mode InterfaceNamePrefix needs --pod-interface-name-prefix';
  }
  return undefined;
}

/** Name of this Node: lower-case and trimmed, as kube-proxy and the kubelet make it. */
export function effectiveNodeName(options: NodeOptions): string {
  return (options.hostnameOverride ?? hostname()).trim().toLowerCase();
}

function nodeName(text: string): string {
  const name = text.trim().toLowerCase();
  if (!/^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$/.test(name)) {
    throw new InvalidArgumentError('must be a node name: letters, digits, "-" and ".".');
  }
  return name;
}

function proxyMode(text: string): ProxyMode {
  const mode = PROXY_MODES.find((each) => each === (text === '' ? 'iptables' : text));
  if (mode !== undefined) return mode;
  throw new InvalidArgumentError(`allowed: ${PROXY_MODES.join(', ')}.`);
}
