/** The health servers of a running agent: `/healthz`, `/livez` and health check node ports. */
import { IP_FAMILIES, type IpFamily, type Node, type ObjectKey } from '../api/objects.ts';
import type { RunOptions } from '../config/settings.ts';
import { HealthCheckServers } from '../health/health-check-servers.ts';
import { type Clock, ProxyHealth, systemClock } from '../health/proxy-health.ts';
import { proxyHandler } from '../health/response.ts';
import type { Metrics } from '../metrics/metrics.ts';
import { Listener } from '../process/listener.ts';
import type { DebugLog } from '../process/log.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import { startHttpServer } from '../process/serve.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import type { ServiceHealth } from '../services/service-health.ts';
import { systemTimers } from '../sync/timers.ts';
import { nodePortAddresses } from '../traffic/options.ts';
import type { AgentEvents } from './events.ts';

export interface AgentHealthOptions {
  readonly options: Pick<
    RunOptions,
    'healthzBindAddress' | 'bindAddressHardFail' | 'nodeportAddresses' | 'manifests'
  >;
  /** Milliseconds. */
  readonly syncPeriod: number;
  readonly missingInputs: () => readonly string[];
  readonly events: Pick<AgentEvents, 'startFailed' | 'nodeWarning'>;
  readonly metrics: HealthMetrics;
  readonly log: DebugLog;
}

type HealthMetrics = Pick<Metrics, 'healthz' | 'livez' | 'initialSyncComplete'>;

/** kube-proxy's: how many sync periods something may be queued. */
const TIMEOUT_SYNC_PERIODS = 2;
const NO_FACTS: NodeAddresses = { addresses: [], primary: [] };

/** How `/healthz` judges the agent. */
export function proxyHealth(
  {
    options,
    syncPeriod,
    missingInputs,
  }: Pick<AgentHealthOptions, 'options' | 'syncPeriod' | 'missingInputs'>,
  clock: Clock = systemClock,
): ProxyHealth {
  // Manifests need not have the Node.
  const needsNode = options.manifests === undefined;
  return new ProxyHealth({
    timeout: TIMEOUT_SYNC_PERIODS * syncPeriod,
    clock,
    needsNode,
    missingInputs,
  });
}

/**
 * Serves `/healthz` and `/livez` from now on, and health check node ports as Services come. A port
 * that cannot be bound stops nothing: it is logged and tried again.
 */
export function startHealth(given: AgentHealthOptions) {
  const { options, events, metrics, log } = given;
  const proxy = proxyHealth(given);
  const failures = new RepeatedFailures(log);
  const over = (message: string) => (service: ObjectKey, port: number, host: string) =>
    failures.succeeded(`${service} ${host} ${port}`, { service, port }, message);
  const services = new HealthCheckServers({
    // Not `hasSynced`: a family's ports are served from its own first sync on, and what is sent to one
    // family need not wait for the first sync of the other. One that never comes is late in the end.
    isProxyHealthy: () => proxy.report().healthy,
    listen: (port) => new Listener({ ...port, timers: systemTimers }),
    onBindFailure: (service, port, error, host) => {
      const key = `${service} ${host} ${port}`;
      const details = { service, port, err: error };
      const message = 'cannot serve a health check node port; trying again';
      if (!failures.failed(key, details, message)) return;
      const note = `health check node port ${port} cannot be served: ${error.message}`;
      events.nodeWarning(service, 'FailedToStartServiceHealthcheck', note);
    },
    onBindRecovery: over('the health check node port is served now'),
    // Otherwise the same failure of a Service that comes back would count as told.
    onEnd: over('the health check node port is no longer to be served'),
  });
  const setNodeFacts = (family: IpFamily, facts: NodeAddresses) => {
    // In every mode as given: load balancers that pass packets through probe the VIP itself, which
    // mode nftables, unlike its node ports, has to answer on.
    const nodePortSelection = options.nodeportAddresses;
    services.setAddresses(family, nodePortAddresses({ nodePortSelection, family }, facts, true));
  };
  for (const family of IP_FAMILIES) setNodeFacts(family, NO_FACTS);
  const listener = serveProxyHealth(given, proxy);
  return {
    begin: (families: readonly IpFamily[]) => proxy.begin(families),
    queued: (family: IpFamily) => proxy.queued(family),
    updated: (family: IpFamily) => {
      proxy.updated(family);
      if (proxy.hasSynced) metrics.initialSyncComplete.set(1);
    },
    servicesChanged: (changes: readonly ServiceHealth[]) => services.update(changes),
    setNode: (node: Node | undefined) => proxy.setNode(node),
    setNodeFacts,
    close: () => {
      listener?.close();
      services.close();
    },
  };
}

export type AgentHealth = ReturnType<typeof startHealth>;

function serveProxyHealth(
  { options, events, metrics, log }: AgentHealthOptions,
  proxy: ProxyHealth,
): Listener | undefined {
  const { healthzBindAddress, bindAddressHardFail: hardFail } = options;
  if (healthzBindAddress === undefined) return undefined;
  const counters = { '/healthz': metrics.healthz, '/livez': metrics.livez };
  const handler = proxyHandler(proxy, (path, code) => counters[path].inc({ code: String(code) }));
  const onFailure = (error: Error) => events.startFailed('FailedToStartProxierHealthcheck', error);
  return startHttpServer('--healthz-bind-address', healthzBindAddress, handler, {
    hardFail,
    log,
    onFailure,
  });
}
