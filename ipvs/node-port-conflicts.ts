/** Node ports that yield to the listed ports of VIPs. */
import type { Protocol } from '../api/objects.ts';
import type { Route } from '../services/route.ts';

/**
 * Where a VIP is the node's own address, its listed ports win over node ports. IPVS has one service for
 * both, so the Route with the node port must not add its endpoints to it. Most Routes have neither.
 */
export class NodePortConflicts {
  /** How many Routes list this port of a VIP that is no cluster IP. */
  readonly #vips = new Map<string, number>();
  /** By protocol and node port, which the API server gives once: the id of the Route. */
  readonly #routes = new Map<string, string>();

  isVipPort(ip: string, protocol: Protocol, port: number): boolean {
    return this.#vips.has(`${protocol} ${port} ${ip}`);
  }

  /** One Route in the place of another. @returns ids of Routes whose node port may be free or taken now. */
  replace(before: Route | undefined, after: Route | undefined): string[] {
    if (before === after) return [];
    const concerned = [...this.#change(before, -1), ...this.#change(after, 1)];
    const nodePort = nodePortOf(before);
    if (nodePort !== undefined) this.#routes.delete(nodePort);
    if (after !== undefined) {
      const now = nodePortOf(after);
      if (now !== undefined) this.#routes.set(now, after.id);
    }
    return concerned.flatMap((key) => this.#routes.get(key) ?? []);
  }

  /** @returns node ports that a VIP has, or has no more. */
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
