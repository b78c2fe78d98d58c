import type { Logger } from 'pino';
import type { IpFamily } from '../api/objects.ts';
import type { Iptables } from '../iptables/commands.ts';
import type { Backend } from '../proxier/backend.ts';
import { startIptablesMode } from './iptables-mode.ts';
import { startIpvsMode } from './ipvs-mode.ts';
import type { ProxyMode } from './node-options.ts';
import type { RunOptions } from './run-options.ts';

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

/** The one place where a mode is picked. @throws UserError with what the node lacks for the mode. */
export const START_MODE: Readonly<Record<ProxyMode, (start: ModeStart) => Promise<Mode>>> = {
  iptables: startIptablesMode,
  ipvs: startIpvsMode,
};

/** Milliseconds between two looks at the kernel. Known before a mode starts. */
export const SYNC_PERIOD: Readonly<Record<ProxyMode, (options: RunOptions) => number>> = {
  iptables: (options) => options.iptablesSyncPeriod,
  ipvs: (options) => options.ipvsSyncPeriod,
};
