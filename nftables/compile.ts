/**
 * One Route to its elements, see `skeleton.ts` for what packets make of them. All-ports Routes differ
 * in that no key and no DNAT has a port, so that the packet keeps its own.
 */

import { cidrContains } from '../api/addresses.ts';
import { addressBytes } from '../netlink/core/address.ts';
import type { NftElement, NftVerdict } from '../netlink/nftables/types.ts';
import { cidrBounds, hostCidr, portField, portKey } from '../nft/keys.ts';
import type { Match, Route } from '../services/route.ts';
import {
  ALLOWED,
  allowedChain,
  type Chain,
  type ChainOptions,
  type Choice,
  externalChain,
  firstIndex,
  internalChain,
  type LookupKind,
  localChain,
  REJECT,
  RESET_OR_DROP,
  rememberChain,
} from './chains.ts';
import type { Element } from './element.ts';
import { numberedEndpoints } from './keys.ts';
import { localhostReject } from './localhost.ts';
import type { MapName } from './maps.ts';

/** A Route, and what of its surroundings its elements depend on. */
export interface Placed {
  readonly route: Route;
  /** By VIP: see `Choice.slot`, and whether an all-ports Service is beside it. */
  readonly places: ReadonlyMap<string, Place>;
  /** This node is inside the source ranges: then its VIPs, as sources, are too. */
  readonly allowsOwnVips: boolean;
}

export interface Place {
  readonly slot: number;
  readonly isBesideAllPorts: boolean;
}

const ALONE: Place = { slot: 0, isBesideAllPorts: false };

const ACCEPT: NftVerdict = { kind: 'accept' };
const DROP: NftVerdict = { kind: 'drop' };
const REJECTED: NftVerdict = { kind: 'goto', chain: REJECT };

/** Elements, and the chains that they lead to. Equal input gives equal output, in equal order. */
export interface Compiled {
  readonly elements: readonly Element[];
  readonly chains: readonly Chain[];
}

export const NOTHING: Compiled = { elements: [], chains: [] };

