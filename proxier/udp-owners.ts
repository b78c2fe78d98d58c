/** Routes with owned UDP ports by the address of an owner, to find pods that own one port by several Services. */
import type { ObjectKey } from '../api/objects.ts';
import { type PortRange, rangesOverlap } from '../api/ports.ts';
import type { Route } from '../services/route.ts';
import { winnerText } from '../services/vip-conflicts.ts';
import { spokenPorts } from '../traffic/plan.ts';

export class UdpOwners {
  readonly #routes = new Map<string, readonly Route[]>();

  /** Routes by which the endpoint with an address owns UDP ports. */
  routesOf(address: string): readonly Route[] {
    return this.#routes.get(address) ?? [];
  }

  /**
   * Indexes an added, changed or removed Route.
   * @returns other Services that share an owner with the Route: `winners` of their Routes may have changed.
   */
  replaceRoute(before: Route | undefined, after: Route | undefined): Set<ObjectKey> {
    const sharing = new Set<ObjectKey>();
    const replace = (route: Route | undefined, isPresent: boolean) => {
      for (const address of ownersOfUdp(route)) {
        const others = this.routesOf(address).filter(({ id }) => id !== route?.id);
        for (const { serviceKey } of others) sharing.add(serviceKey);
        const all = isPresent && route !== undefined ? [...others, route] : others;
        if (all.length > 0) this.#routes.set(address, all);
        else this.#routes.delete(address);
      }
    };
    replace(before, false);
    replace(after, true);
    return sharing;
  }

  /**
   * Services with precedence that give a UDP port of the Route to its owner too, each with its `winnerText`. The owner
   * sends from it as their VIP only.
   */
  winners(route: Route): Map<ObjectKey, string> {
    const winners = new Map<ObjectKey, string>();
    for (const address of ownersOfUdp(route)) {
      for (const other of this.routesOf(address)) {
        if (winners.has(other.serviceKey) || contender(other).priority >= contender(route).priority)
          continue;
        // Quick: most Services that share pods have ranges of their own.
        if (!rangesOverlap(udpRanges(other), udpRanges(route))) continue;
        if (rangesOverlap(spokenPorts(other, address), spokenPorts(route, address)))
          winners.set(other.serviceKey, winnerText(contender(other), contender(route)));
      }
    }
    return winners;
  }
}

function ownersOfUdp(route: Route | undefined): string[] {
  if (route?.owned?.udpVip === undefined || udpRanges(route).length === 0) return [];
  return route.owned.owners.map(({ address }) => address);
}

function udpRanges({ owned }: Route): readonly PortRange[] {
  return owned?.ranges.filter(({ protocol }) => protocol === 'UDP') ?? [];
}

function contender({ serviceKey, owned }: Route) {
  return { serviceKey, priority: owned?.priority ?? '' };
}
