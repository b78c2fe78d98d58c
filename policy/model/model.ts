/**
 * Computes which policies apply to the pods of this node. model/ does no I/O and does not depend on
 * the folders compile/ and enforce/.
 */
import { isDeepStrictEqual } from 'node:util';
import { getOrCreate } from '../../api/collections.ts';
import {
  type ApiObject,
  type IpFamily,
  type Kind,
  type Node,
  type ObjectKey,
  POLICY_KINDS,
} from '../../api/objects.ts';
import type { Pod, Policy, PolicyObject } from '../../api/policy-objects.ts';
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
import { DIRECTIONS, type Direction, type ListId } from './terms.ts';

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
 * the policy sets of the pods that the policy selects, and the lists that come into use or fall out
 * of use.
 */
export class PolicyModel {
  readonly #pods: PodIndex;
  readonly #nodes = new NodeIndex();
  readonly #networks = new PeerNetworks();
  readonly #lists = new RuleLists();
  readonly #memberships = new Memberships();
  readonly #policySets = new PolicySets(this.#lists);
  readonly policies: Pick<PolicySets, 'get' | 'all'> = this.#policySets;
  /** Cache of the entries of this node's pods, by class. */
  readonly #localEntries = new WeakMap<PodClass, AddressEntry>();
  readonly #dirtyAddresses = new Set<string>();
  readonly #dirtyLists = new Map<ListId, RuleList>();
  readonly #dirtyPolicySets = new Set<PolicySet>();
  #peerRevision = 0;
  #policyRevision = 0;

  constructor({ nodeName }: { readonly nodeName: string }) {
    this.#pods = new PodIndex(nodeName);
  }

  /** Increases when namespaces, nodes or CIDR groups change what rules match; not for pods. */
  get peerRevision(): number {
    return this.#peerRevision;
  }

  /** Increases when a policy changes, which may change what rules apply to pods. */
  get policyRevision(): number {
    return this.#policyRevision;
  }

