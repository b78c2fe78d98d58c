import type { Command } from 'commander';
import type { Logger } from 'pino';
import { restartOnChange } from '../agent/config-restart.ts';
import { configWarnings } from '../agent/config-warnings.ts';
import { setUpConntrack } from '../agent/conntrack-settings.ts';
import { features, zPages } from '../agent/features.ts';
import { startHealth } from '../agent/health.ts';
import { LOCALHOST_DRAIN, localhostNodePorts } from '../agent/localhost.ts';
import { metricSources } from '../agent/metric-sources.ts';
import { pickMode } from '../agent/mode.ts';
import { nodeListeners } from '../agent/node-listeners.ts';
import {
  effectiveNodeName,
  nodeIpOverride,
  warnOfBridge,
  warnOfForwarding,
  warnOfStrictConntrack,
} from '../agent/node-setup.ts';
import { createObserver } from '../agent/observer.ts';
import { runOneShot } from '../agent/one-shot.ts';
import { OwnNode } from '../agent/own-node.ts';
import { openPolicy, startPolicy } from '../agent/policy.ts';
import { tellOnServices } from '../agent/service-events.ts';
import { checkSource, createSource } from '../agent/source.ts';
import { trackStartup } from '../agent/startup.ts';
import { loadConfiguration } from '../config/configuration.ts';
import { formatNotice } from '../config/errors.ts';
import { flagValues } from '../config/flag-values.ts';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import { ALL_SETTINGS, type RunOptions } from '../config/settings.ts';
import { toConfiguration } from '../config/write.ts';
import { NodeCensus } from '../endpoints/node-census.ts';
import { nodeRef, serviceRef } from '../events/event.ts';
import { EventRecorder, type Events, NO_EVENTS } from '../events/recorder.ts';
import { IPVS_DEVICE } from '../ipvs/device.ts';
import type { NodePortProxy } from '../localhost/node-port-proxy.ts';
import { watchEventLoop } from '../metrics/event-loop.ts';
import { createMetrics, startFamily } from '../metrics/metrics.ts';
import { metricsHandler } from '../metrics/server.ts';
import { watchAddresses } from '../netlink/route/address-watch.ts';
import { NftMonitor } from '../nft/monitor.ts';
import { takeLock } from '../process/lock.ts';
import { createLog } from '../process/log.ts';
import { setOomScore } from '../process/oom-score.ts';
import { requireNetAdmin } from '../process/rights.ts';
import { serve } from '../process/serve.ts';
import { stopSignal } from '../process/stop-signal.ts';
import { addVersionFlag, VERSION } from '../process/version.ts';
import type { Backend } from '../proxier/backend.ts';
import { conntrackFlows } from '../proxier/conntrack-flows.ts';
import { FamilyProxier } from '../proxier/family-proxier.ts';
import { Proxier } from '../proxier/proxier.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { selectsLoopback } from '../services/node-port-addresses.ts';
import { fanOut } from '../sources/fan-out.ts';
import { servingAndPolicyResources, servingResources } from '../sources/kubernetes/resources.ts';
import { systemTimers } from '../sync/timers.ts';
import { Takeover } from '../takeover/takeover.ts';

/**
 * Milliseconds after which a stopping agent exits even if a part of it hangs. The kubelet kills it after
 * SIGTERM, but not when it stops by itself because its configuration file changed.
 */
const LONGEST_STOP = 25_000;
/** What the agent was doing, in its Events on the Node. */
const START = 'StartPortwide';

export function addRunCommand(program: Command): void {
  const command = program.command('run').description('serve Services on this node until stopped');
  addVersionFlag(addFlags(command, ALL_SETTINGS)).action(run);
}

/**
 * Runs the agent until SIGTERM or SIGINT. Rules stay when it ends.
 * @throws UserError, ConfigurationError and what stands in the way of starting; nothing is
 * programmed by then.
 */
