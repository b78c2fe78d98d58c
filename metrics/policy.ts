/** Metrics of network policy, on agents that enforce it; docs/operate/metrics.md lists them. */
import type { IpFamily, Kind } from '../api/objects.ts';
import type { PolicyKind } from '../api/policy-objects.ts';
import { exponentialBuckets, type MetricDefiner, SYNC_BUCKETS } from './define.ts';

export type PolicyMetrics = ReturnType<typeof policyMetrics>;

/** Values collected at each scrape. */
export interface PolicySources {
  /** `faulty` policies have a part that fails closed. */
  policies(): Iterable<{ kind: PolicyKind; state: 'sound' | 'faulty'; count: number }>;
  /** Objects that cannot be read in their current version, by kind. */
  unreadable(): Iterable<{ kind: Kind; count: number }>;
  policySets(): Iterable<{ direction: string; count: number }>;
  elements(): Iterable<{ family: IpFamily; set: string; count: number }>;
  /** Known domain names and addresses, and counts of DNS messages. */
  names(): FqdnStats;
  /** Number of DNS packets that the kernel could not queue and dropped. */
  queueDrops(): Promise<number>;
  /** Number of DNS answers that arrived on another interface than the way back to the resolver. */
  forgedAnswers(): Promise<number>;
  /** Packets denied since the table was created, from counters in the kernel. */
  denied(): Promise<Iterable<{ family: IpFamily; tier: string; direction: string; count: number }>>;
}

/** Totals since the start, except the current `names`, `addresses` and `isNotObserving`. */
interface FqdnStats
  extends Readonly<
    Record<'names' | 'addresses' | 'evictions' | keyof typeof DNS_OUTCOMES, number>
  > {
  /** Whether DNS responses are not seen although rules have domain names. */
  readonly isNotObserving: boolean;
}

const DNS_OUTCOMES = {
  queries: 'query',
  answers: 'answer',
  unasked: 'unasked_answer',
  unreadable: 'unreadable',
  givenUp: 'given_up',
  overdue: 'overdue',
  notLearned: 'not_learned',
} as const;

/** 0.1 ms to 1.6 s. */
const COMPILE_BUCKETS = exponentialBuckets(0.0001, 2, 15);

/** @param families enforced IP families; their rare counters start at 0. */
export function policyMetrics(
  define: MetricDefiner,
  sources: PolicySources,
  families: readonly IpFamily[],
) {
  const { counter, gauge, histogram, collected } = define;
  collected(
    'gauge',
    'portwide_policies',
    'Number of network policies by kind and state. State faulty: a part cannot be enforced as written and fails closed.',
    ['kind', 'state'],
    () => sources.policies(),
  );
  collected(
    'gauge',
    'portwide_policy_unreadable_objects',
    'Number of network policy objects that cannot be read in their current version, by kind. The last readable version stays in force.',
    ['kind'],
    () => sources.unreadable(),
  );
  collected(
    'gauge',
    'portwide_policy_sets',
    'Number of distinct policy sets that apply to pods of this node.',
    ['direction'],
    () => sources.policySets(),
  );
  collected(
    'gauge',
    'portwide_policy_elements',
    'Number of elements in the sets and maps of network policy.',
    ['set', 'ip_family'],
    () => sources.elements(),
  );
  collected(
    'counter',
    'portwide_policy_denied_packets_total',
    'Total number of packets denied by network policies since their table was created, by tier.',
    ['tier', 'direction', 'ip_family'],
    () => sources.denied(),
  );
  fqdnMetrics(define, sources);
  const applyFailures = counter(
    'portwide_policy_apply_failures_total',
    'Total number of failed attempts to apply network policy. Each is retried.',
    ['ip_family'],
  );
  const drifts = counter(
    'portwide_policy_external_changes_total',
    'Total number of times that the network policy table differed from the expected state, for example after an external change.',
    ['ip_family'],
  );
  for (const family of families) {
    for (const rare of [applyFailures, drifts]) rare.inc({ ip_family: family }, 0);
  }
  const lastQueued = gauge(
    'portwide_policy_last_queued_timestamp_seconds',
    'Unix time when an apply of network policy last began, or when the agent started.',
    ['ip_family'],
  );
  const lastApplied = gauge(
    'portwide_policy_last_applied_timestamp_seconds',
    'Unix time when an apply of network policy last succeeded; 0 if never.',
    ['ip_family'],
  );
  for (const family of families) {
    lastQueued.setToCurrentTime({ ip_family: family });
    lastApplied.set({ ip_family: family }, 0);
  }
  return {
    compileSeconds: histogram(
      'portwide_policy_compile_duration_seconds',
      'Time in seconds to compile the policies after a change of objects.',
      COMPILE_BUCKETS,
    ),
    applySeconds: histogram(
      'portwide_policy_apply_duration_seconds',
      'Time in seconds to apply network policy to the kernel, in full or by a change.',
      SYNC_BUCKETS,
      ['ip_family'],
    ),
    applyFailures,
    drifts,
    lastQueued,
    lastApplied,
  };
}

function fqdnMetrics({ collected, collectedValue }: MetricDefiner, sources: PolicySources): void {
  collectedValue(
    'gauge',
    'portwide_policy_dns_uninspected',
    '1 while DNS responses are not seen although rules have domain names, otherwise 0.',
    () => (sources.names().isNotObserving ? 1 : 0),
  );
  collectedValue(
    'gauge',
    'portwide_policy_fqdn_names',
    'Number of domain names with known addresses.',
    () => sources.names().names,
  );
  collectedValue(
    'gauge',
    'portwide_policy_fqdn_addresses',
    'Number of known addresses of domain names.',
    () => sources.names().addresses,
  );
  collectedValue(
    'counter',
    'portwide_policy_fqdn_evictions_total',
    'Total number of addresses of domain names evicted before their TTL expired, because there were too many.',
    () => sources.names().evictions,
  );
  collected(
    'counter',
    'portwide_policy_dns_messages_total',
    'Total number of inspected DNS messages, by outcome.',
    ['outcome'],
    () => {
      const numbers = sources.names();
      return Object.entries(DNS_OUTCOMES).map(([name, outcome]) => ({
        outcome,
        count: numbers[name as keyof typeof DNS_OUTCOMES],
      }));
    },
  );
  collectedValue(
    'counter',
    'portwide_policy_dns_queue_drops_total',
    'Total number of DNS packets that the kernel dropped because the queue or its reader was full.',
    () => sources.queueDrops(),
  );
  collectedValue(
    'counter',
    'portwide_policy_dns_forged_answers_total',
    'Total number of DNS responses that arrived on another interface than the route back to the resolver. Their addresses stay denied.',
    () => sources.forgedAnswers(),
  );
}
