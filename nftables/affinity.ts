/**
 * Finds stale session affinity. The kernel writes affinity entries while it handles packets, in maps
 * from client and VIP to endpoint. When an endpoint is removed, its entries must be found and deleted.
 */

import { addressBytes } from '../netlink/core/address.ts';
import type { NftElement } from '../netlink/nftables/types.ts';
import { portKey } from '../nft/keys.ts';
import { type Dispatch, type TrafficPlan, trafficPlan } from '../traffic/plan.ts';
import { endpointData } from './keys.ts';
import { AFFINITY_MAP, allPortsAffinityMap } from './maps.ts';
import type { PlannedRoute } from './plan.ts';

/** The endpoints that affinity entries may refer to, for one VIP, one VIP and port, or one node port. */
export interface AffinityTargets {
  /** Map data of each endpoint, as a latin1 string. */
  readonly endpoints: ReadonlySet<string>;
  /** Whether externalTrafficPolicy is Local, so that external clients use a subset of the endpoints. */
  readonly isLocal: boolean;
  /** Session affinity timeout. */
  readonly seconds: number;
}

/**
 * Targets by affinity map, then by the part of the key that follows the client address: VIP and port, or VIP. For a
 * node port, this part is protocol and port only, because a client may use any node address.
 */
export type AffinityTargetIndex = ReadonlyMap<string, ReadonlyMap<string, AffinityTargets>>;

/** The targets of all given Routes that have session affinity. */
export function affinityTargets(plannedRoutes: Iterable<PlannedRoute>): AffinityTargetIndex {
  const index = new Map<string, Map<string, AffinityTargets>>();
  for (const { route, sharing } of plannedRoutes) {
    if (route.affinitySeconds === 0) continue;
    for (const [map, key, targets] of affinityKeysOf(trafficPlan(route, false), sharing)) {
      const inMap = index.get(map) ?? new Map<string, AffinityTargets>();
      index.set(map, inMap.set(key, targets));
    }
  }
  return index;
}

/**
 * The keys of `before` with an endpoint that is no longer valid, and the targets that remain valid. No target
 * remains valid if the affinity timeout got shorter, because existing entries keep the old timeout. No target
 * remains valid if externalTrafficPolicy changed, because entries do not record whether the client is external.
 */
export function changedAffinityTargets(
  before: AffinityTargetIndex,
  after: AffinityTargetIndex,
): AffinityTargetIndex {
  const changed = new Map<string, Map<string, AffinityTargets>>();
  for (const [map, keys] of before) {
    for (const [key, old] of keys) {
      const now = after.get(map)?.get(key);
      const isComparable = now && now.isLocal === old.isLocal && now.seconds >= old.seconds;
      const hasEndpoint = (endpoint: string) => now?.endpoints.has(endpoint) === true;
      if (isComparable && [...old.endpoints].every(hasEndpoint)) continue;
      const inMap = changed.get(map) ?? new Map<string, AffinityTargets>();
      changed.set(map, inMap.set(key, isComparable ? now : { ...old, endpoints: new Set() }));
    }
  }
  return changed;
}

/**
 * Whether an affinity entry names an endpoint that is not a target of its VIP.
 * @param targets by the part of the key that follows the client address.
 * @param addressLength bytes of an address in this family.
 * @param deletesUnknown the result for an entry of a VIP without targets.
 */
export function isStaleAffinity(
  { key, data }: NftElement,
  targets: ReadonlyMap<string, AffinityTargets>,
  addressLength: number,
  deletesUnknown: boolean,
): boolean {
  const vipKey = key.toString('latin1', addressLength);
  const valid = targets.get(vipKey) ?? targets.get(vipKey.slice(addressLength));
  if (valid === undefined) return deletesUnknown;
  return !Buffer.isBuffer(data) || !valid.endpoints.has(data.toString('latin1'));
}

function* affinityKeysOf(
  { match, vips, nodePort, affinitySeconds: seconds }: TrafficPlan,
  sharing: PlannedRoute['sharing'],
): Iterable<readonly [map: string, key: string, targets: AffinityTargets]> {
  const targetsOf = ({ podsAndNode, others }: Dispatch): AffinityTargets => {
    const endpoints = [...(podsAndNode?.endpoints ?? []), ...others.endpoints];
    const texts = endpoints.map((endpoint) => endpointData(endpoint).toString('latin1'));
    return { endpoints: new Set(texts), isLocal: podsAndNode !== undefined, seconds };
  };
  for (const { vip, dispatch } of vips) {
    const address = addressBytes(vip);
    const targets = targetsOf(dispatch);
    if (match.kind === 'port') {
      const key = Buffer.concat([address, portKey(match.protocol, match.port)]);
      yield [AFFINITY_MAP, key.toString('latin1'), targets];
    } else {
      yield [allPortsAffinityMap(sharing.get(vip)?.slot ?? 0), address.toString('latin1'), targets];
    }
  }
  if (nodePort !== undefined) {
    const key = portKey(nodePort.protocol, nodePort.port).toString('latin1');
    yield [AFFINITY_MAP, key, targetsOf(nodePort.dispatch)];
  }
}