  upsert(object: ModelObject): void {
    switch (object.kind) {
      case 'Pod':
        this.#markPods(this.#pods.upsert(object));
        break;
      case 'Namespace':
        this.#markClasses(this.#revised([...this.#pods.upsertNamespace(object)]));
        break;
      case 'Node':
        this.#markAddresses(this.#revised(this.#nodes.upsert(object)));
        break;
      case 'CIDRGroup':
        this.#markLists(this.#revised(this.#networks.upsert(object)));
        break;
      default:
        // Updates of the status, and lists after a lost watch, change no policy.
        if (isDeepStrictEqual(this.#policySets.get(object.kind, object.key), object)) return;
        this.#policyRevision += 1;
        this.#policySets.upsert(object);
    }
  }

  remove(kind: ModelObject['kind'], key: ObjectKey): void {
    switch (kind) {
      case 'Pod':
        this.#markPods(this.#pods.remove(key));
        break;
      case 'Namespace':
        this.#markClasses(this.#revised([...this.#pods.removeNamespace(key)]));
        break;
      case 'Node':
        this.#markAddresses(this.#revised(this.#nodes.remove(key)));
        break;
      case 'CIDRGroup':
        this.#markLists(this.#revised(this.#networks.remove(key)));
        break;
      default:
        this.#policyRevision += 1;
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
      for (const podClass of classes.values()) {
        this.#memberships.entryOf(podClass);
        if (slice.isOver()) await slice.yield();
      }
    }
  }

  /** Values that may have changed since the last call. The first call returns everything. */
  takeChanges(): ModelChanges {
    this.#update();
    const changes = {
      lists: new Map(
        [...this.#dirtyLists].map(([id, list]) => [
          id,
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
   * Ids of peer lists by domain name pattern, for the rules that apply to pods of this node. Every
   * call returns the same live map.
   */
  listsByDomainName(): ReadonlyMap<string, ReadonlySet<ListId>> {
    this.#update();
    return this.#lists.listsByDomainName;
  }

  /** Numbers of pods on this node by policy that applies to the pods, and of pods that a NetworkPolicy isolates. */
  localPods(): { readonly byPolicy: ReadonlyMap<Policy, number>; readonly isolated: number } {
    this.#update();
    const byPolicy = new Map<Policy, number>();
    let isolated = 0;
    for (const podClass of this.#policySets.localClasses()) {
      const applying = new Set(
        DIRECTIONS.flatMap((direction) => this.#policySets.policiesOf(podClass, direction)),
      );
      for (const policy of applying) {
        byPolicy.set(policy, (byPolicy.get(policy) ?? 0) + podClass.localCount);
      }
      const isIsolated = [...applying].some(({ tier }) => tier === 'NetworkPolicy');
      if (isIsolated) isolated += podClass.localCount;
    }
    return { byPolicy, isolated };
  }

  pod(key: ObjectKey): Pod | undefined {
    return this.#pods.get(key)?.pod;
  }

  /** The pod that owns an address. Pods on the host network and finished pods own no address. */
  podAt(address: string): Pod | undefined {
    return this.#pods.owner(address)?.pod;
  }

  /** Pods of the cluster, except pods on the host network and finished pods. */
  peerPods(): Iterable<Pod> {
    return this.#pods.subjects();
  }

  /** Pods of this node that policies can select. */
  *subjects(): Iterable<Pod> {
    for (const pod of this.#pods.subjects()) if (this.#pods.isLocal(pod)) yield pod;
  }

  /** A text that is the same for pods of this node with the same policies and named ports. */
  policyKeyOf(pod: Pod): string {
    this.#update();
    const podClass = this.#pods.get(pod.key)?.class;
    if (podClass === undefined) return '';
    const { ingress, egress } = this.#policySets.assignmentOf(podClass);
    return JSON.stringify([ingress?.id, egress?.id, podClass.namedPorts]);
  }

  /** Addresses of all nodes of the cluster. */
  nodeAddresses(): Iterable<string> {
    return this.#nodes.addresses();
  }

  /** Whether an address belongs to the pod's node. */
  isNodeOf({ nodeName }: Pod, address: string): boolean {
    return nodeName !== undefined && this.#nodes.has(nodeName, address);
  }

  /**
   * Calls `use` with the rules that apply to a pod, which may be on another node. The rules are
   * valid during the call only.
   * @returns the result of `use`.
   */
  withRules<T>(pod: Pod, direction: Direction, use: (rules: PolicySetRules) => T): T {
    this.#update();
    const podClass = this.#pods.get(pod.key)?.class;
    const set = podClass && this.#policySets.acquire(podClass, direction);
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
    return this.peersAt(address, family)(list);
  }

  /** Like `hasPeer`, for many lists and one address. */
  peersAt(address: string, family: IpFamily): (list: PeerList) => boolean {
    const { peers } = this.#entryOf(address);
    const value = addressNumber(address);
    return (list) => peers.includes(list.id) || rangesContain(this.networksOf(list, family), value);
  }

  /** CIDRs and CIDRGroups of a list as merged ranges (`ranges.ts`). */
  networksOf(list: PeerList, family: IpFamily): readonly AddressRange[] {
    return this.#networks.rangesOf(list).networks[family];
  }

  /** Named ports of the pod that owns this address, with the port lists that contain them. */
  namedPortsAt(address: string): readonly NamedPortMember[] {
    return this.#namedPorts(this.#pods.owner(address)?.class);
  }

  /** Like `namedPortsAt`, also for a pod that owns no address yet. */
  namedPortsOf({ key }: Pod): readonly NamedPortMember[] {
    return this.#namedPorts(this.#pods.get(key)?.class);
  }

  #namedPorts(podClass: PodClass | undefined): readonly NamedPortMember[] {
    if (podClass === undefined) return [];
    return [
      ...this.#memberships.entryOf(podClass).namedPorts,
      ...this.#memberships.localNamedPorts(podClass),
    ];
  }

  /** Updates policy sets and lists, and marks address entries as dirty. */
  #update(): void {
    const { classes, sets } = this.#policySets.update();
    for (const podClass of classes) this.#markEntries(podClass);
    for (const set of sets) this.#dirtyPolicySets.add(set);
    const changes = this.#lists.takeChanges();
    if (changes.added.length + changes.removed.length === 0) return;
    this.#networks.applyListChanges(changes);
    this.#markLists([...changes.added, ...changes.removed]);
    this.#markAddresses(this.#nodes.applyListChanges(changes));
    const namespaces = () => this.#pods.namespaces();
    const localClasses = this.#policySets.localClasses();
    for (const podClass of this.#memberships.applyListChanges(changes, namespaces, localClasses)) {
      this.#markEntries(podClass);
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

  #entryOfPods(pod: Pod, podClass: PodClass): AddressEntry {
    const entry = this.#memberships.entryOf(podClass);
    if (!this.#pods.isLocal(pod)) return entry;
    return getOrCreate(this.#localEntries, podClass, () => {
      const { ingress, egress } = this.#policySets.assignmentOf(podClass);
      return {
        peers: entry.peers,
        namedPorts: [...entry.namedPorts, ...this.#memberships.localNamedPorts(podClass)],
        isLocalPod: true,
        usesNames: egress?.usesNames ?? false,
        policySets: { ingress: ingress?.id, egress: egress?.id },
      };
    });
  }

  /** @param changed what the change of an object affects. */
  #revised<T>(changed: readonly T[]): readonly T[] {
    if (changed.length > 0) this.#peerRevision += 1;
    return changed;
  }

  #markPods({ addresses, classes }: PodChange): void {
    this.#markAddresses(addresses);
    for (const podClass of classes) this.#policySets.markDirty(podClass);
  }

  #markAddresses(addresses: readonly string[]): void {
    for (const address of addresses) this.#dirtyAddresses.add(address);
  }

  /** Relabelling a namespace may change memberships and policy sets of its pods. */
  #markClasses(classes: Iterable<PodClass>): void {
    for (const podClass of classes) {
      this.#memberships.invalidate(podClass);
      this.#markEntries(podClass);
      if (podClass.localCount > 0) this.#policySets.markDirty(podClass);
    }
  }

  #markEntries(podClass: PodClass): void {
    this.#localEntries.delete(podClass);
    for (const { pod } of podClass.pods) this.#markAddresses(pod.addresses);
  }

  #markLists(lists: readonly RuleList[]): void {
    for (const list of lists) this.#dirtyLists.set(list.id, list);
  }
}

const NO_RULES: PolicySetRules = { admin: [], lowerTiers: [], isolatedBy: [] };
