import assert from 'node:assert/strict';
import fc from 'fast-check';
import { canonicalAddress, canonicalCidr } from '../../api/addresses.ts';
import { InvalidObject } from '../../api/errors.ts';
import {
  isNamespaced,
  POLICY_KINDS,
  SERVING_KINDS,
  type ServingObject,
} from '../../api/objects.ts';
import { isPort, isProtocol } from '../../api/ports.ts';
import { readNode } from '../../api/read-node.ts';
import { API_VERSIONS, readIdentity, readObject } from '../../api/read-object.ts';

const service = { apiVersion: 'v1', kind: 'Service', metadata: { name: 'web' }, spec: {} };
const slice = {
  apiVersion: 'discovery.k8s.io/v1',
  kind: 'EndpointSlice',
  metadata: { name: 'web-1', labels: { 'kubernetes.io/service-name': 'web' } },
  addressType: 'IPv4',
};
const node = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'node-1.example' } };

describe('read-object: reading an object', () => {
  it('reads the kinds for serving Services', () => {
    assert.deepEqual(
      [service, slice, node].map((raw) => readObject(raw, SERVING_KINDS)?.key),
      ['default/web', 'default/web-1', 'node-1.example'],
    );
  });

  it('reads the kinds of network policy', () => {
    for (const kind of POLICY_KINDS) {
      const hasSubject = API_VERSIONS[kind][0].startsWith('policy.') && kind !== 'CIDRGroup';
      const ofGroup = kind === 'CIDRGroup' ? { cidrs: ['10.0.0.0/8'] } : {};
      const spec = hasSubject ? { subject: { namespaces: {} } } : ofGroup;
      const raw = { apiVersion: API_VERSIONS[kind][0], kind, metadata: { name: 'default' }, spec };
      const read = readObject(raw, [kind]);
      const key = isNamespaced(kind) ? 'default/default' : 'default';
      assert.deepEqual([read?.kind, read?.key], [kind, key]);
      assert.equal(readObject(raw, SERVING_KINDS), undefined);
      const other = { ...raw, apiVersion: 'policy.networking.k8s.io/v1' };
      assert.throws(() => readObject(other, [kind]), /: apiVersion: must be .* for this kind/);
    }
  });

  it('reads both versions of ClusterNetworkPolicy alike', () => {
    const read = (version: string) => {
      const raw = {
        apiVersion: `policy.networking.k8s.io/${version}`,
        kind: 'ClusterNetworkPolicy',
        metadata: { name: 'a' },
        spec: {
          tier: 'Admin',
          priority: 1,
          subject: { namespaces: {} },
          ingress: [{ action: 'Deny', from: [{ namespaces: {} }] }],
        },
      };
      assert.deepEqual(readIdentity(raw, POLICY_KINDS), { kind: raw.kind, key: 'a' });
      return readObject(raw, POLICY_KINDS);
    };
    assert.deepEqual(read('v1beta1'), read('v1alpha2'));
    assert.throws(() => read('v1alpha1'), {
      message:
        'ClusterNetworkPolicy a: apiVersion: must be policy.networking.k8s.io/v1beta1 or policy.networking.k8s.io/v1alpha2 for this kind, not "policy.networking.k8s.io/v1alpha1"',
    });
  });

  it('reads every other kind in one version only', () => {
    for (const kind of [...SERVING_KINDS, ...POLICY_KINDS]) {
      const count = kind === 'ClusterNetworkPolicy' ? 2 : 1;
      assert.equal(API_VERSIONS[kind].length, count, kind);
    }
  });

  for (const raw of [null, 7, 'x', [], {}, { kind: 7 }, { apiVersion: 'v1', kind: 'Pod' }]) {
    it(`ignores ${JSON.stringify(raw)}`, () => {
      assert.equal(readObject(raw, SERVING_KINDS), undefined);
      assert.equal(readIdentity(raw, SERVING_KINDS), undefined);
    });
  }

  for (const raw of [
    { ...service, apiVersion: 'v2' },
    { ...service, apiVersion: undefined },
    { ...slice, apiVersion: 'discovery.k8s.io/v1beta1' },
    { ...node, apiVersion: 1 },
  ]) {
    it(`rejects a ${raw.kind} of ${raw.apiVersion}`, () => {
      const refusal = (error: unknown) =>
        error instanceof InvalidObject && error.field === 'apiVersion';
      assert.throws(() => readObject(raw, SERVING_KINDS), refusal);
      assert.throws(() => readIdentity(raw, SERVING_KINDS), refusal);
    });
  }

  it('reads the identity of an object that is ignored or unreadable', () => {
    assert.deepEqual(readIdentity({ ...slice, addressType: 'FQDN' }, SERVING_KINDS), {
      kind: 'EndpointSlice',
      key: 'default/web-1',
    });
    assert.deepEqual(readIdentity({ ...service, spec: 7 }, SERVING_KINDS), {
      kind: 'Service',
      key: 'default/web',
    });
  });

  it('reads a Node', () => {
    const raw = {
      metadata: {
        ...node.metadata,
        labels: { 'topology.kubernetes.io/zone': 'z1' },
        deletionTimestamp: '2026-01-01T00:00:00Z',
      },
      spec: {
        podCIDR: '10.1.0.0/24',
        podCIDRs: ['10.1.0.7/24', 'fd00::/64'],
        taints: [{ key: 'a/b', value: 'c', effect: 'NoSchedule' }, { key: 'd' }],
      },
      status: {
        addresses: [
          { type: 'Hostname', address: 'node-1' },
          { type: 'ExternalIP', address: '192.0.2.1' },
          { type: 'InternalIP', address: '10.0.0.1' },
          { type: 'InternalIP', address: 'FD00::1' },
          { type: 'InternalIP', address: 'fe80::1%eth0' },
          { type: 'InternalIP', address: '10.0.0.1' },
        ],
      },
    };
    assert.deepEqual(readNode(raw), {
      kind: 'Node',
      key: 'node-1.example',
      name: 'node-1.example',
      labels: { 'topology.kubernetes.io/zone': 'z1' },
      zone: 'z1',
      podCIDRs: ['10.1.0.0/24', 'fd00::/64'],
      addresses: ['10.0.0.1', 'fd00::1', '192.0.2.1'],
      deleting: true,
      taints: ['a/b', 'd'],
    });
    assert.deepEqual(readNode({ ...node, spec: { podCIDR: '10.1.0.0/24' } }).podCIDRs, [
      '10.1.0.0/24',
    ]);
    const { addresses, deleting, taints } = readNode(node);
    assert.deepEqual(
      { addresses, deleting, taints },
      { addresses: [], deleting: false, taints: [] },
    );
  });

  for (const [spec, field] of [
    [{ podCIDRs: ['10.1.0.0'] }, 'spec.podCIDRs[0]'],
    [{ podCIDRs: ['10.1.0.0/24', '10.2.0.0/24'] }, 'spec.podCIDRs'],
    [{ podCIDR: 'x' }, 'spec.podCIDR'],
    [{ taints: [{ effect: 'NoSchedule' }] }, 'spec.taints[0].key'],
  ] as const) {
    it(`rejects ${field} of a Node`, () => {
      assert.throws(
        () => readNode({ ...node, spec }),
        (error) => error instanceof InvalidObject && error.field === field,
      );
    });
  }

  it('returns a value that does not reference the input', () => {
    const raw = {
      ...service,
      spec: { clusterIPs: ['10.0.0.1'], ports: [{ port: 80 }], externalIPs: ['192.0.2.1'] },
    };
    const object = readObject(raw, SERVING_KINDS);
    const before = structuredClone(object);
    raw.spec.clusterIPs.push('x');
    raw.spec.externalIPs.push('x');
    Object.assign(raw.spec.ports[0] ?? {}, { port: 'x' });
    assert.deepEqual(object, before);
  });
});

