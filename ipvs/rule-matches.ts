/** Matches on ipsets and marks for the rules of the ipvs mode. */
import type { MarkRange } from '../config/mode-values.ts';
import { hex, type RuleSpec } from '../iptables/rule.ts';
import type { TrafficOptions } from '../traffic/options.ts';
import { kernelName, type SetName } from './sets.ts';

export interface RuleOptions extends Omit<TrafficOptions, 'resetsTcp'> {
  /** Bit of the connection mark, 0 to 31 (`--iptables-masquerade-bit`). */
  readonly masqueradeBit: number;
  readonly randomFully: boolean;
  readonly markRange: MarkRange;
}

/** Sets of VIP and port for which IPVS has a service of exactly that port. */
export const LISTED_PORT_SETS: readonly SetName[] = [
  'KUBE-CLUSTER-IP',
  'KUBE-LOAD-BALANCER',
  'KUBE-EXTERNAL-IP',
  'KUBE-EXTERNAL-IP-LOCAL',
];

/**
 * Matches and targets that look packets up in ipsets; by destination address and port unless
 * `fields` says otherwise.
 */
export function setMatches({ family }: RuleOptions) {
  const text = (set: SetName, fields: string) => `${kernelName(set, family)} ${fields}`;
  const inSet = (set: SetName, fields = 'dst,dst') => `-m set --match-set ${text(set, fields)}`;
  return {
    inSet,
    notInSet: (set: SetName, fields = 'dst,dst') => `-m set ! --match-set ${text(set, fields)}`,
    /** One rule for each set. */
    inSets: (sets: readonly SetName[], target: string, fields?: string): RuleSpec[] =>
      sets.map((set) => ({ matches: [inSet(set, fields)], target })),
    mapMark: (set: SetName, fields = 'dst,dst') => `SET --map-set ${text(set, fields)} --map-mark`,
  };
}

export function matchMark(value: number): string {
  return `-m mark --mark ${hex(value)}`;
}

/**
 * The masquerade bit as value and mask. `1 << 31` is negative in JavaScript; `hex` prints it
 * unsigned.
 */
export function masqueradeMark({ masqueradeBit }: RuleOptions): string {
  const text = hex(1 << masqueradeBit);
  return `${text}/${text}`;
}