async function run(texts: FlagTexts): Promise<void> {
  const { options, warnings, file } = await loadConfiguration(texts);
  const log = createLog(options);
  for (const warning of warnings) {
    log.warn({ setting: warning.subject }, formatNotice(warning));
  }
  if (await runOneShot(texts, options, log)) return;
  const stopping = stopSignal();
  void stopping.then((signal) => log.info({ signal }, 'stopping; the rules stay'));
  await checkSource(options);
  await requireNetAdmin('portwide run');
  const configChanged = Promise.withResolvers<number>();
  let isServing = false;
  const restart =
    file &&
    restartOnChange({
      file,
      texts,
      jitter: options.configRestartJitter,
      log,
      exit: (status) => (isServing ? configChanged.resolve(status) : process.exit(status)),
    });
  const nodeName = effectiveNodeName(options);
  const kind = await pickMode(options, log);
  log.info({ version: VERSION, node: nodeName, mode: kind.name }, 'starting');
  const { families, start } = await kind.open(options, log);
  const openedPolicy = options.networkPolicy ? await openPolicy(options) : undefined;
  const lock = await takeLock(log, stopping);
  if (lock === undefined) return;
  await setOomScore(options.oomScoreAdj, log);
  await setUpConntrack(options, log);

  // Until then everything is only collected.
  let changed = () => {};
  // What Services are served from; what network policy goes by may take longer, or never come.
  const served = Promise.withResolvers<void>();
  const nodePorts = kind.nodePortSelection(options);
  const table = new RouteTable({
    nodeName,
    allPortsEnabled: options.featureGates.AllPorts,
    warnsOfMismatches: options.manifests !== undefined,
    listeners: nodeListeners(options),
    isLoopbackServed: selectsLoopback(nodePorts, 'IPv4'),
    onChange: () => {
      health.setNode(table.node);
      if (table.isSynced) {
        ownNode.update(table.node);
        served.resolve();
      }
      changed();
    },
  });
  let backends: readonly Backend[] = [];
  let localhost: NodePortProxy | undefined;
  const takeover = new Takeover({ mode: kind.name, families, options, log, timers: systemTimers });
  const metrics = createMetrics(
    metricSources(
      table,
      () => backends,
      () => localhost?.listeners() ?? [],
      takeover,
      restart?.changes,
    ),
    VERSION,
    features(options.featureGates),
  );
  const stopEventLoopWatch = watchEventLoop((seconds) => metrics.stallSeconds.observe(seconds));
  const pages = metricsHandler({
    registry: metrics.registry,
    mode: kind.name,
    configuration: () => toConfiguration({ ...options, proxyMode: kind.name }),
    ...zPages(options.featureGates, VERSION, flagValues(texts)),
  });
  const census = new NodeCensus();
  const recorder = new EventRecorder({
    nodeName,
    nodes: () => census.nodes,
    log,
    onDropped: (reason) => metrics.eventsDropped.inc({ reason }),
  });
  const events: Events = options.manifests === undefined ? recorder : NO_EVENTS;
  const node = nodeRef(nodeName);
  events.normal(node, 'Starting', '', START);
  const { metricsBindAddress, bindAddressHardFail: hardFail } = options;
  const server =
    metricsBindAddress &&
    serve('--metrics-bind-address', metricsBindAddress, pages, {
      hardFail,
      log,
      onFailure: (error) => events.warning(node, 'FailedToStartMetricServer', error.message, START),
    });
  const syncPeriod = kind.syncPeriod(options);
  // Manifests need not have the Node.
  const needsNode = options.manifests === undefined;
  const ownNode = new OwnNode({
    name: nodeName,
    isRequired: needsNode,
    givesNodePorts: nodePorts.includes('primary') && nodeIpOverride(options) === undefined,
    log,
    timers: systemTimers,
    onMissing: (isMissing) => metrics.nodeMissing.set(isMissing ? 1 : 0),
  });
  const isNodeAwaited = () => ownNode.isAwaited;
  const startup = trackStartup({ options, nodeName, table, isNodeAwaited });
  const health = startHealth(
    {
      bindAddress: options.healthzBindAddress,
      hardFail,
      nodePortSelection: options.nodeportAddresses,
      syncPeriod,
      needsNode,
      missingInputs: startup.missingInputs,
      onFailure: (error) =>
        events.warning(node, 'FailedToStartProxierHealthcheck', error.message, START),
      onServiceFailure: (key, port, error) =>
        events.warning(
          serviceRef(key, table.service(key)?.uid ?? ''),
          'FailedToStartServiceHealthcheck',
          `on node ${nodeName}: health check node port ${port} cannot be served: ${error.message}`,
        ),
    },
    metrics,
    log,
  );

  const loaded = Promise.withResolvers<void>();
  const monitor = new NftMonitor(systemTimers);
  monitor.waitFor(loaded.promise);
  const policy =
    openedPolicy &&
    startPolicy({
      open: openedPolicy,
      options,
      nodeName,
      monitor,
      registry: metrics.registry,
      log,
      events,
      unreadable: () => source.unreadable(),
    });
  const sink = fanOut([table, census, ...(policy === undefined ? [] : [policy.sink])]);
  const source = createSource({
    options,
    resources:
      policy === undefined ? servingResources(nodeName) : servingAndPolicyResources(nodeName),
    sink,
    log,
    observer: startup.observing(metrics.api),
    onSessions: (open) => recorder.connect(open),
    onUnreadable: (problem, object) => policy?.unreadable(problem, object),
    onFaultyManifests: (count) => metrics.faultyManifests.set(count),
  });
  const started = source.start();
  const begun = await Promise.race([started, served.promise, stopping]);
  if (begun !== undefined) process.exit(0);
  // The race counts as a handler of every rejection; later ones are bugs and must be loud.
  void started.then(() => undefined);
  if ((await Promise.race([ownNode.settled, stopping])) !== undefined) process.exit(0);
  const podCidrs = await Promise.race([
    podCidrsOf(table, options, nodeName, log, (callback) => {
      changed = callback;
    }),
    stopping.then(() => undefined),
  ]);
  if (podCidrs === undefined) process.exit(0);
  await warnOfBridge(families, log);
  for (const { setting, message } of configWarnings({ options, nodePorts, node: table.node })) {
    log.warn({ setting }, `${setting} ${message}`);
  }

  const mode = await start(podCidrs, monitor, takeover);
  const { resetsTcp } = mode;
  if (resetsTcp) await warnOfStrictConntrack(log);
  // After the mode has started: mode ipvs turns it on.
  await warnOfForwarding(table.node?.addresses ?? [], log);
  backends = mode.backends;
  for (const { family } of backends) startFamily(metrics, family);
  localhost = localhostNodePorts(mode.localhostProxyFamilies, metrics, log, (key, message) =>
    events.warning(
      serviceRef(key, table.service(key)?.uid ?? ''),
      'FailedToServeNodePortOnLocalhost',
      message,
    ),
  );
  const unloaded = new Set(backends.map(({ family }) => family));
  const observer = createObserver({
    log,
    metrics,
    health,
    localhostNodePorts: localhost,
    tell: (changes) =>
      tellOnServices(events, (key) => table.service(key)?.uid ?? '', nodeName, changes),
    onFirstSync: (family) => {
      mode.afterFirstSync(family);
      unloaded.delete(family);
      if (unloaded.size === 0) loaded.resolve();
    },
  });
  const proxier = new Proxier({
    table,
    families: mode.backends.map(
      (backend) =>
        new FamilyProxier(backend, conntrackFlows(backend.family), {
          resetsTcp,
          proxiesLocalhost: mode.localhostProxyFamilies.includes(backend.family),
        }),
    ),
    nodeIp: nodeIpOverride(options),
    minSyncPeriod: mode.minSyncPeriod,
    syncPeriod,
    timers: systemTimers,
    observer,
  });
  health.begin(mode.backends.map(({ family }) => family));
  changed = () => {
    exitIfPodCidrsChanged(table, options, podCidrs, log);
    proxier.request();
  };
  const watch = await watchAddresses(
    (addresses) => proxier.setNodeAddresses(addresses.map(({ address }) => address)),
    {
      // VIPs that the agent, or kube-proxy, bound there are not the node's own.
      ignoredLink: IPVS_DEVICE,
      onError: (error) => log.error({ err: error }, 'cannot read the addresses of this node'),
    },
  );

  isServing = true;
  const end = await Promise.race([stopping, configChanged.promise]);
  const status = typeof end === 'number' ? end : 0;
  setTimeout(() => process.exit(status), LONGEST_STOP).unref();
  // Releases the node ports on localhost at once, so that the next agent can listen on them.
  const drained = localhost.drain(LOCALHOST_DRAIN);
  await source.stop();
  await watch.close();
  takeover.stop();
  await monitor.close();
  await proxier.stop();
  await policy?.stop();
  await drained;
  await recorder.stop();
  stopEventLoopWatch();
  server?.close();
  health.close();
  lock.close();
  process.exit(status);
}

