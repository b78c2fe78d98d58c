/** Validation across options. */
import { PROXY_MODES, type ProxyMode } from './node-settings.ts';
import type { OptionName, RunOptions } from './settings.ts';

/** Two options that are valid by themselves and conflict with each other. */
interface OptionConflict {
  readonly names: readonly [OptionName, OptionName];
  /** What is wrong with the first option. */
  readonly message: string;
}

/**
 * Finds conflicts between options.
 * @param nameOf name of an option as the user set it: a flag or a field.
 */
export function optionConflicts(
  options: RunOptions,
  nameOf: (name: OptionName) => string,
): OptionConflict[] {
  const found: OptionConflict[] = [];
  const add = (first: OptionName, second: OptionName, message: string) =>
    found.push({ names: [first, second], message });

  // Check only modes that may be used: the periods of other modes have no effect. kube-proxy checks the
  // iptables periods in every mode.
  const modes = options.proxyMode === undefined ? AUTOMATIC_MODES : [options.proxyMode];
  for (const [minPeriod, period] of modes.map((mode) => PERIODS[mode])) {
    if (options[minPeriod] > options[period]) {
      add(minPeriod, period, `must not be greater than ${nameOf(period)}`);
    }
  }
  for (const mode of modes) {
    const gate = GATES[mode];
    if (gate === undefined || options.featureGates[gate] !== false) continue;
    const others = PROXY_MODES.filter((each) => each !== mode).join(' or ');
    const gates = nameOf('featureGates');
    add('proxyMode', 'featureGates', `must be ${others}: ${gates} has ${gate}=false`);
  }
  if (options.fqdnTtlFloor > options.fqdnTtlCap) {
    add('fqdnTtlFloor', 'fqdnTtlCap', `must not be greater than ${nameOf('fqdnTtlCap')}`);
  }
  const required = REQUIRED_BY_MODE[options.detectLocalMode];
  if (required !== undefined && options[required] === undefined) {
    add('detectLocalMode', required, `${options.detectLocalMode} requires ${nameOf(required)}`);
  }
  return found;
}

/** The candidates when --proxy-mode is unset. */
const AUTOMATIC_MODES = ['nftables', 'iptables'] as const satisfies readonly ProxyMode[];

const PERIODS = {
  iptables: ['iptablesMinSyncPeriod', 'iptablesSyncPeriod'],
  ipvs: ['ipvsMinSyncPeriod', 'ipvsSyncPeriod'],
  nftables: ['nftablesMinSyncPeriod', 'nftablesSyncPeriod'],
} as const satisfies Record<ProxyMode, readonly [OptionName, OptionName]>;

/** Gates of kube-proxy without which a mode must not be used. */
const GATES: Readonly<Partial<Record<ProxyMode, string>>> = {
  ipvs: 'KubeProxyIPVS',
  nftables: 'NFTablesProxyMode',
};

const REQUIRED_BY_MODE = {
  ClusterCIDR: undefined,
  NodeCIDR: undefined,
  BridgeInterface: 'podBridgeInterface',
  InterfaceNamePrefix: 'podInterfaceNamePrefix',
} as const satisfies Record<RunOptions['detectLocalMode'], OptionName | undefined>;
