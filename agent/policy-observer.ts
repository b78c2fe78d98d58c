/** Reports network policy as log lines, metrics and Events. */
import type { InvalidObject } from '../api/errors.ts';
import { type IpFamily, POLICY_KINDS } from '../api/objects.ts';
import type { Policy, PolicyFault } from '../api/policy-objects.ts';
import { nodeRef, objectRef } from '../events/event.ts';
import type { Events } from '../events/recorder.ts';
import type { PolicyMetrics } from '../metrics/policy.ts';
import type { EnforcerObserver } from '../policy/enforce/enforcer.ts';
import { failureText } from '../process/failure-text.ts';
import type { DebugLog } from '../process/log.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import type { UnreadableObject } from '../sources/kubernetes/informer-store.ts';

/** The `action` of the Events. */
const ACTION = 'EnforceNetworkPolicy';

interface PolicyObserverOptions {
  readonly log: DebugLog;
  readonly metrics: PolicyMetrics;
  readonly events: Events;
  readonly nodeName: string;
  /** Called once for each family, after the first write. */
  readonly onEnforced: (family: IpFamily) => void;
}

export function createPolicyObserver(options: PolicyObserverOptions): EnforcerObserver {
  const { log, metrics, events, nodeName, onEnforced } = options;
  const enforced = new Set<IpFamily>();
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
      log.debug({ family, full: isFull, seconds }, 'network policies applied');
      failures.succeeded(family, { family }, 'network policies can be applied again');
      if (enforced.has(family)) return;
      enforced.add(family);
      const rounded = Number(seconds.toFixed(3));
      log.info({ family, seconds: rounded }, 'enforcing network policies');
      onEnforced(family);
    },
    failed(family, error) {
      metrics.applyFailures.inc({ ip_family: family });
      if (!failures.isFailing(family)) {
        const note = failureText(error);
        events.warning(nodeRef(nodeName), 'FailedToApplyNetworkPolicy', note, ACTION);
      }
      failures.failed(
        family,
        { family, err: error },
        'cannot apply network policies; keeping the current rules and retrying',
      );
    },
    driftDetected(family, change) {
      metrics.drifts.inc({ ip_family: family });
      log.warn(
        { family, change },
        'network policy rules differ from the desired rules; restoring them',
      );
    },
    missedChanges: (family) =>
      log.info(
        { family },
        'nf_tables may have changed without a notification; writing network policies again',
      ),
    watchFailed: (error) =>
      log.warn(
        { err: error },
        'cannot subscribe to nf_tables notifications; external changes of network policy rules are not repaired',
      ),
  };
}

/**
 * Reports the parts of a policy that fail closed, in the log and as a Warning Event on the policy. A part is
 * reported again only after it was fixed or if it fails for another reason.
 */
export function reportPolicyFaults(
  { log, events }: Pick<PolicyObserverOptions, 'log' | 'events'>,
  before: Policy | undefined,
  now: Policy,
): void {
  const policy = `${now.kind} ${now.key}`;
  for (const { field, reason } of missingFrom(before?.faults ?? [], now.faults)) {
    const details = { policy, field, reason };
    log.warn(details, 'part of the network policy cannot be enforced and fails closed');
    events.sharedWarning(objectRef(now), 'FailsClosed', `${field}: ${reason}`, ACTION);
  }
  for (const { field, reason } of missingFrom(now.faults, before?.faults ?? [])) {
    log.info({ policy, field, reason }, 'network policy no longer fails closed for this reason');
  }
}

/** The faults that `known` does not contain. */
function missingFrom(
  known: readonly PolicyFault[],
  faults: readonly PolicyFault[],
): readonly PolicyFault[] {
  return faults.filter(
    ({ field, reason }) => !known.some((each) => each.field === field && each.reason === reason),
  );
}

/**
 * Records a Warning Event on an unreadable object of network policy. The source logs the problem, and reports it
 * again only when it changes.
 */
export function reportUnreadable(
  events: Events,
  { field, reason }: InvalidObject,
  object: UnreadableObject,
): void {
  if (!POLICY_KINDS.some((kind) => kind === object.kind)) return;
  const note = `${field}: ${reason}; ignored, and the last readable version, if any, remains in force`;
  events.sharedWarning(objectRef(object), 'Unreadable', note, ACTION);
}
