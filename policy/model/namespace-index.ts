/** Finds policies or lists by the namespace of pods that they may select, without a walk over all of them. */
import { getOrCreate } from '../../api/collections.ts';
import type { PodSelection } from '../../api/policy-objects.ts';

export class NamespaceIndex<T> {
  readonly #byName = new Map<string, Set<T>>();
  /** Items that select namespaces by labels. */
  readonly #byLabels = new Set<T>();

  add(item: T, selections: readonly PodSelection[]): void {
    const names = namespaceNames(selections);
    if (names === undefined) this.#byLabels.add(item);
    else for (const name of names) getOrCreate(this.#byName, name, () => new Set()).add(item);
  }

  /** @param selections as they were for `add`. */
  delete(item: T, selections: readonly PodSelection[]): void {
    this.#byLabels.delete(item);
    for (const name of namespaceNames(selections) ?? []) {
      const items = this.#byName.get(name);
      items?.delete(item);
      if (items?.size === 0) this.#byName.delete(name);
    }
  }

  /** Items that name a namespace, and those that may select it. */
  *candidates(namespace: string): Iterable<T> {
    yield* this.#byName.get(namespace) ?? [];
    yield* this.#byLabels;
  }
}

/** The namespaces that selections name; undefined: one of them selects namespaces. */
function namespaceNames(selections: readonly PodSelection[]): readonly string[] | undefined {
  const names = selections.map(({ namespaces }) => namespaces);
  return names.every((each) => typeof each === 'string') ? names : undefined;
}
