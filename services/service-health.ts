/** What health check node ports have to say of a Service. */
import { type EndpointSlice, IP_FAMILIES, type IpFamily, type ObjectKey } from '../api/objects.ts';
import { countLocalReady } from '../endpoints/select.ts';
import type { ServedPort } from './served-ports.ts';
import { grantKey } from './vip-conflicts.ts';

/** What the health check node port of one Service has to say in one family. */
export interface ServiceHealth {
  readonly serviceKey: ObjectKey;
  readonly family: IpFamily;
  /** `spec.healthCheckNodePort`; 0: the Service has none (any more). */
  readonly port: number;
  /** Ready endpoints of the family on this node; each address counts once. */
  readonly localEndpoints: number;
}

/**
 * The health check node ports of one Service: at most one entry a family, none for a family in which
 * all of its load balancer VIPs are refused on this node, for then nobody should send it traffic.
 * Before the load balancer has a VIP there is an entry, as in kube-proxy.
 * @param refused keys of `VipLedger.refusals`.
 */
export function serviceHealth(
  serviceKey: ObjectKey,
  ports: readonly ServedPort[],
  refused: ReadonlyMap<string, unknown>,
  slices: readonly EndpointSlice[],
  nodeName: string,
): ServiceHealth[] {
  const isReached = ({ id, loadBalancerIPs }: ServedPort) =>
    loadBalancerIPs.length === 0 || loadBalancerIPs.some((vip) => !refused.has(grantKey(id, vip)));
  return IP_FAMILIES.flatMap((family) => {
    const served = ports.find(
      (port) => port.family === family && port.healthCheckNodePort > 0 && isReached(port),
    );
    if (served === undefined) return [];
    const isAllPorts = served.match.kind !== 'port';
    const localEndpoints = countLocalReady(slices, family, isAllPorts, nodeName);
    return [{ serviceKey, family, port: served.healthCheckNodePort, localEndpoints }];
  });
}
