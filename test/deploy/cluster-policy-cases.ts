/**
 * AdminNetworkPolicies and BaselineAdminNetworkPolicies, valid and invalid; one table for the agent
 * and the CRDs of deploy/admin-network-policy.
 */
export interface ClusterPolicyCase {
  readonly title: string;
  readonly object: Readonly<Record<string, unknown>>;
  /** First message of the CRD; undefined if the CRD accepts the object. */
  readonly refused?: string;
  /** True if the CRD accepts an object that only the agent finds invalid. */
  readonly leftToAgent?: true;
}

type Kind = 'AdminNetworkPolicy' | 'BaselineAdminNetworkPolicy';
type Raw = Readonly<Record<string, unknown>>;
export const KINDS: readonly Kind[] = ['AdminNetworkPolicy', 'BaselineAdminNetworkPolicy'];

function policy(kind: Kind, spec: Raw, more: Raw = {}): Raw {
  const isAdmin = kind === 'AdminNetworkPolicy';
  return {
    apiVersion: 'policy.networking.k8s.io/v1alpha1',
    kind,
    metadata: { name: isAdmin ? 'crd-case' : 'default' },
    spec: { ...(isAdmin ? { priority: 30 } : {}), subject: { namespaces: {} }, ...spec },
    ...more,
  };
}

const ALL = { namespaces: {} };
const to = (peers: unknown, more: Raw = {}) => ({
  egress: [{ action: 'Allow', to: peers, ...more }],
});
const networks = (value: unknown) => to([{ networks: value }]);
const ports = (list: unknown, peer: Raw = ALL) => to([peer], { ports: list });
const names = (list: unknown, more: Raw = {}) => to([{ domainNames: list }], more);
const cidrs = (count: number) => Array.from({ length: count }, (_, at) => `10.${at}.0.0/16`);
const NETWORKS = '.spec.egress[0].to[0].networks';
const PORTS = '.spec.egress[0].ports';