/** Text similar to valid values, but mostly invalid. */
const text = fc.oneof(
  fc.constantFrom('', 'web', 'None', 'TCP', 'all', 'Local', 'ClientIP', 'FQDN', 'IPv4', 'IPv6'),
  fc.constantFrom('10.0.0.1', 'fd00::1', '::ffff:10.0.0.1', '10.0.0.0/8', ' fd00::/64 ', 'ff02::1'),
  fc.stringMatching(/^[a-z0-9.:/ \n-]{0,12}$/),
  fc
    .tuple(fc.constantFrom('web', '10.0.0.1', 'fd00::1', '10.0.0.0/8'), fc.string({ maxLength: 3 }))
    .map((parts) => parts.join('')),
  fc.string(),
);
const leaf = fc.oneof(
  text,
  fc.integer({ min: -1, max: 65537 }),
  fc.boolean(),
  fc.constant(null),
  fc.double(),
);
/** Usually a value that is valid there, sometimes almost any other value. */
const maybe = <T>(value: fc.Arbitrary<T>) =>
  fc.oneof(
    { weight: 30, arbitrary: value },
    { weight: 1, arbitrary: fc.oneof(leaf, fc.jsonValue(), fc.constant(undefined)) },
  );
const word = (...good: string[]) =>
  fc.oneof({ weight: 20, arbitrary: fc.constantFrom(...good) }, { weight: 1, arbitrary: text });
const list = <T>(value: fc.Arbitrary<T>) => maybe(fc.array(maybe(value), { maxLength: 2 }));
const record = (members: Record<string, fc.Arbitrary<unknown>>) =>
  maybe(fc.record(members, { requiredKeys: [] }));
