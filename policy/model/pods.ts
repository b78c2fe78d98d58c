/** All pods and namespaces of the cluster. Pods that no policy can distinguish form a class. */
import { getOrCreate } from '../../api/collections.ts';
import type { ObjectKey } from '../../api/objects.ts';
import type { Labels, NamedPort, Namespace, Pod } from '../../api/policy-objects.ts';
import { NAME_LABEL } from '../../api/read-namespace.ts';
import { AddressOwners } from './address-owners.ts';

export interface NamespaceState {
  readonly name: string;
  labels: Labels;
  /** Whether the Namespace object exists; otherwise the namespace is known from its pods only. */
  hasObject: boolean;
  readonly classes: Map<string, PodClass>;
}

/**
 * An equivalence class of pods: the same namespace, labels and named ports. Memberships and policy
 * sets are computed once for each class.
 */
export interface PodClass {
  readonly key: string;
  readonly namespace: NamespaceState;
  readonly labels: Labels;
  readonly namedPorts: readonly NamedPort[];
  readonly pods: Set<PodState>;
  /** Number of pods on this node. */
  localCount: number;
}

export interface PodState {
  readonly pod: Pod;
  /**
   * undefined for a pod that is never a subject or peer, because it uses the host network or has
   * finished.
   */
  readonly class: PodClass | undefined;
}

/** Addresses and classes that a change of a pod affects. */
export interface PodChange {
  readonly addresses: readonly string[];
  /** Classes that got their first pod on this node, or lost their last pod on this node. */
  readonly classes: readonly PodClass[];
}

export class PodIndex {
  readonly #nodeName: string;
  readonly #pods = new Map<ObjectKey, PodState>();
  readonly #namespaces = new Map<string, NamespaceState>();
  readonly #owners = new AddressOwners<PodState>();

  constructor(nodeName: string) {
    this.#nodeName = nodeName;
  }

  get(key: ObjectKey): PodState | undefined {
    return this.#pods.get(key);
  }

  /** The pod that owns an address. */
  owner(address: string): PodState | undefined {
    return this.#owners.owner(address);
  }

  /** Pods that can be subjects or peers. */
  *subjects(): Iterable<Pod> {
    for (const { pod, class: podClass } of this.#pods.values()) if (podClass) yield pod;
  }

  namespaces(): Iterable<NamespaceState> {
    return this.#namespaces.values();
  }

  isLocal(pod: Pod): boolean {
    return pod.nodeName === this.#nodeName;
  }

  upsert(pod: Pod): PodChange {
    const before = this.#pods.get(pod.key);
    const isSubject = !pod.hostNetwork && !pod.finished;
    const now = { pod, class: isSubject ? this.#classOf(pod) : undefined };
    this.#pods.set(pod.key, now);
    // Add before removing: a class without pods is dropped together with its cached entries.
    const classes = [...this.#addToClass(now), ...this.#removeFromClass(before)];
    return { addresses: [...pod.addresses, ...(before?.pod.addresses ?? [])], classes };
  }

  remove(key: ObjectKey): PodChange {
    const before = this.#pods.get(key);
    this.#pods.delete(key);
    return { addresses: before?.pod.addresses ?? [], classes: this.#removeFromClass(before) };
  }

  /** @returns the classes in the namespace if its labels changed. */
  upsertNamespace({ name, labels }: Namespace): Iterable<PodClass> {
    return this.#relabel(this.#namespaceOf(name), labels, true);
  }

  /** @returns the classes in the namespace if its labels changed. */
  removeNamespace(name: string): Iterable<PodClass> {
    const namespace = this.#namespaces.get(name);
    if (namespace === undefined) return [];
    const changed = this.#relabel(namespace, {}, false);
    this.#dropIfUnused(namespace);
    return changed;
  }

  #relabel(namespace: NamespaceState, labels: Labels, hasObject: boolean): Iterable<PodClass> {
    const before = textOf(namespace.labels);
    namespace.labels = { ...labels, [NAME_LABEL]: namespace.name };
    namespace.hasObject = hasObject;
    return textOf(namespace.labels) === before ? [] : namespace.classes.values();
  }

  #addToClass(state: PodState): PodClass[] {
    const { pod, class: podClass } = state;
    if (podClass === undefined) return [];
    for (const address of pod.addresses) this.#owners.add(address, state);
    podClass.pods.add(state);
    if (!this.isLocal(pod)) return [];
    podClass.localCount += 1;
    return podClass.localCount === 1 ? [podClass] : [];
  }

  #removeFromClass(state: PodState | undefined): PodClass[] {
    if (state?.class === undefined) return [];
    const { pod, class: podClass } = state;
    for (const address of pod.addresses) this.#owners.remove(address, state);
    podClass.pods.delete(state);
    if (podClass.pods.size === 0) {
      podClass.namespace.classes.delete(podClass.key);
      this.#dropIfUnused(podClass.namespace);
    }
    if (!this.isLocal(pod)) return [];
    podClass.localCount -= 1;
    return podClass.localCount === 0 ? [podClass] : [];
  }

  #classOf({ namespace: name, labels, namedPorts }: Pod): PodClass {
    const namespace = this.#namespaceOf(name);
    const key = `${textOf(labels)}${JSON.stringify(namedPorts)}`;
    return getOrCreate(namespace.classes, key, () => ({
      key,
      namespace,
      labels,
      namedPorts,
      pods: new Set(),
      localCount: 0,
    }));
  }

  #namespaceOf(name: string): NamespaceState {
    return getOrCreate(this.#namespaces, name, () => ({
      name,
      labels: { [NAME_LABEL]: name },
      hasObject: false,
      classes: new Map(),
    }));
  }

  #dropIfUnused(namespace: NamespaceState): void {
    if (!namespace.hasObject && namespace.classes.size === 0)
      this.#namespaces.delete(namespace.name);
  }
}

function textOf(labels: Labels): string {
  return JSON.stringify(Object.entries(labels));
}
