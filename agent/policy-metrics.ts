/** Collects the values of network policy metrics, at each scrape. */
import { compareText } from '../api/collections.ts';
import { POLICY_KINDS } from '../api/objects.ts';
import type { Policy, PolicyKind } from '../api/policy-objects.ts';
import type { PolicySources } from '../metrics/policy.ts';
import { queueState } from '../netlink/nfqueue/queue.ts';
import type { AppliedState } from '../policy/compile/applied-state.ts';
import { DNS_QUEUE } from '../policy/compile/dns-chains.ts';
import type { PolicyKernel } from '../policy/enforce/kernel.ts';
import type { DnsSnooper } from '../policy/fqdn/dns-snooper.ts';
import type { PolicyModel } from '../policy/model/model.ts';
import { DIRECTIONS } from '../policy/model/terms.ts';
import type { Log } from '../process/log.ts';

export interface PolicyMetricInputs {
  readonly model: PolicyModel;
  readonly applied: AppliedState;
  /** Number of unreadable objects by kind. */
  readonly unreadable: () => ReadonlyMap<string, number>;
  readonly snooper: DnsSnooper;
  readonly kernel: PolicyKernel;
  readonly log: Log;
}

export function policyMetricSources(parts: PolicyMetricInputs): PolicySources {
  const { model, applied, unreadable, snooper, kernel, log } = parts;
  const families = [...kernel.families.keys()];
  const readCounters = async <T>(read: () => Promise<T>, unknown: T): Promise<T> => {
    try {
      return await read();
    } catch (error) {
      log.warn({ err: error }, 'cannot read the counters of network policy');
      return unknown;
    }
  };
  return {
    policies: () => countPolicies(model.policies.all()),
    unreadable: () => {
      const counts = unreadable();
      return POLICY_KINDS.map((kind) => ({ kind, count: counts.get(kind) ?? 0 }));
    },
    policySets: () => {
      const [family = 'IPv4'] = families;
      const { chains } = applied.snapshot(family);
      return DIRECTIONS.map((direction) => ({
        direction,
        count: chains.filter((chain) => chain.direction === direction).length,
      }));
    },
    elements: () =>
      families.flatMap((family) =>
        [...kernel.setSizes(family)].map(([set, count]) => ({ family, set, count })),
      ),
    names: () => snooper.stats(),
    queueDrops,
    forgedAnswers: () => readCounters(() => kernel.forgedAnswers(), 0),
    denied: () =>
      readCounters(async () => {
        return [...(await kernel.deniedPackets())].flatMap(([family, counts]) =>
          counts.map(({ denial, direction, packets }) => ({
            family,
            tier: denial.slice('deny-'.length),
            direction,
            count: packets,
          })),
        );
      }, []),
  };
}

/** Counts policies by kind and state; `faulty`: a part of the policy fails closed. */
export function countPolicies(
  policies: Iterable<Policy>,
): { kind: PolicyKind; state: 'sound' | 'faulty'; count: number }[] {
  const byKind = Map.groupBy(policies, ({ kind }) => kind);
  return [...byKind]
    .sort(([a], [b]) => compareText(a, b))
    .flatMap(([kind, all]) => {
      const faulty = all.filter(({ faults }) => faults.length > 0).length;
      return [
        { kind, state: 'sound' as const, count: all.length - faulty },
        { kind, state: 'faulty' as const, count: faulty },
      ];
    });
}

/** Number of DNS packets that the kernel dropped because the NFQUEUE queue or its socket was full. */
async function queueDrops(): Promise<number> {
  const { dropped = 0, userDropped = 0 } = (await queueState(DNS_QUEUE)) ?? {};
  return dropped + userDropped;
}
