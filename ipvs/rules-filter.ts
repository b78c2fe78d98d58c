/** Rules of table filter: what no Service has on a VIP is rejected. */
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

export function filterChains(options: RuleOptions): TreeChain[] {
  const { inSet, notInSet, inSets } = setMatches(options);
  const chain = (name: string, rules: readonly RuleSpec[], depth?: number) =>
    staticChain('filter', name, rules, depth);
  const rejected = { target: reject(options.family) };
  const echo = echoRequest(options.family);
  const isAllPorts = inSet('KUBE-ALL-PORTS-IPS', 'dst');
  const toAllPorts = { target: ALL_PORTS, goto: true };
  const nodes = [
    { matches: [notInSet('KUBE-IPVS-IPS', 'dst')], target: 'RETURN' },
    { matches: [inSet('KUBE-HEALTH-CHECK-VIP')], target: 'RETURN' },
  ];
  const withMark = { matches: [inSet('KUBE-MARKS')], target: 'RETURN' };
  return [
    // While modes iptables and ipvs take over from each other, nat is still, or already, the iptables
    // mode's, which marks packets.
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
    // INPUT comes before IPVS. What is let through and not scheduled reaches the host (72236): other
    // ports, other protocols, and clients at port 20, which IPVS takes for FTP data (ip_vs_schedule).
    chain(IPVS_FILTER, [
      ...nodes,
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
    // OUTPUT comes after IPVS: what still goes to a VIP was not scheduled.
    chain(IPVS_OUT_FILTER, [
      ...nodes,
      { ...echo, matches: [...echo.matches, isAllPorts], ...toAllPorts },
      { ...echo, target: 'RETURN' },
      rejected,
    ]),
    chain(
      ALL_PORTS,
      [
        { matches: [matchMark(verdictMarks(options.markRange).reject)], ...rejected },
        // With its Service's very mark; IPVS schedules no packet whose mark somebody else changed since.
        ...PROTOCOLS.map((protocol) => ({ protocol, ...withMark })),
        // IPVS schedules no ping; the node answers for a VIP all of whose ports are served.
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
