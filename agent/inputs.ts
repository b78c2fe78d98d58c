/** Connects the object source to its consumers: the Service tables and network policy. */
import type { NftMonitor } from '../nft/monitor.ts';
import {
  ALL_PODS,
  type Resource,
  servingAndPolicyResources,
  servingResources,
} from '../sources/kubernetes/resources.ts';
import type { OpenSession } from '../sources/kubernetes/session.ts';
import { fanOut, type ObjectSink, type Source } from '../sources/source.ts';
import type { AgentContext } from './context.ts';
import { modeLimits } from './mode.ts';
import { type PolicyAgent, startPolicy } from './policy.ts';
import { reportUnreadable } from './policy-observer.ts';
import { createSource } from './source.ts';
import type { Startup } from './startup.ts';

/**
 * The resources that the agent lists and watches from its start, or reads from manifests. From an API server it watches Pods
 * only where pods own ports, see `PodWatches`.
 */
export function sourceResources({
  nodeName,
  policySupport,
  modeDefinition,
  options: { manifests },
}: Pick<
  AgentContext,
  'nodeName' | 'policySupport' | 'modeDefinition' | 'options'
>): readonly Resource[] {
  if (policySupport !== undefined) return servingAndPolicyResources(nodeName);
  const ownsPorts = modeLimits(modeDefinition.name).modeWithoutOwnedPorts === undefined;
  const pods = manifests !== undefined && ownsPorts ? [ALL_PODS] : [];
  return [...servingResources(nodeName), ...pods];
}

/**
 * @returns the source, not started yet, and network policy if it is enforced.
 * @throws NetlinkError
 */
export function createInputs(
  context: AgentContext,
  startup: Startup,
  monitor: NftMonitor,
  onSessions: (open: OpenSession) => void,
): { source: Source; policy: PolicyAgent | undefined } {
  const { options, policySupport: support, table, nodeCounter, metrics, log } = context;
  const { recorder: events } = context;
  const sinks: ObjectSink[] = [table, nodeCounter];
  const source = createSource({
    options,
    resources: sourceResources(context),
    sink: fanOut(sinks),
    log,
    observer: context.status.watches.observing(startup.observing(metrics.api)),
    onSessions,
    onUnreadable: (problem, object) => {
      if (support !== undefined) reportUnreadable(events, problem, object);
    },
    onFaultyManifests: (count) => metrics.faultyManifests.set(count),
  });
  if (source.podWatches !== undefined) table.usePodWatches(source.podWatches);
  if (support === undefined) return { source, policy: undefined };
  const policy = startPolicy({
    ...context,
    monitor,
    support,
    registry: metrics.registry,
    events,
    unreadable: () => source.unreadable(),
  });
  sinks.push(policy.sink);
  return { source, policy };
}
