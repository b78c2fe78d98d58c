/**
 * Session affinity is noted by packets, in maps from client and VIP to endpoint. Where an endpoint
 * goes, whatever leads clients to it has to be looked for there.
 */

import { addressBytes } from '../netlink/core/address.ts';
import type { NftElement } from '../netlink/nftables/types.ts';
import { portKey } from '../nft/keys.ts';
import { type Dispatch, type TrafficPlan, trafficPlan } from '../traffic/plan.ts';
import { endpointData } from './keys.ts';
import { AFFINITY_MAP, allPortsAffinityMap } from './maps.ts';
import type { PlannedRoute } from './plan.ts';

/** What may be remembered at a VIP (and port). */
export interface AffinityTargets {
  /** As maps have them, in latin1. */
  readonly endpoints: ReadonlySet<string>;
  /** Clients outside are led to some of them only. */
  readonly isLocal: boolean;
  readonly seconds: number;
}

/**
 * By affinity map, and by VIP (and port), the rest of its keys behind the client's address; of node
 * ports only the port, for the address is any of the node.
 */
export type AffinityTargetIndex = ReadonlyMap<string, ReadonlyMap<string, AffinityTargets>>;

/** What may stay remembered of these Routes. */
export function affinityTargets(placed: Iterable<PlannedRoute>): AffinityTargetIndex {
  const loyalties = new Map<string, Map<string, AffinityTargets>>();
  for (const { route, sharing } of placed) {
    if (route.affinitySeconds === 0) continue;
    for (const [map, key, loyalty] of affinityKeysOf(trafficPlan(route, false), sharing)) {
      const inMap = loyalties.get(map) ?? new Map<string, AffinityTargets>();
      loyalties.set(map, inMap.set(key, loyalty));
    }
  }
  return loyalties;
}

/**
 * What of `before` some endpoint is gone from, with those that may stay. None may where clients
 * would be remembered for longer than they are to be by now, as in kube-proxy.
 */
export function changedAffinityTargets(
  before: AffinityTargetIndex,
  after: AffinityTargetIndex,
): AffinityTargetIndex {
  const broken = new Map<string, Map<string, AffinityTargets>>();
  for (const [map, keys] of before) {
    for (const [key, was] of keys) {
      const now = after.get(map)?.get(key);
      const mayStay = now && now.isLocal === was.isLocal && now.seconds >= was.seconds;
      if (mayStay && [...was.endpoints].every((endpoint) => now.endpoints.has(endpoint))) continue;
      const inMap = broken.get(map) ?? new Map<string, AffinityTargets>();
      broken.set(map, inMap.set(key, mayStay ? now : { ...was, endpoints: new Set() }));
    }
  }
  return broken;
}

/** Whether an element of an affinity map leads to where nobody should be led any more. */
export function isStaleAffinity(
  { key, data }: NftElement,
  loyalties: ReadonlyMap<string, AffinityTargets>,
  addressLength: number,
  unknown: boolean,
): boolean {
  const behindClient = key.toString('latin1', addressLength);
  const left = loyalties.get(behindClient) ?? loyalties.get(behindClient.slice(addressLength));
  if (left === undefined) return unknown;
  return !Buffer.isBuffer(data) || !left.endpoints.has(data.toString('latin1'));
}

function* affinityKeysOf(
  { match, vips, nodePort, affinitySeconds: seconds }: TrafficPlan,
  sharing: PlannedRoute['sharing'],
): Iterable<readonly [map: string, key: string, loyalty: AffinityTargets]> {
  const loyaltyTo = ({ podsAndNode, others }: Dispatch): AffinityTargets => {
    const endpoints = [...(podsAndNode?.endpoints ?? []), ...others.endpoints];
    const texts = endpoints.map((endpoint) => endpointData(endpoint).toString('latin1'));
    return { endpoints: new Set(texts), isLocal: podsAndNode !== undefined, seconds };
  };
  for (const { vip, dispatch } of vips) {
    const address = addressBytes(vip);
    const loyalty = loyaltyTo(dispatch);
    if (match.kind === 'port') {
      const key = Buffer.concat([address, portKey(match.protocol, match.port)]);
      yield [AFFINITY_MAP, key.toString('latin1'), loyalty];
    } else {
      yield [allPortsAffinityMap(sharing.get(vip)?.slot ?? 0), address.toString('latin1'), loyalty];
    }
  }
  if (nodePort !== undefined) {
    const key = portKey(nodePort.protocol, nodePort.port).toString('latin1');
    yield [AFFINITY_MAP, key, loyaltyTo(nodePort.dispatch)];
  }
}
