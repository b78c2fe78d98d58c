/** The node ports that the localhost proxy serves, in modes whose rules cannot serve the loopback address. */
import type { LocalhostNodePort } from '../localhost/endpoint-picker.ts';
import type { Route } from '../services/route.ts';
import { trafficPlan } from './plan.ts';

/**
 * The localhost node port of a Route, as in KEP-6032: TCP only, and only while the Route has an endpoint. With
 * externalTrafficPolicy Local the endpoint must be on this node.
 * @returns undefined if the proxy must not listen; the kernel then refuses connections.
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
