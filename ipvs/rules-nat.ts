/** Rules of table nat: which connections are masqueraded. IPVS translates, nat does not. */
import { PROTOCOLS } from '../api/objects.ts';
import { IPVS_NODE_PORT, LOAD_BALANCER, MARK_MASQ } from '../iptables/chains.ts';
import { addressType, fromForeign, type RuleSpec } from '../iptables/rule.ts';
import { bit, inSet, LISTED, listed, notInSet, type RuleOptions } from './rule-matches.ts';

export function masquerades(options: RuleOptions): RuleSpec[] {
  const { family } = options;
  const loopback = family === 'IPv4' ? '127.0.0.0/8' : '::1/128';
  const toMasq = { target: MARK_MASQ };
  return [
    { source: { value: loopback }, target: 'RETURN' },
    {
      matches: [
        inSet('KUBE-HEALTH-CHECK-VIP', 'dst,dst', options),
        // Listed by another Service on the VIP, it is served.
        ...LISTED.map((set) => notInSet(set, 'dst,dst', options)),
      ],
      target: 'ACCEPT',
    },
    // A process of the node that calls a VIP has the VIP for its source, which leads nobody back.
    {
      matches: [inSet('KUBE-IPVS-IPS', 'src', options), inSet('KUBE-IPVS-IPS', 'dst', options)],
      ...toMasq,
    },
    ...fromForeign(options).flatMap((from) => [
      {
        ...from,
        comment: 'Kubernetes service cluster ip + port for masquerade purpose',
        matches: [inSet('KUBE-CLUSTER-IP', 'dst,dst', options)],
        ...toMasq,
      },
      { ...from, matches: [inSet('KUBE-CLUSTER-IP-MARK', 'dst,dst', options)], ...toMasq },
    ]),
    {
      comment: 'Kubernetes service external ip + port for masquerade and filter purpose',
      matches: [inSet('KUBE-EXTERNAL-IP', 'dst,dst', options)],
      ...toMasq,
    },
    {
      comment: 'Kubernetes service lb portal',
      matches: [inSet('KUBE-LOAD-BALANCER', 'dst,dst', options)],
      target: LOAD_BALANCER,
    },
    { matches: [inSet('KUBE-LOAD-BALANCER-MARK', 'dst,dst', options)], ...toMasq },
    // For the node the policy Local does not hold, but its address leads no reply past it.
    ...(['KUBE-EXTERNAL-IP-LOCAL', 'KUBE-ALL-PORTS-IPS'] as const).map((set) => ({
      matches: [
        addressType('src', 'LOCAL'),
        inSet(set, set === 'KUBE-ALL-PORTS-IPS' ? 'dst' : 'dst,dst', options),
      ],
      ...toMasq,
    })),
    {
      matches: [addressType('dst', 'LOCAL'), notInSet('KUBE-IPVS-IPS', 'dst', options)],
      target: IPVS_NODE_PORT,
    },
    ...listed(options, 'ACCEPT'),
  ];
}

/** Nobody else translates what goes to a VIP, which is a local address to them (hostPorts). */
export function untranslated(options: RuleOptions): RuleSpec[] {
  return [{ matches: [inSet('KUBE-IPVS-IPS', 'dst', options)], target: 'ACCEPT' }];
}

export function loadBalancerMasquerades(options: RuleOptions): RuleSpec[] {
  const local = inSet('KUBE-LOAD-BALANCER-LOCAL', 'dst,dst', options);
  return [
    { matches: [addressType('src', 'LOCAL'), local], target: MARK_MASQ },
    {
      comment: 'Kubernetes service load balancer ip + port with externalTrafficPolicy=local',
      matches: [local],
      target: 'RETURN',
    },
    { target: MARK_MASQ },
  ];
}

export function nodePortMasquerades(options: RuleOptions): RuleSpec[] {
  return PROTOCOLS.flatMap((protocol) => {
    const [end, flags] =
      protocol === 'SCTP' ? ['SCTP-HASH' as const, 'dst,dst'] : [protocol, 'dst'];
    const comment = (text: string) => `Kubernetes nodeport ${protocol} port ${text}`;
    return [
      {
        protocol,
        comment: comment('with externalTrafficPolicy=local'),
        matches: [
          '-m addrtype ! --src-type LOCAL',
          inSet(`KUBE-NODE-PORT-LOCAL-${end}`, flags, options),
        ],
        target: 'RETURN',
      },
      {
        protocol,
        comment: comment('for masquerade purpose'),
        matches: [inSet(`KUBE-NODE-PORT-${end}`, flags, options)],
        target: MARK_MASQ,
      },
    ];
  });
}

export function postrouting(options: RuleOptions): RuleSpec[] {
  const masquerade = options.randomFully ? 'MASQUERADE --random-fully' : 'MASQUERADE';
  return [
    // A pod that is sent back to itself must see the node as source, or it would answer itself.
    {
      comment: 'Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose',
      matches: [inSet('KUBE-LOOP-BACK', 'dst,dst,src', options)],
      target: 'MASQUERADE',
    },
    { matches: [inSet('KUBE-ALL-PORTS-LOOP-BACK', 'dst,src', options)], target: 'MASQUERADE' },
    { matches: [`-m connmark ! --mark ${bit(options)}`], target: 'RETURN' },
    { comment: 'kubernetes service traffic requiring SNAT', target: masquerade },
  ];
}
