/** Parts of this mode's rules: matches on its ipsets, on marks, and on who sends. */
import type { IpFamily } from '../api/objects.ts';
import type { MarkRange } from '../config/mode-values.ts';
import type { LocalDetector } from '../iptables/compile.ts';
import { hex, type RuleSpec } from '../iptables/rule.ts';
import { kernelName, type SetName } from './sets.ts';

export interface RuleOptions {
  readonly family: IpFamily;
  readonly masqueradeAll: boolean;
  /** Bit of the connection's mark, 0 to 31 (`--iptables-masquerade-bit`). */
  readonly masqueradeBit: number;
  readonly localDetector: LocalDetector | undefined;
  readonly randomFully: boolean;
  readonly markRange: MarkRange;
}

/** Sets of VIP and port whose packets have a service of that very port. */
export const LISTED: readonly SetName[] = [
  'KUBE-CLUSTER-IP',
  'KUBE-LOAD-BALANCER',
  'KUBE-EXTERNAL-IP',
  'KUBE-EXTERNAL-IP-LOCAL',
];

/** What goes to a listed port. */
export function listed(options: RuleOptions, target: string): RuleSpec[] {
  return LISTED.map((set) => ({ matches: [inSet(set, 'dst,dst', options)], target }));
}

export function fromPods(detector: LocalDetector, not: boolean) {
  return detector.kind === 'cidr'
    ? { source: { value: detector.cidr, not } }
    : { inInterface: { value: detector.name, not } };
}

export function inSet(set: SetName, flags: string, { family }: RuleOptions): string {
  return `-m set --match-set ${kernelName(set, family)} ${flags}`;
}

export function notInSet(set: SetName, flags: string, { family }: RuleOptions): string {
  return `-m set ! --match-set ${kernelName(set, family)} ${flags}`;
}

export function mapMark(set: SetName, flags: string, { family }: RuleOptions): string {
  return `SET --map-set ${kernelName(set, family)} ${flags} --map-mark`;
}

export function mark(value: number): string {
  return `-m mark --mark ${hex(value)}`;
}

/** The masquerade bit, as value and mask. `1 << 31` is negative in JavaScript; hex takes care. */
export function bit({ masqueradeBit }: RuleOptions): string {
  const text = hex(1 << masqueradeBit);
  return `${text}/${text}`;
}
