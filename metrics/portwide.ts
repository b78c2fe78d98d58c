/** Metrics that kube-proxy does not have; docs/operate/metrics.md lists them. */
import { REFUSAL_REASONS, type RefusalReason } from '../api/all-ports.ts';
import type { IpFamily, ObjectKey } from '../api/objects.ts';
import { type MetricDefiner, SYNC_BUCKETS } from './define.ts';

/** Changes of the configuration file since the start. */
export interface ConfigChanges {
  /** Whether the agent is waiting to restart after a change of the configuration file. */
  readonly isPending: boolean;
  /** By result. */
  readonly counts: Readonly<Record<'accepted' | 'unusable' | 'cancelled', number>>;
}

export const NO_CONFIG_CHANGES: ConfigChanges = {
  isPending: false,
  counts: { accepted: 0, unusable: 0, cancelled: 0 },
};

/**
 * State that another proxy mode, or an agent with `--network-policy`, may have left on the node.
 */
const LEFTOVERS = ['iptables', 'ipvs', 'nftables', 'network-policy'] as const;
export type Leftover = (typeof LEFTOVERS)[number];
/**
 * Why state remains: established connections use it, the sysctl route_localnet must be 0 first, the
 * program that removes it is not installed, or the removal failed.
 */
const REMAINING_REASONS = ['connections', 'sysctl', 'program', 'error'] as const;

/** State that remains on the node, with the reason. */
export interface RemainingState {
  readonly what: Leftover;
  readonly reason: (typeof REMAINING_REASONS)[number];
  /** Number of established connections that use the remaining state. */
  readonly connections: number;
  /** What an operator should do about it; undefined if there is nothing to do. */
  readonly problem?: string;
}

/** Values collected at each scrape. */
export interface PortwideSources {
  /** Currently refused Services, as pairs of Service and reason. */
  refusals(): Iterable<{ serviceKey: ObjectKey; reason: RefusalReason }>;
  /** Number of Services with a TCP port that this node itself listens on. */
  servicesOnListenerPorts(): number;
  allPortsServices(): Readonly<Record<'all' | 'ranges', number>>;
  /** Slices of owned ports, over all Services and ranges. */
  ownedSlices(): Iterable<{ family: IpFamily; state: 'served' | 'vacant'; count: number }>;
  /** Numbers of endpoints that own no ports, although pods own the ports of their Service. */
  endpointsWithoutSlice(): Iterable<{ reason: string; count: number }>;
  routes(): Iterable<{ family: IpFamily; kind: 'port' | 'ranges' | 'all'; count: number }>;
  /** Mode nftables: elements of Services, by map. */
  elements(): Iterable<{ family: IpFamily; map: string; count: number }>;
  /** Packet marks, in modes that use them. */
  marks(): Iterable<{ family: IpFamily; inUse: number; waiting: number }>;
  drainingVips(): Iterable<{ family: IpFamily; count: number }>;
  configChanges(): ConfigChanges;
  /** State of other modes that takeover has not removed yet. */
  remainingState(): Iterable<RemainingState>;
}

/** Why an Event was dropped: `DropReason` of events/recorder.ts. */
const DROP_REASONS = ['queue_full', 'object_limit', 'rejected', 'unreachable'] as const;
const STALL_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5];

/**
 * Metrics of every Portwide process.
 * @param version of the package.
 */
export function processMetrics({ gauge, histogram }: MetricDefiner, version: string) {
  gauge('portwide_build_info', 'Constant 1, labelled by the version.', ['version']).set(
    { version },
    1,
  );
  return {
    stallSeconds: histogram(
      'portwide_event_loop_stall_seconds',
      'Longest event loop stall in each second, in seconds.',
      STALL_BUCKETS,
    ),
  };
}

