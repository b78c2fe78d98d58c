/** What of a Route is to be served on the loopback address where rules cannot. */
import type { LocalhostNodePort } from '../localhost/endpoint-picker.ts';
import type { Route } from '../services/route.ts';
import { trafficPlan } from './plan.ts';

/**
 * As KEP-6032 has it: TCP alone, and with external traffic policy Local only while this node has endpoints.
 * @returns undefined when there is nothing to listen for, so that the kernel refuses connections.
 */
export function localhostNodePort(route: Route): LocalhostNodePort | undefined {
  const { id, serviceKey, family, affinitySeconds } = route;
  const { nodePort } = trafficPlan(route, false);
  if (nodePort?.protocol !== 'TCP') return undefined;
  const endpoints = nodePort.dispatch.others.endpoints.flatMap(({ address, port }) =>
    port === undefined ? [] : [{ address, port }],
  );
  if (endpoints.length === 0) return undefined;
  return { id, serviceKey, family, port: nodePort.port, endpoints, affinitySeconds };
}
