/** The packets that a live trace selects. Pure. */
import type { TraceFilter } from '../../netlink/nftables/trace-table.ts';
import { inputInterfaceIs, rulePartsFor } from '../../nft/rule.ts';
import type { LocalDetector } from '../../traffic/options.ts';
import type { LiveTraceFilter } from '../api/trace.ts';
import type { ResolvedTrace } from './resolve.ts';

/** @param detector tells packets of pods from packets of clients outside. */
export function liveFilter(
  resolved: ResolvedTrace,
  detector: LocalDetector | undefined,
): LiveTraceFilter {
  const { family, source, destination, protocol, port, sourcePort = null } = resolved;
  const pods = detector?.kind === 'cidr' ? detector.cidr : detector?.name;
  return {
    family,
    destination,
    source: source.kind === 'address' ? source.address : null,
    fromNode: source.kind === 'node',
    exceptPods: source.kind === 'external' ? (pods ?? null) : null,
    protocol,
    port,
    sourcePort,
  };
}

/** Whether packets of pods and of this node are left out. */
export function isFromOutside({ source, fromNode }: LiveTraceFilter): boolean {
  return source === null && !fromNode;
}

export function kernelFilter(filter: LiveTraceFilter): TraceFilter {
  const { family, source, sourcePort, fromNode, ...rest } = filter;
  const { exceptPods, destination, protocol, port } = rest;
  const isOutside = isFromOutside(filter);
  const pods =
    exceptPods === null
      ? []
      : exceptPods.includes('/')
        ? [rulePartsFor(family).sourceIs(exceptPods, true)]
        : [inputInterfaceIs(exceptPods.replace(/\+$/, '*'), true)];
  // What this node sends to its own addresses arrives on lo.
  const parts = isOutside ? [inputInterfaceIs('lo', true), ...pods] : [];
  return {
    ...{ family, destination, protocol, port },
    source: source ?? undefined,
    sourcePort: sourcePort ?? undefined,
    hooks: fromNode ? 'output' : isOutside ? 'prerouting' : 'both',
    matches: parts.flatMap(({ expressions }) => expressions),
  };
}
