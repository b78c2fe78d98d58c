/**
 * Who may connect to a pod, and where the pod may connect to. Peers that the rules of the pod cannot distinguish
 * are one group; each group has a decision for every port. Evaluates the same rules as `explain.ts`.
 */
import { ADDRESS_BITS, familyOf } from '../../api/addresses.ts';
import { compareText, getOrCreate } from '../../api/collections.ts';
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import type { Pod } from '../../api/policy-objects.ts';
import { protocolOf } from '../../netlink/core/protocol.ts';
import { TimeSlice } from '../../sync/time-slice.ts';
import { NamePatterns } from './domain-names.ts';
import { type Decision, decidedByDefault, decidedByRule } from './explain.ts';
import type { NamedPortMember } from './memberships.ts';
import type { PolicyModel } from './model.ts';
import type { PolicySetRules } from './policy-sets.ts';
import { EVERY_PORT, joinSpace, type SpaceRange, splitSpace } from './port-space.ts';
import { type AddressRange, coversFamily, rangesContain } from './ranges.ts';
import type { PeerList } from './rule-lists.ts';
import type { PolicySetRule } from './rules.ts';
import type { Direction } from './terms.ts';

/** Peers for which the policies of a pod decide alike. */
export type AccessPeers =
  /** In any order: sorting 10,000 would block the event loop. `family`: only the addresses of this family; undefined: all addresses of the pods. */
  | {
      readonly kind: 'pods';
      readonly pods: readonly Pod[];
      readonly family: IpFamily | undefined;
    }
  /** Addresses that are neither of pods nor, if a rule selects nodes, of nodes. */
  | { readonly kind: 'addresses'; readonly ranges: readonly FamilyRange[] }
  | { readonly kind: 'nodes'; readonly addresses: readonly string[] }
  /** Names that match the pattern, and no pattern of another group that is more specific. */
  | { readonly kind: 'domainName'; readonly pattern: string; readonly families: IpFamily[] }
  /** The node of the pod, which may always connect to it. */
  | { readonly kind: 'ownNode' };

export interface FamilyRange extends AddressRange {
  readonly family: IpFamily;
}

/** The decision for some ports. */
export interface PortDecision extends Decision {
  readonly ports: readonly SpaceRange[];
  /** The rule of the Admin tier that passed the ports to the next tier. */
  readonly passedBy: string | undefined;
}

/** One group of peers of a pod in one direction. */
export interface Access {
  readonly direction: Direction;
  readonly peers: AccessPeers;
  /** Whether no rule names these peers; rules for all peers may still match. */
  readonly isRest: boolean;
  readonly decisions: readonly PortDecision[];
  /** Rules that may decide otherwise, because their networks may contain the address of a domain name. */
  readonly uncertain: readonly string[];
}

/** Attempts without a change of policies meanwhile. */
const MAX_ATTEMPTS = 3;

/**
 * Groups all peers of a pod of this node. Resolved addresses of domain names count as the names, not as addresses. Reads
 * the model in time slices; a pod that changes meanwhile may be in the groups as before or as after.
 */
export async function accessOf(
  model: PolicyModel,
  pod: Pod,
  direction: Direction,
): Promise<Access[]> {
  for (let attempt = 1; ; attempt += 1) {
    const rules = model.withRules(pod, direction, (found) => found);
    const access = await new AccessGroups(model, pod, direction, rules).collect();
    // Rules of policies that changed are other objects.
    const after = model.withRules(pod, direction, (found) => found);
    if (isSame(rules, after) || attempt === MAX_ATTEMPTS) return access;
  }
}

function isSame(before: PolicySetRules, after: PolicySetRules): boolean {
  const parts = ({ admin, lowerTiers, isolatedBy }: PolicySetRules) => [
    ...admin,
    ...lowerTiers,
    ...isolatedBy,
  ];
  const expected = parts(after);
  const found = parts(before);
  return found.length === expected.length && found.every((part, at) => part === expected[at]);
}

type RuleMatch = 'yes' | 'no' | 'maybe';

/** Which rules match a peer, in their order, and the named ports of the destination. */
interface Matches {
  readonly key: string;
  readonly rules: readonly RuleMatch[];
  readonly named: readonly NamedPortMember[];
}

interface PodGroup {
  readonly matches: Matches;
  readonly family: IpFamily | undefined;
  readonly pods: Pod[];
}

class AccessGroups {
  readonly #model: PolicyModel;
  readonly #pod: Pod;
  readonly #direction: Direction;
  readonly #rules: PolicySetRules;
  readonly #all: readonly PolicySetRule[];
  readonly #slice = new TimeSlice();
  readonly #ownNamed: readonly NamedPortMember[];

