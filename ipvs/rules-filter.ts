/** Rules of table filter: what no Service has on a VIP is rejected. */
import { type IpFamily, PROTOCOLS } from '../api/objects.ts';
import { ALL_PORTS } from '../iptables/chains.ts';
import { type RuleSpec, reject } from '../iptables/rule.ts';
import { verdictMarks } from './marks.ts';
import { inSet, listed, mark, notInSet, type RuleOptions } from './rule-matches.ts';

/**
 * INPUT comes before IPVS. What is let through and not scheduled reaches the host (72236): other
 * ports, other protocols, and clients at port 20, which IPVS takes for FTP data (ip_vs_schedule).
 */
export function accessFilter(options: RuleOptions): RuleSpec[] {
  const rejected = { target: reject(options.family) };
  return [
    { matches: [notInSet('KUBE-IPVS-IPS', 'dst', options)], target: 'RETURN' },
    { matches: [inSet('KUBE-HEALTH-CHECK-VIP', 'dst,dst', options)], target: 'RETURN' },
    ...PROTOCOLS.map((protocol) => ({
      protocol,
      matches: [`-m ${protocol.toLowerCase()} --sport 20`],
      ...rejected,
    })),
    ...listed(options, 'RETURN'),
    { matches: [inSet('KUBE-ALL-PORTS-IPS', 'dst', options)], target: ALL_PORTS, goto: true },
    { ...echoRequest(options.family), target: 'RETURN' },
    rejected,
  ];
}

/** OUTPUT comes after IPVS: what still goes to a VIP was not scheduled. */
export function outputFilter(options: RuleOptions): RuleSpec[] {
  const echo = echoRequest(options.family);
  return [
    { matches: [notInSet('KUBE-IPVS-IPS', 'dst', options)], target: 'RETURN' },
    { matches: [inSet('KUBE-HEALTH-CHECK-VIP', 'dst,dst', options)], target: 'RETURN' },
    {
      ...echo,
      matches: [...echo.matches, inSet('KUBE-ALL-PORTS-IPS', 'dst', options)],
      target: ALL_PORTS,
      goto: true,
    },
    { ...echo, target: 'RETURN' },
    { target: reject(options.family) },
  ];
}

export function allPortsFilter(options: RuleOptions): RuleSpec[] {
  const rejected = { target: reject(options.family) };
  const all = inSet('KUBE-ALL-PORTS', 'dst', options);
  return [
    { matches: [mark(verdictMarks(options.markRange).reject)], ...rejected },
    // With its Service's very mark; IPVS schedules no packet whose mark somebody else changed since.
    ...PROTOCOLS.map((protocol) => ({
      protocol,
      matches: [inSet('KUBE-MARKS', 'dst,dst', options)],
      target: 'RETURN',
    })),
    // IPVS schedules no ping; the node answers for a VIP all of whose ports are served.
    {
      ...echoRequest(options.family),
      matches: [...echoRequest(options.family).matches, all],
      target: 'RETURN',
    },
    rejected,
  ];
}

function echoRequest(family: IpFamily) {
  return family === 'IPv4'
    ? { protocol: 'ICMP' as const, matches: ['-m icmp --icmp-type 8'] }
    : { protocol: 'IPv6-ICMP' as const, matches: ['-m icmp6 --icmpv6-type 128'] };
}
