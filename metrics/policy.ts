/** Metrics of network policy, of agents that enforce it; docs/metrics.md has a table of them. */
import type { IpFamily, Kind } from '../api/objects.ts';
import type { PolicyKind } from '../api/policy-objects.ts';
import { exponential, type MetricDefiner, SYNC_BUCKETS } from './define.ts';

export type PolicyMetrics = ReturnType<typeof policyMetrics>;

/** Where the numbers are that are asked for at each scrape. */
export interface PolicySources {
  /** Faulty are those of which some part fails closed. */
  policies(): Iterable<{ kind: PolicyKind; state: 'sound' | 'faulty'; count: number }>;
  /** Objects that cannot be read as they are now, of each kind that network policy reads. */
  unreadable(): Iterable<{ kind: Kind; count: number }>;
  policySets(): Iterable<{ direction: string; count: number }>;
  elements(): Iterable<{ family: IpFamily; set: string; count: number }>;
  /** Of domain names: what is known, and what was seen of DNS. */
  names(): FqdnStats;
  /** Packets of DNS that the kernel did not hand over and dropped. */
  queueDrops(): Promise<number>;
  /** The kernel counts them. */
  denied(): Promise<Iterable<{ family: IpFamily; tier: string; direction: string; count: number }>>;
}

/** Since the start, but for what there is of names and addresses. */
interface FqdnStats
  extends Readonly<
    Record<'names' | 'addresses' | 'evictions' | keyof typeof DNS_OUTCOMES, number>
  > {
  /** Answers go by unseen, although rules have names. */
  readonly isBlind: boolean;
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
const COMPILE_BUCKETS = exponential(0.0001, 2, 15);

/** @param families that are enforced: what is rare shows as 0 for them from the start. */
export function policyMetrics(
  define: MetricDefiner,
  sources: PolicySources,
  families: readonly IpFamily[],
) {
  const { counter, gauge, histogram, collected: asked } = define;
  asked(
    'gauge',
    'portwide_policies',
    'Network policies, by kind; faulty are those of which a part cannot be enforced as written, and fails closed',
    ['kind', 'state'],
    () => sources.policies(),
  );
  asked(
    'gauge',
    'portwide_policy_unreadable_objects',
    'Objects of network policy that cannot be read as they are now, by kind; a version that could be read stays in force',
    ['kind'],
    () => sources.unreadable(),
  );
  asked(
    'gauge',
    'portwide_policy_profiles',
    'Different sets of policies that apply to pods of this node',
    ['direction'],
    () => sources.policySets(),
  );
  asked(
    'gauge',
    'portwide_policy_elements',
    'Elements in the sets and maps of network policy',
    ['set', 'ip_family'],
    () => sources.elements(),
  );
  asked(
    'counter',
    'portwide_policy_denied_packets_total',
    'Packets that network policies have denied since their table was made, by tier',
    ['tier', 'direction', 'ip_family'],
    () => sources.denied(),
  );
  fqdnMetrics(define, sources);
  const applyFailures = counter(
    'portwide_policy_apply_failures_total',
    'Changes of network policy that could not be applied; each is tried again',
    ['ip_family'],
  );
  const drifts = counter(
    'portwide_policy_disturbances_total',
    'How often the table of network policy was not as it should be: somebody else changed it, say',
    ['ip_family'],
  );
  for (const family of families) {
    for (const rare of [applyFailures, drifts]) rare.inc({ ip_family: family }, 0);
  }
  const lastQueued = gauge(
    'portwide_policy_last_queued_timestamp_seconds',
    'When there last was something to apply; at the start, everything',
    ['ip_family'],
  );
  const lastApplied = gauge(
    'portwide_policy_last_applied_timestamp_seconds',
    'When the kernel last had all of network policy; 0 for never',
    ['ip_family'],
  );
  for (const family of families) {
    lastQueued.setToCurrentTime({ ip_family: family });
    lastApplied.set({ ip_family: family }, 0);
  }
  return {
    compileSeconds: histogram(
      'portwide_policy_compile_duration_seconds',
      'Seconds it took to work out what a change of objects means for the kernel',
      COMPILE_BUCKETS,
    ),
    applySeconds: histogram(
      'portwide_policy_apply_duration_seconds',
      'Seconds it took to bring a change of network policy, or all of it, to the kernel',
      SYNC_BUCKETS,
      ['ip_family'],
    ),
    applyFailures,
    drifts: drifts,
    lastQueued,
    lastApplied,
  };
}

function fqdnMetrics(
  { collected: asked, collectedValue: askedOne }: MetricDefiner,
  sources: PolicySources,
): void {
  askedOne(
    'gauge',
    'portwide_policy_dns_unseen',
    '1 while answers of DNS go by unseen although rules have domain names, otherwise 0',
    () => (sources.names().isBlind ? 1 : 0),
  );
  askedOne(
    'gauge',
    'portwide_policy_fqdn_names',
    'Domain names of which addresses are known',
    () => sources.names().names,
  );
  askedOne(
    'gauge',
    'portwide_policy_fqdn_addresses',
    'Addresses of domain names that are known',
    () => sources.names().addresses,
  );
  askedOne(
    'counter',
    'portwide_policy_fqdn_evictions_total',
    'Addresses of domain names that were forgotten before their time, for there were too many',
    () => sources.names().evictions,
  );
  asked(
    'counter',
    'portwide_policy_dns_messages_total',
    'Messages of DNS that were looked into, and what became of some',
    ['outcome'],
    () => {
      const numbers = sources.names();
      return Object.entries(DNS_OUTCOMES).map(([name, outcome]) => ({
        outcome,
        count: numbers[name as keyof typeof DNS_OUTCOMES],
      }));
    },
  );
  askedOne(
    'counter',
    'portwide_policy_dns_queue_drops_total',
    'Packets of DNS that the kernel dropped, for their queue or its reader was full',
    () => sources.queueDrops(),
  );
}
