import { IP_FAMILIES, type IpFamily, type Node, type ObjectKey } from '../../api/objects.ts';
import type { Pod, Policy, PolicyObject } from '../../api/policy-objects.ts';
import { TimeSlice } from '../../sync/time-slice.ts';
import { type Facts, type NamedMember, NO_FACTS } from './facts.ts';
import { InForce, type ListRanges } from './in-force.ts';
import { type List, Lists, type PeerList } from './lists.ts';
import { Memberships } from './memberships.ts';
import { Networks, NO_RANGES } from './networks.ts';
import { Nodes } from './nodes.ts';
import { type PodState, Pods, type Shape, type Touched } from './pods.ts';
import { type Profile, type ProfileRules, Profiles } from './profiles.ts';
import { addressNumber, contains, type Range } from './ranges.ts';
import { selects } from './selectors.ts';
import {
  DIRECTIONS,
  type Direction,
  type ListNumber,
  type PolicyChange,
  type PolicyState,
} from './shape.ts';

export interface PolicyModelOptions {
  readonly nodeName: string;
  /** Both, unless told otherwise. */
  readonly families?: readonly IpFamily[];
  /** Called whenever there may be something to take. */
  readonly onChange: () => void;
}

/**
 * The objects that sources handed over, and what follows from them for the pods of this node. A
 * change notes what it touches, and `takeChanges` works out that and no more: a pod costs its own
 * elements, a policy the profiles that have it and lists that nobody had before.
 */
export class PolicyModel {
  readonly #onChange: () => void;
  readonly #pods: Pods;
  readonly #nodes = new Nodes();
  readonly #networks = new Networks();
  readonly #lists = new Lists();
  readonly #memberships = new Memberships();
  readonly #profiles = new Profiles(this.#lists);
  readonly #inForce: InForce;
  /** Shapes with pods of this node. */
  readonly #locals = new Set<Shape>();

  /** Shapes of which policies may have come to apply, or ceased to. */
  readonly #unprofiled = new Set<Shape>();
  readonly #touchedAddresses = new Set<string>();
  readonly #touchedLists = new Map<ListNumber, List>();
  readonly #touchedProfiles = new Set<Profile>();

  constructor({ nodeName, families = IP_FAMILIES, onChange }: PolicyModelOptions) {
    this.#pods = new Pods(nodeName);
    this.#inForce = new InForce(families);
    this.#onChange = onChange;
  }

  upsert(object: PolicyObject | Node): void {
    switch (object.kind) {
      case 'Pod':
        this.#touchPods(this.#pods.upsert(object));
        break;
      case 'Namespace':
        this.#touchShapes(this.#pods.upsertNamespace(object));
        break;
      case 'Node':
        this.#touchAddresses(this.#nodes.upsert(object));
        break;
      case 'CIDRGroup':
        this.#touchLists(this.#networks.upsert(object));
        break;
      default:
        this.#touchSubjects([this.#profiles.upsert(object), object]);
    }
    this.#onChange();
  }

  remove(kind: (PolicyObject | Node)['kind'], key: ObjectKey): void {
    switch (kind) {
      case 'Pod':
        this.#touchPods(this.#pods.remove(key));
        break;
      case 'Namespace':
        this.#touchShapes(this.#pods.removeNamespace(key));
        break;
      case 'Node':
        this.#touchAddresses(this.#nodes.remove(key));
        break;
      case 'CIDRGroup':
        this.#touchLists(this.#networks.remove(key));
        break;
      default:
        this.#touchSubjects([this.#profiles.remove(kind, key)]);
    }
    this.#onChange();
  }

  /**
   * Works out ahead what the first changes need of each shape, a bit at a time: of all pods of a cluster
   * at once it would hold the event loop.
   */
  async prepare(): Promise<void> {
    this.#settle();
    const slice = new TimeSlice();
    for (const { shapes } of this.#pods.namespaces()) {
      for (const shape of shapes.values()) {
        this.#memberships.of(shape);
        if (slice.isOver()) await slice.yield();
      }
    }
  }

