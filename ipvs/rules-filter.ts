/**
 * Rules of table filter in the ipvs mode: packets to a VIP that belong to no Service are rejected.
 */
import { type IpFamily, PROTOCOLS } from '../api/objects.ts';
import { forwardRules, staticChain } from '../iptables/base-rules.ts';
import {
  ALL_PORTS,
  FORWARD,
  IPVS_FILTER,
  IPVS_NODE_PORT,
  IPVS_OUT_FILTER,
} from '../iptables/chains.ts';
import { DEPTH } from '../iptables/compile.ts';
import { type RuleSpec, reject } from '../iptables/rule.ts';
import type { TreeChain } from '../iptables/vip-tree.ts';
import { verdictMarks } from './marks.ts';
import {
  LISTED_PORT_SETS,
  masqueradeMark,
  matchMark,
  type RuleOptions,
  setMatches,
} from './rule-matches.ts';

/** Static chains of table filter. */
export function filterChains(options: RuleOptions): TreeChain[] {
  const { inSet, notInSet, inSets } = setMatches(options);
  const chain = (name: string, rules: readonly RuleSpec[], depth?: number) =>
    staticChain('filter', name, rules, depth);
  const rejected = { target: reject(options.family) };
  const echo = echoRequest(options.family);
  const isAllPorts = inSet('KUBE-ALL-PORTS-IPS', 'dst');
  const toAllPorts = { target: ALL_PORTS, goto: true };
  const returnNodeTraffic = [
    { matches: [notInSet('KUBE-IPVS-IPS', 'dst')], target: 'RETURN' },
    { matches: [inSet('KUBE-HEALTH-CHECK-VIP')], target: 'RETURN' },
  ];
  const withMark = { matches: [inSet('KUBE-MARKS')], target: 'RETURN' };
  return [
    // During a takeover between modes iptables and ipvs, table nat holds the rules of the iptables
    // mode, which set the packet mark. So match the packet mark too.
    chain(
      FORWARD,
      forwardRules(
        `-m connmark --mark ${masqueradeMark(options)}`,
        `-m mark --mark ${masqueradeMark(options)}`,
      ),
    ),
    chain(IPVS_NODE_PORT, [
      {
        protocol: 'TCP',
        comment: 'Kubernetes health check node port',
        matches: [inSet('KUBE-HEALTH-CHECK-NODE-PORT', 'dst')],
        target: 'ACCEPT',
      },
    ]),
    // INPUT runs before IPVS. A packet that passes and that IPVS does not schedule reaches the host
    // (kubernetes/kubernetes#72236). So reject other ports, other protocols, and source port 20,
    // which IPVS takes for FTP data (ip_vs_schedule).
    chain(IPVS_FILTER, [
      ...returnNodeTraffic,
      ...PROTOCOLS.map((protocol) => ({
        protocol,
        matches: [`-m ${protocol.toLowerCase()} --sport 20`],
        ...rejected,
      })),
      ...inSets(LISTED_PORT_SETS, 'RETURN'),
      { matches: [isAllPorts], ...toAllPorts },
      { ...echo, target: 'RETURN' },
      rejected,
    ]),
    // OUTPUT runs after IPVS: a packet still addressed to a VIP was not scheduled.
    chain(IPVS_OUT_FILTER, [
      ...returnNodeTraffic,
      { ...echo, matches: [...echo.matches, isAllPorts], ...toAllPorts },
      { ...echo, target: 'RETURN' },
      rejected,
    ]),
    chain(
      ALL_PORTS,
      [
        { matches: [matchMark(verdictMarks(options.markRange).reject)], ...rejected },
        // Let packets with the Service's own mark pass. If another program changed the mark, IPVS does
        // not schedule the packet.
        ...PROTOCOLS.map((protocol) => ({ protocol, ...withMark })),
        // IPVS does not schedule ping. The node answers for a VIP with all ports served.
        { ...echo, matches: [...echo.matches, inSet('KUBE-ALL-PORTS', 'dst')], target: 'RETURN' },
        rejected,
      ],
      DEPTH.branch,
    ),
  ];
}

function echoRequest(family: IpFamily) {
  return family === 'IPv4'
    ? { protocol: 'ICMP' as const, matches: ['-m icmp --icmp-type 8'] }
    : { protocol: 'IPv6-ICMP' as const, matches: ['-m icmp6 --icmpv6-type 128'] };
}
