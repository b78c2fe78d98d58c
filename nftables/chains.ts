/**
 * The chains that elements of the maps lead to. There is one for each way that packets may be
 * treated, the number of endpoints included, and none for a Service: a hundred Services with three
 * endpoints each share a chain.
 */

import { getOrCreate } from '../api/collections.ts';
import type { IpFamily } from '../api/objects.ts';
import { PROTOCOLS } from '../api/objects.ts';
import type { LocalDetector } from '../iptables/compile.ts';
import {
  comesBy,
  goTo,
  IS_FROM_NODE,
  type Key,
  mark,
  type Part,
  partsOf,
  protocolIs,
  type Rule,
} from '../nft/rule.ts';
import type { Match } from '../services/route.ts';
import { AFFINITY, ipAffinity, type MapName } from './maps.ts';

/** What chains depend on besides Services. */
export interface ChainOptions {
  readonly family: IpFamily;
  readonly masqueradeAll: boolean;
  /** 0 to 31. */
  readonly masqueradeBit: number;
  readonly localDetector: LocalDetector | undefined;
  /** Packets of TCP connections whose endpoint was deleted are reset where no endpoint is left. */
  readonly resetsTcp: boolean;
  /** UDP and SCTP packets to node ports on the loopback address are rejected and counted. */
  readonly rejectsOnLocalhost: boolean;
}

/** A chain of table `portwide`. Equal names have equal rules. */
export interface Chain {
  readonly name: string;
  /** What the kernel calls it for, as nft says it; undefined: other chains lead to it. */
  readonly hook?: string;
  readonly rules: readonly Rule[];
  /** Chains that its rules lead to. */
  readonly leadsTo: readonly Chain[];
  /** A map that its rules need, which packets write. */
  readonly affinity?: string;
  /** A counter of the table that its rules name. */
  readonly counter?: string;
}

/** By what an endpoint is looked up: VIP and port, VIP alone (all-ports), node port. */
export type LookupKind = 'port' | 'ip' | 'node-port';

/** Some endpoints of a VIP or node port, of which one is to be drawn. */
export interface Choice {
  readonly kind: LookupKind;
  /** At least 1. */
  readonly count: number;
  /** Those of traffic policy Local are numbered apart. */
  readonly isLocal: boolean;
  /** Tells all-ports Services apart that share a VIP; 0 but for ranges. */
  readonly slot: number;
  readonly isSticky: boolean;
}

/** Numbers of endpoints on one VIP: those of each slot, and of the Local policy, begin anew. */
const LOCAL_INDEX = 2 ** 20;
const SLOT_INDEX = 2 ** 21;

/** The number of the first of these endpoints. */
export function firstIndex({ isLocal, slot }: Pick<Choice, 'isLocal' | 'slot'>): number {
  return slot * SLOT_INDEX + (isLocal ? LOCAL_INDEX : 0);
}

export const REJECT = 'reject-packet';
/** Only with `ChainOptions.resetsTcp`; otherwise a plain verdict drops. */
export const RESET_OR_DROP = 'reset-or-drop-packet';

/** Chains by name, for those options: making rules anew for each Route took longer than all else. */
const made = new WeakMap<ChainOptions, Map<string, Chain>>();

function named(name: string, options: ChainOptions, make: () => Omit<Chain, 'name'>): Chain {
  let chains = made.get(options);
  if (chains === undefined) {
    chains = new Map();
    made.set(options, chains);
  }
  return getOrCreate(chains, name, () => ({ name, ...make() }));
}

/** Draws an endpoint. */
export function pickChain(choice: Choice, options: ChainOptions): Chain {
  return named(`pick-${choiceName(choice)}`, options, () => ({
    ...draw(choice, options.family),
    leadsTo: [],
  }));
}

/** To a cluster IP: clients that are no pods would miss replies that came past this node. */
export function internalChain(choice: Choice, options: ChainOptions): Chain {
  return named(`internal-${choiceName(choice)}`, options, () => {
    const { rules, ...rest } = draw(choice, options.family);
    return { rules: [...markForeign(options), ...rules], ...rest, leadsTo: [] };
  });
}

/** From outside to any endpoint. */
export function externalChain(choice: Choice, options: ChainOptions): Chain {
  return named(`external-${choiceName(choice)}`, options, () => {
    const { rules, ...rest } = draw(choice, options.family);
    return { rules: [[mark(options.masqueradeBit)], ...rules], ...rest, leadsTo: [] };
  });
}

/**
 * externalTrafficPolicy Local. Pods and the node itself do not come from outside: they reach every
 * endpoint. Pods keep their address, the node's own traffic cannot.
 */
export function localChain(
  cluster: Choice | undefined,
  local: Choice | undefined,
  options: ChainOptions,
): Chain {
  const names = [cluster, local].map((choice) => (choice ? choiceName(choice) : 'none'));
  return named(`local-${names.join('-')}`, options, () => {
    const inside = cluster && pickChain(cluster, options);
    const pods = isPod(options, true);
    const { rules, ...rest } = local ? draw(local, options.family) : { rules: [] };
    return {
      rules: [
        ...(inside && pods ? [[pods, goTo(inside.name)]] : []),
        ...(inside ? [[IS_FROM_NODE, mark(options.masqueradeBit), goTo(inside.name)]] : []),
        ...rules,
      ],
      leadsTo: inside ? [inside] : [],
      ...rest,
    };
  });
}

