/** What applies to the pods of this node by the objects that sources hand over: model/ knows no sets, chains or kernel. */
import { getOrCreate } from '../../api/collections.ts';
import {
  type ApiObject,
  type IpFamily,
  type Kind,
  type Node,
  type ObjectKey,
  POLICY_KINDS,
} from '../../api/objects.ts';
import type { Pod, PolicyObject } from '../../api/policy-objects.ts';
import { TimeSlice } from '../../sync/time-slice.ts';
import {
  type AddressEntry,
  EMPTY_ENTRY,
  Memberships,
  type NamedPortMember,
} from './memberships.ts';
import { type ListRanges, Networks } from './networks.ts';
import { Nodes } from './nodes.ts';
import { type PodChange, type PodClass, Pods } from './pods.ts';
import { type PolicySet, type PolicySetRules, PolicySets } from './policy-sets.ts';
import { type AddressRange, addressNumber, rangesContain } from './ranges.ts';
import { type PeerList, type RuleList, RuleLists } from './rule-lists.ts';
import type { Direction, ListId } from './terms.ts';

/** Objects that network policy depends on. Nodes are peers. */
export type ModelObject = PolicyObject | Node;

export const MODEL_KINDS: readonly Kind[] = [...POLICY_KINDS, 'Node'];

export function isModelObject(object: ApiObject): object is ModelObject {
  return isModelKind(object.kind);
}

export function isModelKind(kind: Kind): kind is ModelObject['kind'] {
  return MODEL_KINDS.includes(kind);
}

/** What may have changed since the last `takeChanges()`. */
export interface ModelChanges {
  /** undefined: no rule names it any more. */
  readonly lists: ReadonlyMap<ListId, ListRanges | undefined>;
  readonly entries: ReadonlyMap<string, AddressEntry>;
  /** undefined: no pod is judged by it any more. */
  readonly policySets: ReadonlyMap<PolicySet, PolicySetRules | undefined>;
}

/**
 * An object that changes marks what it touches, and `takeChanges` computes only that: a pod costs its own
 * entries, a policy the sets that contain it and lists that no other rule uses.
 */
export class PolicyModel {
  readonly #pods: Pods;
  readonly #nodes = new Nodes();
  readonly #networks = new Networks();
  readonly #lists = new RuleLists();
  readonly #memberships = new Memberships();
  readonly #policySets = new PolicySets(this.#lists);
  readonly policies: Pick<PolicySets, 'get' | 'all'> = this.#policySets;
  /** Entries of this node's pods, computed so far. */
  readonly #localEntries = new WeakMap<PodClass, AddressEntry>();
  readonly #dirtyAddresses = new Set<string>();
  readonly #dirtyLists = new Map<ListId, RuleList>();
  readonly #dirtyPolicySets = new Set<PolicySet>();

  constructor({ nodeName }: { readonly nodeName: string }) {
    this.#pods = new Pods(nodeName);
  }

  upsert(object: ModelObject): void {
    switch (object.kind) {
      case 'Pod':
        this.#markPods(this.#pods.upsert(object));
        break;
      case 'Namespace':
        this.#markClasses(this.#pods.upsertNamespace(object));
        break;
      case 'Node':
        this.#markAddresses(this.#nodes.upsert(object));
        break;
      case 'CIDRGroup':
        this.#markLists(this.#networks.upsert(object));
        break;
      default:
        this.#policySets.upsert(object);
    }
  }

  remove(kind: ModelObject['kind'], key: ObjectKey): void {
    switch (kind) {
      case 'Pod':
        this.#markPods(this.#pods.remove(key));
        break;
      case 'Namespace':
        this.#markClasses(this.#pods.removeNamespace(key));
        break;
      case 'Node':
        this.#markAddresses(this.#nodes.remove(key));
        break;
      case 'CIDRGroup':
        this.#markLists(this.#networks.remove(key));
        break;
      default:
        this.#policySets.remove(kind, key);
    }
  }

  /**
   * Computes the membership of each class in time slices. Otherwise the first `takeChanges()` would block the
   * event loop for all pods of the cluster.
   */
  async precompute(): Promise<void> {
    this.#update();
    const slice = new TimeSlice();
    for (const { classes } of this.#pods.namespaces()) {
      for (const pods of classes.values()) {
        this.#memberships.of(pods);
        if (slice.isOver()) await slice.yield();
      }
    }
  }