  /** What each family has to do since the last call; from nothing, everything. */
  takeChanges(): PolicyChange[] {
    this.#settle();
    const lists = new Map<ListNumber, ListRanges | undefined>();
    for (const [number, list] of this.#touchedLists) {
      lists.set(number, this.#lists.isLive(number) ? this.#rangesOf(list) : undefined);
    }
    const changes = this.#inForce.advance({
      lists,
      facts: new Map([...this.#touchedAddresses].map((each) => [each, this.#factsOf(each)])),
      chains: new Map(
        [...this.#touchedProfiles].map((each) => [each.number, this.#profiles.chain(each)]),
      ),
      isLive: (list) => this.#lists.isLive(list),
    });
    this.#touchedLists.clear();
    this.#touchedAddresses.clear();
    this.#touchedProfiles.clear();
    return changes;
  }

  /**
   * Everything that ought to be in force, as of the last `takeChanges`: what came since is in the
   * next changes, and so not told twice. To be read before these are taken.
   */
  all(family: IpFamily): PolicyState {
    return this.#inForce.all(family);
  }

  /**
   * Patterns of domain names that rules name, and the lists that each belongs to. Stays the same
   * map, which follows the changes that are taken.
   */
  domainNames(): ReadonlyMap<string, ReadonlySet<ListNumber>> {
    this.#settle();
    return this.#lists.names;
  }

  pod(key: ObjectKey): Pod | undefined {
    return this.#pods.get(key)?.pod;
  }

  /** The pod that has an address; none on the host's network, and none that has finished. */
  podAt(address: string): Pod | undefined {
    return this.#pods.holder(address)?.pod;
  }

  /** Whether an address is the pod's node's own. */
  isNodeOf({ nodeName }: Pod, address: string): boolean {
    return nodeName !== undefined && this.#nodes.has(nodeName, address);
  }

  /**
   * The rules that judge a pod on its node, whichever that is, while `use` runs.
   * @returns what `use` returns.
   */
  withRules<T>(pod: Pod, direction: Direction, use: (rules: ProfileRules) => T): T {
    this.#settle();
    const shape = this.#pods.get(pod.key)?.shape;
    const profile = shape && this.#profiles.acquire(shape, direction);
    if (profile === undefined) return use({ admin: [], rest: [], isolatedBy: [] });
    try {
      this.#settle();
      return use(this.#profiles.rules(profile));
    } finally {
      this.#profiles.release(profile);
    }
  }

  /** Whether an address is in a list that rules name, but for what names were resolved to. */
  hasPeer(list: PeerList, address: string, family: IpFamily): boolean {
    return (
      this.#factsOf(address).peers.includes(list.number) ||
      contains(this.networksOf(list, family), addressNumber(address))
    );
  }

  /** Addresses of networks and groups of a list, as a normal list (`ranges.ts`). */
  networksOf(list: PeerList, family: IpFamily): readonly Range[] {
    return this.#networks.of(list)[family];
  }

  /** Ports that lists name of the pod that has an address. */
  namedPortsAt(address: string): readonly NamedMember[] {
    const shape = this.#pods.holder(address)?.shape;
    if (shape === undefined) return [];
    return [...this.#memberships.of(shape).named, ...this.#memberships.localOf(shape)];
  }

  /** Works out profiles and lists. What follows for addresses is worked out as it is asked for. */
  #settle(): void {
    for (const shape of this.#unprofiled) this.#profile(shape);
    this.#unprofiled.clear();
    for (const profile of this.#profiles.settle()) this.#touchedProfiles.add(profile);
    const changes = this.#lists.settle();
    if (changes.fresh.length + changes.dropped.length === 0) return;
    this.#networks.change(changes);
    this.#touchLists([...changes.fresh, ...changes.dropped]);
    this.#touchAddresses(this.#nodes.change(changes));
    const namespaces = () => this.#pods.namespaces();
    for (const shape of this.#memberships.change(changes, namespaces, this.#locals)) {
      this.#touchFacts(shape);
    }
  }

  #profile(shape: Shape): void {
    const isLocal = shape.locals > 0;
    if (isLocal) this.#locals.add(shape);
    else this.#locals.delete(shape);
    for (const direction of DIRECTIONS) {
      const before = shape.profiles[direction];
      const now = isLocal ? this.#profiles.acquire(shape, direction) : undefined;
      if (before !== undefined) this.#profiles.release(before);
      if (now === before) continue;
      shape.profiles[direction] = now;
      this.#touchFacts(shape);
    }
  }

  #factsOf(address: string): Facts {
    const holder = this.#pods.holder(address);
    const facts = holder?.shape === undefined ? NO_FACTS : this.#factsOfPod(holder, holder.shape);
    const lists = this.#nodes.listsOf(address);
    if (lists.length === 0) return facts;
    return { ...facts, peers: [...new Set([...facts.peers, ...lists])] };
  }

  #factsOfPod({ pod }: PodState, shape: Shape): Facts {
    if (this.#pods.isLocal(pod)) {
      shape.facts.local ??= this.#factsOfLocals(shape);
      return shape.facts.local;
    }
    const { peers, named } = this.#memberships.of(shape);
    const isInLists = peers.length + named.length > 0;
    shape.facts.remote ??= isInLists ? { ...NO_FACTS, peers, named } : NO_FACTS;
    return shape.facts.remote;
  }

  #factsOfLocals(shape: Shape): Facts {
    const { peers, named } = this.#memberships.of(shape);
    const profiles: Partial<Record<Direction, number>> = {};
    for (const direction of DIRECTIONS) {
      const profile = shape.profiles[direction];
      if (profile !== undefined) profiles[direction] = profile.number;
    }
    return { peers, named: [...named, ...this.#memberships.localOf(shape)], own: true, profiles };
  }

  #rangesOf(list: List): ListRanges {
    return list.kind === 'ports'
      ? { networks: NO_RANGES, ports: list.ranges }
      : { networks: this.#networks.of(list), ports: [] };
  }

  #touchPods({ addresses, shapes }: Touched): void {
    this.#touchAddresses(addresses);
    for (const shape of shapes) this.#unprofiled.add(shape);
  }

  #touchAddresses(addresses: readonly string[]): void {
    for (const address of addresses) this.#touchedAddresses.add(address);
  }

  /** A namespace has other labels: everything about its pods may be otherwise. */
  #touchShapes(shapes: Iterable<Shape>): void {
    for (const shape of shapes) {
      shape.membership = undefined;
      this.#touchFacts(shape);
      if (shape.locals > 0) this.#unprofiled.add(shape);
    }
  }

  #touchFacts(shape: Shape): void {
    shape.facts = { local: undefined, remote: undefined };
    for (const { pod } of shape.pods) this.#touchAddresses(pod.addresses);
  }

  #touchLists(lists: readonly List[]): void {
    for (const list of lists) this.#touchedLists.set(list.number, list);
  }

  /** Only pods that a policy selected, or selects now, can come under other policies by its change. */
  #touchSubjects(policies: readonly (Policy | undefined)[]): void {
    const isSelected = ({ namespace, labels }: Shape) =>
      policies.some((policy) => policy && selects(policy.subject, namespace, labels));
    for (const shape of this.#locals) if (isSelected(shape)) this.#unprofiled.add(shape);
  }
}
