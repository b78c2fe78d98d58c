/** Reads the examples of KEP-2079, NPEP-182 and NPEP-133, copied verbatim. */
import assert from 'node:assert/strict';
import { parseAllDocuments } from 'yaml';
import { type ApiObject, POLICY_KINDS } from '../../api/objects.ts';
import type { Policy } from '../../api/policy-objects.ts';
import { readObject } from '../../api/read-object.ts';

const readAll = (text: string): ApiObject[] =>
  parseAllDocuments(text).map((document) => {
    const object = readObject(document.toJS(), POLICY_KINDS);
    assert.ok(object !== undefined);
    return object;
  });
const policyOf = (text: string): Policy => {
  const [object] = readAll(text);
  assert.ok(object !== undefined && 'faults' in object);
  return object;
};
const label = (key: string, value: string) => [{ key, operator: 'In', values: [value] }];
const network = (cidr: string) => ({ kind: 'network', cidr, except: [] });
const tcp = (first: number, last = first) => ({ protocol: 'TCP', first, last });

describe('policy-documents: the examples of NPEP-182', () => {
  it('reads a CIDRGroup', () => {
    const [group] = readAll(`
apiVersion: policy.networking.k8s.io/v1alpha1
kind: CIDRGroup
metadata:
  name: cluster-wide-cidr-cloud-1
  labels:
    env: cloud-1
  annotations:
    "bgp.cidrmanager.k8s.io/is-managed": "true"
    "bgp.cidrmanager.k8s.io/32bit-community": "2147483647"
spec:
  cidrs:
  - 192.0.2.0/24
  - 203.0.113.0/24
  - 198.51.100.0/24
status:
  conditions:
  - lastTransitionTime: "2022-12-29T14:53:50Z"
    status: "True"
    type: Reconciled
`);
    assert.deepEqual(group, {
      kind: 'CIDRGroup',
      key: 'cluster-wide-cidr-cloud-1',
      name: 'cluster-wide-cidr-cloud-1',
      labels: { env: 'cloud-1' },
      cidrs: ['192.0.2.0/24', '203.0.113.0/24', '198.51.100.0/24'],
    });
  });

  it('reads a policy with the CIDRGroup as a peer', () => {
    const policy = policyOf(`
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata:
  name: networks-peer-example
spec:
  priority: 30
  subject:
    namespaces: {}
  egress:
    - action: Allow
      to:
      - networks:
          cidrGroups:
            matchLabels:
              env: cloud-1
    - action: Deny
      to:
      - networks:
          cidrs:
            - 0.0.0.0/0
`);
    assert.deepEqual(policy, {
      kind: 'AdminNetworkPolicy',
      key: 'networks-peer-example',
      namespace: '',
      name: 'networks-peer-example',
      uid: '',
      tier: 'Admin',
      priority: 30,
      subject: { namespaces: [], pods: [] },
      ingress: undefined,
      egress: [
        {
          path: 'spec.egress[0]',
          name: '',
          action: 'Allow',
          peers: [{ kind: 'cidrGroups', selector: label('env', 'cloud-1') }],
          ports: undefined,
        },
        {
          path: 'spec.egress[1]',
          name: '',
          action: 'Deny',
          peers: [network('0.0.0.0/0')],
          ports: undefined,
        },
      ],
      faults: [],
    });
  });
});

/** The document has this policy three times, each time with a different addition. */
const ALLOW_MY_SERVICE = `
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata:
  name: allow-my-service-egress
spec:
  priority: 55
  subject:
    namespaces:
      matchLabels:
        kubernetes.io/metadata.name: "monitoring"
  egress:
  - name: "allow-to-my-service"
    action: "Allow"
    to:
    - domainNames:
      - "my-service.com"
      - "*.cloud-provider.io"
    ports:
    - portNumber:
        protocol: TCP
        port: 443
`;
const MY_SERVICE = {
  path: 'spec.egress[0]',
  name: 'allow-to-my-service',
  action: 'Allow',
  peers: [
    { kind: 'domainName', pattern: 'my-service.com' },
    { kind: 'domainName', pattern: '*.cloud-provider.io' },
  ],
  ports: [tcp(443)],
};

