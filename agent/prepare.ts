/** What `portwide run` settles with the node before it reads objects. Nothing is programmed yet. */
import type { Server } from 'node:net';
import type { Logger } from 'pino';
import type { RunOptions } from '../config/settings.ts';
import { takeLock } from '../process/lock.ts';
import { setOomScore } from '../process/oom-score.ts';
import type { Shutdown } from '../process/shutdown.ts';
import { VERSION } from '../process/version.ts';
import { setUpConntrack } from './conntrack-settings.ts';
import { type ModeKind, type OpenMode, pickMode } from './mode.ts';
import { effectiveNodeName } from './node-setup.ts';
import { type OpenPolicy, openPolicy } from './policy.ts';

/** This node, and what it can do. */
export interface PreparedNode {
  readonly nodeName: string;
  readonly kind: ModeKind;
  /** What `--nodeport-addresses` means in this mode. */
  readonly nodePorts: RunOptions['nodeportAddresses'];
  /** Milliseconds between two looks at the kernel. */
  readonly syncPeriod: number;
  readonly openMode: OpenMode;
  /** Undefined without `--network-policy`. */
  readonly openedPolicy: OpenPolicy | undefined;
  /** Held by the one agent of the node. */
  readonly lock: Server;
}

/** @throws UserError with what the node lacks. */
export async function prepareNode(
  options: RunOptions,
  log: Logger,
  shutdown: Shutdown,
): Promise<PreparedNode> {
  const nodeName = effectiveNodeName(options);
  const kind = await pickMode(options, log);
  log.info({ version: VERSION, node: nodeName, mode: kind.name }, 'starting');
  const openMode = await kind.open(options, log);
  const openedPolicy = options.networkPolicy ? await openPolicy(options) : undefined;
  const lock = await shutdown.unless(takeLock(log));
  await setOomScore(options.oomScoreAdj, log);
  await setUpConntrack(options, log);
  return {
    nodeName,
    kind,
    nodePorts: kind.nodePortSelection(options),
    syncPeriod: kind.syncPeriod(options),
    openMode,
    openedPolicy,
    lock,
  };
}