/** Lets on only who is inside the source ranges; the others stay untranslated. */
export function allowedChain(chain: Chain, by: Match['kind'], options: ChainOptions): Chain {
  return named(`allowed-${by}-${chain.name}`, options, () => {
    const { source, isIn } = partsOf(options.family);
    const key = [...keyOf(by === 'all' ? 'ip' : 'port', options.family), source];
    return { rules: [[isIn(key, ALLOWED[by]), goTo(chain.name)]], leadsTo: [chain] };
  });
}

/** Where it stands who may use a VIP. */
export const ALLOWED: Readonly<Record<Match['kind'], MapName>> = {
  port: 'allowed-ports',
  ranges: 'allowed-ranges',
  all: 'allowed-ips',
};

/** Notes which endpoint serves a client, and that it was seen. */
export function rememberChain(
  kind: LookupKind,
  slot: number,
  seconds: number,
  options: ChainOptions,
): Chain {
  const affinity = affinityOf(kind, slot);
  return named(`remember-${affinity}-${seconds}`, options, () => {
    const parts = partsOf(options.family);
    const client = [parts.source, parts.originalVip];
    const withPort = [...client, parts.protocol, parts.originalPort];
    const rules: Rule[] =
      kind === 'ip'
        ? [[parts.remember(affinity, client, [parts.endpoint], seconds)]]
        : PROTOCOLS.map((protocol) => [
            // nft must know the protocol to know what a port is.
            protocolIs(protocol),
            parts.remember(affinity, withPort, [parts.endpoint, parts.endpointPort], seconds),
          ]);
    return { rules, leadsTo: [], affinity };
  });
}

/**
 * Whether nft may be asked to write this chain's rules: 1.0.6 dies of those that note session
 * affinity with IPv6 ("Assertion dreg < ctx->reg_low").
 */
export function isForNft({ name }: Chain): boolean {
  return !name.startsWith('remember-');
}

/** A chain, and all that it leads to, those first. */
export function withNeeds(chain: Chain): Chain[] {
  return [...chain.leadsTo.flatMap(withNeeds), chain];
}

function affinityOf(kind: LookupKind, slot: number): string {
  return kind === 'ip' ? ipAffinity(slot) : AFFINITY;
}

function choiceName({ kind, count, isLocal, slot, isSticky }: Choice): string {
  const parts = [kind, count, isLocal && 'local', slot > 0 && `slot${slot}`, isSticky && 'sticky'];
  return parts.filter((part) => part !== false).join('-');
}

function keyOf(kind: LookupKind, family: IpFamily): Key {
  const { destination, protocol, port } = partsOf(family);
  if (kind === 'ip') return [destination];
  return kind === 'port' ? [destination, protocol, port] : [protocol, port];
}

const ENDPOINTS: Readonly<Record<LookupKind, MapName>> = {
  port: 'endpoints',
  ip: 'endpoint-ips',
  'node-port': 'node-port-endpoints',
};

/**
 * A transaction is one moment to each lookup, but not to a packet between two of them: it may have
 * been sent here when there were more endpoints than the next lookup finds. The first is there as
 * long as there is one.
 */
function draw(choice: Choice, family: IpFamily): Pick<Chain, 'rules' | 'affinity'> {
  const { kind, count, slot, isSticky } = choice;
  const { source, destination, protocol, port, lot, translate } = partsOf(family);
  const isPortKept = kind === 'ip';
  const drawn = (among: number) => {
    const key = [...keyOf(kind, family), lot(among, firstIndex(choice))];
    return [translate(key, ENDPOINTS[kind], isPortKept)];
  };
  const rules = count > 1 ? [drawn(count), drawn(1)] : [drawn(1)];
  if (!isSticky) return { rules };
  const affinity = affinityOf(kind, slot);
  const client = [source, destination, ...(isPortKept ? [] : [protocol, port])];
  return { rules: [[translate(client, affinity, isPortKept)], ...rules], affinity };
}

function markForeign(options: ChainOptions): Rule[] {
  const marked = mark(options.masqueradeBit);
  if (options.masqueradeAll) return [[marked]];
  const foreign = isPod(options, false);
  return foreign === undefined ? [] : [[foreign, marked]];
}

/** Packets of pods, or all others; undefined: pods cannot be told. */
function isPod({ localDetector, family }: ChainOptions, is: boolean): Part | undefined {
  if (localDetector === undefined) return undefined;
  if (localDetector.kind === 'cidr') return partsOf(family).sourceIs(localDetector.cidr, !is);
  // iptables ends a prefix in a plus, nft in an asterisk.
  return comesBy(localDetector.name.replace(/\+$/, '*'), !is);
}
