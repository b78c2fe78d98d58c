/** Rules of table mangle: the marks of all-ports Services, and drops. */
import { PROTOCOLS } from '../api/objects.ts';
import {
  ALL_PORTS_FIREWALL,
  ALL_PORTS_INSIDE,
  ALL_PORTS_MARK,
  PORT_RANGES_FIREWALL,
  SOURCE_RANGES_FIREWALL,
} from '../iptables/chains.ts';
import { fromPods, type RuleSpec } from '../iptables/rule.ts';
import { verdictMarks } from './marks.ts';
import {
  inSet,
  inSets,
  LISTED,
  mapMark,
  mark,
  notInSet,
  type RuleOptions,
} from './rule-matches.ts';
import type { SetName } from './sets.ts';

/** In PREROUTING. Not only what is new: IPVS may have forgotten a connection that conntrack knows. */
export function markOutside(options: RuleOptions): RuleSpec[] {
  const { localDetector } = options;
  const pods =
    localDetector === undefined ? [] : [{ ...fromPods(localDetector, false), goto: true as const }];
  return [
    // What the node sends to itself: the ping to a VIP, which IPVS does not schedule.
    { inInterface: { value: 'lo' }, goto: true, target: ALL_PORTS_INSIDE },
    ...pods.map((match) => ({ ...match, target: ALL_PORTS_INSIDE })),
    ...inSets(['KUBE-ALL-PORTS-IPS'], 'dst', ALL_PORTS_MARK, options),
  ];
}

/** For pods of this node and, in OUTPUT, the node itself. */
export function markInside(options: RuleOptions): RuleSpec[] {
  return [
    {
      matches: [
        inSet('KUBE-INSIDE-PORTS', 'dst,dst', options),
        notInSet('KUBE-HEALTH-CHECK-VIP', 'dst,dst', options),
      ],
      target: mapMark('KUBE-INSIDE-PORTS', 'dst,dst', options),
    },
    { matches: [inSet('KUBE-INSIDE-PORTS', 'dst,dst', options)], target: 'RETURN' },
    { matches: [notInSet('KUBE-ALL-PORTS-IPS', 'dst', options)], target: 'RETURN' },
    { target: ALL_PORTS_MARK },
    // Not what a port of another Service on the VIP has, nor, of all ports, what a range has.
    ...inSets([...LISTED, 'KUBE-HEALTH-CHECK-VIP'], 'dst,dst', 'RETURN', options),
    { target: mapMark('KUBE-INSIDE-PORT-RANGES', 'dst,dst', options) },
    { matches: [inSet('KUBE-PORT-RANGES', 'dst,dst', options)], target: 'RETURN' },
    { target: mapMark('KUBE-INSIDE-ALL-PORTS', 'dst', options) },
  ];
}

/** The most specific wins: a listed port keeps its service, a range overrides what all ports have. */
export function markByVip(options: RuleOptions): RuleSpec[] {
  return [
    ...inSets([...LISTED, 'KUBE-HEALTH-CHECK-VIP'], 'dst,dst', 'RETURN', options),
    { target: mapMark('KUBE-ALL-PORTS', 'dst', options) },
    { target: mapMark('KUBE-PORT-RANGES', 'dst,dst', options) },
  ];
}

/** Drops, for new connections; in mangle, because IPVS has local clients' packets before filter. */
export function firewall(options: RuleOptions): RuleSpec[] {
  const { localDetector } = options;
  const outside = localDetector === undefined ? {} : fromPods(localDetector, true);
  const allPortsVip = inSet('KUBE-ALL-PORTS-IPS', 'dst', options);
  return [
    {
      comment: 'Kubernetes service load balancer ip + port for load balancer with sourceRange',
      matches: [inSet('KUBE-LOAD-BALANCER-FW', 'dst,dst', options)],
      target: SOURCE_RANGES_FIREWALL,
    },
    { matches: [inSet('KUBE-PORT-RANGES-FW', 'dst,dst', options)], target: PORT_RANGES_FIREWALL },
    { matches: [inSet('KUBE-ALL-PORTS-FW', 'dst,dst', options)], target: ALL_PORTS_FIREWALL },
    { matches: [inSet('KUBE-DROP', 'dst,dst', options)], target: 'DROP' },
    {
      ...outside,
      matches: ['-m addrtype ! --src-type LOCAL', inSet('KUBE-DROP-OUTSIDE', 'dst,dst', options)],
      target: 'DROP',
    },
    { matches: [mark(verdictMarks(options.markRange).drop), allPortsVip], target: 'DROP' },
    // All ports are 1 to 65535 (KEP-2610).
    ...PROTOCOLS.map((protocol) => ({
      protocol,
      ports: { from: 0, to: 0 },
      matches: [allPortsVip],
      target: 'DROP',
    })),
  ];
}

/** Lets on sources that one of these sets has, and drops others. */
export function allowedSources(
  sets: readonly SetName[],
  flags: string,
  options: RuleOptions,
): RuleSpec[] {
  return [...inSets(sets, flags, 'RETURN', options), { target: 'DROP' }];
}
