/** The agent's health servers: `/healthz`, `/livez` and health check node ports. */
import type { IpFamily, Node, ObjectKey } from '../api/objects.ts';
import type { RunOptions } from '../config/settings.ts';
import { HealthCheckServers, type UnboundHealthPort } from '../health/health-check-servers.ts';
import { type Clock, ProxyHealth, systemClock } from '../health/proxy-health.ts';
import { proxyHandler } from '../health/response.ts';
import type { Metrics } from '../metrics/metrics.ts';
import { Connections } from '../process/connections.ts';
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

type HealthMetrics = Pick<
  Metrics,
  'healthz' | 'livez' | 'initialSyncComplete' | 'unboundHealthPorts'
>;

/** As in kube-proxy: unhealthy when a change has been queued for this many sync periods. */
const TIMEOUT_SYNC_PERIODS = 2;
/**
 * Of all health servers: a Service may have its own health check node port, so limits for each port would bound nothing. Load
 * balancers may keep some idle connections.
 */
const CONNECTION_LIMITS = { total: 256, perClient: 10 };
const NO_ADDRESSES: NodeAddresses = { addresses: [], primary: [] };

/** Creates the health state behind `/healthz` and `/livez`. */
export function proxyHealth(
  {
    options,
    syncPeriod,
    missingInputs,
  }: Pick<AgentHealthOptions, 'options' | 'syncPeriod' | 'missingInputs'>,
  clock: Clock = systemClock,
): ProxyHealth {
  // Manifests may lack the Node object.
  const needsNode = options.manifests === undefined;
  return new ProxyHealth({
    timeout: TIMEOUT_SYNC_PERIODS * syncPeriod,
    clock,
    needsNode,
    missingInputs,
  });
}

/**
 * Serves `/healthz` and `/livez`, and the health check node ports of Services as they are added. A port that
 * cannot be bound is reported and retried. With `--bind-address-hard-fail`, failing to bind the port of `/healthz` exits
 * the process.
 */
export function startHealth(given: AgentHealthOptions) {
  const { options, events, metrics, log } = given;
  const proxy = proxyHealth(given);
  const connections = new Connections(CONNECTION_LIMITS);
  const failures = new RepeatedFailures(log);
  const countUnbound = () => {
    const keys = Array.from(services.unbound(), ({ serviceKey }) => serviceKey);
    metrics.unboundHealthPorts.set(new Set(keys).size);
  };
  const recovered = (message: string) => (service: ObjectKey, port: number, host: string) => {
    countUnbound();
    failures.succeeded(`${service} ${host} ${port}`, { service, port }, message);
  };
  const services = new HealthCheckServers({
    // Do not require the first sync of all families: the ports of a family open after its own first sync.
    // A family that never syncs becomes unhealthy by its timeout.
    isProxyHealthy: () => proxy.report().healthy,
    listen: ({ address, ...callbacks }) =>
      new Listener({ listen: address, ...callbacks, connections, timers: systemTimers }),
    onBindFailure: (service, port, error, host) => {
      countUnbound();
      const key = `${service} ${host} ${port}`;
      const details = { service, port, err: error };
      const message = 'cannot serve health check node port; retrying';
      if (!failures.failed(key, details, message)) return;
      const note = `health check node port ${port} cannot be served: ${error.message}`;
      events.nodeWarning(service, 'FailedToStartServiceHealthcheck', note);
    },
    onBindRecovery: recovered('health check node port served'),
    // Forget the failure, so that it is logged again if the Service is recreated.
    onEnd: recovered('health check node port removed'),
  });
  const setNodeAddresses = (family: IpFamily, addresses: NodeAddresses) => {
    // Not the default of mode nftables, `primary`: pass-through load balancers probe the VIP, so health check
    // node ports must answer on it.
    const nodePortSelection = options.nodeportAddresses;
    services.setAddresses(
      family,
      nodePortAddresses({ nodePortSelection, family }, addresses, true),
    );
  };
  const listener = serveProxyHealth(given, proxy, connections);
  return {
    /** @param families that the agent serves. The node may lack the others. */
    begin: (families: readonly IpFamily[]) => {
      for (const family of families) setNodeAddresses(family, NO_ADDRESSES);
      proxy.begin(families);
    },
    queued: (family: IpFamily) => proxy.queued(family),
    updated: (family: IpFamily) => {
      proxy.updated(family);
      if (proxy.hasSynced) metrics.initialSyncComplete.set(1);
    },
    unboundServicePorts: (): Iterable<UnboundHealthPort> => services.unbound(),
    servicesChanged: (changes: readonly ServiceHealth[]) => services.update(changes),
    setNode: (node: Node | undefined) => proxy.setNode(node),
    setNodeAddresses,
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
  connections: Connections,
): Listener | undefined {
  const { healthzBindAddress, bindAddressHardFail: hardFail } = options;
  if (healthzBindAddress === undefined) return undefined;
  const counters = { '/healthz': metrics.healthz, '/livez': metrics.livez };
  const handler = proxyHandler(proxy, (path, code) => counters[path].inc({ code: String(code) }));
  const onFailure = (error: Error) => events.startFailed('FailedToStartProxierHealthcheck', error);
  return startHttpServer('--healthz-bind-address', healthzBindAddress, handler, {
    hardFail,
    connections,
    log,
    onFailure,
  });
}
