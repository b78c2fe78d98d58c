import type { IpFamily } from '../../api/objects.ts';
import type { CompiledRule, PolicyChange, PolicySetChain } from '../../policy/compile/change.ts';
import type { Direction, PeerSetName } from '../../policy/model/terms.ts';

export function chainRule(fields: Partial<CompiledRule> = {}): CompiledRule {
  return { peers: undefined, ports: undefined, outcome: 'allow', comment: 'a rule', ...fields };
}

/** What isolation by NetworkPolicies ends with. */
export const DENY_REST = chainRule({ outcome: 'deny-network-policy', comment: 'isolated' });

export function policySetChain(
  direction: Direction,
  profile: number,
  rest: readonly CompiledRule[],
  admin: readonly CompiledRule[] = [],
): PolicySetChain {
  return { direction, profile, admin, lowerTiers: rest };
}

export function policyChange(family: IpFamily, fields: Partial<PolicyChange> = {}): PolicyChange {
  return {
    family,
    prepare: [],
    remove: [],
    add: [],
    chains: [],
    cleanup: [],
    cleanupChains: [],
    ...fields,
  };
}

/** Peers of a list. */
export function peers(list: number, ...sets: readonly PeerSetName[]) {
  return { number: list, sets: sets.length === 0 ? (['peers'] as const) : sets };
}

/** Ports of a list. */
export function ports(list: number, ...sets: readonly ('ports' | 'named-ports')[]) {
  return { number: list, sets: sets.length === 0 ? (['ports'] as const) : sets };
}

/** An address that nobody has. */
export function address(family: IpFamily, number: number): string {
  return family === 'IPv4'
    ? `10.9.${number >> 8}.${number & 255}`
    : `fd00:9::${number === 0 ? '' : number.toString(16)}`;
}