  constructor(model: PolicyModel, pod: Pod, direction: Direction, rules: PolicySetRules) {
    this.#model = model;
    this.#pod = pod;
    this.#direction = direction;
    this.#rules = rules;
    this.#all = [...rules.admin, ...rules.lowerTiers];
    this.#ownNamed =
      direction === 'ingress'
        ? pod.addresses.slice(0, 1).flatMap((each) => model.namedPortsAt(each))
        : [];
  }

  async collect(): Promise<Access[]> {
    const hasNodes = this.#all.some(({ peers }) => (peers?.nodes.length ?? 0) > 0);
    return [
      ...(await this.#pods()),
      ...(hasNodes ? this.#nodes() : []),
      ...(await this.#addresses()),
      ...(this.#direction === 'egress' ? this.#names() : []),
      ...(this.#direction === 'ingress' ? [this.#ownNode()] : []),
    ];
  }

  async #pods(): Promise<Access[]> {
    const groups = new Map<string, PodGroup>();
    for (const pod of this.#model.peerPods()) {
      if (this.#slice.isOver()) await this.#slice.yield();
      if (pod.key === this.#pod.key) continue;
      const owned = pod.addresses.filter((address) => this.#model.podAt(address) === pod);
      const found = owned.map((address) => ({ address, matches: this.#matchesAt(address) }));
      const isOne = new Set(found.map(({ matches }) => matches.key)).size === 1;
      for (const { address, matches } of isOne ? found.slice(0, 1) : found) {
        const family = isOne ? undefined : familyOf(address);
        const key = `${matches.key} ${family}`;
        getOrCreate(groups, key, () => ({ matches, family, pods: [] })).pods.push(pod);
      }
    }
    return inOrder(groups).map(({ matches, family, pods }) =>
      this.#access({ kind: 'pods', pods, family }, matches),
    );
  }

  #nodes(): Access[] {
    const groups = new Map<string, { matches: Matches; addresses: string[] }>();
    for (const address of this.#model.nodeAddresses()) {
      if (this.#model.podAt(address) !== undefined) continue;
      if (this.#direction === 'ingress' && this.#model.isNodeOf(this.#pod, address)) continue;
      const matches = this.#matchesAt(address);
      getOrCreate(groups, matches.key, () => ({ matches, addresses: [] })).addresses.push(address);
    }
    return inOrder(groups).map(({ matches, addresses }) =>
      this.#access({ kind: 'nodes', addresses: addresses.sort(compareText) }, matches),
    );
  }

  async #addresses(): Promise<Access[]> {
    const groups = new Map<string, { matches: Matches; ranges: FamilyRange[] }>();
    for (const family of IP_FAMILIES) {
      const lists = new Map(
        this.#all.flatMap(({ peers }) =>
          peers === undefined ? [] : [[peers, this.#model.networksOf(peers, family)] as const],
        ),
      );
      for (const range of segments([...lists.values()].flat(), family)) {
        if (this.#slice.isOver()) await this.#slice.yield();
        const matches = this.#matches(
          (list) => rangesContain(lists.get(list) ?? [], range.first),
          this.#ownNamed,
        );
        const { ranges } = getOrCreate(groups, matches.key, () => ({ matches, ranges: [] }));
        const last = ranges.at(-1);
        if (last?.family === family && last.last + 1n === range.first) {
          ranges[ranges.length - 1] = { family, first: last.first, last: range.last };
        } else ranges.push({ family, ...range });
      }
    }
    return inOrder(groups).map(({ matches, ranges }) =>
      this.#access({ kind: 'addresses', ranges }, matches),
    );
  }

  #names(): Access[] {
    const patterns = new Set(this.#all.flatMap(({ peers }) => peers?.domainNames ?? []));
    return [...patterns].sort(compareText).flatMap((pattern) => {
      const groups = new Map<string, { matches: Matches; families: IpFamily[] }>();
      for (const family of IP_FAMILIES) {
        const rules = this.#all.map(({ peers }) => this.#matchesName(peers, pattern, family));
        const matches = { key: keyOf(rules, []), rules, named: [] };
        getOrCreate(groups, matches.key, () => ({ matches, families: [] })).families.push(family);
      }
      return inOrder(groups).map(({ matches, families }) =>
        this.#access({ kind: 'domainName', pattern, families }, matches),
      );
    });
  }

  #matchesName(peers: PeerList | undefined, pattern: string, family: IpFamily): RuleMatch {
    if (peers === undefined) return 'yes';
    // A pattern matches itself, and patterns for subdomains.
    if (new NamePatterns(peers.domainNames.map((each) => [each, each])).matches(pattern))
      return 'yes';
    const networks = this.#model.networksOf(peers, family);
    if (coversFamily(networks, family)) return 'yes';
    return networks.length > 0 ? 'maybe' : 'no';
  }

  #ownNode(): Access {
    const reason = 'a node may always connect to its own pods';
    const decision = {
      verdict: 'allow',
      tier: undefined,
      policies: [],
      rule: undefined,
      reason,
    } as const;
    const decisions = [{ ...decision, ports: EVERY_PORT, passedBy: undefined }];
    return {
      direction: 'ingress',
      peers: { kind: 'ownNode' },
      isRest: false,
      decisions,
      uncertain: [],
    };
  }

  #matchesAt(address: string): Matches {
    const isIn = this.#model.peersAt(address, familyOf(address));
    const named = this.#direction === 'egress' ? this.#model.namedPortsAt(address) : this.#ownNamed;
    return this.#matches(isIn, named);
  }

  #matches(isIn: (list: PeerList) => boolean, named: readonly NamedPortMember[]): Matches {
    const rules = this.#all.map(
      ({ peers }): RuleMatch => (peers === undefined || isIn(peers) ? 'yes' : 'no'),
    );
    const lists = new Set(
      this.#all.flatMap(({ ports }, at) =>
        ports === undefined || rules[at] === 'no' ? [] : [ports.id],
      ),
    );
    const used = named.filter(({ list }) => lists.has(list));
    return { key: keyOf(rules, used), rules, named: used };
  }

  #access(peers: AccessPeers, { rules, named }: Matches): Access {
    const isRest = rules.every((match, at) => match === 'no' || this.#all[at]?.peers === undefined);
    const uncertain = this.#all
      .filter((_, at) => rules[at] === 'maybe')
      .map(({ comment }) => comment);
    const matching = new Set(this.#all.filter((_, at) => rules[at] === 'yes'));
    const decisions = decide(this.#rules, matching, named);
    return { direction: this.#direction, peers, isRest, decisions, uncertain };
  }
}

/** Peers of the first rules first. */
function inOrder<Group extends { readonly matches: Matches }>(
  groups: ReadonlyMap<string, Group>,
): Group[] {
  return [...groups.values()].sort((a, b) => compareText(a.matches.key, b.matches.key));
}

/** Matches come first in the order of texts. */
const KEYS: Readonly<Record<RuleMatch, string>> = { yes: 'a', maybe: 'b', no: 'c' };

function keyOf(rules: readonly RuleMatch[], named: readonly NamedPortMember[]): string {
  let key = '';
  for (const match of rules) key += KEYS[match];
  for (const { list, protocol, port } of named) key += ` ${list}/${protocol}/${port}`;
  return key;
}

/** Decides every port, in the order of the kernel rules. */
function decide(
  rules: PolicySetRules,
  matching: ReadonlySet<PolicySetRule>,
  named: readonly NamedPortMember[],
): PortDecision[] {
  const decisions: PortDecision[] = [];
  const lower: { ports: SpaceRange[]; passedBy: string | undefined }[] = [];
  let remaining = [...EVERY_PORT];
  for (const rule of rules.admin) {
    if (!matching.has(rule)) continue;
    const { inside, outside } = splitSpace(remaining, portsOf(rule, named));
    remaining = outside;
    if (rule.verdict === 'pass') lower.push({ ports: inside, passedBy: rule.comment });
    else decisions.push({ ...decidedByRule(rule), ports: inside, passedBy: undefined });
  }
  lower.push({ ports: remaining, passedBy: undefined });
  for (const { ports, passedBy } of lower) {
    let undecided = ports;
    for (const rule of rules.lowerTiers) {
      if (!matching.has(rule)) continue;
      const { inside, outside } = splitSpace(undecided, portsOf(rule, named));
      undecided = outside;
      decisions.push({ ...decidedByRule(rule), ports: inside, passedBy });
    }
    decisions.push({ ...decidedByDefault(rules), ports: undecided, passedBy });
  }
  return decisions
    .filter(({ ports }) => ports.length > 0)
    .map((decision) => ({ ...decision, ports: joinSpace(decision.ports) }));
}

function portsOf(
  { ports }: PolicySetRule,
  named: readonly NamedPortMember[],
): readonly SpaceRange[] {
  if (ports === undefined) return EVERY_PORT;
  const numbers = named.flatMap(({ list, protocol, port }) => {
    const name = protocolOf(protocol);
    return list !== ports.id || name === undefined
      ? []
      : [{ protocol: name, from: port, to: port }];
  });
  return [...ports.ranges, ...numbers];
}

/** Cuts all addresses of a family where one of the ranges begins or ends. */
function* segments(ranges: readonly AddressRange[], family: IpFamily): Generator<AddressRange> {
  const end = 1n << BigInt(ADDRESS_BITS[family]);
  const cuts = [0n, end];
  for (const { first, last } of ranges) cuts.push(first, last + 1n);
  // Sorted lists one after another, which is what sort() is fast at.
  cuts.sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
  for (const [at, first] of cuts.entries()) {
    const next = cuts[at + 1] ?? first;
    if (next > first) yield { first, last: next - 1n };
  }
}
