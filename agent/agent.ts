/**
 * Starts and stops the parts of `portwide run`, which are in agent/. Each part gets its dependencies when it is
 * created. An event emitter notifies parts of changed objects.
 */
import type { Logger } from 'pino';
import type { LoadedConfiguration } from '../config/configuration.ts';
import type { FlagTexts } from '../config/flags.ts';
import { unmapProgram } from '../netlink/core/program-pages.ts';
import { NftMonitor } from '../nft/monitor.ts';
import { requireNetAdmin } from '../process/capabilities.ts';
import { releaseFreeMemory } from '../process/free-memory.ts';
import { Shutdown } from '../process/shutdown.ts';
import { systemTimers as timers } from '../sync/timers.ts';
import { Takeover } from '../takeover/takeover.ts';
import { restartOnChange } from './config-restart.ts';
import { warnOfSettings } from './config-warnings.ts';
import { startHealth } from './health.ts';
import { createInputs, sourceResources } from './inputs.ts';
import { createMetricSources } from './metric-sources.ts';
import type { StartedMode } from './mode.ts';
import { createObjects } from './objects.ts';
import { watchOwnNode } from './own-node.ts';
import { prepareNode } from './prepare.ts';
import { startServing } from './serving.ts';
import { checkSource } from './source.ts';
import { Startup } from './startup.ts';
import { startStatus } from './status.ts';
import { startTelemetry } from './telemetry.ts';

/**
 * Runs the agent until SIGTERM or SIGINT, or until its configuration file changes. Rules remain when it exits. A change
 * of the pod CIDRs also ends the process, see `Startup`.
 * @param texts unparsed flags.
 * @returns the exit status.
 * @throws UserError if the agent cannot start. No rules of Services have been programmed then; network policies may
 * already be enforced, and stay in force.
 */
export async function runAgent(
  { options, file }: LoadedConfiguration,
  texts: FlagTexts,
  log: Logger,
): Promise<number> {
  // Loading modules and reading lists use parts of Node.js that serving does not. This lowers the peak.
  unmapProgram();
  const shutdown = new Shutdown();
  void shutdown.signal.then((signal) => log.info({ signal }, 'stopping; rules remain in place'));
  await checkSource(options);
  await requireNetAdmin('portwide run');
  const exit = shutdown.request;
  const restart = file && restartOnChange({ file, texts, options, log, exit });
  const { node, lock } = await prepareNode({ options, texts, log }, shutdown);
  const { modeDefinition, supportedMode } = node;
  const objects = createObjects(node);
  const { table, changes } = objects;
  const takeover = new Takeover({
    ...node,
    mode: modeDefinition.name,
    families: supportedMode.families,
    timers,
  });
  const sources = createMetricSources(table, takeover, restart?.changes);
  const telemetry = startTelemetry(objects, sources);
  const { context } = telemetry;
  const startup = new Startup(context, watchOwnNode(context));
  const health = startHealth({ ...context, missingInputs: startup.missingInputs });
  changes.on('change', () => health.setNode(table.node));
  const monitor = new NftMonitor(timers);
  const served = Promise.withResolvers<void>();
  monitor.waitForLoad(served.promise);
  const { source, serviceCidrs, policy } = createInputs(
    context,
    startup,
    monitor,
    telemetry.connect,
  );
  void policy?.enforced.then(() => takeover.afterNetworkPolicy());
  let mode: StartedMode | undefined;
  const status = await startStatus(context, {
    kinds: sourceResources(context).map(({ kind }) => kind),
    missingInputs: startup.missingInputs,
    sourceFaults: () => source.faults(),
    unboundHealthPorts: health.unboundServicePorts,
    remainingState: () => takeover.remaining(),
    backends: () => mode?.backends ?? [],
    modeFeatures: () => mode?.features?.() ?? [],
    policy: policy?.status,
  });

  const podCidrs = await shutdown.exitOnSignal(startup.complete(source.start()));
  unmapProgram();
  await warnOfSettings(objects);
  mode = await supportedMode.start(podCidrs, monitor, takeover);
  const serving = await startServing({ ...context, serviceCidrs }, mode, health, served.resolve);
  // Lists and first rules leave several times their size as garbage.
  const memory = served.promise.then(() => releaseFreeMemory());

  const exitStatus = await shutdown.requested();
  const drained = serving.drain();
  await source.stop();
  takeover.stop();
  await monitor.close();
  await serving.stop();
  void memory.then((stop) => stop());
  await policy?.stop();
  await drained;
  await telemetry.stop();
  health.close();
  await status.close();
  lock.close();
  return exitStatus;
}
