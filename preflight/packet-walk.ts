/**
 * What the rules of a base chain do to a test packet: the first of a connection, after DNAT. Matches that depend
 * on state of the node, such as sets and interfaces, are unknown, so a walk can have several possible endings.
 */
import { cidrContains, familyOf } from '../api/addresses.ts';
import type { Protocol } from '../api/objects.ts';
import { finish, type Steps } from '../api/steps.ts';
import { type Hook, PRIORITY } from '../netlink/nftables/hooks.ts';

export interface TestPacket {
  /** Canonical addresses of one family. */
  readonly source: string;
  /** Whether `source` only stands for its family; false by default. */
  readonly isSourceUnknown?: boolean;
  readonly destination: string;
  readonly port: number;
  /** Default: TCP. */
  readonly protocol?: Protocol;
  /** Whether the destination was translated; default: true. */
  readonly isTranslated?: boolean;
  /** Whether the interface is loopback; default: false, another interface, whose name is unknown. */
  readonly isLoopback?: boolean;
  /** Exempt from connection tracking; false by default. */
  readonly isUntracked?: boolean;
  /** Marked for masquerade by rules of Portwide; false by default. */
  readonly isMasqueraded?: boolean;
}

/** A condition of a rule. The packet has mark 0 until a rule of the same base chain may have set another. */
export type Match =
  | {
      readonly kind: 'source' | 'destination';
      readonly cidrs: readonly string[];
      readonly negated: boolean;
    }
  | { readonly kind: 'protocol'; readonly names: readonly string[]; readonly negated: boolean }
  | {
      readonly kind: 'port';
      readonly ranges: readonly (readonly [from: number, to: number])[];
      readonly negated: boolean;
    }
  /** Conntrack states. The packet is `untracked`, or `new`, and `dnat` if it is translated; before tracking it is `invalid`. */
  | { readonly kind: 'state'; readonly states: readonly string[]; readonly negated: boolean }
  | {
      readonly kind: 'mark';
      readonly value: number;
      readonly mask: number;
      readonly negated: boolean;
    }
  | { readonly kind: 'family'; readonly family: 'IPv4' | 'IPv6' }
  | { readonly kind: 'interface'; readonly name: string; readonly negated: boolean }
  /** The packet enters through another interface than that of the route back to its source. */
  | { readonly kind: 'reversePath'; readonly negated: boolean }
  | { readonly kind: 'masqueraded' }
  | { readonly kind: 'unknown' };

export type Verdict =
  | { readonly kind: 'accept' | 'drop' | 'masquerade' | 'return' | 'continue' }
  /** Sets the mark of the packet, and continues. */
  | { readonly kind: 'mark' }
  | { readonly kind: 'jump' | 'goto'; readonly chain: string };

export interface Rule {
  readonly matches: readonly Match[];
  readonly verdict: Verdict;
  /** How people find the rule in its chain, such as `rule 2 (handle 5)`. */
  readonly name?: string;
  /** Whether a drop sends an error to the source. */
  readonly isReject?: boolean;
  /** What the rule does is not known: its words. The verdict, a drop, is only possible. */
  readonly unknown?: string;
}

/** A chain at a hook of netfilter, with the chains of its table. */
export interface BaseChain {
  /** Such as `ip filter (iptables-nft)`. */
  readonly table: string;
  readonly chain: string;
  /** `other`: ingress or egress of an interface, or a bridge; a walk says nothing about packets there. */
  readonly hook: Hook | 'other';
  readonly priority: number;
  readonly policy: 'accept' | 'drop';
  readonly chains: ReadonlyMap<string, readonly Rule[]>;
}

export interface Ending {
  readonly verdict: 'accept' | 'drop' | 'masquerade';
  /** The chain that decides; with `policy`, by its policy. */
  readonly chain: string;
  readonly by: 'rule' | 'policy';
  /** The rule that decides; undefined for a policy. */
  readonly rule?: Rule;
}

/** What decides whether the rule of a possible ending does so. */
export function dependenceOf({ rule }: Ending): string {
  return rule?.unknown === undefined
    ? 'sets or interfaces'
    : `what is not evaluated: ${rule.unknown}`;
}

/** Interfaces that do not carry packets of pods: the bridges of Docker, libvirt and LXC. */
const OTHER_INTERFACES = /^(docker0|virbr\d+|lxcbr\d+|lxdbr\d+)$/;
/** The name ends with the wildcard of iptables or nft. */
const IS_PREFIX = /[+*]$/;

/** Hooks at which connection tracking begins. */
const TRACKING_HOOKS: readonly BaseChain['hook'][] = ['prerouting', 'output'];

/** Rules that one walk visits at most, so that a loop or a huge ruleset ends. */
const MAX_RULES = 100_000;
const MAX_DEPTH = 16;

/** As `walkSteps`, at once. */
export function walk(base: BaseChain, packet: TestPacket): Ending[] {
  return finish(walkSteps(base, packet));
}

/**
 * The possible endings of a packet; one ending is certain. Each rule is a step.
 * @throws RangeError if the ruleset is too large to evaluate.
 */
export function* walkSteps(base: BaseChain, packet: TestPacket): Steps<Ending[]> {
  const walker = new Walker(base, packet);
  const continues = yield* walker.walkChain(base.chain, 0);
  const { endings } = walker;
  if (continues) endings.push({ verdict: base.policy, chain: base.chain, by: 'policy' });
  return endings;
}

