/** What `portwide run` settles with the node before it reads objects. Nothing is programmed yet. */
import type { Server } from 'node:net';
import { takeLock } from '../process/lock.ts';
import { setOomScore } from '../process/oom-score.ts';
import type { Shutdown } from '../process/shutdown.ts';
import { VERSION } from '../process/version.ts';
import { setUpConntrack } from './conntrack-settings.ts';
import type { PreparedNode, Settings } from './context.ts';
import { pickMode } from './mode.ts';
import { effectiveNodeName } from './node-setup.ts';
import { openPolicy } from './policy.ts';

/**
 * @returns this node, and the lock that the one agent of a node holds.
 * @throws UserError with what the node lacks.
 */
export async function prepareNode(
  settings: Settings,
  shutdown: Shutdown,
): Promise<{ node: PreparedNode; lock: Server }> {
  const { options, log } = settings;
  const nodeName = effectiveNodeName(options);
  const kind = await pickMode(options, log);
  log.info({ version: VERSION, node: nodeName, mode: kind.name }, 'starting');
  const openMode = await kind.open(options, log);
  const openedPolicy = options.networkPolicy ? await openPolicy(options) : undefined;
  const lock = await shutdown.unless(takeLock(log));
  await setOomScore(options.oomScoreAdj, log);
  await setUpConntrack(options, log);
  const nodePorts = kind.nodePortSelection(options);
  const syncPeriod = kind.syncPeriod(options);
  const node = { ...settings, nodeName, kind, nodePorts, syncPeriod, openMode, openedPolicy };
  return { node, lock };
}
