/** Prepares the node before objects are read: mode, lock, OOM score, conntrack. No rules are programmed. */
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
 * @returns the prepared node, and the lock that allows one agent per node.
 * @throws UserError that names what the node lacks.
 */
export async function prepareNode(
  settings: BaseContext,
  shutdown: Shutdown,
): Promise<{ node: NodeContext; lock: Server }> {
  const { options, log } = settings;
  const nodeName = effectiveNodeName(options);
  const modeDefinition = await pickMode(options, log);
  log.info({ version: VERSION, node: nodeName, mode: modeDefinition.name }, 'starting');
  const { warning } = modeDefinition;
  if (warning !== undefined)
    log.warn({ event: warning.reason, reason: warning.message }, 'check the proxy mode');
  const supportedMode = await modeDefinition.open(options, log);
  const policySupport = options.networkPolicy ? await requirePolicySupport(options) : undefined;
  const lock = await shutdown.exitOnSignal(acquireLock(log));
  await setOomScore(options.oomScoreAdj, log);
  await configureConntrack(options, log);
  const nodePorts = modeDefinition.nodePortSelection(options);
  const syncPeriod = modeDefinition.syncPeriod(options);
  const mode = { modeDefinition, supportedMode, policySupport, nodePorts, syncPeriod };
  const node = { ...settings, nodeName, ...mode };
  return { node, lock };
}
