/** Where a running agent's objects come from and go to: the source, and network policy beside the tables of Services. */
import type { NftMonitor } from '../nft/monitor.ts';
import { servingAndPolicyResources, servingResources } from '../sources/kubernetes/resources.ts';
import type { OpenSession } from '../sources/kubernetes/session.ts';
import { fanOut, type ObjectSink, type Source } from '../sources/source.ts';
import type { AgentContext } from './context.ts';
import { type PolicyAgent, startPolicy } from './policy.ts';
import { reportUnreadable } from './policy-observer.ts';
import { createSource } from './source.ts';
import type { Startup } from './startup.ts';

/**
 * @returns the source, which has not started yet, and network policy, if it is enforced.
 * @throws NetlinkError
 */
export function createInputs(
  context: AgentContext,
  startup: Startup,
  monitor: NftMonitor,
  onSessions: (open: OpenSession) => void,
): { source: Source; policy: PolicyAgent | undefined } {
  const { options, nodeName, openedPolicy: open, table, census, metrics, log } = context;
  const { recorder: events } = context;
  const sinks: ObjectSink[] = [table, census];
  const source = createSource({
    options,
    resources:
      open === undefined ? servingResources(nodeName) : servingAndPolicyResources(nodeName),
    sink: fanOut(sinks),
    log,
    observer: startup.observing(metrics.api),
    onSessions,
    onUnreadable: (problem, object) => {
      if (open !== undefined) reportUnreadable(events, problem, object);
    },
    onFaultyManifests: (count) => metrics.faultyManifests.set(count),
  });
  if (open === undefined) return { source, policy: undefined };
  const policy = startPolicy({
    ...context,
    monitor,
    support: open,
    registry: metrics.registry,
    events,
    unreadable: () => source.unreadable(),
  });
  sinks.push(policy.sink);
  return { source, policy };
}
