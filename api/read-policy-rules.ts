/**
 * Rules of policies of any kind, and how they fail closed.
 *
 * A rule with anything in it that the API would refuse, or that is not known here (a peer or protocol of a
 * version to come), cannot be enforced as it is written. What upstream says of unknown peers then
 * holds for the rule as a whole: an Allow matches nothing, a Deny or Pass denies everything. One whose
 * action is not known may be a Deny. A policy whose own fields cannot be read has no sound rules.
 */
import { InvalidObject } from './errors.ts';
import type { PolicyFault, PolicyPeer, PolicyRule, PortMatch } from './policy-objects.ts';
import {
  describeValue,
  isRecord,
  knownFields,
  type ObjectField,
  pathOf,
  readList,
} from './read-field.ts';

type Action = PolicyRule['action'];

/** How a kind of policy writes the rules of one direction. What reads a part throws InvalidObject. */
export interface RuleSchema {
  readonly maxRules: number;
  readonly members: readonly string[];
  readonly name: (rule: ObjectField) => string;
  readonly action: (rule: ObjectField) => Action;
  readonly peers: (rule: ObjectField) => readonly PolicyPeer[] | undefined;
  readonly ports: (rule: ObjectField) => readonly PortMatch[] | undefined;
  /** Whether its parts, which can be read, go together. */
  readonly check: (rule: ObjectField, read: PolicyRule) => void;
}

/** What `read` gives, or undefined when it throws InvalidObject, which becomes a fault. */
export function collectFault<T>(faults: PolicyFault[], read: () => T): T | undefined {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof InvalidObject)) throw error;
    faults.push({ field: error.field, reason: error.reason });
    return undefined;
  }
}

/**
 * The rules of one direction.
 * @param isSound false: whatever they say, they fail closed.
 * @returns no rules for what is no list.
 */
export function readRules(
  list: ObjectField,
  grammar: RuleSchema,
  isSound: boolean,
): { readonly rules: readonly PolicyRule[] | undefined; readonly faults: readonly PolicyFault[] } {
  const faults: PolicyFault[] = [];
  const fields = collectFault(faults, () => readList(list));
  const count = fields?.length ?? 0;
  if (count > grammar.maxRules) {
    const reason = `must have at most ${grammar.maxRules} rules, not ${count}`;
    faults.push({ field: pathOf(list), reason });
  }
  const areSound = isSound && faults.length === 0;
  const rules = fields?.map((field) => {
    const own: PolicyFault[] = [];
    const rule = readRule(field, grammar, own);
    faults.push(...own);
    return areSound && own.length === 0 ? rule : failClosed(rule);
  });
  return { rules, faults };
}

/** What of a rule can be read. */
function readRule(field: ObjectField, grammar: RuleSchema, faults: PolicyFault[]): PolicyRule {
  const path = pathOf(field);
  if (!isRecord(field.value)) {
    faults.push({ field: path, reason: `must be an object, not ${describeValue(field.value)}` });
    return {
      ...denyAllRule(path),
      action: collectFault([], () => grammar.action(field)) ?? 'Deny',
    };
  }
  collectFault(faults, () => knownFields(field, grammar.members));
  const rule = {
    path,
    name: collectFault(faults, () => grammar.name(field)) ?? '',
    action: collectFault(faults, () => grammar.action(field)) ?? 'Deny',
    peers: collectFault(faults, () => grammar.peers(field)),
    ports: collectFault(faults, () => grammar.ports(field)),
  };
  if (faults.length === 0) collectFault(faults, () => grammar.check(field, rule));
  return rule;
}

function failClosed({ path, name, action }: PolicyRule): PolicyRule {
  return action === 'Allow'
    ? { path, name, action, peers: [], ports: [] }
    : denyAllRule(path, name);
}

/** A rule that denies everything. */
export function denyAllRule(path: string, name = ''): PolicyRule {
  return { path, name, action: 'Deny', peers: undefined, ports: undefined };
}