describe('policy-documents: the examples of NPEP-133', () => {
  it('reads an Allow rule with two domain names', () => {
    const policy = policyOf(ALLOW_MY_SERVICE);
    assert.deepEqual([policy.priority, policy.faults], [55, []]);
    assert.deepEqual(policy.subject, {
      namespaces: label('kubernetes.io/metadata.name', 'monitoring'),
      pods: [],
    });
    assert.deepEqual([policy.ingress, policy.egress], [undefined, [MY_SERVICE]]);
  });

  it('reads an Allow rule with domain names, followed by a Deny rule', () => {
    const policy = policyOf(`${ALLOW_MY_SERVICE}  - name: "default-deny"
    action: "Deny"
    to:
    - networks:
      - "0.0.0.0/0"
`);
    assert.deepEqual(policy.faults, []);
    assert.deepEqual(policy.egress, [
      MY_SERVICE,
      {
        path: 'spec.egress[1]',
        name: 'default-deny',
        action: 'Deny',
        peers: [network('0.0.0.0/0')],
        ports: undefined,
      },
    ]);
  });

  it('reads domain names over a baseline policy, and reports a baseline rule written under ingress', () => {
    const [admin, baseline] = readAll(`${ALLOW_MY_SERVICE}---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata:
  name: default
spec:
  subject:
    namespaces: {}
  ingress:
    - action: Deny
      to:
      - networks:
        - "0.0.0.0/0"
`);
    assert.deepEqual((admin as Policy).egress, [MY_SERVICE]);
    const { tier, subject, ingress, egress, faults } = baseline as Policy;
    assert.deepEqual(
      [tier, subject, egress],
      ['Baseline', { namespaces: [], pods: [] }, undefined],
    );
    assert.deepEqual(ingress, [
      { path: 'spec.ingress[0]', name: '', action: 'Deny', peers: undefined, ports: undefined },
    ]);
    assert.deepEqual(faults, [
      { field: 'spec.ingress[0].to', reason: 'is an unknown field' },
      { field: 'spec.ingress[0].from', reason: 'is required' },
    ]);
  });
});

describe('policy-documents: the stories of KEP-2079', () => {
  const story = (rules: string) =>
    policyOf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: story, namespace: default}
spec:
  podSelector: {}
${rules}`);

  it('1: reads the node port range of another cluster', () => {
    const { egress, faults } = story(`
  policyTypes: [Egress]
  egress:
  - to: [{ipBlock: {cidr: 192.0.2.0/24}}]
    ports:
    - {protocol: TCP, port: 30000, endPort: 32767}
`);
    assert.deepEqual(faults, []);
    assert.deepEqual(egress?.[0]?.ports, [tcp(30000, 32767)]);
    const each = Array.from({ length: 769 }, (_, index) => 32000 + index);
    const long = story(`
  egress:
  - ports:
${each.map((port) => `    - protocol: TCP\n      port: ${port}`).join('\n')}
`);
    assert.deepEqual(
      long.egress?.[0]?.ports,
      each.map((port) => tcp(port)),
    );
  });

  it('2: reads all ports except 111 and 445', () => {
    const { egress, faults } = story(`
  policyTypes: [Egress]
  egress:
  - ports:
    - {port: 1, endPort: 110}
    - {port: 112, endPort: 444}
    - {port: 446, endPort: 65535}
`);
    assert.deepEqual(faults, []);
    assert.deepEqual(egress?.[0]?.ports, [tcp(1, 110), tcp(112, 444), tcp(446, 65535)]);
  });

  it('3: reads the port range of passive FTP', () => {
    const { ingress, egress, faults } = story(`
  ingress:
  - ports:
    - {port: 21}
    - {port: 49152, endPort: 65535}
`);
    assert.deepEqual([egress, faults], [undefined, []]);
    assert.deepEqual(ingress?.[0]?.ports, [tcp(21), tcp(49152, 65535)]);
  });
});
