/** The rules of a pod in one direction, and whether they have changed since they were read. */
import type { Pod } from '../../api/policy-objects.ts';
import type { PolicyModel } from './model.ts';
import type { PolicySetRules } from './policy-sets.ts';
import type { Direction } from './terms.ts';

/** For a pod of this node: its rules are kept until they change. */
export class PodRules {
  readonly #model: PolicyModel;
  readonly #direction: Direction;
  readonly pod: Pod;
  readonly rules: PolicySetRules;
  readonly #peerRevision: number;
  /** Of the last comparison. A pod that was deleted and created again is another object. */
  #compared: { readonly pod: Pod; readonly policyRevision: number };

  constructor(model: PolicyModel, pod: Pod, direction: Direction) {
    this.#model = model;
    this.#direction = direction;
    this.pod = pod;
    this.rules = this.#read();
    this.#peerRevision = model.peerRevision;
    this.#compared = { pod, policyRevision: model.policyRevision };
  }

  /**
   * Whether the pod exists and its rules, and what they match, are as before, except for peer pods. Policies that do not
   * apply to the pod, and objects that come again unchanged, make no difference.
   */
  isCurrent(): boolean {
    const { peerRevision, policyRevision } = this.#model;
    if (peerRevision !== this.#peerRevision) return false;
    const pod = this.#model.pod(this.pod.key);
    if (pod === undefined) return false;
    const { pod: comparedPod, policyRevision: comparedRevision } = this.#compared;
    if (pod === comparedPod && policyRevision === comparedRevision) return true;
    this.#compared = { pod, policyRevision };
    return areSame(this.rules, this.#read());
  }

  #read(): PolicySetRules {
    return this.#model.withRules(this.pod, this.#direction, (found) => found);
  }
}

/** Rules that were not read again are the same objects. */
function areSame(before: PolicySetRules, now: PolicySetRules): boolean {
  return (['admin', 'lowerTiers', 'isolatedBy'] as const).every(
    (part) =>
      now[part].length === before[part].length &&
      now[part].every((each, at) => each === before[part][at]),
  );
}
