import { compareText } from '../api/collections.ts';
import type { ApiObject, Kind, ObjectKey } from '../api/objects.ts';
import type { Policy, PolicyFault, PolicyKind } from '../api/policy-objects.ts';

/** A fault of a policy that came, or went. */
export interface ToldFault extends PolicyFault {
  readonly policy: Policy;
}

export interface PolicyFaultsOptions {
  readonly onRaised: (fault: ToldFault) => void;
  readonly onCleared: (fault: ToldFault) => void;
}

/**
 * Which policies there are, and which of them fail closed in a part. A fault is told once, until it is
 * gone or is another.
 */
export class PolicyFaults {
  readonly #options: PolicyFaultsOptions;
  readonly #policies = new Map<string, Policy>();

  constructor(options: PolicyFaultsOptions) {
    this.#options = options;
  }

  /** Other objects are passed over. */
  upsert(object: ApiObject): void {
    if (!('faults' in object)) return;
    const id = `${object.kind} ${object.key}`;
    const before = this.#policies.get(id);
    this.#policies.set(id, object);
    for (const fault of missingFrom(before?.faults ?? [], object.faults)) {
      this.#options.onRaised({ ...fault, policy: object });
    }
    for (const fault of missingFrom(object.faults, before?.faults ?? [])) {
      this.#options.onCleared({ ...fault, policy: object });
    }
  }

  remove(kind: Kind, key: ObjectKey): void {
    this.#policies.delete(`${kind} ${key}`);
  }

  /** By kind and state. */
  counts(): { kind: PolicyKind; state: 'sound' | 'faulty'; count: number }[] {
    const counts = new Map<PolicyKind, { sound: number; faulty: number }>();
    for (const { kind, faults } of this.#policies.values()) {
      const of = counts.get(kind) ?? { sound: 0, faulty: 0 };
      of[faults.length === 0 ? 'sound' : 'faulty'] += 1;
      counts.set(kind, of);
    }
    return [...counts]
      .sort(([a], [b]) => compareText(a, b))
      .flatMap(([kind, { sound, faulty }]) => [
        { kind, state: 'sound' as const, count: sound },
        { kind, state: 'faulty' as const, count: faulty },
      ]);
  }
}

function missingFrom(
  some: readonly PolicyFault[],
  all: readonly PolicyFault[],
): readonly PolicyFault[] {
  return all.filter(
    ({ field, reason }) => !some.some((each) => each.field === field && each.reason === reason),
  );
}
