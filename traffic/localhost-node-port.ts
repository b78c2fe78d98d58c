/** The node ports that the localhost proxy serves, in modes whose rules cannot serve the loopback address. */
import type { LocalhostNodePort } from '../localhost/endpoint-picker.ts';
import { loopbackAddress } from '../services/node-port-addresses.ts';
import type { Route } from '../services/route.ts';
import { hashedEndpoint } from './first-packet.ts';
import { trafficPlan } from './plan.ts';

/**
 * The localhost node port of a Route, as in KEP-6032: TCP only, and only while the Route has an endpoint. With
 * externalTrafficPolicy Local the endpoint must be on this node.
 * @returns undefined if the proxy must not listen; the kernel then refuses connections.
 */
export function localhostNodePort(route: Route): LocalhostNodePort | undefined {
  const { id, serviceKey, family, affinitySeconds } = route;
  const plan = trafficPlan(route, false);
  const { nodePort } = plan;
  if (nodePort?.protocol !== 'TCP') return undefined;
  const { others } = nodePort.dispatch;
  // Clients have different ports but one address, so a hash of the address leaves one endpoint.
  const client = { address: loopbackAddress(family), isPod: false, isNode: true };
  const hashed = hashedEndpoint(plan, others, client, undefined);
  const pool = hashed === undefined ? others.endpoints : [hashed.endpoint];
  const endpoints = pool.flatMap(({ address, port }) =>
    port === undefined ? [] : [{ address, port }],
  );
  if (endpoints.length === 0) return undefined;
  return { id, serviceKey, family, port: nodePort.port, endpoints, affinitySeconds };
}