/** With `--detect-local-mode NodeCIDR` nothing can be done before the Node has pod CIDRs. */
async function podCidrsOf(
  table: RouteTable,
  options: RunOptions,
  nodeName: string,
  log: Logger,
  onChange: (callback: () => void) => void,
): Promise<readonly string[]> {
  if (options.detectLocalMode !== 'NodeCIDR') return [];
  if ((table.node?.podCIDRs ?? []).length === 0) {
    log.warn({ node: nodeName }, 'waiting for the Node to have pod CIDRs (--detect-local-mode)');
  }
  while ((table.node?.podCIDRs ?? []).length === 0) {
    await new Promise<void>((resolve) => onChange(resolve));
  }
  return table.node?.podCIDRs ?? [];
}

/** The rules are made for one set of pod CIDRs; as kube-proxy, start anew with another. */
function exitIfPodCidrsChanged(
  table: RouteTable,
  options: RunOptions,
  podCidrs: readonly string[],
  log: Logger,
): void {
  const now = table.node?.podCIDRs;
  if (options.detectLocalMode !== 'NodeCIDR' || now === undefined) return;
  if (now.join() === podCidrs.join()) return;
  log.error({ before: podCidrs, now }, 'the pod CIDRs of this Node changed; ending for a restart');
  process.exit(1);
}
