/** Connects the object source to its consumers: the Service tables and network policy. */
import { objectRef } from '../events/event.ts';
import type { NftMonitor } from '../nft/monitor.ts';
import { ServiceCidrs } from '../proxier/service-cidrs.ts';
import {
  ALL_PODS,
  type Resource,
  SERVICE_CIDRS,
  servingAndPolicyResources,
  servingResources,
} from '../sources/kubernetes/resources.ts';
import type { OpenSession } from '../sources/kubernetes/session.ts';
import { fanOut, type ObjectSink, type Source } from '../sources/source.ts';
import type { AgentContext } from './context.ts';
import { type PolicyAgent, startPolicy } from './policy.ts';
import { reportUnreadable } from './policy-observer.ts';
import { createSource } from './source.ts';
import type { Startup } from './startup.ts';

/** Without this gate of Kubernetes 1.31 and 1.32, kube-proxy does not watch ServiceCIDRs. */
export function watchesServiceCidrs({
  modeDefinition,
  options,
}: Pick<AgentContext, 'modeDefinition' | 'options'>): boolean {
  return (
    modeDefinition.usesServiceCidrs && (options.featureGates.MultiCIDRServiceAllocator ?? true)
  );
}

/**
 * The resources that the agent lists and watches from its start, or reads from manifests. From an API server it watches Pods
 * only where pods own ports, see `PodWatches`.
 */
export function sourceResources(
  context: Pick<AgentContext, 'nodeName' | 'policySupport' | 'modeDefinition' | 'options'>,
): readonly Resource[] {
  const { nodeName, policySupport, modeDefinition, options } = context;
  const serving =
    policySupport === undefined ? servingResources(nodeName) : servingAndPolicyResources(nodeName);
  const cidrs = watchesServiceCidrs(context) ? [SERVICE_CIDRS] : [];
  const needsPods =
    policySupport === undefined &&
    options.manifests !== undefined &&
    modeDefinition.servesOwnedPorts;
  return [...serving, ...cidrs, ...(needsPods ? [ALL_PODS] : [])];
}

/**
 * @returns the source, not started yet, the Service CIDRs, and network policy if it is enforced.
 * @throws NetlinkError
 */
export function createInputs(
  context: AgentContext,
  startup: Startup,
  monitor: NftMonitor,
  onSessions: (open: OpenSession) => void,
): { source: Source; serviceCidrs: ServiceCidrs; policy: PolicyAgent | undefined } {
  const { options, nodeName, policySupport: support, table, nodeCounter, changes } = context;
  const { metrics, recorder: events, log } = context;
  const serviceCidrs = new ServiceCidrs({
    nodeName,
    given: options.serviceCidrs,
    clusterCidr: options.clusterCidr,
    onChange: () => changes.emit('change'),
    onIgnored: ({ object, cidr, reason }) => {
      log.warn({ object: `ServiceCIDR ${object.key}`, cidr, reason }, 'ServiceCIDR is not used');
      const note = `on node ${nodeName}: ${cidr} ${reason}, so packets to unallocated addresses in it are not dropped`;
      events.warning(objectRef(object), 'ServiceCIDRIgnored', note);
    },
  });
  const sinks: ObjectSink[] = [table, nodeCounter, serviceCidrs];
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
  if (support === undefined) return { source, serviceCidrs, policy: undefined };
  const policy = startPolicy({
    ...context,
    monitor,
    support,
    registry: metrics.registry,
    events,
    unreadable: () => source.unreadable(),
  });
  sinks.push(policy.sink);
  return { source, serviceCidrs, policy };
}
