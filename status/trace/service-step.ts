/** The step that says which Service a packet is for. Pure. */
import { cidrContains } from '../../api/addresses.ts';
import type { Route } from '../../services/route.ts';
import type { PacketHandler } from '../../traffic/first-packet.ts';
import type { TraceStep } from '../api/trace.ts';
import { portsText } from '../views/text.ts';
import type { TraceContext, TraceQuestion } from './compute.ts';
import { externalIPTexts, refusalTexts } from './refusal-steps.ts';

export function rejectsOtherPorts(
  routes: readonly Route[],
  { destination }: TraceQuestion,
  { traffic }: TraceContext,
): boolean {
  if (traffic.rejectsOtherPorts === 'vips') return true;
  if (traffic.rejectsOtherPorts === 'none') return false;
  return routes.some(({ clusterIP }) => clusterIP === destination);
}

export function serviceStep(
  handler: PacketHandler,
  question: TraceQuestion,
  context: TraceContext,
): TraceStep {
  const { destination, protocol, port } = question;
  const { traffic, refused, nearClusterIP } = context;
  const title = 'Service';
  const target = `${destination} port ${port}/${protocol}`;
  switch (handler.by) {
    case 'vip': {
      const { route, vip } = handler;
      const decision = `${target} is ${vip.kind} ${matchText(route)} of Service ${route.name}`;
      return {
        step: 'service',
        title,
        decision,
        object: `Service ${route.serviceKey}`,
        detail: problemTexts(route, vip.kind === 'cluster IP', question, context),
      };
    }
    case 'node port': {
      const { route, nodePort } = handler;
      const decision = `${target} is node port ${nodePort.port} of Service ${route.name}`;
      return {
        step: 'service',
        title,
        decision,
        object: `Service ${route.serviceKey}`,
        detail: problemTexts(route, false, question, context),
      };
    }
    case 'health check': {
      const { route } = handler;
      const decision = `${target} is the health check node port of Service ${route.serviceKey}: this node answers itself`;
      return {
        step: 'service',
        title,
        decision,
        object: `Service ${route.serviceKey}`,
        detail: [],
      };
    }
    case 'outside ranges':
      return {
        step: 'service',
        title,
        decision: `no Service serves ${target}: ${destination} has port ranges, and other ports are rejected`,
        object: `Service ${handler.routes[0]?.serviceKey}`,
        detail: handler.routes.map(routeText),
      };
    case 'other ports': {
      const consequence = rejectsOtherPorts(handler.routes, question, context)
        ? 'the packet is rejected'
        : 'the packet is not translated';
      return {
        step: 'service',
        title,
        decision: `no Service serves ${target}, only other ports of ${destination}: ${consequence}`,
        object: `Service ${handler.routes[0]?.serviceKey}`,
        detail: [...handler.routes.map(routeText), ...refused.flatMap(refusalTexts)],
      };
    }
    case 'nothing': {
      const cidr = traffic.serviceCidrs.find((each) => cidrContains(each, destination));
      const consequence =
        cidr === undefined
          ? 'the packet is not translated'
          : `it is in Service CIDR ${cidr}, so the packet is dropped`;
      return {
        step: 'service',
        title,
        decision: `no Service of this node has ${target}: ${consequence}`,
        object: null,
        detail: [
          ...refused.flatMap((each) => externalIPTexts(each, destination)),
          ...(nearClusterIP === undefined
            ? []
            : [`it is probably in the Service range, as cluster IP ${nearClusterIP} is`]),
        ],
      };
    }
  }
}

/** The problems of a Route that concern the client. */
function problemTexts(
  route: Route,
  isClusterIP: boolean,
  { client }: TraceQuestion,
  { problemsOf }: TraceContext,
): string[] {
  // Traffic policy Local of external VIPs and node ports applies to clients outside only.
  const isInside = client.isPod || client.isNode;
  const own = isClusterIP ? 'inside' : 'outside';
  return problemsOf(route)
    .filter(({ clients }) => clients === 'all' || (clients === own && (isClusterIP || !isInside)))
    .map(({ message }) => message);
}

/** Most Routes of a VIP to list. */
function routeText({ serviceKey, match }: Route): string {
  return `Service ${serviceKey} serves ${portsText(match)}`;
}

function matchText({ match, owned }: Route): string {
  if (owned !== undefined) return `(ports ${portsText(match)}, owned by pods)`;
  if (match.kind === 'all') return '(all ports)';
  return match.kind === 'ranges'
    ? `(port ranges ${portsText(match)})`
    : `(port ${portsText(match)})`;
}
