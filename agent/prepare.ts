/** What `portwide run` settles with the node before it reads objects. Nothing is programmed yet. */
import type { Server } from 'node:net';
import { acquireLock } from '../process/lock.ts';
import { setOomScore } from '../process/oom-score.ts';
import type { Shutdown } from '../process/shutdown.ts';
import { VERSION } from '../process/version.ts';
import { configureConntrack } from './conntrack-settings.ts';
import type { BaseContext, NodeContext } from './context.ts';
import { pickMode } from './mode.ts';
import { effectiveNodeName } from './node-setup.ts';
import { requirePolicySupport } from './policy.ts';

/**
 * @returns this node, and the lock that the one agent of a node holds.
 * @throws UserError with what the node lacks.
 */
export async function prepareNode(
  settings: BaseContext,
  shutdown: Shutdown,
): Promise<{ node: NodeContext; lock: Server }> {
  const { options, log } = settings;
  const nodeName = effectiveNodeName(options);
  const kind = await pickMode(options, log);
  log.info({ version: VERSION, node: nodeName, mode: kind.name }, 'starting');
  const openMode = await kind.open(options, log);
  const openedPolicy = options.networkPolicy ? await requirePolicySupport(options) : undefined;
  const lock = await shutdown.exitOnSignal(acquireLock(log));
  await setOomScore(options.oomScoreAdj, log);
  await configureConntrack(options, log);
  const nodePorts = kind.nodePortSelection(options);
  const syncPeriod = kind.syncPeriod(options);
  const node = { ...settings, nodeName, kind, nodePorts, syncPeriod, openMode, openedPolicy };
  return { node, lock };
}
