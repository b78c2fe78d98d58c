/**
 * The chains that elements of the maps lead to. There is one for each way that packets may be
 * treated, the number of endpoints included, and none for a Service: a hundred Services with three
 * endpoints each share a chain.
 */

import { getOrCreate } from '../api/collections.ts';
import type { IpFamily } from '../api/objects.ts';
import { PROTOCOLS } from '../api/objects.ts';
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
import { foreignClients, type LocalDetector, type TrafficOptions } from '../traffic/options.ts';
import type { Serving, Treatment } from '../traffic/plan.ts';
import { AFFINITY, ipAffinity, type MapName } from './maps.ts';

/** What chains depend on besides Services. */
export interface ChainOptions extends TrafficOptions {
  /** 0 to 31. */
  readonly masqueradeBit: number;
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

/** Where packets come from that are to draw an endpoint. */
type Origin = Pick<Choice, 'kind' | 'slot' | 'isSticky'>;

/** Treats clients as they are to be; undefined: none is served. */
export function treatmentChain(
  { inside, others, masquerade }: Treatment,
  origin: Origin,
  options: ChainOptions,
): Chain | undefined {
  const choice = choiceOf(others, origin);
  if (inside === undefined) return choice && drawChain(choice, masquerade, options);
  const insideChoice = choiceOf(inside, origin);
  if (choice === undefined && insideChoice === undefined) return undefined;
  return localChain(insideChoice, choice, options);
}

function choiceOf({ set, endpoints }: Serving, origin: Origin): Choice | undefined {
  const count = endpoints.length;
  return count === 0 ? undefined : { ...origin, count, isLocal: set === 'local' };
}

const DRAW_NAMES = { foreign: 'internal', everybody: 'external', node: 'pick' } as const;

/**
 * Draws an endpoint.
 * @param masquerade `node`: the node's own packets were marked on their way here.
 */
export function drawChain(
  choice: Choice,
  masquerade: Treatment['masquerade'],
  options: ChainOptions,
): Chain {
  return named(`${DRAW_NAMES[masquerade]}-${choiceName(choice)}`, options, () => {
    const { rules, ...rest } = draw(choice, options.family);
    return { rules: [...marks(masquerade, options), ...rules], ...rest, leadsTo: [] };
  });
}

/** Where those inside are served apart: pods keep their address, the node's own traffic cannot. */
export function localChain(
  cluster: Choice | undefined,
  local: Choice | undefined,
  options: ChainOptions,
): Chain {
  const names = [cluster, local].map((choice) => (choice ? choiceName(choice) : 'none'));
  return named(`local-${names.join('-')}`, options, () => {
    const inside = cluster && drawChain(cluster, 'node', options);
    const { localDetector } = options;
    const { rules, ...rest } = local ? draw(local, options.family) : { rules: [] };
    return {
      rules: [
        ...(inside && localDetector
          ? [[isPod(localDetector, true, options), goTo(inside.name)]]
          : []),
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

function marks(masquerade: Treatment['masquerade'], options: ChainOptions): Rule[] {
  if (masquerade === 'node') return [];
  const marked = mark(options.masqueradeBit);
  const clients = masquerade === 'foreign' ? foreignClients(options) : masquerade;
  if (clients === 'nobody') return [];
  return clients === 'everybody' ? [[marked]] : [[isPod(clients, false, options), marked]];
}

/** Packets of pods, or all others. */
function isPod(detector: LocalDetector, is: boolean, { family }: ChainOptions): Part {
  if (detector.kind === 'cidr') return partsOf(family).sourceIs(detector.cidr, !is);
  // iptables ends a prefix in a plus, nft in an asterisk.
  return comesBy(detector.name.replace(/\+$/, '*'), !is);
}
