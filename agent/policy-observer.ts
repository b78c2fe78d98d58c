/** Log lines, metrics and Events of network policy. */
import { asError, type InvalidObject } from '../api/errors.ts';
import { type IpFamily, POLICY_KINDS } from '../api/objects.ts';
import type { Policy, PolicyFault } from '../api/policy-objects.ts';
import { nodeRef, objectRef } from '../events/event.ts';
import type { Events } from '../events/recorder.ts';
import type { PolicyMetrics } from '../metrics/policy.ts';
import type { EnforcerObserver } from '../policy/enforce/enforcer.ts';
import type { DebugLog } from '../process/log.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import type { UnreadableObject } from '../sources/kubernetes/informer-store.ts';

/** What the agent was doing, in its Events. */
const ACTION = 'EnforceNetworkPolicy';

interface PolicyObserverOptions {
  readonly log: DebugLog;
  readonly metrics: PolicyMetrics;
  readonly events: Events;
  readonly nodeName: string;
}

export function createPolicyObserver(options: PolicyObserverOptions): EnforcerObserver {
  const { log, metrics, events, nodeName } = options;
  const known = new Set<IpFamily>();
  const failures = new RepeatedFailures(log);
  const upToDate = (family: IpFamily) =>
    metrics.lastApplied.setToCurrentTime({ ip_family: family });
  return {
    started: (family) => metrics.lastQueued.setToCurrentTime({ ip_family: family }),
    unchanged: upToDate,
    compiled: (milliseconds) => metrics.compileSeconds.observe(milliseconds / 1000),
    applied(family, isFull, milliseconds) {
      const seconds = milliseconds / 1000;
      upToDate(family);
      metrics.applySeconds.observe({ ip_family: family }, seconds);
      log.debug({ family, full: isFull, seconds }, 'policies applied');
      failures.succeeded(family, { family }, 'policies can be applied again');
      if (!known.has(family)) log.info({ family, seconds }, 'enforcing network policies');
      known.add(family);
    },
    failed(family, error) {
      metrics.applyFailures.inc({ ip_family: family });
      if (!failures.isFailing(family)) {
        const note = asError(error).message;
        events.warning(nodeRef(nodeName), 'FailedToApplyNetworkPolicy', note, ACTION);
      }
      failures.failed(
        family,
        { family, err: error },
        'cannot apply network policies; what is enforced stays, trying again',
      );
    },
    driftDetected(family, what) {
      metrics.drifts.inc({ ip_family: family });
      log.warn(
        { family, what },
        `the policy table is not as it should be (${what}); writing it again`,
      );
    },
    watchFailed: (error) =>
      log.warn(
        { err: error },
        'cannot hear of changes of nf_tables; policies that others remove are not written again',
      ),
  };
}

/**
 * Reports parts of a policy that fail closed, in the log and by a Warning Event on the policy. A part is
 * reported once, until it is mended or fails for another reason.
 */
export function reportPolicyFaults(
  { log, events }: Pick<PolicyObserverOptions, 'log' | 'events'>,
  before: Policy | undefined,
  now: Policy,
): void {
  const policy = `${now.kind} ${now.key}`;
  for (const { field, reason } of missingFrom(before?.faults ?? [], now.faults)) {
    const details = { policy, field, reason };
    log.warn(details, 'a part of this policy cannot be enforced and fails closed');
    events.sharedWarning(objectRef(now), 'FailsClosed', `${field}: ${reason}`, ACTION);
  }
  for (const { field, reason } of missingFrom(now.faults, before?.faults ?? [])) {
    log.info({ policy, field, reason }, 'the policy no longer fails closed for this');
  }
}

function missingFrom(
  some: readonly PolicyFault[],
  all: readonly PolicyFault[],
): readonly PolicyFault[] {
  return all.filter(
    ({ field, reason }) => !some.some((each) => each.field === field && each.reason === reason),
  );
}

/**
 * Tells of an object of network policy that is passed over, by a Warning Event on it. The source has put it
 * into the log, and tells it once until that changes.
 */
export function reportUnreadable(
  events: Events,
  { field, reason }: InvalidObject,
  object: UnreadableObject,
): void {
  if (!POLICY_KINDS.some((kind) => kind === object.kind)) return;
  const note = `${field}: ${reason}; passed over, and its last readable version stays in force`;
  events.sharedWarning(objectRef(object), 'Unreadable', note, ACTION);
}
