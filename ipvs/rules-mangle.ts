/** Rules of table mangle in the ipvs mode: marks of all-ports Services, and drops. */
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

/** Static chains of table mangle. */
export function mangleChains(options: RuleOptions): TreeChain[] {
  const { localDetector } = options;
  const { inSet, notInSet, inSets, mapMark } = setMatches(options);
  const chain = (name: string, rules: readonly RuleSpec[], depth?: number) =>
    staticChain('mangle', name, rules, depth);
  /** Lets packets pass whose source is in any of the sets, and drops all other packets. */
  const sources = (name: string, fields: string, ...sets: SetName[]) =>
    chain(name, [...inSets(sets, 'RETURN', fields), { target: 'DROP' }], DEPTH.branch);
  const toInside = { goto: true, target: ALL_PORTS_INSIDE };
  const toListed = inSets([...LISTED_PORT_SETS, 'KUBE-HEALTH-CHECK-VIP'], 'RETURN');
  const allPortsVip = inSet('KUBE-ALL-PORTS-IPS', 'dst');
  return [
    // PREROUTING jumps to this chain for all packets, not only for new connections: IPVS may have
    // expired a connection that conntrack still tracks.
    chain(ALL_PORTS, [
      // Packets from the node to itself, such as pings to a VIP, which IPVS does not schedule.
      { inInterface: { value: 'lo' }, ...toInside },
      ...(localDetector ? [{ ...fromPods(localDetector, false), ...toInside }] : []),
      { matches: [allPortsVip], target: ALL_PORTS_MARK },
    ]),
    // Marks packets of pods on this node and, from OUTPUT, of the node itself.
    chain(ALL_PORTS_INSIDE, [
      {
        matches: [inSet('KUBE-INSIDE-PORTS'), notInSet('KUBE-HEALTH-CHECK-VIP')],
        target: mapMark('KUBE-INSIDE-PORTS'),
      },
      { matches: [inSet('KUBE-INSIDE-PORTS')], target: 'RETURN' },
      { matches: [notInSet('KUBE-ALL-PORTS-IPS', 'dst')], target: 'RETURN' },
      { target: ALL_PORTS_MARK },
      // Skip ports that another Service lists on the VIP and, for all ports, ranges of another
      // Service.
      ...toListed,
      { target: mapMark('KUBE-INSIDE-PORT-RANGES') },
      { matches: [inSet('KUBE-PORT-RANGES')], target: 'RETURN' },
      { target: mapMark('KUBE-INSIDE-ALL-PORTS', 'dst') },
    ]),
    // The most specific match wins: a listed port keeps its service, and a range overrides all
    // ports.
    chain(
      ALL_PORTS_MARK,
      [
        ...toListed,
        { target: mapMark('KUBE-ALL-PORTS', 'dst') },
        { target: mapMark('KUBE-PORT-RANGES') },
      ],
      DEPTH.branch,
    ),
    // Drop new connections in table mangle: packets of local clients reach IPVS before table
    // filter.
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
      // All ports means 1 to 65535 (KEP-2610).
      ...PROTOCOLS.map((protocol) => ({
        protocol,
        ports: [{ from: 0, to: 0 }],
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
