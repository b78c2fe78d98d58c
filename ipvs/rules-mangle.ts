/** Rules of table mangle: the marks of all-ports Services, and drops. */
import { PROTOCOLS } from '../api/objects.ts';
import { staticChain } from '../iptables/base-rules.ts';
import {
  ALL_PORTS,
  ALL_PORTS_FIREWALL,
  ALL_PORTS_INSIDE,
  ALL_PORTS_MARK,
  PORT_RANGES_FIREWALL,
  PROXY_FIREWALL,
  SOURCE_RANGES_FIREWALL,
} from '../iptables/chains.ts';
import { DEPTH } from '../iptables/compile.ts';
import { fromPods, type RuleSpec } from '../iptables/rule.ts';
import type { TreeChain } from '../iptables/vip-tree.ts';
import { verdictMarks } from './marks.ts';
import { LISTED_PORT_SETS, matchMark, type RuleOptions, setMatches } from './rule-matches.ts';
import type { SetName } from './sets.ts';

export function mangleChains(options: RuleOptions): TreeChain[] {
  const { localDetector } = options;
  const { inSet, notInSet, inSets, mapMark } = setMatches(options);
  const chain = (name: string, rules: readonly RuleSpec[], depth?: number) =>
    staticChain('mangle', name, rules, depth);
  /** Lets on sources that one of these sets has. */
  const sources = (name: string, fields: string, ...sets: SetName[]) =>
    chain(name, [...inSets(sets, 'RETURN', fields), { target: 'DROP' }], DEPTH.branch);
  const toInside = { goto: true, target: ALL_PORTS_INSIDE };
  const toListed = inSets([...LISTED_PORT_SETS, 'KUBE-HEALTH-CHECK-VIP'], 'RETURN');
  const allPortsVip = inSet('KUBE-ALL-PORTS-IPS', 'dst');
  return [
    // In PREROUTING. Not only what is new: IPVS may have forgotten a connection that conntrack knows.
    chain(ALL_PORTS, [
      // What the node sends to itself: the ping to a VIP, which IPVS does not schedule.
      { inInterface: { value: 'lo' }, ...toInside },
      ...(localDetector ? [{ ...fromPods(localDetector, false), ...toInside }] : []),
      { matches: [allPortsVip], target: ALL_PORTS_MARK },
    ]),
    // For pods of this node and, in OUTPUT, the node itself.
    chain(ALL_PORTS_INSIDE, [
      {
        matches: [inSet('KUBE-INSIDE-PORTS'), notInSet('KUBE-HEALTH-CHECK-VIP')],
        target: mapMark('KUBE-INSIDE-PORTS'),
      },
      { matches: [inSet('KUBE-INSIDE-PORTS')], target: 'RETURN' },
      { matches: [notInSet('KUBE-ALL-PORTS-IPS', 'dst')], target: 'RETURN' },
      { target: ALL_PORTS_MARK },
      // Not what a port of another Service on the VIP has, nor, of all ports, what a range has.
      ...toListed,
      { target: mapMark('KUBE-INSIDE-PORT-RANGES') },
      { matches: [inSet('KUBE-PORT-RANGES')], target: 'RETURN' },
      { target: mapMark('KUBE-INSIDE-ALL-PORTS', 'dst') },
    ]),
    // The most specific wins: a listed port keeps its service, a range overrides what all ports have.
    chain(
      ALL_PORTS_MARK,
      [
        ...toListed,
        { target: mapMark('KUBE-ALL-PORTS', 'dst') },
        { target: mapMark('KUBE-PORT-RANGES') },
      ],
      DEPTH.branch,
    ),
    // Drops, for new connections; in mangle, because IPVS has local clients' packets before filter.
    chain(PROXY_FIREWALL, [
      {
        comment: 'Kubernetes service load balancer ip + port for load balancer with sourceRange',
        matches: [inSet('KUBE-LOAD-BALANCER-FW')],
        target: SOURCE_RANGES_FIREWALL,
      },
      { matches: [inSet('KUBE-PORT-RANGES-FW')], target: PORT_RANGES_FIREWALL },
      { matches: [inSet('KUBE-ALL-PORTS-FW')], target: ALL_PORTS_FIREWALL },
      { matches: [inSet('KUBE-DROP')], target: 'DROP' },
      {
        ...(localDetector ? fromPods(localDetector, true) : {}),
        matches: ['-m addrtype ! --src-type LOCAL', inSet('KUBE-DROP-OUTSIDE')],
        target: 'DROP',
      },
      { matches: [matchMark(verdictMarks(options.markRange).drop), allPortsVip], target: 'DROP' },
      // All ports are 1 to 65535 (KEP-2610).
      ...PROTOCOLS.map((protocol) => ({
        protocol,
        ports: { from: 0, to: 0 },
        matches: [allPortsVip],
        target: 'DROP',
      })),
    ]),
    sources(
      SOURCE_RANGES_FIREWALL,
      'dst,dst,src',
      'KUBE-LOAD-BALANCER-SOURCE-CIDR',
      'KUBE-LOAD-BALANCER-SOURCE-IP',
    ),
    sources(PORT_RANGES_FIREWALL, 'dst,dst,src', 'KUBE-PORT-RANGES-SOURCE'),
    sources(ALL_PORTS_FIREWALL, 'dst,src', 'KUBE-ALL-PORTS-SOURCE'),
  ];
}
