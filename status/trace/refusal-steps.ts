/** Services that ask for a VIP and do not get it: which of them the packet was meant for. Pure. */
import { hasPort } from '../../api/ports.ts';
import type { InspectedService } from '../../proxier/route-table.ts';
import type { Route } from '../../services/route.ts';
import { EXTERNAL_IPS_OFF } from '../../services/served-ports.ts';
import type { PacketHandler } from '../../traffic/first-packet.ts';
import type { TraceStep } from '../api/trace.ts';
import type { TraceQuestion } from './compute.ts';

/** A Service that asks for the destination and does not get it, or not for all its ports. */
export interface RefusedService {
  readonly inspected: InspectedService;
  /** Whether it is the destination that was asked for. */
  readonly isNamed: boolean;
}

/** The Service for which the packet is meant, if it is refused there. @param handler what handles the packet instead. */
export function refusalOf(
  handler: PacketHandler,
  question: Pick<TraceQuestion, 'destination' | 'protocol' | 'port'>,
  refused: readonly RefusedService[],
): RefusedService | undefined {
  const server = 'route' in handler ? handler.route.serviceKey : undefined;
  return refused.find(
    ({ inspected, isNamed }) =>
      (server === undefined || (isNamed && server !== inspected.service.key)) &&
      (inspected.served.refusals.length > 0 || asksForPort(inspected, question)) &&
      refusalsAt(inspected, question.destination).length > 0,
  );
}

function asksForPort(
  { served }: InspectedService,
  { protocol, port }: Pick<TraceQuestion, 'protocol' | 'port'>,
): boolean {
  return served.ports.some(({ match }) => isMatch(match));

  function isMatch(match: Route['match']): boolean {
    if (match.kind === 'all') return true;
    if (match.kind === 'port') return match.port === port && match.protocol === protocol;
    return match.ranges.some((range) => hasPort(range, protocol, port));
  }
}

/** Of the Service as a whole, or on one VIP: their messages begin with it. */
function refusalsAt({ served, refusals }: InspectedService, vip: string) {
  if (served.refusals.length > 0) return served.refusals;
  return refusals.filter(({ message }) => message.split(/:? /)[0] === vip);
}

/** The first step of a path: why the Service does not get the packet. */
export function refusalStep({ inspected }: RefusedService, vip: string): TraceStep {
  const { key } = inspected.service;
  const [reason = '', ...others] = refusalsAt(inspected, vip).map(refusalText);
  return {
    step: 'refusal',
    title: 'Refused',
    decision: `Service ${key} is refused: ${reason}`,
    object: `Service ${key}`,
    detail: others,
  };
}

/** All refusals of a Service, one sentence each. */
export function refusalTexts({ inspected }: RefusedService): string[] {
  const { service, refusals } = inspected;
  return refusals.map((refusal) => `Service ${service.key}: ${refusalText(refusal)}`);
}

/** Why this node does not serve a destination that is an external IP of the Service, if it serves no external IPs. */
export function externalIPTexts({ inspected }: RefusedService, destination: string): string[] {
  const { service, served } = inspected;
  const isOff =
    served.warnings.includes(EXTERNAL_IPS_OFF) && service.externalIPs.includes(destination);
  return isOff ? [`Service ${service.key}: ${EXTERNAL_IPS_OFF}`] : [];
}

function refusalText({ field, message }: InspectedService['refusals'][number]): string {
  return `${field}: ${message}`;
}
