/** Options that are wrong together. */
import type { ProxyMode } from './node-settings.ts';
import type { OptionName, RunOptions } from './settings.ts';

/** Options that are right one by one and wrong together. */
interface OptionConflict {
  readonly names: readonly [OptionName, OptionName];
  /** What is wrong with the first. */
  readonly message: string;
}

/** What single options cannot tell. @param nameOf how the user gave an option: a flag or a field. */
export function optionConflicts(
  options: RunOptions,
  nameOf: (name: OptionName) => string,
): OptionConflict[] {
  const found: OptionConflict[] = [];
  const add = (first: OptionName, second: OptionName, message: string) =>
    found.push({ names: [first, second], message });

  // As kube-proxy, only of the mode in use: nobody looks at the other's.
  const modes = options.proxyMode === undefined ? UNNAMED : [options.proxyMode];
  for (const [least, period] of modes.map((mode) => PERIODS[mode])) {
    if (options[least] > options[period]) {
      add(least, period, `must not be greater than ${nameOf(period)}`);
    }
  }
  if (options.fqdnTtlFloor > options.fqdnTtlCap) {
    add('fqdnTtlFloor', 'fqdnTtlCap', `must not be greater than ${nameOf('fqdnTtlCap')}`);
  }
  const needed = NEEDED_BY_MODE[options.detectLocalMode];
  if (needed !== undefined && options[needed] === undefined) {
    add('detectLocalMode', needed, `${options.detectLocalMode} needs ${nameOf(needed)}`);
  }
  return found;
}

/** Modes of which one is picked when none is named. */
const UNNAMED = ['nftables', 'iptables'] as const satisfies readonly ProxyMode[];

const PERIODS = {
  iptables: ['iptablesMinSyncPeriod', 'iptablesSyncPeriod'],
  ipvs: ['ipvsMinSyncPeriod', 'ipvsSyncPeriod'],
  nftables: ['nftablesMinSyncPeriod', 'nftablesSyncPeriod'],
} as const satisfies Record<ProxyMode, readonly [OptionName, OptionName]>;

const NEEDED_BY_MODE = {
  ClusterCIDR: undefined,
  NodeCIDR: undefined,
  BridgeInterface: 'podBridgeInterface',
  InterfaceNamePrefix: 'podInterfaceNamePrefix',
} as const satisfies Record<RunOptions['detectLocalMode'], OptionName | undefined>;
