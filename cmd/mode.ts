import type { Logger } from 'pino';
import type { IpFamily } from '../api/objects.ts';
import type { ProxyMode } from '../config/node-settings.ts';
import type { RunOptions } from '../config/settings.ts';
import type { Iptables } from '../iptables/commands.ts';
import type { Backend } from '../proxier/backend.ts';
import { startIptablesMode } from './iptables-mode.ts';
import { prepareIpvs, startIpvsMode } from './ipvs-mode.ts';
import { allowLocalhostNodePorts } from './node-setup.ts';

/** What a mode needs to start. */
export interface ModeStart {
  readonly options: RunOptions;
  /** The commands of the families that the node can do. */
  readonly families: readonly Iptables[];
  readonly podCidrs: readonly string[];
  readonly log: Logger;
}

/** A proxy mode, ready to be handed Routes; nothing is programmed yet. */
export interface Mode {
  readonly backends: readonly Backend[];
  /** Milliseconds. */
  readonly minSyncPeriod: number;
  /** What must not happen before the rules that make it safe. */
  afterFirstSync(family: IpFamily): void;
}

/** Here, and here alone, a mode is picked. @throws UserError with what the node lacks for the mode. */
export const START_MODE: Readonly<Record<ProxyMode, (start: ModeStart) => Promise<Mode>>> = {
  iptables: startIptablesMode,
  ipvs: startIpvsMode,
};

/** What a mode needs of the node that takes more rights than rules do (`--init-only`). @throws UserError */
export const PREPARE_MODE: Readonly<
  Record<ProxyMode, (options: RunOptions, log: Logger) => Promise<void>>
> = {
  iptables: allowLocalhostNodePorts,
  ipvs: prepareIpvs,
};

/** Milliseconds between two looks at the kernel. Known before a mode starts. */
export const SYNC_PERIOD: Readonly<Record<ProxyMode, (options: RunOptions) => number>> = {
  iptables: (options) => options.iptablesSyncPeriod,
  ipvs: (options) => options.ipvsSyncPeriod,
};
