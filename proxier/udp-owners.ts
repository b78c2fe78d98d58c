/** Routes with owned UDP ports by the address of an owner, to find pods that own one port by several Services. */
import { setList } from '../api/collections.ts';
import type { ObjectKey } from '../api/objects.ts';
import { type PortRange, rangesOverlap } from '../api/ports.ts';
import type { Route } from '../services/route.ts';
import { winnerText } from '../services/vip-conflicts.ts';
import { spokenPorts } from '../traffic/plan.ts';

export class UdpOwners {
  /** By id. */
  readonly #routes = new Map<string, Route>();
  /** Ids of Routes by the address of an owner. */
  readonly #idsByAddress = new Map<string, readonly string[]>();

  /** Routes by which the endpoint with an address owns UDP ports. */
  routesOf(address: string): readonly Route[] {
    return this.#idsOf(address).flatMap((id) => this.#routes.get(id) ?? []);
  }

  /**
   * Indexes an added, changed or removed Route.
   * @returns other Services that share an owner with the Route: `winners` of their Routes may have changed.
   */
  replaceRoute(before: Route | undefined, after: Route | undefined): Set<ObjectKey> {
    const id = after?.id ?? before?.id ?? '';
    const [old, now] = [before, after].map((route) => new Set(ownersOfUdp(route)));
    if (after === undefined || now?.size === 0) this.#routes.delete(id);
    else this.#routes.set(id, after);
    for (const address of old ?? []) {
      if (now?.has(address)) continue;
      const others = this.#idsOf(address).filter((other) => other !== id);
      setList(this.#idsByAddress, address, others);
    }
    for (const address of now ?? []) {
      if (old?.has(address)) continue;
      this.#idsByAddress.set(address, this.#idsOf(address).concat(id));
    }
    const sharing = new Set<ObjectKey>();
    for (const address of [...(old ?? []), ...(now ?? [])]) {
      if (this.#idsOf(address).every((other) => other === id)) continue;
      for (const other of this.routesOf(address))
        if (other.id !== id) sharing.add(other.serviceKey);
    }
    return sharing;
  }

  #idsOf(address: string): readonly string[] {
    return this.#idsByAddress.get(address) ?? [];
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
