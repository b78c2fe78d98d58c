/** Conflicts between node ports and listed ports of VIPs. */
import type { Protocol } from '../api/objects.ts';
import type { Route } from '../services/route.ts';

/**
 * If a VIP is also a node address, its listed ports take precedence over node ports. IPVS has only
 * one service per address and port, so the Route with the node port must not add its endpoints to
 * the service of the VIP. Most Routes have neither a node port nor such a VIP.
 */
export class NodePortConflicts {
  /** Number of Routes that list this port on this VIP; cluster IPs are not counted. */
  readonly #vips = new Map<string, number>();
  /** Route id by protocol and node port; the API server allocates each node port once. */
  readonly #routes = new Map<string, string>();

  isVipPort(ip: string, protocol: Protocol, port: number): boolean {
    return this.#vips.has(`${protocol} ${port} ${ip}`);
  }

  /**
   * Replaces one Route by another.
   * @returns ids of Routes whose node port may have become free or taken.
   */
  replace(before: Route | undefined, after: Route | undefined): string[] {
    if (before === after) return [];
    const affected = [...this.#change(before, -1), ...this.#change(after, 1)];
    const nodePort = nodePortOf(before);
    if (nodePort !== undefined) this.#routes.delete(nodePort);
    if (after !== undefined) {
      const now = nodePortOf(after);
      if (now !== undefined) this.#routes.set(now, after.id);
    }
    return affected.flatMap((key) => this.#routes.get(key) ?? []);
  }

  /**
   * Records or removes the listed ports of a Route.
   * @returns node ports that a VIP may now take or no longer take.
   */
  #change(route: Route | undefined, by: 1 | -1): string[] {
    if (route?.match.kind !== 'port') return [];
    const { protocol, port } = route.match;
    for (const ip of [...route.externalIPs, ...route.loadBalancerIPs]) {
      const key = `${protocol} ${port} ${ip}`;
      const count = (this.#vips.get(key) ?? 0) + by;
      if (count === 0) this.#vips.delete(key);
      else this.#vips.set(key, count);
    }
    return [`${protocol} ${port}`];
  }
}

function nodePortOf(route: Route | undefined): string | undefined {
  if (route?.match.kind !== 'port' || route.nodePort === 0) return undefined;
  return `${route.match.protocol} ${route.nodePort}`;
}
