import type { IpFamily } from '../../api/objects.ts';
import type { CompiledRule, PolicyChange, PolicySetChain } from '../../policy/compile/change.ts';
import type { Direction, PeerSetName } from '../../policy/model/terms.ts';

export function chainRule(fields: Partial<CompiledRule> = {}): CompiledRule {
  return { peers: undefined, ports: undefined, verdict: 'allow', comment: 'a rule', ...fields };
}

/** The default deny of isolated pods. */
export const DENY_REST = chainRule({ verdict: 'deny-network-policy', comment: 'isolated' });

export function policySetChain(
  direction: Direction,
  policySetId: number,
  lowerTiers: readonly CompiledRule[],
  admin: readonly CompiledRule[] = [],
): PolicySetChain {
  return { direction, policySetId, admin, lowerTiers };
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

/** A reference to a peer list. */
export function peers(list: number, ...sets: readonly PeerSetName[]) {
  return { id: list, sets: sets.length === 0 ? (['peers'] as const) : sets };
}

/** A reference to a port list. */
export function ports(list: number, ...sets: readonly ('ports' | 'named-ports')[]) {
  return { id: list, sets: sets.length === 0 ? (['ports'] as const) : sets };
}

/** An unused address. */
export function address(family: IpFamily, number: number): string {
  return family === 'IPv4'
    ? `10.9.${number >> 8}.${number & 255}`
    : `fd00:9::${number === 0 ? '' : number.toString(16)}`;
}