/** Cases of both kinds: title, spec, message of the CRD. */
const SHARED: readonly (readonly [title: string, spec: Raw, refused?: string])[] = [
  // Examples of NPEP-182, upstream and NPEP-133.
  ['a CIDRGroup', networks({ cidrGroups: { matchLabels: { env: 'cloud-1' } } })],
  ['all CIDRGroups', networks({ cidrGroups: {} })],
  ['CIDRs of a struct', networks({ cidrs: ['0.0.0.0/0', '::/0'] })],
  ['a list of structs', networks([{ cidrs: cidrs(25) }, { cidrGroups: {} }])],
  ['a hundred structs', networks(Array.from({ length: 100 }, () => ({ cidrs: ['10.0.0.0/8'] })))],
  ['CIDRs as in the upstream API', networks(['0.0.0.0/0', 'fd00:10::/32', '2001:db8::1/128'])],
  ['all three at once', networks([{ cidrGroups: {} }, '10.0.0.0/8', { cidrs: ['::/0'] }])],
  [
    'a selector with expressions',
    networks({ cidrGroups: { matchExpressions: [{ key: 'a/b', operator: 'In', values: ['c'] }] } }),
  ],
  ['no networks', networks([]), `${NETWORKS}: must have at least 1 items`],
  ['an empty struct', networks({}), `${NETWORKS}: must have at least 1 members`],
  ['an empty struct of a list', networks([{}]), `${NETWORKS}[0]: must have at least 1 members`],
  ['a typo', networks({ cidrGroup: {} }), `${NETWORKS}: matches no allowed form`],
  ['a typo in a list', networks([{ cidr: [] }]), `${NETWORKS}[0]: matches no allowed form`],
  [
    'both',
    networks({ cidrs: ['10.0.0.0/8'], cidrGroups: {} }),
    `${NETWORKS}: must have at most 1 members`,
  ],
  ['no CIDRs', networks({ cidrs: [] }), `${NETWORKS}.cidrs: must have at least 1 items`],
  ['26 CIDRs', networks({ cidrs: cidrs(26) }), `${NETWORKS}.cidrs: must have at most 25 items`],
  [
    '101 structs',
    networks(Array(101).fill({ cidrGroups: {} })),
    `${NETWORKS}: must have at most 100`,
  ],
  ['an address', networks(['10.0.0.1']), `${NETWORKS}[0]: does not match ^(`],
  [
    'an address of a struct',
    networks({ cidrs: ['10.0.0.1'] }),
    `${NETWORKS}.cidrs[0]: does not match ^(`,
  ],
  ['33 bits', networks(['10.0.0.0/33']), `${NETWORKS}[0]: does not match ^(`],
  ['129 bits', networks([{ cidrs: ['::/129'] }]), `${NETWORKS}[0].cidrs[0]: does not match ^(`],
  ['a text', networks('10.0.0.0/8'), `${NETWORKS}: is too long`],
  ['a number in a struct', networks({ cidrs: [7] }), `${NETWORKS}.cidrs[0]: must be a string`],
  [
    'an invalid operator',
    networks({ cidrGroups: { matchExpressions: [{ key: 'a', operator: 'Is', values: ['b'] }] } }),
    `${NETWORKS}.cidrGroups.matchExpressions[0].operator: is not an allowed value`,
  ],
  [
    'an unknown field of a selector',
    networks({ cidrGroups: { env: 'a' } }),
    `${NETWORKS}.cidrGroups.env: is an unknown field`,
  ],
  // Other fields.
  ['pods', to([{ pods: { namespaceSelector: {}, podSelector: { matchLabels: { a: '' } } } }])],
  ['pods of no namespaces', to([{ pods: { podSelector: {} } }]), '.namespaceSelector: is required'],
  ['nodes', to([{ nodes: { matchExpressions: [{ key: 'n', operator: 'Exists' }] } }])],
  [
    'an invalid label',
    to([{ nodes: { matchLabels: { a: '-b' } } }]),
    'matchLabels.a: does not match ^((',
  ],
  ['no peers', to([]), '.to: must have at least 1 items'],
  ['an empty peer', to([{}]), '.to[0]: must have at least 1 members'],
  ['a peer of two kinds', to([{ ...ALL, nodes: {} }]), '.to[0]: must have at most 1 members'],
  ['an unknown peer', to([{ clusters: {} }]), '.to[0].clusters: is an unknown field'],
  ['ports', ports([{ portNumber: { port: 80 } }, { portNumber: { protocol: 'SCTP', port: 1 } }])],
  ['a range', ports([{ portRange: { start: 1, end: 65_535 } }])],
  ['a range of one port', ports([{ portRange: { protocol: 'UDP', start: 5, end: 5 } }])],
  [
    'a backward range',
    ports([{ portRange: { start: 2, end: 1 } }]),
    `${PORTS}[0].portRange: end must`,
  ],
  ['no ports', ports([]), `${PORTS}: must have at least 1 items`],
  ['port 0', ports([{ portNumber: { port: 0 } }]), `${PORTS}[0].portNumber.port: must be from 1`],
  [
    'an invalid protocol',
    ports([{ portNumber: { protocol: 'tcp', port: 80 } }]),
    `${PORTS}[0].portNumber.protocol: is not an allowed value`,
  ],
  ['a named port', ports([{ namedPort: 'web' }])],
  ['an empty name', ports([{ namedPort: '' }]), `${PORTS}[0].namedPort: is too short`],
  [
    'a named port of a network',
    ports([{ namedPort: 'web' }], { networks: ['10.0.0.0/8'] }),
    'with namedPort, every peer must be namespaces or pods',
  ],
  [
    'a named port of a CIDRGroup',
    ports([{ namedPort: 'web' }], { networks: { cidrGroups: {} } }),
    'with namedPort, every peer must be namespaces or pods',
  ],
  [
    'a named port of nodes',
    ports([{ namedPort: 'web' }], { nodes: {} }),
    'with namedPort, every peer must be namespaces or pods',
  ],
  [
    'a named port of pods, and networks with port numbers',
    ports([{ portNumber: { port: 80 } }], { networks: ['10.0.0.0/8'] }),
  ],
  ['ingress', { ingress: [{ name: 'n'.repeat(100), action: 'Deny', from: [ALL] }] }],
  [
    'a name of 101 characters',
    { ingress: [{ name: 'n'.repeat(101), action: 'Deny', from: [ALL] }] },
    'name: is too long',
  ],
  [
    'a network in ingress',
    { ingress: [{ action: 'Deny', from: [{ networks: ['::/0'] }] }] },
    '.networks: is an unknown field',
  ],
  [
    'an invalid action',
    { ingress: [{ action: 'Accept', from: [ALL] }] },
    '.action: is not an allowed value',
  ],
  [
    '101 rules',
    { ingress: Array(101).fill({ action: 'Deny', from: [ALL] }) },
    '.ingress: must have at most 100',
  ],
  ['no subject', { subject: undefined }, '.spec.subject: is required'],
  ['an empty subject', { subject: {} }, '.spec.subject: must have at least 1 members'],
];

