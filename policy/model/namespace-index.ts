/** Finds policies or lists by the namespace of pods that they may select, without a walk over all of them. */
import { getOrCreate } from '../../api/collections.ts';
import type { PodSelection } from '../../api/policy-objects.ts';

export class NamespaceIndex<T> {
  readonly #named = new Map<string, Set<T>>();
  /** Items that select namespaces by labels. */
  readonly #across = new Set<T>();

  add(item: T, selections: readonly PodSelection[]): void {
    const names = namesIn(selections);
    if (names === undefined) this.#across.add(item);
    else for (const name of names) getOrCreate(this.#named, name, () => new Set()).add(item);
  }

  /** @param selections as they were for `add`. */
  delete(item: T, selections: readonly PodSelection[]): void {
    this.#across.delete(item);
    for (const name of namesIn(selections) ?? []) {
      const items = this.#named.get(name);
      items?.delete(item);
      if (items?.size === 0) this.#named.delete(name);
    }
  }

  /** Items that name a namespace, and those that may select it. */
  *near(namespace: string): Iterable<T> {
    yield* this.#named.get(namespace) ?? [];
    yield* this.#across;
  }
}

/** The namespaces that selections name; undefined: one of them selects namespaces. */
function namesIn(selections: readonly PodSelection[]): readonly string[] | undefined {
  const names = selections.map(({ namespaces }) => namespaces);
  return names.every((each) => typeof each === 'string') ? names : undefined;
}
