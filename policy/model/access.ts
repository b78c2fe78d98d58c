/**
 * Who may connect to a pod, and where the pod may connect to. Peers that the rules of the pod cannot distinguish
 * are one group; each group has a decision for every port. Evaluates the same rules as `explain.ts`.
 */
import { familyOf } from '../../api/addresses.ts';
import { compareText, getOrCreate } from '../../api/collections.ts';
import { IP_FAMILIES, type IpFamily, type ObjectKey } from '../../api/objects.ts';
import type { Pod } from '../../api/policy-objects.ts';
import { protocolOf } from '../../netlink/core/protocol.ts';
import { BackgroundSlice } from '../../sync/precedence.ts';
import type { TimeSlice } from '../../sync/time-slice.ts';
import { NamePatterns } from './domain-names.ts';
import { type Decision, decidedByDefault, decidedByRule } from './explain.ts';
import type { NamedPortMember } from './memberships.ts';
import type { PolicyModel } from './model.ts';
import { PodRules } from './pod-rules.ts';
import type { PolicySetRules } from './policy-sets.ts';
import { EVERY_PORT, joinSpace, type SpaceRange, splitSpace } from './port-space.ts';
import { type AddressRange, coversFamily, rangesContain, segments } from './ranges.ts';
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

/** Attempts to read the model without a change meanwhile. */
const MAX_ATTEMPTS = 3;

/** Policies changed during each attempt. */
export class PoliciesChangeError extends Error {
  override readonly name = 'PoliciesChangeError';

  constructor() {
    super('network policies are changing; try again');
  }
}

/** An attempt read two states of the model. */
class ChangedMeanwhile extends Error {}

interface AccessOptions {
  /** Aborted when the answer is no longer wanted. */
  readonly signal?: AbortSignal | undefined;
  readonly slice?: Pick<TimeSlice, 'isOver' | 'yield'>;
}

/**
 * Groups all peers of a pod of this node. Resolved addresses of domain names count as the names, not as addresses. Reads
 * the model in time slices: starts again if namespaces, nodes, CIDR groups or the rules of the pod change meanwhile, so
 * that the groups are of one state. A peer pod that changes meanwhile may be in the groups as before or as after.
 * @returns nothing if the pod does not exist.
 * @throws PoliciesChangeError; AbortError if the signal is aborted.
 */
export async function accessOf(
  model: PolicyModel,
  key: ObjectKey,
  direction: Direction,
  { signal, slice = new BackgroundSlice() }: AccessOptions = {},
): Promise<Access[]> {
  for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt += 1) {
    const pod = model.pod(key);
    if (pod === undefined) return [];
    try {
      return await new AccessGroups(model, pod, direction, { signal, slice }).collect();
    } catch (error) {
      if (!(error instanceof ChangedMeanwhile)) throw error;
    }
  }
  throw new PoliciesChangeError();
}

