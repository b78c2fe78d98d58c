/** Finds the Services that elements in the kernel name, for elements that no Service needs. */

import { getOrCreate } from '../api/collections.ts';
import type { IpFamily, ObjectKey, Protocol } from '../api/objects.ts';
import { addressFormatter } from '../netlink/core/address.ts';
import { protocolOf } from '../netlink/core/protocol.ts';
import { type Route, vipsOf } from '../services/route.ts';
import { BackgroundSlice } from '../sync/precedence.ts';
import type { MapElement } from './element.ts';
import { fieldWidth, isOwnerMap, mapSpec } from './maps.ts';
import type { NftPlan } from './plan.ts';

/** The VIP or owner, protocol and port in the key of an element; a key of a node port has no address. */
interface KeyFields {
  readonly vip: string | undefined;
  readonly protocol: Protocol | undefined;
  readonly port: number | undefined;
}

/**
 * Finds the Service of elements by VIP and port, by VIP or owner alone if only one Service has it, or by
 * node port.
 * @returns a function for these elements.
 * @throws the reason of the signal.
 */
export async function elementOwners(
  plan: Pick<NftPlan, 'appliedRoutes'>,
  elements: readonly MapElement[],
  family: IpFamily,
  signal: AbortSignal | undefined,
): Promise<(element: MapElement) => ObjectKey | undefined> {
  const fieldsOf = keyReader(family);
  const vips = new Set(elements.map((element) => fieldsOf(element)?.vip));
  const routesByVip = new Map<string, Route[]>();
  const routesByOwner = new Map<string, Route[]>();
  const servicesByNodePort = new Map<string, ObjectKey>();
  const slice = new BackgroundSlice(signal);
  for (const route of plan.appliedRoutes()) {
    for (const vip of vipsOf(route)) {
      if (vips.has(vip)) getOrCreate(routesByVip, vip, () => []).push(route);
    }
    for (const { address } of route.owned?.owners ?? []) {
      if (vips.has(address)) getOrCreate(routesByOwner, address, () => []).push(route);
    }
    if (route.nodePort > 0 && route.match.kind === 'port') {
      servicesByNodePort.set(`${route.match.protocol} ${route.nodePort}`, route.serviceKey);
    }
    if (slice.isOver()) await slice.yield();
  }
  return (element) => {
    const fields = fieldsOf(element);
    if (fields === undefined) return undefined;
    const { vip, protocol, port } = fields;
    if (vip === undefined) return servicesByNodePort.get(`${protocol} ${port}`);
    const routes = (isOwnerMap(element.map) ? routesByOwner : routesByVip).get(vip) ?? [];
    const exact = routes.filter(
      ({ match }) => match.kind === 'port' && match.protocol === protocol && match.port === port,
    );
    const services = new Set((exact.length > 0 ? exact : routes).map((each) => each.serviceKey));
    return services.size === 1 ? [...services][0] : undefined;
  };
}

function keyReader(family: IpFamily): (element: MapElement) => KeyFields | undefined {
  const formatAddress = addressFormatter();
  const width = fieldWidth('address', family);
  return ({ map, key }) => {
    const [first, second] = mapSpec(map).key;
    const at = first === 'address' ? width : 0;
    const hasPort = (first === 'address' ? second : first) === 'protocol';
    if (first !== 'address' && !hasPort) return undefined;
    return {
      vip: first === 'address' ? formatAddress(key, 0, width) : undefined,
      protocol: hasPort ? protocolOf(key[at] ?? 0) : undefined,
      port: hasPort ? key.readUInt16BE(at + 4) : undefined,
    };
  };
}
