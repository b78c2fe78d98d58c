/**
 * Reads the rules of any kind of policy; rules that cannot be read fail closed.
 *
 * A rule cannot be enforced as written if any part of it is invalid or unknown, such as a peer or
 * protocol of a later API version. network-policy-api defines the effect of an unknown peer;
 * Portwide applies this effect to the whole rule. A faulty Allow rule matches nothing; a faulty Deny
 * or Pass rule denies everything. A rule with an unknown action is treated as Deny. If fields of the
 * policy itself cannot be read, all of its rules fail closed. If a direction has too many rules, all
 * rules of the direction fail closed.
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

/**
 * The fields of a rule in one direction, for one kind of policy. Its functions throw InvalidObject.
 */
export interface RuleSchema {
  readonly maxRules: number;
  readonly members: readonly string[];
  readonly name: (rule: ObjectField) => string;
  readonly action: (rule: ObjectField) => Action;
  readonly peers: (rule: ObjectField) => readonly PolicyPeer[] | undefined;
  readonly ports: (rule: ObjectField) => readonly PortMatch[] | undefined;
  /** Checks that the fields, each valid by itself, are valid together. */
  readonly check: (rule: ObjectField, read: PolicyRule) => void;
}

/** Calls `read`. If it throws InvalidObject, records a fault and returns undefined. */
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
 * Reads the rules of one direction.
 * @param isPolicyValid false if the policy itself is faulty: all rules then fail closed.
 * @returns undefined rules if the field is not a list.
 */
export function readRules(
  list: ObjectField,
  schema: RuleSchema,
  isPolicyValid: boolean,
): { readonly rules: readonly PolicyRule[] | undefined; readonly faults: readonly PolicyFault[] } {
  const faults: PolicyFault[] = [];
  const fields = collectFault(faults, () => readList(list));
  const count = fields?.length ?? 0;
  if (count > schema.maxRules) {
    const reason = `must have at most ${schema.maxRules} rules, not ${count}`;
    faults.push({ field: pathOf(list), reason });
  }
  const areRulesValid = isPolicyValid && faults.length === 0;
  const rules = fields?.map((field) => {
    const own: PolicyFault[] = [];
    const rule = readRule(field, schema, own);
    faults.push(...own);
    return areRulesValid && own.length === 0 ? rule : failClosed(rule);
  });
  return { rules, faults };
}

/** Reads as much of a rule as possible. Adds a fault for each part that cannot be read. */
function readRule(field: ObjectField, schema: RuleSchema, faults: PolicyFault[]): PolicyRule {
  const path = pathOf(field);
  if (!isRecord(field.value)) {
    faults.push({ field: path, reason: `must be an object, not ${describeValue(field.value)}` });
    return {
      ...denyAllRule(path),
      action: collectFault([], () => schema.action(field)) ?? 'Deny',
    };
  }
  collectFault(faults, () => knownFields(field, schema.members));
  const rule = {
    path,
    name: collectFault(faults, () => schema.name(field)) ?? '',
    action: collectFault(faults, () => schema.action(field)) ?? 'Deny',
    peers: collectFault(faults, () => schema.peers(field)),
    ports: collectFault(faults, () => schema.ports(field)),
  };
  if (faults.length === 0) collectFault(faults, () => schema.check(field, rule));
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