type StepOptions = AccessOptions & Required<Pick<AccessOptions, 'slice'>>;

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
  readonly #own: PodRules;
  readonly #direction: Direction;
  readonly #all: readonly PolicySetRule[];
  readonly #options: StepOptions;
  readonly #ownNamed: readonly NamedPortMember[];
  /** Compiled domain names of each list. */
  readonly #patterns = new Map<PeerList, NamePatterns<string>>();

  constructor(model: PolicyModel, pod: Pod, direction: Direction, options: StepOptions) {
    this.#model = model;
    this.#own = new PodRules(model, pod, direction);
    this.#direction = direction;
    this.#options = options;
    this.#all = [...this.#own.rules.admin, ...this.#own.rules.lowerTiers];
    this.#ownNamed = direction === 'ingress' ? model.namedPortsOf(pod) : [];
  }

  async collect(): Promise<Access[]> {
    const hasNodes = this.#all.some(({ peers }) => (peers?.nodes.length ?? 0) > 0);
    return [
      ...(await this.#pods()),
      ...(hasNodes ? await this.#nodes() : []),
      ...(await this.#addresses()),
      ...(this.#direction === 'egress' ? await this.#names() : []),
      ...(this.#direction === 'ingress' ? [this.#ownNode()] : []),
    ];
  }

  /** To call after each step. */
  async #yieldIfOver(): Promise<void> {
    if (this.#options.slice.isOver()) await this.#yield();
  }

  /** @throws ChangedMeanwhile, AbortError */
  async #yield(): Promise<void> {
    await this.#options.slice.yield();
    this.#options.signal?.throwIfAborted();
    if (!this.#own.isCurrent()) throw new ChangedMeanwhile();
  }

  async #pods(): Promise<Access[]> {
    const groups = new Map<string, PodGroup>();
    // A pod that is deleted and created again meanwhile comes twice.
    const seen = new Set<ObjectKey>([this.#own.pod.key]);
    for (const pod of this.#model.peerPods()) {
      if (seen.has(pod.key)) continue;
      seen.add(pod.key);
      const owned = pod.addresses.filter((address) => this.#model.podAt(address) === pod);
      const found = owned.map((address) => ({ address, matches: this.#matchesAt(address) }));
      const isOne = new Set(found.map(({ matches }) => matches.key)).size === 1;
      for (const { address, matches } of isOne ? found.slice(0, 1) : found) {
        const family = isOne ? undefined : familyOf(address);
        const key = `${matches.key} ${family}`;
        getOrCreate(groups, key, () => ({ matches, family, pods: [] })).pods.push(pod);
      }
      await this.#yieldIfOver();
    }
    return await this.#decided(groups, ({ family, pods }) => ({ kind: 'pods', pods, family }));
  }

  async #nodes(): Promise<Access[]> {
    const groups = new Map<string, { matches: Matches; addresses: string[] }>();
    for (const address of this.#model.nodeAddresses()) {
      await this.#yieldIfOver();
      if (this.#model.podAt(address) !== undefined) continue;
      if (this.#direction === 'ingress' && this.#model.isNodeOf(this.#own.pod, address)) continue;
      const matches = this.#matchesAt(address);
      getOrCreate(groups, matches.key, () => ({ matches, addresses: [] })).addresses.push(address);
    }
    return await this.#decided(groups, ({ addresses }) => ({
      kind: 'nodes',
      addresses: addresses.sort(compareText),
    }));
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
        await this.#yieldIfOver();
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
    return await this.#decided(groups, ({ ranges }) => ({ kind: 'addresses', ranges }));
  }

  async #names(): Promise<Access[]> {
    const patterns = new Set(this.#all.flatMap(({ peers }) => peers?.domainNames ?? []));
    const access: Access[] = [];
    for (const pattern of [...patterns].sort(compareText)) {
      const groups = new Map<string, { matches: Matches; families: IpFamily[] }>();
      for (const family of IP_FAMILIES) {
        const rules = this.#all.map(({ peers }) => this.#matchesName(peers, pattern, family));
        const matches = { key: keyOf(rules, []), rules, named: [] };
        getOrCreate(groups, matches.key, () => ({ matches, families: [] })).families.push(family);
      }
      access.push(
        ...(await this.#decided(groups, ({ families }) => ({
          kind: 'domainName',
          pattern,
          families,
        }))),
      );
    }
    return access;
  }

  /** Decides each group, in the order of the rules that match. Each decision may take most of a slice. */
  async #decided<Group extends { readonly matches: Matches }>(
    groups: ReadonlyMap<string, Group>,
    peersOf: (group: Group) => AccessPeers,
  ): Promise<Access[]> {
    const access: Access[] = [];
    for (const group of inOrder(groups)) {
      await this.#yield();
      access.push(this.#access(peersOf(group), group.matches));
    }
    return access;
  }

  #matchesName(peers: PeerList | undefined, pattern: string, family: IpFamily): RuleMatch {
    if (peers === undefined) return 'yes';
    // A pattern matches itself, and patterns for subdomains.
    const names = getOrCreate(
      this.#patterns,
      peers,
      () => new NamePatterns(peers.domainNames.map((each) => [each, each])),
    );
    if (names.matches(pattern)) return 'yes';
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
    const decisions = decide(this.#own.rules, matching, named);
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
