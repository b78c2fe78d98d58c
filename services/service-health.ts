/** The answers of health check node ports (`spec.healthCheckNodePort`). */
import { isDeepStrictEqual } from 'node:util';
import { type EndpointSlice, IP_FAMILIES, type IpFamily, type ObjectKey } from '../api/objects.ts';
import { countLocalReady } from '../endpoints/select.ts';
import type { ServedPort } from './served-ports.ts';
import { grantKey } from './vip-conflicts.ts';

/** The state of one Service's health check node port in one family. */
export interface ServiceHealth {
  readonly serviceKey: ObjectKey;
  readonly family: IpFamily;
  /** `spec.healthCheckNodePort`; 0 if the Service does not have this port or has lost it. */
  readonly port: number;
  /** Number of ready endpoints of the family on this node; each address counts once. */
  readonly localEndpoints: number;
  /** Whether the Service has no other family. */
  readonly isOnlyFamily: boolean;
}

/**
 * The health check node ports of one Service, at most one per family. If all load balancer VIPs of a family are
 * refused, the result omits the family, because this node serves none of its traffic. A family without load balancer
 * VIPs is not omitted, as in kube-proxy.
 * @param refused the result of `VipConflicts.refusals`; only its keys are used.
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
    const isOnlyFamily = ports.every((port) => port.family === family);
    return [{ serviceKey, family, port: served.healthCheckNodePort, localEndpoints, isOnlyFamily }];
  });
}

/** Changed health check node ports of one Service. A removed one has port 0. */
export function healthChanges(
  before: readonly ServiceHealth[],
  after: readonly ServiceHealth[],
): ServiceHealth[] {
  const removed = before
    .filter(({ family }) => !after.some((each) => each.family === family))
    .map((health) => ({ ...health, port: 0, localEndpoints: 0 }));
  const changed = after.filter(
    (health) => !before.some((other) => isDeepStrictEqual(health, other)),
  );
  return [...removed, ...changed];
}
