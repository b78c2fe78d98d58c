/**
 * Computes which policies apply to the pods of this node. model/ does not depend on nft sets,
 * chains or the kernel.
 */
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
import { type ListRanges, PeerNetworks } from './networks.ts';
import { NodeIndex } from './nodes.ts';
import { type PodChange, type PodClass, PodIndex } from './pods.ts';
import { type PolicySet, type PolicySetRules, PolicySets } from './policy-sets.ts';
import { type AddressRange, addressNumber, rangesContain } from './ranges.ts';
import { type PeerList, type RuleList, RuleLists } from './rule-lists.ts';
import type { Direction, ListId } from './terms.ts';

/** Objects that network policy depends on. Nodes can be peers. */
export type ModelObject = PolicyObject | Node;

export const MODEL_KINDS: readonly Kind[] = [...POLICY_KINDS, 'Node'];

export function isModelObject(object: ApiObject): object is ModelObject {
  return isModelKind(object.kind);
}

export function isModelKind(kind: Kind): kind is ModelObject['kind'] {
  return MODEL_KINDS.includes(kind);
}

/** Values that may have changed since the last `takeChanges()`. */
export interface ModelChanges {
  /** undefined: no rule refers to the list any longer. */
  readonly lists: ReadonlyMap<ListId, ListRanges | undefined>;
  readonly entries: ReadonlyMap<string, AddressEntry>;
  /** undefined: the policy set no longer applies to a pod of this node. */
  readonly policySets: ReadonlyMap<PolicySet, PolicySetRules | undefined>;
}

/**
 * An object change marks the affected values as dirty, and `takeChanges` computes only dirty
 * values. A pod change recomputes the entries of the pod's addresses. A policy change recomputes
 * the policy sets that contain the policy, and the lists that no other rule uses.
 */
export class PolicyModel {
  readonly #pods: PodIndex;
  readonly #nodes = new NodeIndex();
  readonly #networks = new PeerNetworks();
  readonly #lists = new RuleLists();
  readonly #memberships = new Memberships();
  readonly #policySets = new PolicySets(this.#lists);
  readonly policies: Pick<PolicySets, 'get' | 'all'> = this.#policySets;
  /** Cache of the entries of this node's pods. */
  readonly #localEntries = new WeakMap<PodClass, AddressEntry>();
  readonly #dirtyAddresses = new Set<string>();
  readonly #dirtyLists = new Map<ListId, RuleList>();
  readonly #dirtyPolicySets = new Set<PolicySet>();

  constructor({ nodeName }: { readonly nodeName: string }) {
    this.#pods = new PodIndex(nodeName);
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
   * Computes the memberships of all classes in time slices. Otherwise the first `takeChanges()`
   * would compute them at once and block the event loop.
   */
  async precompute(): Promise<void> {
    this.#update();
    const slice = new TimeSlice();
    for (const { classes } of this.#pods.namespaces()) {
      for (const pods of classes.values()) {
        this.#memberships.entryOf(pods);
        if (slice.isOver()) await slice.yield();
      }
    }
  }

  /** Values that may have changed since the last call. The first call returns everything. */
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
   * Peer lists by domain name pattern, for the patterns of all rules. Every call returns the same
   * live map.
   */
  listsByDomainName(): ReadonlyMap<string, ReadonlySet<ListId>> {
    this.#update();
    return this.#lists.listsByDomainName;
  }

  pod(key: ObjectKey): Pod | undefined {
    return this.#pods.get(key)?.pod;
  }

  /** The pod that owns an address. Pods on the host network and finished pods own no address. */
  podAt(address: string): Pod | undefined {
    return this.#pods.owner(address)?.pod;
  }

  /** Whether an address belongs to the pod's node. */
  isNodeOf({ nodeName }: Pod, address: string): boolean {
    return nodeName !== undefined && this.#nodes.has(nodeName, address);
  }

  /**
   * Calls `use` with the rules that apply to a pod, on this or another node. The rules are valid
   * during the call only.
   * @returns the result of `use`.
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

  /** Whether an address is in a peer list. Ignores resolved domain names. */
  hasPeer(list: PeerList, address: string, family: IpFamily): boolean {
    return (
      this.#entryOf(address).peers.includes(list.id) ||
      rangesContain(this.networksOf(list, family), addressNumber(address))
    );
  }

  /** CIDRs and CIDRGroups of a list as merged ranges (`ranges.ts`). */
  networksOf(list: PeerList, family: IpFamily): readonly AddressRange[] {
    return this.#networks.rangesOf(list).networks[family];
  }

  /** Port lists that contain named ports of the pod with this address. */
  namedPortsAt(address: string): readonly NamedPortMember[] {
    const pods = this.#pods.owner(address)?.class;
    if (pods === undefined) return [];
    return [
      ...this.#memberships.entryOf(pods).namedPorts,
      ...this.#memberships.localNamedPorts(pods),
    ];
  }

  /** Updates policy sets and lists. Address entries are computed lazily. */
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
    const entry = this.#memberships.entryOf(pods);
    if (!this.#pods.isLocal(pod)) return entry;
    return getOrCreate(this.#localEntries, pods, () => {
      const { ingress, egress } = this.#policySets.assignmentOf(pods);
      return {
        peers: entry.peers,
        namedPorts: [...entry.namedPorts, ...this.#memberships.localNamedPorts(pods)],
        isLocalPod: true,
        policySets: { ingress: ingress?.id, egress: egress?.id },
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

  /** Relabelling a namespace may change memberships and policy sets of its pods. */
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
    for (const list of lists) this.#dirtyLists.set(list.id, list);
  }
}

const NO_RULES: PolicySetRules = { admin: [], lowerTiers: [], isolatedBy: [] };