class Walker {
  readonly #base: BaseChain;
  readonly #packet: TestPacket;
  #visited = 0;
  readonly #isTracked: boolean;
  #isMarked = false;
  readonly endings: Ending[] = [];

  constructor(base: BaseChain, packet: TestPacket) {
    this.#base = base;
    this.#packet = packet;
    this.#isTracked = !(
      TRACKING_HOOKS.includes(base.hook) &&
      base.priority < PRIORITY.conntrack &&
      packet.isTranslated === false
    );
  }

  /** @returns whether the packet may return to the calling chain. */
  *walkChain(name: string, depth: number): Steps<boolean> {
    if (depth > MAX_DEPTH) throw new RangeError('chains are nested too deeply');
    let mayReturn = false;
    for (const rule of this.#base.chains.get(name) ?? []) {
      const { matches, verdict } = rule;
      this.#visited += 1;
      if (this.#visited > MAX_RULES) throw new RangeError('too many rules');
      yield;
      const match = matchOf(matches, this.#packet, this.#isMarked, this.#isTracked);
      if (match === 'no' || verdict.kind === 'continue') continue;
      const isCertain = match === 'yes';
      if (verdict.kind === 'mark') {
        this.#isMarked = true;
        continue;
      }
      if (verdict.kind === 'jump') {
        const isBack = yield* this.walkChain(verdict.chain, depth + 1);
        if (!isBack && isCertain) return mayReturn;
      } else if (verdict.kind === 'goto') {
        const isBack = yield* this.walkChain(verdict.chain, depth + 1);
        mayReturn ||= isBack;
        if (isCertain) return mayReturn;
      } else if (verdict.kind === 'return') {
        mayReturn = true;
        if (isCertain) return true;
      } else {
        this.endings.push({ verdict: verdict.kind, chain: name, by: 'rule', rule });
        if (isCertain) return mayReturn;
      }
    }
    return true;
  }
}

/** Names of protocols in rules, with their numbers (IANA). */
const PROTOCOL_NAMES: Readonly<Record<Protocol, readonly string[]>> = {
  TCP: ['tcp', '6', 'all'],
  UDP: ['udp', '17', 'all'],
  SCTP: ['sctp', '132', 'all'],
};

type Certainty = 'yes' | 'no' | 'maybe';

function matchOf(
  matches: readonly Match[],
  packet: TestPacket,
  isMarked: boolean,
  isTracked: boolean,
): Certainty {
  const results = matches.map((match) =>
    match.kind === 'mark' && isMarked ? 'maybe' : certaintyOf(match, packet, isTracked),
  );
  if (results.includes('no')) return 'no';
  return results.includes('maybe') ? 'maybe' : 'yes';
}

function certaintyOf(match: Match, packet: TestPacket, isTracked: boolean): Certainty {
  if (match.kind === 'unknown') return 'maybe';
  // Test packets come from where their replies go.
  if (match.kind === 'reversePath') return isTrue(match.negated);
  if (match.kind === 'masqueraded') return isTrue(packet.isMasqueraded === true);
  if (match.kind === 'interface') return interfaceCertainty(match, packet.isLoopback === true);
  if (match.kind === 'source' && packet.isSourceUnknown === true)
    return sourceCertainty(match.cidrs, match.negated);
  if (match.kind === 'family') return isTrue(familyOf(packet.source) === match.family);
  return isTrue(isMatched(match, packet, isTracked) !== match.negated);
}

function interfaceCertainty(
  { name, negated }: Extract<Match, { readonly kind: 'interface' }>,
  isLoopback: boolean,
): Certainty {
  if (IS_PREFIX.test(name)) return 'maybe';
  if (name === 'lo') return isTrue(isLoopback !== negated);
  return isLoopback || OTHER_INTERFACES.test(name) ? isTrue(negated) : 'maybe';
}

/** Of a source that may be any address. */
function sourceCertainty(cidrs: readonly string[], negated: boolean): Certainty {
  return cidrs.some((cidr) => cidr.endsWith('/0')) ? isTrue(!negated) : 'maybe';
}

function isTrue(value: boolean): Certainty {
  return value ? 'yes' : 'no';
}

function isMatched(
  match: Exclude<
    Match,
    { readonly kind: 'unknown' | 'interface' | 'family' | 'reversePath' | 'masqueraded' }
  >,
  packet: TestPacket,
  isTracked: boolean,
): boolean {
  switch (match.kind) {
    case 'source':
      return match.cidrs.some((cidr) => cidrContains(cidr, packet.source));
    case 'destination':
      return match.cidrs.some((cidr) => cidrContains(cidr, packet.destination));
    case 'protocol':
      return match.names.some((name) => PROTOCOL_NAMES[packet.protocol ?? 'TCP'].includes(name));
    case 'port':
      return match.ranges.some(([from, to]) => from <= packet.port && packet.port <= to);
    case 'state':
      return match.states.some((each) => {
        const state = each.toLowerCase();
        if (packet.isUntracked === true) return state === 'untracked';
        if (!isTracked) return state === 'invalid';
        return state === 'new' || (state === 'dnat' && packet.isTranslated !== false);
      });
    case 'mark':
      return (match.value & match.mask) === 0;
  }
}
