import { IP_FAMILIES, type IpFamily, type Node, type ObjectKey } from '../api/objects.ts';
import type { RunOptions } from '../config/settings.ts';
import { proxyHandler } from '../health/answer.ts';
import { type Clock, ProxyHealth, systemClock } from '../health/proxy-health.ts';
import { ServiceServers } from '../health/service-servers.ts';
import { nodePortAddresses } from '../iptables/backend.ts';
import type { Metrics } from '../metrics/metrics.ts';
import { Listener } from '../process/listener.ts';
import type { DebugLog } from '../process/log.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import { serve } from '../process/serve.ts';
import type { NodeFacts } from '../proxier/backend.ts';
import type { ServiceHealth } from '../services/service-health.ts';
import { systemTimers } from '../sync/timers.ts';

export interface HealthOptions {
  /** Where `/healthz` and `/livez` are served; undefined: nowhere. */
  readonly bindAddress: RunOptions['healthzBindAddress'];
  /** End the process when that address cannot be listened on (`--bind-address-hard-fail`). */
  readonly hardFail: boolean;
  /**
   * `--nodeport-addresses`, in every mode: load balancers that pass packets through probe the VIP
   * itself, which mode nftables, unlike its node ports, has to answer on.
   */
  readonly nodePortSelection: RunOptions['nodeportAddresses'];
  /** Milliseconds. */
  readonly syncPeriod: number;
  /** See `ProxyHealthOptions`. */
  readonly needsNode: boolean;
  readonly missingInputs: () => readonly string[];
  /** `/healthz` cannot be served; it is tried again, unless `hardFail` says to end. */
  readonly onFailure: (error: Error) => void;
  /** The health check node port of a Service cannot be served; it is tried again. */
  readonly onServiceFailure: (service: ObjectKey, port: number, error: Error) => void;
}

/** The health servers of a running agent, and what they have to be told. */
export interface AgentHealth {
  /** See `ProxyHealth.begin`. */
  begin(families: readonly IpFamily[]): void;
  queued(family: IpFamily): void;
  updated(family: IpFamily): void;
  servicesChanged(changes: readonly ServiceHealth[]): void;
  setNode(node: Node | undefined): void;
  setNodeFacts(family: IpFamily, facts: NodeFacts): void;
  close(): void;
}

type HealthMetrics = Pick<Metrics, 'healthz' | 'livez' | 'initialSyncComplete'>;

/** kube-proxy's: how many sync periods something may be queued. */
const PATIENCE = 2;
const NO_FACTS: NodeFacts = { addresses: [], primary: [] };

/** How `/healthz` judges the agent. */
export function proxyHealth(
  {
    syncPeriod,
    needsNode,
    missingInputs,
  }: Pick<HealthOptions, 'syncPeriod' | 'needsNode' | 'missingInputs'>,
  clock: Clock = systemClock,
): ProxyHealth {
  return new ProxyHealth({ timeout: PATIENCE * syncPeriod, clock, needsNode, missingInputs });
}

/**
 * Serves `/healthz` and `/livez` from now on, and health check node ports as Services come. A port
 * that cannot be bound stops nothing: it is logged and tried again.
 */
export function startHealth(
  options: HealthOptions,
  metrics: HealthMetrics,
  log: DebugLog,
): AgentHealth {
  const proxy = proxyHealth(options);
  const failures = new RepeatedFailures(log);
  const services = new ServiceServers({
    // Not `hasSynced`: a family's ports are served from its own first sync on, and what is sent to one
    // family need not wait for the first sync of the other. One that never comes is late in the end.
    isProxyHealthy: () => proxy.report().healthy,
    listen: (port) => new Listener({ ...port, timers: systemTimers }),
    onBindFailure: (service, port, error, host) => {
      const key = `${service} ${host} ${port}`;
      const isFirst = !failures.isFailing(key);
      const details = { service, port, err: error };
      failures.failed(key, details, 'cannot serve a health check node port; trying again');
      if (isFirst) options.onServiceFailure(service, port, error);
    },
    onBindRecovery: (service, port, host) =>
      failures.succeeded(
        `${service} ${host} ${port}`,
        { service, port },
        'the health check node port is served now',
      ),
    // Otherwise the same failure of a Service that comes back would count as told.
    onEnd: (service, port, host) =>
      failures.succeeded(
        `${service} ${host} ${port}`,
        { service, port },
        'the health check node port is no longer to be served',
      ),
  });
  const setNodeFacts = (family: IpFamily, facts: NodeFacts) => {
    const { nodePortSelection } = options;
    const selection = { nodePortSelection, family, localhostNodePorts: true };
    services.setAddresses(family, nodePortAddresses(selection, facts));
  };
  for (const family of IP_FAMILIES) setNodeFacts(family, NO_FACTS);
  const listener = serveProxyHealth(options, proxy, metrics, log);
  return {
    begin: (families) => proxy.begin(families),
    queued: (family) => proxy.queued(family),
    updated: (family) => {
      proxy.updated(family);
      if (proxy.hasSynced) metrics.initialSyncComplete.set(1);
    },
    servicesChanged: (changes) => services.update(changes),
    setNode: (node) => proxy.setNode(node),
    setNodeFacts,
    close: () => {
      listener?.close();
      services.close();
    },
  };
}

function serveProxyHealth(
  { bindAddress, hardFail, onFailure }: HealthOptions,
  proxy: ProxyHealth,
  metrics: HealthMetrics,
  log: DebugLog,
): Listener | undefined {
  if (bindAddress === undefined) return undefined;
  const counters = { '/healthz': metrics.healthz, '/livez': metrics.livez };
  const handler = proxyHandler(proxy, (path, code) => counters[path].inc({ code: String(code) }));
  return serve('--healthz-bind-address', bindAddress, handler, { hardFail, log, onFailure });
}