  /** What may have changed since the last call; everything at the first. */
  takeChanges(): ModelChanges {
    this.#update();
    const changes = {
      lists: new Map(
        [...this.#dirtyLists].map(([number, list]) => [
          number,
          list.isLive ? this.#networks.rangesOf(list) : undefined,
        ]),
      ),
      entries: new Map([...this.#dirtyAddresses].map((each) => [each, this.#entryOf(each)])),
      policySets: new Map(
        [...this.#dirtyPolicySets].map((each) => [each, this.#policySets.rules(each)]),
      ),
    };
    this.#dirtyLists.clear();
    this.#dirtyAddresses.clear();
    this.#dirtyPolicySets.clear();
    return changes;
  }

  /**
   * Patterns of domain names that rules name, and the lists that each belongs to. Stays the same
   * map, which follows the changes that are taken.
   */
  listsByDomainName(): ReadonlyMap<string, ReadonlySet<ListId>> {
    this.#update();
    return this.#lists.listsByDomainName;
  }

  pod(key: ObjectKey): Pod | undefined {
    return this.#pods.get(key)?.pod;
  }

  /** The pod that has an address; none on the host's network, and none that has finished. */
  podAt(address: string): Pod | undefined {
    return this.#pods.owner(address)?.pod;
  }

  /** Whether an address is the pod's node's own. */
  isNodeOf({ nodeName }: Pod, address: string): boolean {
    return nodeName !== undefined && this.#nodes.has(nodeName, address);
  }

  /**
   * The rules that judge a pod on its node, whichever that is, while `use` runs.
   * @returns what `use` returns.
   */
  withRules<T>(pod: Pod, direction: Direction, use: (rules: PolicySetRules) => T): T {
    this.#update();
    const pods = this.#pods.get(pod.key)?.class;
    const set = pods && this.#policySets.acquire(pods, direction);
    if (set === undefined) return use(NO_RULES);
    try {
      this.#update();
      return use(this.#policySets.rules(set) ?? NO_RULES);
    } finally {
      this.#policySets.release(set);
    }
  }

  /** Whether an address is in a list that rules name, but for what names were resolved to. */
  hasPeer(list: PeerList, address: string, family: IpFamily): boolean {
    return (
      this.#entryOf(address).peers.includes(list.number) ||
      rangesContain(this.networksOf(list, family), addressNumber(address))
    );
  }

  /** Addresses of networks and groups of a list, as a normal list (`ranges.ts`). */
  networksOf(list: PeerList, family: IpFamily): readonly AddressRange[] {
    return this.#networks.rangesOf(list).networks[family];
  }

  /** Ports that lists name of the pod that has an address. */
  namedPortsAt(address: string): readonly NamedPortMember[] {
    const pods = this.#pods.owner(address)?.class;
    if (pods === undefined) return [];
    return [...this.#memberships.of(pods).namedPorts, ...this.#memberships.localNamedPorts(pods)];
  }

  /** Updates policy sets and lists. Entries of addresses are computed when they are read. */
  #update(): void {
    const { classes, sets } = this.#policySets.update();
    for (const pods of classes) this.#markEntries(pods);
    for (const set of sets) this.#dirtyPolicySets.add(set);
    const changes = this.#lists.takeChanges();
    if (changes.added.length + changes.removed.length === 0) return;
    this.#networks.applyListChanges(changes);
    this.#markLists([...changes.added, ...changes.removed]);
    this.#markAddresses(this.#nodes.applyListChanges(changes));
    const namespaces = () => this.#pods.namespaces();
    const locals = this.#policySets.localClasses();
    for (const pods of this.#memberships.applyListChanges(changes, namespaces, locals)) {
      this.#markEntries(pods);
    }
  }

  #entryOf(address: string): AddressEntry {
    const owner = this.#pods.owner(address);
    const entry =
      owner?.class === undefined ? EMPTY_ENTRY : this.#entryOfPods(owner.pod, owner.class);
    const lists = this.#nodes.listsOf(address);
    if (lists.length === 0) return entry;
    return { ...entry, peers: [...new Set([...entry.peers, ...lists])] };
  }

  #entryOfPods(pod: Pod, pods: PodClass): AddressEntry {
    const entry = this.#memberships.of(pods);
    if (!this.#pods.isLocal(pod)) return entry;
    return getOrCreate(this.#localEntries, pods, () => {
      const { ingress, egress } = this.#policySets.of(pods);
      return {
        peers: entry.peers,
        namedPorts: [...entry.namedPorts, ...this.#memberships.localNamedPorts(pods)],
        isLocalPod: true,
        policySets: { ingress: ingress?.number, egress: egress?.number },
      };
    });
  }

  #markPods({ addresses, classes }: PodChange): void {
    this.#markAddresses(addresses);
    for (const pods of classes) this.#policySets.markDirty(pods);
  }

  #markAddresses(addresses: readonly string[]): void {
    for (const address of addresses) this.#dirtyAddresses.add(address);
  }

  /** A relabelled namespace may change everything about its pods. */
  #markClasses(classes: Iterable<PodClass>): void {
    for (const pods of classes) {
      this.#memberships.invalidate(pods);
      this.#markEntries(pods);
      if (pods.localCount > 0) this.#policySets.markDirty(pods);
    }
  }

  #markEntries(pods: PodClass): void {
    this.#localEntries.delete(pods);
    for (const { pod } of pods.pods) this.#markAddresses(pod.addresses);
  }

  #markLists(lists: readonly RuleList[]): void {
    for (const list of lists) this.#dirtyLists.set(list.number, list);
  }
}

const NO_RULES: PolicySetRules = { admin: [], lowerTiers: [], isolatedBy: [] };
