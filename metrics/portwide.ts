/** Metrics of what kube-proxy has not got; docs/metrics.md has a table of them. */
import { REFUSAL_REASONS, type RefusalReason } from '../api/all-ports.ts';
import type { IpFamily, ObjectKey } from '../api/objects.ts';
import { type MetricDefiner, SYNC_BUCKETS } from './define.ts';

/** Changes of the configuration file since the start. */
export interface ConfigChanges {
  /** Whether the agent waits to restart because of one. */
  readonly isPending: boolean;
  /** By result. */
  readonly counts: Readonly<Record<'accepted' | 'unusable' | 'cancelled', number>>;
}

export const NO_CONFIG_CHANGES: ConfigChanges = {
  isPending: false,
  counts: { accepted: 0, unusable: 0, cancelled: 0 },
};

/** What another mode, or an agent with `--network-policy`, may have left on the node. */
const LEFTOVERS = ['iptables', 'ipvs', 'nftables', 'network-policy'] as const;
export type Leftover = (typeof LEFTOVERS)[number];
/** Why it is still there: established connections need it, a sysctl must be set back first, or removing it failed. */
const REMAINING_REASONS = ['connections', 'sysctl', 'error'] as const;

/** What is still on the node, and why. */
export interface RemainingState {
  readonly what: Leftover;
  readonly reason: (typeof REMAINING_REASONS)[number];
  /** Established connections that need it. */
  readonly connections: number;
}

/** Where the numbers are that are asked for at each scrape. */
export interface PortwideSources {
  /** Services refused now, as pairs of Service and reason. */
  refusals(): Iterable<{ serviceKey: ObjectKey; reason: RefusalReason }>;
  /** How many Services take a TCP port of the node's own. */
  servicesOnListenerPorts(): number;
  allPortsServices(): Readonly<Record<'all' | 'ranges', number>>;
  routes(): Iterable<{ family: IpFamily; kind: 'port' | 'ranges' | 'all'; count: number }>;
  /** Elements of nf_tables that Services have, by map; of mode nftables. */
  elements(): Iterable<{ family: IpFamily; map: string; count: number }>;
  /** Packet marks, of modes that have them. */
  marks(): Iterable<{ family: IpFamily; inUse: number; waiting: number }>;
  drainingVips(): Iterable<{ family: IpFamily; count: number }>;
  configChanges(): ConfigChanges;
  /** What was to be taken over and is not yet removed. */
  remainingState(): Iterable<RemainingState>;
}

/** There were too many, the API server refused it, or was not there. */
const DROP_REASONS = ['queue_full', 'object_limit', 'rejected', 'unreachable'] as const;
const STALL_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5];

/** What every process of ours tells of itself. @param version of the package. */
export function processMetrics({ gauge, histogram }: MetricDefiner, version: string) {
  gauge('portwide_build_info', 'Always 1; the label tells the version', ['version']).set(
    { version },
    1,
  );
  return {
    stallSeconds: histogram(
      'portwide_event_loop_stall_seconds',
      'The longest time in each second in which the process could react to nothing',
      STALL_BUCKETS,
    ),
  };
}