const ip = word('10.0.0.1', '192.0.2.1', 'FD00::1', 'fd00::2');
const block = word('10.0.0.0/8', ' fd00::7/64 ');
const number = maybe(fc.integer({ min: 1, max: 65535 }));
const port = maybe(
  fc.record(
    { name: word('a', 'b', ''), protocol: word('TCP', 'UDP'), port: number, nodePort: number },
    { requiredKeys: ['port'] },
  ),
);
const metadata = maybe(
  fc.record(
    {
      name: word('web', 'web-1'),
      namespace: word('voice', ''),
      creationTimestamp: word('2026-01-02T03:04:05+01:00'),
      labels: maybe(fc.record({ 'kubernetes.io/service-name': word('web') })),
      annotations: record({ 'portwide.dev/ports': word('all') }),
    },
    { requiredKeys: ['name', 'labels'] },
  ),
);
const anyObject = fc.oneof(
  fc.record({
    apiVersion: fc.constant('v1'),
    kind: fc.constant('Service'),
    metadata,
    spec: record({
      type: word('NodePort', 'LoadBalancer'),
      clusterIP: word('', 'None', '10.0.0.1'),
      clusterIPs: list(ip),
      ports: list(port),
      externalIPs: list(ip),
      loadBalancerSourceRanges: list(block),
      sessionAffinity: word('ClientIP'),
      allPorts: maybe(fc.boolean()),
    }),
    status: record({
      loadBalancer: record({ ingress: list(record({ ip, ipMode: word('VIP') })) }),
    }),
  }),
  fc.record({
    apiVersion: fc.constant('discovery.k8s.io/v1'),
    kind: fc.constant('EndpointSlice'),
    metadata,
    addressType: word('IPv4', 'IPv6'),
    ports: list(port),
    endpoints: list(
      record({ addresses: list(ip), nodeName: word('node-1.example'), zone: word('z') }),
    ),
  }),
  fc.record({
    apiVersion: fc.constant('v1'),
    kind: fc.constant('Node'),
    metadata,
    spec: record({ podCIDR: block, podCIDRs: list(block) }),
    status: record({ addresses: list(record({ type: word('InternalIP'), address: ip })) }),
  }),
);

function readOrRefuse(raw: unknown): ServingObject | undefined {
  try {
    return readObject(raw, SERVING_KINDS) as ServingObject | undefined;
  } catch (error) {
    assert.ok(error instanceof InvalidObject, String(error));
    assert.match(error.message, /^[\x20-\x7e]*$/);
    assert.notEqual(error.field, '');
    return undefined;
  }
}

describe('read-object: arbitrary JSON', () => {
  it('is read, ignored or rejected with InvalidObject', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (raw) => void readOrRefuse(raw)),
      { numRuns: 2000, seed: 7 },
    );
    const typed = fc.tuple(
      fc.constantFrom(service, slice, node),
      fc.dictionary(fc.string(), fc.jsonValue()),
    );
    fc.assert(
      fc.property(typed, ([base, more]) => void readOrRefuse({ ...base, ...more })),
      { seed: 7 },
    );
  });

  it('has only values that are safe in a rule', () => {
    const seen = { Service: 0, EndpointSlice: 0, Node: 0 };
    fc.assert(
      fc.property(anyObject, (raw) => {
        const object = readOrRefuse(raw);
        if (object === undefined) return;
        seen[object.kind]++;
        checkSafe(object);
      }),
      { numRuns: 5000, seed: 7 },
    );
    for (const [kind, count] of Object.entries(seen)) assert.ok(count > 50, `${kind}: ${count}`);
  });
});

/** Checks that all values are safe to use in a rule. */
function checkSafe(object: ServingObject): void {
  const label = /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/;
  assert.match(object.key, /^[-a-z0-9./]+$/);
  if (object.kind !== 'Node') {
    assert.match(object.namespace, label);
    assert.equal(object.key, `${object.namespace}/${object.name}`);
    for (const { name, protocol, port } of object.ports) {
      if (name !== '') assert.match(name, label);
      assert.ok(isProtocol(protocol));
      assert.ok(port === undefined ? object.kind === 'EndpointSlice' : isPort(port));
    }
  }
  const addresses: string[] = [];
  const cidrs: string[] = [];
  if (object.kind === 'Service') {
    assert.match(object.name, label);
    addresses.push(...object.clusterIPs, ...object.externalIPs);
    addresses.push(...object.loadBalancerIngress.map(({ ip }) => ip));
    cidrs.push(...object.loadBalancerSourceRanges);
    assert.match(object.creationTimestamp, /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)?$/);
  } else if (object.kind === 'EndpointSlice') {
    assert.match(object.serviceKey, /^[-a-z0-9]+\/[-a-z0-9]+$/);
    addresses.push(...object.endpoints.map(({ address }) => address));
  } else {
    addresses.push(...object.addresses);
    cidrs.push(...object.podCIDRs);
  }
  for (const address of addresses) {
    assert.match(address, /^[0-9a-f.:]+$/);
    assert.equal(canonicalAddress(address), address);
  }
  for (const cidr of cidrs) {
    assert.match(cidr, /^[0-9a-f.:]+\/\d+$/);
    assert.equal(canonicalCidr(cidr), cidr);
  }
}
