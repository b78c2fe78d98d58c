import type { Logger } from 'pino';
import type { IpFamily } from '../api/objects.ts';
import type { ProxyMode } from '../config/node-settings.ts';
import type { RunOptions } from '../config/settings.ts';
import type { Backend } from '../proxier/backend.ts';
import { openIptablesMode } from './iptables-mode.ts';
import { openIpvsMode, prepareIpvs } from './ipvs-mode.ts';
import { openNftablesMode } from './nftables-mode.ts';
import { allowLocalhostNodePorts } from './node-setup.ts';

/** A mode that the node can do; nothing is programmed yet. */
export interface OpenMode {
  /** Those that it can do them in. */
  readonly families: readonly IpFamily[];
  start(podCidrs: readonly string[]): Promise<Mode>;
}

/** A proxy mode, ready to be handed Routes; nothing is programmed yet. */
export interface Mode {
  readonly backends: readonly Backend[];
  /** Milliseconds. */
  readonly minSyncPeriod: number;
  /** What must not happen before the rules that make it safe. */
  afterFirstSync(family: IpFamily): void;
}

/** What is to be known of a mode. */
interface ModeKind {
  /** @throws UserError with what the node lacks for the mode. */
  open(options: RunOptions, log: Logger): Promise<OpenMode>;
  /** What it needs of the node that takes more rights than rules do (`--init-only`). @throws UserError */
  prepare(options: RunOptions, log: Logger): Promise<void>;
  /** Milliseconds between two looks at the kernel. */
  syncPeriod(options: RunOptions): number;
}

/** Here, and here alone, a mode is picked. */
export const MODES: Readonly<Record<ProxyMode, ModeKind>> = {
  nftables: {
    open: openNftablesMode,
    prepare: async () => {},
    syncPeriod: (options) => options.nftablesSyncPeriod,
  },
  iptables: {
    open: openIptablesMode,
    prepare: allowLocalhostNodePorts,
    syncPeriod: (options) => options.iptablesSyncPeriod,
  },
  ipvs: {
    open: openIpvsMode,
    prepare: prepareIpvs,
    syncPeriod: (options) => options.ipvsSyncPeriod,
  },
};
