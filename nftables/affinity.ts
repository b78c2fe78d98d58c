/**
 * Session affinity is noted by packets, in maps from client and VIP to endpoint. Where an endpoint
 * goes, whatever leads clients to it has to be looked for there.
 */

import { addressBytes } from '../netlink/core/address.ts';
import type { NftElement } from '../netlink/nftables/types.ts';
import { portKey } from '../nft/keys.ts';
import { type TrafficPlan, type Treatment, trafficPlan } from '../traffic/plan.ts';
import { endpointBytes } from './keys.ts';
import { AFFINITY, ipAffinity } from './maps.ts';
import type { Placed } from './plan.ts';

/** What may be remembered at a VIP (and port). */
export interface Loyalty {
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
export type Loyalties = ReadonlyMap<string, ReadonlyMap<string, Loyalty>>;

/** What may stay remembered of these Routes. */
export function loyaltiesOf(placed: Iterable<Placed>): Loyalties {
  const loyalties = new Map<string, Map<string, Loyalty>>();
  for (const { route, places } of placed) {
    if (route.affinitySeconds === 0) continue;
    for (const [map, key, loyalty] of keysOf(trafficPlan(route, false), places)) {
      const inMap = loyalties.get(map) ?? new Map<string, Loyalty>();
      loyalties.set(map, inMap.set(key, loyalty));
    }
  }
  return loyalties;
}

/**
 * What of `before` some endpoint is gone from, with those that may stay. None may where clients
 * would be remembered for longer than they are to be by now, as in kube-proxy.
 */
export function brokenLoyalties(before: Loyalties, after: Loyalties): Loyalties {
  const broken = new Map<string, Map<string, Loyalty>>();
  for (const [map, keys] of before) {
    for (const [key, was] of keys) {
      const now = after.get(map)?.get(key);
      const mayStay = now && now.isLocal === was.isLocal && now.seconds >= was.seconds;
      if (mayStay && [...was.endpoints].every((endpoint) => now.endpoints.has(endpoint))) continue;
      const inMap = broken.get(map) ?? new Map<string, Loyalty>();
      broken.set(map, inMap.set(key, mayStay ? now : { ...was, endpoints: new Set() }));
    }
  }
  return broken;
}

/** Whether an element of an affinity map leads to where nobody should be led any more. */
export function isBroken(
  { key, data }: NftElement,
  loyalties: ReadonlyMap<string, Loyalty>,
  addressLength: number,
  unknown: boolean,
): boolean {
  const behindClient = key.toString('latin1', addressLength);
  const left = loyalties.get(behindClient) ?? loyalties.get(behindClient.slice(addressLength));
  if (left === undefined) return unknown;
  return !Buffer.isBuffer(data) || !left.endpoints.has(data.toString('latin1'));
}

function* keysOf(
  { match, vips, nodePort, affinitySeconds: seconds }: TrafficPlan,
  places: Placed['places'],
): Iterable<readonly [map: string, key: string, loyalty: Loyalty]> {
  const loyaltyTo = ({ inside, others }: Treatment): Loyalty => {
    const endpoints = [...(inside?.endpoints ?? []), ...others.endpoints];
    const texts = endpoints.map((endpoint) => endpointBytes(endpoint).toString('latin1'));
    return { endpoints: new Set(texts), isLocal: inside !== undefined, seconds };
  };
  for (const { vip, treatment } of vips) {
    const address = addressBytes(vip);
    const loyalty = loyaltyTo(treatment);
    if (match.kind === 'port') {
      const key = Buffer.concat([address, portKey(match.protocol, match.port)]);
      yield [AFFINITY, key.toString('latin1'), loyalty];
    } else {
      yield [ipAffinity(places.get(vip)?.slot ?? 0), address.toString('latin1'), loyalty];
    }
  }
  if (nodePort !== undefined) {
    const key = portKey(nodePort.protocol, nodePort.port).toString('latin1');
    yield [AFFINITY, key, loyaltyTo(nodePort.treatment)];
  }
}
