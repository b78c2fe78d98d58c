/** The step of a trace on a node that does not forward packets. Pure. */
import { isLoopback } from '../../api/addresses.ts';
import type { ComputedTrace, TraceStep } from '../api/trace.ts';

/** What decides whether the node forwards the packet. */
export interface ForwardingContext {
  /** The sysctl that disables forwarding in the family of the path; undefined: the node forwards. */
  readonly disabledBy: string | undefined;
  /** Packets from and to them are not forwarded. */
  readonly nodeAddresses: readonly string[];
  /** IPVS sends packets as the node itself does. */
  readonly forwardsWithIpvs: boolean;
}

/** Adds the step if the node drops the packet because it does not forward packets. */
export function withForwarding(
  path: ComputedTrace,
  { disabledBy, nodeAddresses, forwardsWithIpvs }: ForwardingContext,
): ComputedTrace {
  const { source, destination, verdict, endpoints } = path;
  const isTranslated = verdict === 'translated';
  if (disabledBy === undefined || !(isTranslated || verdict === 'untouched')) return path;
  const isOfNode = (address: string) => nodeAddresses.includes(address) || isLoopback(address);
  if ((source !== null && isOfNode(source)) || (isTranslated && forwardsWithIpvs)) return path;
  const targets = isTranslated ? endpoints.map(({ address }) => address) : [destination];
  const dropped = targets.filter((address) => !isOfNode(address));
  if (dropped.length === 0) return path;
  const isDropped = dropped.length === targets.length;
  const what = isDropped ? 'the packet' : `packets to ${dropped.join(', ')}`;
  const decision = `this node does not forward packets (${disabledBy}=0): it drops ${what}`;
  const step: TraceStep = {
    step: 'forwarding',
    title: 'Forwarding',
    decision,
    object: null,
    detail: [`set ${disabledBy}=1`],
  };
  const last = path.steps.slice(-1).map((result): TraceStep => {
    if (!isDropped) return { ...result, decision: `${result.decision}, so some connections fail` };
    const text = 'the packet is dropped: this node does not forward packets';
    return { ...result, decision: text, object: null, detail: [] };
  });
  return {
    ...path,
    verdict: isDropped ? 'dropped' : verdict,
    steps: [...path.steps.slice(0, -1), step, ...last],
  };
}
