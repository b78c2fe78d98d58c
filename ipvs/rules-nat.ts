/**
 * Rules of table nat in the ipvs mode: which connections are masqueraded. IPVS does the
 * translation.
 */
import { PROTOCOLS } from '../api/objects.ts';
import { masqueradeRule, staticChain } from '../iptables/base-rules.ts';
import { IPVS_NODE_PORT, LOAD_BALANCER, MARK_MASQ, POSTROUTING } from '../iptables/chains.ts';
import { DEPTH } from '../iptables/compile.ts';
import { addrtypeMatch, fromNonPodClients, type RuleSpec } from '../iptables/rule.ts';
import type { TreeChain } from '../iptables/vip-tree.ts';
import { LOOPBACK_CIDRS } from '../services/node-port-addresses.ts';
import { LISTED_PORT_SETS, masqueradeMark, type RuleOptions, setMatches } from './rule-matches.ts';

/** Rules of KUBE-SERVICES, called from PREROUTING and OUTPUT, that decide on masquerade. */
export function masqueradeRules(options: RuleOptions): RuleSpec[] {
  const { inSet, notInSet, inSets } = setMatches(options);
  const toMasq = { target: MARK_MASQ };
  const isFromNode = addrtypeMatch('src', 'LOCAL');
  return [
    { source: { value: LOOPBACK_CIDRS[options.family] }, target: 'RETURN' },
    {
      // Accept health checks, unless another Service lists this port on the VIP.
      matches: [inSet('KUBE-HEALTH-CHECK-VIP'), ...LISTED_PORT_SETS.map((set) => notInSet(set))],
      target: 'ACCEPT',
    },
    // Masquerade packets of a process on the node that connects to a VIP: their source is the VIP,
    // and replies to a VIP do not return to the process.
    { matches: [inSet('KUBE-IPVS-IPS', 'src'), inSet('KUBE-IPVS-IPS', 'dst')], ...toMasq },
    ...fromNonPodClients(options).flatMap((from) => [
      {
        ...from,
        comment: 'Kubernetes service cluster ip + port for masquerade purpose',
        matches: [inSet('KUBE-CLUSTER-IP')],
        ...toMasq,
      },
      { ...from, matches: [inSet('KUBE-CLUSTER-IP-MARK')], ...toMasq },
    ]),
    {
      comment: 'Kubernetes service external ip + port for masquerade and filter purpose',
      matches: [inSet('KUBE-EXTERNAL-IP')],
      ...toMasq,
    },
    {
      comment: 'Kubernetes service lb portal',
      matches: [inSet('KUBE-LOAD-BALANCER')],
      target: LOAD_BALANCER,
    },
    { matches: [inSet('KUBE-LOAD-BALANCER-MARK')], ...toMasq },
    // Masquerade packets of the node itself. Traffic policy Local does not apply to the node, but
    // replies to its source address may take another path.
    { matches: [isFromNode, inSet('KUBE-EXTERNAL-IP-LOCAL')], ...toMasq },
    { matches: [isFromNode, inSet('KUBE-ALL-PORTS-IPS', 'dst')], ...toMasq },
    {
      matches: [addrtypeMatch('dst', 'LOCAL'), notInSet('KUBE-IPVS-IPS', 'dst')],
      target: IPVS_NODE_PORT,
    },
    ...inSets(LISTED_PORT_SETS, 'ACCEPT'),
  ];
}

/**
 * Last rules of KUBE-SERVICES. They keep packets to a VIP from nat rules of other programs that
 * match any local address, such as hostPort rules.
 */
export function acceptVipTraffic(options: RuleOptions): RuleSpec[] {
  return setMatches(options).inSets(['KUBE-IPVS-IPS'], 'ACCEPT', 'dst');
}

/** Static chains of table nat, without KUBE-SERVICES. */
export function natChains(options: RuleOptions): TreeChain[] {
  const { inSet } = setMatches(options);
  const chain = (name: string, rules: readonly RuleSpec[], depth?: number) =>
    staticChain('nat', name, rules, depth);
  const local = inSet('KUBE-LOAD-BALANCER-LOCAL');
  const nodePorts = PROTOCOLS.flatMap((protocol) => {
    const [end, fields] =
      protocol === 'SCTP' ? ['SCTP-HASH' as const, 'dst,dst'] : [protocol, 'dst'];
    const comment = `Kubernetes nodeport ${protocol} port`;
    const isLocal = inSet(`KUBE-NODE-PORT-LOCAL-${end}`, fields);
    return [
      {
        protocol,
        comment: `${comment} with externalTrafficPolicy=local`,
        matches: ['-m addrtype ! --src-type LOCAL', isLocal],
        target: 'RETURN',
      },
      {
        protocol,
        comment: `${comment} for masquerade purpose`,
        matches: [inSet(`KUBE-NODE-PORT-${end}`, fields)],
        target: MARK_MASQ,
      },
    ];
  });
  const loadBalancers = [
    { matches: [addrtypeMatch('src', 'LOCAL'), local], target: MARK_MASQ },
    {
      comment: 'Kubernetes service load balancer ip + port with externalTrafficPolicy=local',
      matches: [local],
      target: 'RETURN',
    },
    { target: MARK_MASQ },
  ];
  return [
    chain(LOAD_BALANCER, loadBalancers, DEPTH.branch),
    chain(IPVS_NODE_PORT, nodePorts, DEPTH.branch),
    chain(MARK_MASQ, [{ target: `CONNMARK --set-xmark ${masqueradeMark(options)}` }], DEPTH.mark),
    chain(POSTROUTING, [
      // Hairpin, see `needsHairpin`.
      {
        comment: 'Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose',
        matches: [inSet('KUBE-LOOP-BACK', 'dst,dst,src')],
        target: 'MASQUERADE',
      },
      { matches: [inSet('KUBE-ALL-PORTS-LOOP-BACK', 'dst,src')], target: 'MASQUERADE' },
      { matches: [`-m connmark ! --mark ${masqueradeMark(options)}`], target: 'RETURN' },
      masqueradeRule(options),
    ]),
  ];
}