/** @param version of the package. */
export function portwideMetrics(define: MetricDefiner, sources: PortwideSources, version: string) {
  const { counter, gauge, histogram, collected, collectedValue } = define;
  const { stallSeconds } = processMetrics(define, version);
  collected(
    'gauge',
    'portwide_all_ports_services',
    'Number of Services served on all ports or on port ranges, on at least one VIP.',
    ['kind'],
    () => Object.entries(sources.allPortsServices()).map(([kind, count]) => ({ kind, count })),
  );
  collected(
    'gauge',
    'portwide_refused_services',
    'Number of Services that are not served, or not on all of their VIPs, by reason.',
    ['reason'],
    () => refusedServices(sources.refusals()),
  );
  collectedValue(
    'gauge',
    'portwide_services_on_own_ports',
    'Number of Services with a TCP port that this node itself uses: ssh, the kubelet, /healthz or /metrics.',
    () => sources.servicesOnListenerPorts(),
  );
  collected(
    'gauge',
    'portwide_routes',
    'Number of served Service ports, and of Services on all ports or on port ranges.',
    ['kind', 'ip_family'],
    () => sources.routes(),
  );
  collected(
    'gauge',
    'portwide_owned_slices',
    'Number of slices of ports owned by pods, by whether an owner serves them; packets to vacant slices are rejected.',
    ['state', 'ip_family'],
    () => sources.ownedSlices(),
  );
  collected(
    'gauge',
    'portwide_endpoints_without_owned_ports',
    'Number of endpoints that own no ports, although pods own the ports of their Service, by reason.',
    ['reason'],
    () => sources.endpointsWithoutSlice(),
  );
  collected(
    'gauge',
    'portwide_nftables_elements',
    'Number of elements of Services in the maps and sets of the table (mode nftables).',
    ['map', 'ip_family'],
    () => sources.elements(),
  );
  const marks = (value: (marks: { inUse: number; waiting: number }) => number) => () =>
    [...sources.marks()].map((each) => ({ family: each.family, count: value(each) }));
  collected(
    'gauge',
    'portwide_marks_in_use',
    'Number of packet marks in use by Services (mode ipvs).',
    ['ip_family'],
    marks(({ inUse }) => inUse),
  );
  collected(
    'gauge',
    'portwide_marks_exhausted',
    'Number of Services without a packet mark because none is left (mode ipvs).',
    ['ip_family'],
    marks(({ waiting }) => waiting),
  );
  collected(
    'gauge',
    'portwide_draining_vips',
    'Number of VIPs without a Service that stay bound until their connections end (mode ipvs).',
    ['ip_family'],
    () => sources.drainingVips(),
  );
  collectedValue(
    'gauge',
    'portwide_config_restart_pending',
    '1 while a restart after a change of the configuration file is delayed, otherwise 0.',
    () => (sources.configChanges().isPending ? 1 : 0),
  );
  collected(
    'counter',
    'portwide_config_changes_total',
    'Total number of changes of the configuration file since the start, by result.',
    ['result'],
    () =>
      Object.entries(sources.configChanges().counts).map(([result, count]) => ({ result, count })),
  );
  collected(
    'gauge',
    'portwide_takeover_remaining',
    '1 while state of another mode remains on the node, by the reason why it was not removed.',
    ['what', 'reason'],
    () => remainingStateCounts([...sources.remainingState()]),
  );
  collectedValue(
    'gauge',
    'portwide_takeover_connections',
    'Number of established connections that use state of another mode.',
    () => [...sources.remainingState()].reduce((sum, { connections }) => sum + connections, 0),
  );
  const eventsDropped = counter(
    'portwide_events_dropped_total',
    'Total number of Kubernetes Events that could not be written, by reason.',
    ['reason'],
  );
  for (const reason of DROP_REASONS) eventsDropped.inc({ reason }, 0);
  return {
    applySeconds: histogram(
      'portwide_backend_apply_duration_seconds',
      'Time in seconds to apply changes to the kernel, without conntrack.',
      SYNC_BUCKETS,
      ['ip_family'],
    ),
    stallSeconds,
    localhostConnections: counter(
      'portwide_localhost_node_port_connections_total',
      'Total number of connections to node ports on localhost, by whether an endpoint accepted them (mode nftables).',
      ['ip_family', 'result'],
    ),
    eventsDropped,
    initialSyncComplete: gauge(
      'portwide_initial_sync_complete',
      '1 once the rules of every IP family have been written completely since the agent started, 0 before.',
    ),
    unboundHealthPorts: gauge(
      'portwide_unbound_health_check_node_ports',
      'Number of Services whose health check node port cannot be bound on an address of this node, such as because another process listens on it.',
    ),
    faultyManifests: gauge(
      'portwide_faulty_manifests',
      'Number of manifest files with an error, plus one if the directory cannot be read. Objects read before stay in force.',
    ),
    modeFallback: gauge(
      'portwide_proxy_mode_fallback',
      '1 if the agent uses mode iptables because the node does not support nftables and --proxy-mode is unset, otherwise 0.',
    ),
    nodeMissing: gauge(
      'portwide_node_missing',
      '1 while the API server has no Node with the name of this node, otherwise 0.',
    ),
  };
}

function remainingStateCounts(remaining: readonly RemainingState[]) {
  return LEFTOVERS.flatMap((what) =>
    REMAINING_REASONS.map((reason) => ({
      what,
      reason,
      count: remaining.some((each) => each.what === what && each.reason === reason) ? 1 : 0,
    })),
  );
}

function refusedServices(refusals: ReturnType<PortwideSources['refusals']>) {
  const services = new Map(REFUSAL_REASONS.map((reason) => [reason, new Set<ObjectKey>()]));
  for (const { serviceKey, reason } of refusals) services.get(reason)?.add(serviceKey);
  return [...services].map(([reason, keys]) => ({ reason, count: keys.size }));
}