/**
 * Cases that the CRD accepts and the agent refuses, because OpenAPI cannot express the rule there.
 */
const LEFT_TO_AGENT: readonly (readonly [title: string, spec: Raw])[] = [
  ['26 CIDRs in a plain list', networks(cidrs(26))],
  ['an IPv4 network in IPv6', networks(['::ffff:10.0.0.0/104'])],
  ['a number', networks(7)],
  ['a number in a list', networks([7])],
  ['an invalid key of matchLabels', to([{ nodes: { matchLabels: { '-a': 'b' } } }])],
];

const DENY_NAMES = names(['example.com'], { action: 'Deny' });

export const CLUSTER_POLICY_CASES: readonly ClusterPolicyCase[] = [
  ...KINDS.flatMap((kind) => [
    ...SHARED.map(([title, spec, refused]) => ({
      title: `${kind}: ${title}`,
      object: policy(kind, spec),
      ...(refused === undefined ? {} : { refused }),
    })),
    ...LEFT_TO_AGENT.map(([title, spec]) => ({
      title: `${kind}: ${title}`,
      object: policy(kind, spec),
      leftToAgent: true as const,
    })),
  ]),
  ...(
    [
      ['domain names', names(['example.com', '*.example.com', 'Example.com', '_a.b-c.test.'])],
      [
        'a duplicate name',
        names(['example.com', 'example.com']),
        '.domainNames: has a duplicate item',
      ],
      ['an invalid name', names(['*']), '.domainNames[0]: does not match ^('],
      [
        '26 names',
        names(cidrs(26).map((each) => `a${each.slice(0, 4)}.test`)),
        '.domainNames: must have at most 25',
      ],
      ['denied names', DENY_NAMES, 'a rule with domainNames must have action Allow'],
      [
        'a named port of names',
        names(['a.test'], { ports: [{ namedPort: 'web' }] }),
        'with namedPort',
      ],
      ['Pass', { egress: [{ action: 'Pass', to: [ALL] }] }],
      ['no priority', { priority: undefined }, '.spec.priority: is required'],
      ['priority 1001', { priority: 1001 }, '.spec.priority: must be from 0 to 1000'],
    ] as const
  ).map(([title, spec, refused]) => ({
    title: `AdminNetworkPolicy: ${title}`,
    object: policy('AdminNetworkPolicy', spec),
    ...(refused === undefined ? {} : { refused }),
  })),
  ...(
    [
      ['domain names', names(['example.com']), '.domainNames: is an unknown field'],
      ['Pass', { egress: [{ action: 'Pass', to: [ALL] }] }, '.action: is not an allowed value'],
      ['a priority', { priority: 1 }, '.spec.priority: is an unknown field'],
    ] as const
  ).map(([title, spec, refused]) => ({
    title: `BaselineAdminNetworkPolicy: ${title}`,
    object: policy('BaselineAdminNetworkPolicy', spec),
    refused,
  })),
  {
    title: 'BaselineAdminNetworkPolicy: another name',
    object: policy('BaselineAdminNetworkPolicy', {}, { metadata: { name: 'other' } }),
    refused: 'metadata.name must be default',
  },
];
