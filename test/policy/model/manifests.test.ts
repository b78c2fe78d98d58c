/** Verdicts for policies that are read from YAML manifests. */
import assert from 'node:assert/strict';
import { parse } from 'yaml';
import { POLICY_KINDS } from '../../../api/objects.ts';
import { readObject } from '../../../api/read-object.ts';
import { checkedVerdict } from '../harness.ts';
import type { TestObject } from '../objects.ts';
import type { Flow, Verdict } from '../oracle.ts';

const HEADS = {
  NetworkPolicy: 'networking.k8s.io/v1',
  AdminNetworkPolicy: 'policy.networking.k8s.io/v1alpha1',
  BaselineAdminNetworkPolicy: 'policy.networking.k8s.io/v1alpha1',
  ClusterNetworkPolicy: 'policy.networking.k8s.io/v1beta1',
  CIDRGroup: 'policy.networking.k8s.io/v1alpha1',
} as const;

function read(document: string): TestObject {
  const object = readObject(parse(document), POLICY_KINDS);
  assert.ok(object !== undefined);
  assert.ok(object.kind !== 'Service' && object.kind !== 'EndpointSlice');
  assert.ok(object.kind !== 'ServiceCIDR');
  return object;
}

/** @param spec YAML flow mapping. */
function manifest(kind: keyof typeof HEADS, spec: string, labels = '{}'): TestObject {
  return read(`
    apiVersion: ${HEADS[kind]}
    kind: ${kind}
    metadata: {name: default, labels: ${labels}}
    spec: ${spec}`);
}

function podManifest(name: string, address: string, node = 'node-a'): TestObject {
  return read(`
    apiVersion: v1
    kind: Pod
    metadata: {name: ${name}, namespace: default, labels: {app: ${name}}}
    spec:
      nodeName: ${node}
      containers: [{ports: [{name: http, containerPort: 80}]}]
    status: {phase: Running, podIPs: [{ip: ${address}}]}`);
}

const PODS = [
  podManifest('web', '10.0.0.1'),
  podManifest('db', '10.0.0.2'),
  podManifest('far', '10.0.1.3', 'node-b'),
];
const ADDRESSES = { web: '10.0.0.1', db: '10.0.0.2', far: '10.0.1.3', outside: '203.0.113.5' };
type Name = keyof typeof ADDRESSES;
type Case = readonly [
  from: Name,
  to: Name,
  expected: Verdict,
  port?: number,
  protocol?: Flow['protocol'],
];

function testVerdicts(title: string, objects: readonly TestObject[], cases: readonly Case[]): void {
  it(title, () => {
    for (const [from, to, expected, port = 80, protocol = 'TCP'] of cases) {
      const flow = { from: ADDRESSES[from], to: ADDRESSES[to], port, protocol };
      const names = new Map([['www.example.com', [ADDRESSES.outside]]]);
      assert.equal(
        checkedVerdict([...PODS, ...objects], flow, names),
        expected,
        `${from} to ${to} ${port}`,
      );
    }
  });
}

