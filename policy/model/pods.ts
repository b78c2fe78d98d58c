import { getOrCreate } from '../../api/collections.ts';
import type { ObjectKey } from '../../api/objects.ts';
import type { Labels, NamedPort, Namespace, Pod } from '../../api/policy-objects.ts';
import { NAME_LABEL } from '../../api/read-namespace.ts';
import type { Facts } from './facts.ts';
import { AddressHolders } from './holders.ts';
import type { Membership } from './memberships.ts';
import type { Profile } from './profiles.ts';
import type { Direction } from './shape.ts';

export interface NamespaceState {
  readonly name: string;
  labels: Labels;
  /** A Namespace object says so. */
  known: boolean;
  readonly shapes: Map<string, Shape>;
}

/**
 * Pods that no policy can tell apart: of one namespace, with the same labels and named ports. What
 * follows for one of them is worked out once, and kept here by those who did.
 */
export interface Shape {
  readonly key: string;
  readonly namespace: NamespaceState;
  readonly labels: Labels;
  readonly namedPorts: readonly NamedPort[];
  readonly pods: Set<PodState>;
  /** How many of them are of this node. */
  locals: number;
  /** The lists that they are in; undefined: to be worked out. */
  membership: Membership | undefined;
  /** What applies to those of this node. */
  readonly profiles: Record<Direction, Profile | undefined>;
  /** What follows from all this for an address, by whether the pod is of this node. */
  facts: { local: Facts | undefined; remote: Facts | undefined };
}

export interface PodState {
  readonly pod: Pod;
  /** undefined for a pod that no policy is about: it is on the host's network, or has finished. */
  readonly shape: Shape | undefined;
}

/** What a change concerns. */
export interface Touched {
  readonly addresses: readonly string[];
  /** These have their first pod of this node, or have lost the last. */
  readonly shapes: readonly Shape[];
}

/** All pods and namespaces of the cluster. */
export class Pods {
  readonly #nodeName: string;
  readonly #pods = new Map<ObjectKey, PodState>();
  readonly #namespaces = new Map<string, NamespaceState>();
  readonly #holders = new AddressHolders<PodState>();

  constructor(nodeName: string) {
    this.#nodeName = nodeName;
  }

  get(key: ObjectKey): PodState | undefined {
    return this.#pods.get(key);
  }

  /** The pod that has an address. */
  holder(address: string): PodState | undefined {
    return this.#holders.holder(address);
  }

  namespaces(): Iterable<NamespaceState> {
    return this.#namespaces.values();
  }

  isLocal(pod: Pod): boolean {
    return pod.nodeName === this.#nodeName;
  }

  upsert(pod: Pod): Touched {
    const before = this.#pods.get(pod.key);
    const isSubject = !pod.hostNetwork && !pod.finished;
    const now = { pod, shape: isSubject ? this.#shapeOf(pod) : undefined };
    this.#pods.set(pod.key, now);
    // The new one first: a shape that loses its last pod is forgotten, with what was worked out.
    const shapes = [...this.#enter(now), ...this.#leave(before)];
    return { addresses: [...pod.addresses, ...(before?.pod.addresses ?? [])], shapes };
  }

  remove(key: ObjectKey): Touched {
    const before = this.#pods.get(key);
    this.#pods.delete(key);
    return { addresses: before?.pod.addresses ?? [], shapes: this.#leave(before) };
  }

  /** @returns the shapes in the namespace, if it has other labels than before. */
  upsertNamespace({ name, labels }: Namespace): Iterable<Shape> {
    return this.#relabel(this.#namespaceOf(name), labels, true);
  }

  /** @returns as `upsertNamespace`. */
  removeNamespace(name: string): Iterable<Shape> {
    const namespace = this.#namespaces.get(name);
    if (namespace === undefined) return [];
    const touched = this.#relabel(namespace, {}, false);
    this.#forget(namespace);
    return touched;
  }

  #relabel(namespace: NamespaceState, labels: Labels, known: boolean): Iterable<Shape> {
    const before = textOf(namespace.labels);
    namespace.labels = { ...labels, [NAME_LABEL]: namespace.name };
    namespace.known = known;
    return textOf(namespace.labels) === before ? [] : namespace.shapes.values();
  }

  #enter(state: PodState): Shape[] {
    const { pod, shape } = state;
    if (shape === undefined) return [];
    for (const address of pod.addresses) this.#holders.claim(address, state);
    shape.pods.add(state);
    if (!this.isLocal(pod)) return [];
    shape.locals += 1;
    return shape.locals === 1 ? [shape] : [];
  }

  #leave(state: PodState | undefined): Shape[] {
    if (state?.shape === undefined) return [];
    const { pod, shape } = state;
    for (const address of pod.addresses) this.#holders.release(address, state);
    shape.pods.delete(state);
    if (shape.pods.size === 0) {
      shape.namespace.shapes.delete(shape.key);
      this.#forget(shape.namespace);
    }
    if (!this.isLocal(pod)) return [];
    shape.locals -= 1;
    return shape.locals === 0 ? [shape] : [];
  }

  #shapeOf({ namespace: name, labels, namedPorts }: Pod): Shape {
    const namespace = this.#namespaceOf(name);
    const key = `${textOf(labels)}${JSON.stringify(namedPorts)}`;
    return getOrCreate(namespace.shapes, key, () => ({
      key,
      namespace,
      labels,
      namedPorts,
      pods: new Set(),
      locals: 0,
      membership: undefined,
      profiles: { ingress: undefined, egress: undefined },
      facts: { local: undefined, remote: undefined },
    }));
  }

  #namespaceOf(name: string): NamespaceState {
    return getOrCreate(this.#namespaces, name, () => ({
      name,
      labels: { [NAME_LABEL]: name },
      known: false,
      shapes: new Map(),
    }));
  }

  #forget(namespace: NamespaceState): void {
    if (!namespace.known && namespace.shapes.size === 0) this.#namespaces.delete(namespace.name);
  }
}

function textOf(labels: Labels): string {
  return JSON.stringify(Object.entries(labels));
}