/** @param version of the package. */
export function portwideMetrics(define: MetricDefiner, sources: PortwideSources, version: string) {
  const { counter, gauge, histogram, collected: asked, collectedValue: askedOne } = define;
  const { stallSeconds } = processMetrics(define, version);
  asked(
    'gauge',
    'portwide_all_ports_services',
    'Services served on all ports, or on ranges, of at least one VIP',
    ['kind'],
    () => Object.entries(sources.allPortsServices()).map(([kind, count]) => ({ kind, count })),
  );
  asked(
    'gauge',
    'portwide_refused_services',
    'Services that are not served, or not on all of their VIPs, by reason',
    ['reason'],
    () => refusedServices(sources.refusals()),
  );
  askedOne(
    'gauge',
    'portwide_services_on_own_ports',
    'Services that take a TCP port of this node itself: of ssh, the kubelet, /healthz or /metrics',
    () => sources.servicesOnListenerPorts(),
  );
  asked(
    'gauge',
    'portwide_routes',
    'Service ports served, and Services on all ports or on ranges',
    ['kind', 'ip_family'],
    () => sources.routes(),
  );
  asked(
    'gauge',
    'portwide_nftables_elements',
    'Elements that Services have in the maps and sets of the table (mode nftables)',
    ['map', 'ip_family'],
    () => sources.elements(),
  );
  const marks = (value: (marks: { inUse: number; waiting: number }) => number) => () =>
    [...sources.marks()].map((each) => ({ family: each.family, count: value(each) }));
  asked(
    'gauge',
    'portwide_marks_in_use',
    'Packet marks that all-ports Services have (mode ipvs)',
    ['ip_family'],
    marks(({ inUse }) => inUse),
  );
  asked(
    'gauge',
    'portwide_marks_exhausted',
    'Services that are rejected because no packet mark is left for them (mode ipvs)',
    ['ip_family'],
    marks(({ waiting }) => waiting),
  );
  asked(
    'gauge',
    'portwide_lingering_vips',
    'VIPs on which no Service is served and that stay bound while connections to them last (mode ipvs)',
    ['ip_family'],
    () => sources.drainingVips(),
  );
  askedOne(
    'gauge',
    'portwide_config_restart_pending',
    '1 while a restart for a changed configuration file is delayed, otherwise 0',
    () => (sources.configChanges().isPending ? 1 : 0),
  );
  asked(
    'counter',
    'portwide_config_changes_total',
    'Changes of the configuration file since the start, by result',
    ['result'],
    () =>
      Object.entries(sources.configChanges().counts).map(([result, count]) => ({ result, count })),
  );
  asked(
    'gauge',
    'portwide_takeover_kept',
    '1 while what another mode left is still on the node, by the reason why it is kept',
    ['what', 'reason'],
    () => remainingStateCounts([...sources.remainingState()]),
  );
  askedOne(
    'gauge',
    'portwide_takeover_connections',
    'Established connections that need what another mode left',
    () => [...sources.remainingState()].reduce((sum, { connections }) => sum + connections, 0),
  );
  const eventsDropped = counter(
    'portwide_events_dropped_total',
    'Kubernetes Events that could not be written so far, by reason',
    ['reason'],
  );
  for (const reason of DROP_REASONS) eventsDropped.inc({ reason }, 0);
  return {
    applySeconds: histogram(
      'portwide_backend_apply_duration_seconds',
      'Seconds it took to bring the kernel to what is wanted, without conntrack',
      SYNC_BUCKETS,
      ['ip_family'],
    ),
    stallSeconds,
    localhostConnections: counter(
      'portwide_localhost_node_port_connections_total',
      'Connections so far to node ports on localhost, by whether an endpoint took them (mode nftables)',
      ['ip_family', 'result'],
    ),
    eventsDropped,
    initialSyncComplete: gauge(
      'portwide_initial_sync_complete',
      '1 once the rules of every IP family were written completely since the agent started, 0 before',
    ),
    faultyManifests: gauge(
      'portwide_faulty_manifests',
      'Manifest files with a fault, and the directory if it cannot be read; what was read before stays in force',
    ),
    nodeMissing: gauge(
      'portwide_node_missing',
      '1 while the API server has no Node with the name of this agent, otherwise 0',
    ),
  };
}

function remainingStateCounts(kept: readonly RemainingState[]) {
  return LEFTOVERS.flatMap((what) =>
    REMAINING_REASONS.map((reason) => ({
      what,
      reason,
      count: kept.some((each) => each.what === what && each.reason === reason) ? 1 : 0,
    })),
  );
}

function refusedServices(refusals: ReturnType<PortwideSources['refusals']>) {
  const services = new Map(REFUSAL_REASONS.map((reason) => [reason, new Set<ObjectKey>()]));
  for (const { serviceKey, reason } of refusals) services.get(reason)?.add(serviceKey);
  return [...services].map(([reason, keys]) => ({ reason, count: keys.size }));
}
