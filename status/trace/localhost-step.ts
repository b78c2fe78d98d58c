/** The end of a packet to a node port on an address of this node where rules do not serve node ports. Pure. */
import { isLoopback } from '../../api/addresses.ts';
import { loopbackAddress } from '../../services/node-port-addresses.ts';
import type { Route } from '../../services/route.ts';
import { localhostNodePort } from '../../traffic/localhost-node-port.ts';
import { trafficPlan } from '../../traffic/plan.ts';
import type { TraceStep } from '../api/trace.ts';
import { endpointText } from '../views/text.ts';
import type { PathEnd, TraceContext, TraceQuestion } from './compute.ts';

/** The end, and whether the agent's proxy for node ports on localhost gets the packet. */
export type NodePortEnd = Pick<PathEnd, 'steps' | 'verdict'> & { readonly isServed: boolean };

/** @returns undefined if the destination is no node port, or no address of this node. */
export function nodePortEnd(
  { family, destination, protocol, port }: TraceQuestion,
  { routes, nodeAddresses, traffic }: TraceContext,
): NodePortEnd | undefined {
  const isOnLoopback = isLoopback(destination);
  if (!isOnLoopback && !nodeAddresses.includes(destination)) return undefined;
  const route = routes.find(
    (each) => each.nodePort === port && trafficPlan(each, false).nodePort?.protocol === protocol,
  );
  if (route === undefined) return undefined;
  const name = `node port ${port}/${protocol} of Service ${route.name}`;
  const isProxied = traffic.proxiesLocalhost === true && destination === loopbackAddress(family);
  if (!isProxied) {
    const where = isOnLoopback ? 'on localhost' : 'on this address';
    const decision = `rules of this node do not serve ${name} ${where}: the packet is not translated`;
    const proxy =
      'in mode nftables the agent itself serves TCP there if --nodeport-addresses has localhost';
    const detail = isOnLoopback
      ? proxy
      : '--nodeport-addresses selects the addresses of node ports';
    return { steps: [step(route, decision, [detail])], verdict: 'untouched', isServed: false };
  }
  if (protocol !== 'TCP') {
    const decision = `the agent serves only TCP node ports on localhost, and rules reject ${name}`;
    return { steps: [step(route, decision)], verdict: 'rejected', isServed: false };
  }
  const endpoints = localhostNodePort(route)?.endpoints;
  if (endpoints === undefined) {
    const decision = `the agent does not listen for ${name} on localhost, because it has no endpoint for it`;
    return { steps: [step(route, decision)], verdict: 'untouched', isServed: false };
  }
  const decision = `the agent listens for ${name} on localhost, and connects to an endpoint`;
  const steps = [step(route, decision, endpoints.map(endpointText))];
  return { steps, verdict: 'untouched', isServed: true };
}

function step(route: Route, decision: string, detail: readonly string[] = []): TraceStep {
  const object = `Service ${route.serviceKey}`;
  return { step: 'service', title: 'Service', decision, object, detail };
}