describe('manifests: policies in YAML', () => {
  describe('NetworkPolicy', () => {
    const policy = (spec: string) => [manifest('NetworkPolicy', spec)];
    testVerdicts('isolates for ingress without rules', policy('{podSelector: {}}'), [
      ['db', 'web', 'deny'],
      ['web', 'outside', 'allow'],
    ]);
    testVerdicts(
      'isolates in the directions of policyTypes, even without rules',
      policy('{podSelector: {}, policyTypes: [Egress]}'),
      [
        ['web', 'outside', 'deny'],
        ['outside', 'web', 'allow'],
      ],
    );
    testVerdicts(
      'isolates in both directions with egress rules',
      policy('{podSelector: {matchLabels: {app: web}}, egress: [{}]}'),
      [
        ['web', 'outside', 'allow'],
        ['db', 'web', 'deny'],
      ],
    );
    testVerdicts(
      'allows everything with an empty rule',
      policy('{podSelector: {}, ingress: [{}]}'),
      [['outside', 'web', 'allow', 0, 'ICMP']],
    );
    testVerdicts(
      'treats empty lists of peers and ports as missing',
      policy('{podSelector: {}, ingress: [{from: [], ports: []}]}'),
      [['outside', 'web', 'allow', 1, 'UDP']],
    );
    testVerdicts(
      'applies a podSelector to its own namespace; empty selects all pods',
      policy('{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}'),
      [
        ['far', 'web', 'allow'],
        ['outside', 'web', 'deny'],
      ],
    );
    testVerdicts(
      'uses TCP for a port without protocol, and all ports for a protocol without port',
      policy('{podSelector: {}, ingress: [{ports: [{port: 80}, {protocol: UDP}]}]}'),
      [
        ['db', 'web', 'allow', 80],
        ['db', 'web', 'deny', 80, 'SCTP'],
        ['db', 'web', 'allow', 9, 'UDP'],
      ],
    );
    testVerdicts(
      'includes endPort in the port range',
      policy('{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 90}, {port: http}]}]}'),
      [
        ['db', 'web', 'allow', 90],
        ['db', 'web', 'deny', 91],
      ],
    );
    for (const port of ['{endPort: 90}', '{port: http, endPort: 90}', '{port: 90, endPort: 80}']) {
      testVerdicts(
        `isolates but allows nothing with the invalid port ${port}`,
        policy(`{podSelector: {}, ingress: [{ports: [${port}]}]}`),
        [
          ['db', 'web', 'deny', 80],
          ['db', 'web', 'deny', 90],
        ],
      );
    }
    testVerdicts(
      'excludes the exceptions of an ipBlock',
      policy(
        '{podSelector: {}, egress: [{to: [{ipBlock: {cidr: 10.0.0.0/16, except: [10.0.1.0/24]}}]}], policyTypes: [Egress]}',
      ),
      [
        ['web', 'db', 'allow'],
        ['web', 'far', 'deny'],
      ],
    );
  });

  describe('networks of an AdminNetworkPolicy', () => {
    const groups = [
      manifest('CIDRGroup', '{cidrs: [203.0.113.0/24]}', '{env: cloud-1}'),
      read(`
        apiVersion: policy.networking.k8s.io/v1alpha1
        kind: CIDRGroup
        metadata: {name: flat, labels: {env: flat}}
        cidrs: [10.0.1.0/24]`),
    ];
    for (const [title, networks, expected] of [
      ['strings', '[203.0.113.0/24]', ['allow', 'deny']],
      ['structs with CIDRs', '[{cidrs: [203.0.113.0/24]}]', ['allow', 'deny']],
      ['structs with groups', '[{cidrGroups: {matchLabels: {env: cloud-1}}}]', ['allow', 'deny']],
      ['a bare object', '{cidrGroups: {matchLabels: {env: flat}}}', ['deny', 'allow']],
      ['an empty selector', '[{cidrGroups: {}}]', ['allow', 'allow']],
    ] as const) {
      testVerdicts(
        title,
        [
          ...groups,
          manifest(
            'AdminNetworkPolicy',
            `{priority: 1, subject: {namespaces: {}}, egress: [{action: Allow, to: [{networks: ${networks}}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]}`,
          ),
        ],
        [
          ['web', 'outside', expected[0]],
          ['web', 'far', expected[1]],
          ['web', 'db', 'deny'],
        ],
      );
    }
  });

  testVerdicts(
    'domainNames of an AdminNetworkPolicy match in any case and with a final dot',
    [
      manifest(
        'AdminNetworkPolicy',
        `{priority: 1, subject: {namespaces: {}}, egress: [{action: Allow, to: [{domainNames: ["*.EXAMPLE.com."]}], ports: [{portNumber: {protocol: TCP, port: 443}}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]}`,
      ),
    ],
    [
      ['web', 'outside', 'allow', 443],
      ['web', 'outside', 'deny', 80],
      ['web', 'db', 'deny', 443],
    ],
  );

  testVerdicts(
    'unknown peers fail closed: Deny matches everything, Accept matches nothing',
    [
      manifest(
        'ClusterNetworkPolicy',
        '{tier: Admin, priority: 1, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}, ingress: [{action: Accept, from: [{planets: {}}]}, {action: Deny, from: [{planets: {}}]}]}',
      ),
    ],
    [
      ['db', 'web', 'deny'],
      ['web', 'db', 'allow'],
    ],
  );

  testVerdicts(
    'a NetworkPolicy overrides a ClusterNetworkPolicy of the Baseline tier',
    [
      manifest(
        'ClusterNetworkPolicy',
        '{tier: Baseline, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}',
      ),
      manifest(
        'NetworkPolicy',
        '{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {}}]}]}',
      ),
    ],
    [
      ['db', 'web', 'allow'],
      ['web', 'db', 'deny'],
    ],
  );
});