export function compileRoute(
  { route, places, allowsOwnVips }: Placed,
  options: ChainOptions,
): Compiled {
  const { match, affinitySeconds, clusterEndpoints, localEndpoints } = route;
  const hasCluster = clusterEndpoints.length > 0;
  const hasLocal = localEndpoints.length > 0;
  const isRestricted = route.sourceRanges !== undefined && (hasCluster || hasLocal);
  const elements: Element[] = [];
  const chains: Chain[] = [];
  const add = (map: MapName, element: NftElement) => elements.push({ map, ...element });
  const goTo = (chain: Chain | undefined): NftVerdict => {
    if (chain === undefined) return ACCEPT;
    chains.push(chain);
    return { kind: 'goto', chain: chain.name };
  };

  const sets = { cluster: clusterEndpoints, local: localEndpoints };
  const choice = (set: keyof typeof sets, kind: LookupKind, slot: number): Choice | undefined => {
    const count = sets[set].length;
    if (count === 0) return undefined;
    return { kind, count, isLocal: set === 'local', slot, isSticky: affinitySeconds > 0 };
  };
  const internalSet = route.internalLocal ? 'local' : 'cluster';
  const externalSets = route.externalLocal
    ? (['cluster', 'local'] as const)
    : (['cluster'] as const);
  const internal = (kind: LookupKind, slot: number): Chain | undefined => {
    const some = choice(internalSet, kind, slot);
    return some && internalChain(some, options);
  };
  const external = (kind: LookupKind, slot: number): Chain | undefined => {
    const some = choice('cluster', kind, slot);
    if (!route.externalLocal) return some && externalChain(some, options);
    if (!hasCluster && !hasLocal) return undefined;
    return localChain(some, choice('local', kind, slot), options);
  };
  const internalFate = fate(route, sets[internalSet].length > 0, options);
  const externalFate = fate(route, route.externalLocal ? hasLocal : hasCluster, options);

  /** What endpoints there are to draw from, and from which on it is remembered. */
  const addEndpoints = (
    map: MapName,
    key: Buffer,
    slot: number,
    which: readonly (keyof typeof sets)[],
  ) => {
    for (const set of which) {
      const first = firstIndex({ isLocal: set === 'local', slot });
      for (const element of numberedEndpoints(key, first, sets[set])) add(map, element);
      for (const { address, isRemote } of sets[set]) {
        // A pod of another node has its traffic translated there. What it sends through this one
        // all the same is sent to an external VIP, and is masqueraded unless the policy is Local.
        if (isRemote === true && !route.externalLocal) continue;
        const bytes = addressBytes(address);
        add('hairpins', { key: Buffer.concat([bytes, bytes]) });
      }
    }
  };
  const sticky = (kind: LookupKind, slot: number, isBeside: boolean): NftVerdict | undefined => {
    if (affinitySeconds > 0) return goTo(rememberChain(kind, slot, affinitySeconds, options));
    return isBeside ? ACCEPT : undefined;
  };

  const addVip = (
    vip: string,
    which: readonly (keyof typeof sets)[],
    chainFor: (kind: LookupKind, slot: number) => Chain | undefined,
    verdict: NftVerdict | undefined,
  ) => {
    const address = addressBytes(vip);
    const { slot, isBesideAllPorts } = places.get(vip) ?? ALONE;
    const kind = match.kind === 'port' ? 'port' : 'ip';
    const chain = goTo(chainFor(kind, slot));
    const remember = sticky(kind, slot, isBesideAllPorts && match.kind !== 'all');
    if (match.kind === 'all') {
      add('service-ips', { key: address, data: chain });
      if (verdict) add('ip-fates', { key: address, data: verdict });
      if (remember) add('sticky-ips', { key: address, data: remember });
    } else if (match.kind === 'ranges') {
      for (const { protocol, from, to } of match.ranges) {
        const key = Buffer.concat([address, portKey(protocol, from)]);
        const keyEnd = Buffer.concat([address, portKey(protocol, to)]);
        add('service-ranges', { key, keyEnd, data: chain });
        if (verdict) add('range-fates', { key, keyEnd, data: verdict });
        if (remember) add('sticky-ranges', { key, keyEnd, data: remember });
      }
      add('ranged-ips', { key: address });
    } else {
      const key = Buffer.concat([address, portKey(match.protocol, match.port)]);
      add('service-ports', { key, data: chain });
      if (verdict) add('port-fates', { key, data: verdict });
      if (remember) add('sticky-ports', { key, data: remember });
      addEndpoints('endpoints', key, 0, which);
      return;
    }
    addEndpoints('endpoint-ips', address, slot, which);
  };

  const { clusterIP } = route;
  if (clusterIP !== undefined) {
    addVip(clusterIP, [internalSet], internal, internalFate);
    if (match.kind === 'port') add('cluster-ips', { key: addressBytes(clusterIP) });
  }
  for (const vip of route.externalIPs) addVip(vip, externalSets, external, externalFate);
  const allowed = (kind: LookupKind, slot: number) => {
    const chain = external(kind, slot);
    return chain && allowedChain(chain, match.kind, options);
  };
  for (const vip of route.loadBalancerIPs) {
    if (isRestricted) {
      addVip(vip, externalSets, allowed, DROP);
      const own = allowsOwnVips ? route.loadBalancerIPs.map(hostCidr) : [];
      for (const cidr of outermost([...(route.sourceRanges ?? []), ...own])) {
        for (const element of allowedElements(vip, match, cidr)) elements.push(element);
      }
    } else addVip(vip, externalSets, external, externalFate);
    // Load balancers that pass packets through probe the VIP itself; that port stays with the node.
    if (match.kind !== 'port' && route.healthCheckNodePort > 0) {
      const key = Buffer.concat([addressBytes(vip), portField(route.healthCheckNodePort)]);
      add('health-ports', { key });
    }
  }
  if (route.nodePort > 0 && match.kind === 'port') {
    const key = portKey(match.protocol, route.nodePort);
    const chain = external('node-port', 0);
    if (chain) add('node-ports', { key, data: goTo(chain) });
    if (externalFate) add('node-port-fates', { key, data: externalFate });
    const remember = sticky('node-port', 0, false);
    if (remember) add('sticky-node-ports', { key, data: remember });
    addEndpoints('node-port-endpoints', key, 0, externalSets);
    const reject = options.rejectsOnLocalhost && localhostReject(route);
    if (reject) elements.push(reject);
  }
  return { elements, chains };
}

/** Fate of packets that were not translated: kube-proxy rejects where there is no endpoint at all. */
function fate(
  route: Route,
  isServed: boolean,
  { resetsTcp }: ChainOptions,
): NftVerdict | undefined {
  if (isServed) return route.match.kind === 'port' ? undefined : REJECTED;
  if (!route.hasEndpointsAnywhere) return REJECTED;
  return resetsTcp ? { kind: 'goto', chain: RESET_OR_DROP } : DROP;
}

/** Ranges in a set may not overlap. */
function outermost(cidrs: readonly string[]): string[] {
  const unique = [...new Set(cidrs)];
  const [bits, host] = [
    (cidr: string) => Number(cidr.split('/')[1]),
    (cidr: string) => cidr.split('/')[0] ?? '',
  ];
  return unique.filter(
    (cidr) => !unique.some((other) => bits(other) < bits(cidr) && cidrContains(other, host(cidr))),
  );
}

function allowedElements(vip: string, match: Match, cidr: string): Element[] {
  const address = addressBytes(vip);
  const [first, last] = cidrBounds(cidr);
  if (match.kind === 'all') {
    const key = Buffer.concat([address, first]);
    return [{ map: ALLOWED.all, key, keyEnd: Buffer.concat([address, last]) }];
  }
  const ranges =
    match.kind === 'ranges'
      ? match.ranges
      : [{ protocol: match.protocol, from: match.port, to: match.port }];
  return ranges.map(({ protocol, from, to }) => ({
    map: ALLOWED[match.kind],
    key: Buffer.concat([address, portKey(protocol, from), first]),
    keyEnd: Buffer.concat([address, portKey(protocol, to), last]),
  }));
}
