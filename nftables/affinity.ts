/**
 * Session affinity is noted by packets, in maps from client and VIP to endpoint. Where an endpoint
 * goes, whatever leads clients to it has to be looked for there.
 */
import { addressBytes } from '../netlink/address.ts';
import type { NftElement } from '../netlink/nftables-types.ts';
import { type Route, vipsOf } from '../services/route.ts';
import type { Placed } from './compile.ts';
import { endpointBytes, portKey } from './keys.ts';
import { AFFINITY, ipAffinity } from './maps.ts';

/**
 * Which endpoints clients may be led to: by affinity map, and by VIP (and port), the rest of its keys
 * behind the client's address; of node ports only the port, for the address is any of the node.
 */
export type Loyalties = ReadonlyMap<string, ReadonlyMap<string, ReadonlySet<string>>>;

/** What may stay remembered of these Routes. */
export function loyaltiesOf(placed: Iterable<Placed>): Loyalties {
  const loyalties = new Map<string, Map<string, ReadonlySet<string>>>();
  for (const { route, places } of placed) {
    if (route.affinitySeconds === 0) continue;
    for (const [map, key, endpoints] of keysOf(route, places)) {
      const inMap = loyalties.get(map) ?? new Map<string, ReadonlySet<string>>();
      loyalties.set(map, inMap.set(key, endpoints));
    }
  }
  return loyalties;
}

/** What of `before` some endpoint is gone from, with those that may stay. */
export function brokenLoyalties(before: Loyalties, after: Loyalties): Loyalties {
  const broken = new Map<string, Map<string, ReadonlySet<string>>>();
  for (const [map, keys] of before) {
    for (const [key, endpoints] of keys) {
      const left = after.get(map)?.get(key) ?? new Set<string>();
      const isSame = isSamePolicy(endpoints, left);
      if (isSame && [...endpoints].every((endpoint) => left.has(endpoint))) continue;
      const inMap = broken.get(map) ?? new Map<string, ReadonlySet<string>>();
      broken.set(map, inMap.set(key, isSame ? left : new Set()));
    }
  }
  return broken;
}

/** Whether an element of an affinity map leads to where nobody should be led any more. */
export function isBroken(
  { key, data }: NftElement,
  loyalties: ReadonlyMap<string, ReadonlySet<string>>,
  addressLength: number,
  unknown: boolean,
): boolean {
  const behindClient = key.toString('latin1', addressLength);
  const left = loyalties.get(behindClient) ?? loyalties.get(behindClient.slice(addressLength));
  if (left === undefined) return unknown;
  return !Buffer.isBuffer(data) || !left.has(data.toString('latin1'));
}

/** Stands among the endpoints of VIPs from where clients outside are led to some endpoints only. */
const LOCAL = 'Local';

function isSamePolicy(a: ReadonlySet<string>, b: ReadonlySet<string>): boolean {
  return a.has(LOCAL) === b.has(LOCAL);
}

function* keysOf(
  route: Route,
  places: Placed['places'],
): Iterable<readonly [map: string, key: string, endpoints: ReadonlySet<string>]> {
  const { match, clusterIP, clusterEndpoints, localEndpoints } = route;
  const text = (endpoints: typeof clusterEndpoints) =>
    endpoints.map((endpoint) => endpointBytes(endpoint).toString('latin1'));
  const internal = new Set(text(route.internalLocal ? localEndpoints : clusterEndpoints));
  const external = new Set([
    ...text(clusterEndpoints),
    ...(route.externalLocal ? [...text(localEndpoints), LOCAL] : []),
  ]);
  for (const vip of vipsOf(route)) {
    const address = addressBytes(vip);
    const endpoints = vip === clusterIP ? internal : external;
    if (match.kind === 'port') {
      const key = Buffer.concat([address, portKey(match.protocol, match.port)]);
      yield [AFFINITY, key.toString('latin1'), endpoints];
    } else {
      yield [ipAffinity(places.get(vip)?.slot ?? 0), address.toString('latin1'), endpoints];
    }
  }
  if (route.nodePort > 0 && match.kind === 'port') {
    yield [AFFINITY, portKey(match.protocol, route.nodePort).toString('latin1'), external];
  }
}
