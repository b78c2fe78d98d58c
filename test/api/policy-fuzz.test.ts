/**
 * Fuzzes the readers of network policy: every object is read or rejected, and faulty policies fail
 * closed.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { InvalidObject } from '../../api/errors.ts';
import { POLICY_KINDS } from '../../api/objects.ts';
import type { Policy, PolicyObject, PolicyRule } from '../../api/policy-objects.ts';
import { API_VERSIONS, readObject } from '../../api/read-object.ts';
import { checkPolicyObject } from './policy-checks.ts';

const text = fc.oneof(
  fc.constantFrom('', 'a', 'TCP', 'Allow', 'Deny', '10.0.0.0/8', '::ffff:10.0.0.0/104', 'a.io.'),
  fc.stringMatching(/^[a-zA-Z0-9.*:/_ \n-]{0,12}$/),
  fc.string(),
);
const leaf = fc.oneof(text, fc.integer({ min: -1, max: 65_537 }), fc.boolean(), fc.constant(null));
/** Usually a value that is valid there, sometimes almost any other value. */
const maybe = <T>(value: fc.Arbitrary<T>) =>
  fc.oneof(
    { weight: 60, arbitrary: value },
    { weight: 1, arbitrary: fc.oneof(leaf, fc.jsonValue(), fc.constant(undefined)) },
  );
const word = (...good: string[]) =>
  fc.oneof({ weight: 60, arbitrary: fc.constantFrom(...good) }, { weight: 1, arbitrary: text });
const list = <T>(value: fc.Arbitrary<T>, minLength = 0) =>
  maybe(fc.array(maybe(value), { minLength, maxLength: 2 }));
const record = (members: Record<string, fc.Arbitrary<unknown>>, ...requiredKeys: string[]) =>
  maybe(fc.record(members, { requiredKeys }));
/** Usually an object with one of the given fields, rarely with two or none. */
const oneOf = (members: Record<string, fc.Arbitrary<unknown>>) =>
  maybe(
    fc.oneof(
      ...Object.entries(members).map(([name, value]) => ({
        weight: 20,
        arbitrary: fc.record({ [name]: value }),
      })),
      { weight: 1, arbitrary: fc.record(members, { requiredKeys: [] }) },
    ),
  );
const number = maybe(fc.integer({ min: 1, max: 65_535 }));
const values = list(word('a', 'b'), 1);
const selector = record({
  matchLabels: record({ app: word('web', 'db') }),
  matchExpressions: list(
    fc.oneof(
      record(
        { key: word('app', 'x/y'), operator: word('In', 'NotIn'), values },
        'key',
        'operator',
        'values',
      ),
      record({ key: word('app'), operator: word('Exists', 'DoesNotExist') }, 'key', 'operator'),
    ),
  ),
});
const pods = record(
  { namespaceSelector: selector, podSelector: selector },
  'namespaceSelector',
  'podSelector',
);
const cidr = word('10.0.0.0/8', '10.1.2.3/16', 'FD00::/8', '0.0.0.0/0');
const networks = fc.oneof(
  list(cidr, 1),
  oneOf({ cidrs: list(cidr, 1), cidrGroups: selector }),
  list(oneOf({ cidrs: list(cidr, 1), cidrGroups: selector }), 1),
);
const protocol = word('TCP', 'UDP', 'SCTP');
const range = record({ start: fc.integer({ min: 1, max: 9 }), end: number }, 'start', 'end');
const ports: Record<string, fc.Arbitrary<unknown>> = {
  ports: list(
    oneOf({
      portNumber: record({ protocol, port: number }, 'port'),
      portRange: range,
      namedPort: word('http'),
    }),
    1,
  ),
};
const destination = record({ destinationPort: oneOf({ number, range }) }, 'destinationPort');
const protocols: Record<string, fc.Arbitrary<unknown>> = {
  protocols: list(
    oneOf({ tcp: destination, udp: destination, destinationNamedPort: word('http') }),
    1,
  ),
};
const ingressPeer = oneOf({ namespaces: selector, pods });
const egressPeer = oneOf({
  namespaces: selector,
  pods,
  networks,
  nodes: selector,
  domainNames: list(word('a.io', '*.B.io.'), 1),
});
const rules = (
  actions: readonly string[],
  members: Record<string, fc.Arbitrary<unknown>>,
  ...required: string[]
) => list(record({ name: text, action: word(...actions), ...members }, 'action', ...required));
const clusterSpec = (
  actions: readonly string[],
  portMembers: Record<string, fc.Arbitrary<unknown>>,
  more: Record<string, fc.Arbitrary<unknown>>,
) =>
  record(
    {
      ...more,
      subject: oneOf({ namespaces: selector, pods }),
      ingress: rules(actions, { from: list(ingressPeer, 1), ...portMembers }, 'from'),
      egress: rules(actions, { to: list(egressPeer, 1), ...portMembers }, 'to'),
    },
    'subject',
    ...Object.keys(more),
  );
const priority = maybe(fc.integer({ min: 0, max: 1000 }));
const policyPeer = fc.oneof(
  record({ podSelector: selector, namespaceSelector: selector }, 'podSelector'),
  record({ ipBlock: record({ cidr, except: list(word('10.1.0.0/16', 'fd00::/9')) }, 'cidr') }),
);
const policyRule = (peers: string) =>
  record({
    [peers]: list(policyPeer),
    ports: list(record({ protocol, port: fc.oneof(number, word('http')), endPort: number })),
  });
const ip = word('10.0.0.1', 'FD00::1');

const SPECS: Readonly<Record<PolicyObject['kind'], Record<string, fc.Arbitrary<unknown>>>> = {
  Pod: {
    spec: record({
      nodeName: word('node-1'),
      hostNetwork: maybe(fc.boolean()),
      containers: list(
        record({
          ports: list(
            record({ name: word('http'), containerPort: number, protocol }, 'containerPort'),
          ),
        }),
      ),
    }),
    status: record({
      phase: word('Running', 'Failed'),
      podIP: ip,
      podIPs: list(record({ ip }, 'ip')),
    }),
  },
  Namespace: {},
  CIDRGroup: { spec: record({ cidrs: list(cidr) }) },
  NetworkPolicy: {
    spec: record({
      podSelector: selector,
      policyTypes: list(word('Ingress', 'Egress')),
      ingress: list(policyRule('from')),
      egress: list(policyRule('to')),
    }),
  },
  AdminNetworkPolicy: { spec: clusterSpec(['Allow', 'Deny', 'Pass'], ports, { priority }) },
  BaselineAdminNetworkPolicy: { spec: clusterSpec(['Allow', 'Deny'], ports, {}) },
  ClusterNetworkPolicy: {
    spec: clusterSpec(['Accept', 'Deny', 'Pass'], protocols, {
      priority,
      tier: word('Admin', 'Baseline'),
    }),
  },
};

const anyObject = fc.constantFrom(...POLICY_KINDS).chain((kind) =>
  fc.record({
    apiVersion: fc.constantFrom(...API_VERSIONS[kind]),
    kind: fc.constant(kind),
    metadata: record(
      {
        name: word('a', 'default'),
        namespace: word('shop', ''),
        labels: record({ app: word('web'), constructor: text }),
        creationTimestamp: word('2026-01-02T03:04:05Z'),
      },
      'name',
    ),
    ...SPECS[kind],
  }),
);

function readOrRefuse(raw: unknown): PolicyObject | undefined {
  try {
    return readObject(raw, POLICY_KINDS) as PolicyObject | undefined;
  } catch (error) {
    assert.ok(error instanceof InvalidObject, String(error));
    assert.match(error.message, /^[\x20-\x7e]*$/);
    assert.notEqual(error.field, '');
    return undefined;
  }
}

describe('policy-fuzz: arbitrary objects of network policy', () => {
  it('are read, ignored or rejected with InvalidObject', () => {
    const typed = fc.tuple(
      fc.constantFrom(...POLICY_KINDS),
      fc.dictionary(
        fc.constantFrom('spec', 'status', 'metadata', 'cidrs', '__proto__'),
        fc.jsonValue(),
      ),
    );
    fc.assert(
      fc.property(typed, ([kind, more]) => {
        const bare = { apiVersion: API_VERSIONS[kind][0], kind, metadata: { name: 'a' } };
        readOrRefuse({ ...bare, ...more });
      }),
      { numRuns: 3000, seed: 7 },
    );
  });

  it('have only values that are safe in a rule, and fail closed', () => {
    const seen = new Map<string, number>();
    const count = (what: string) => seen.set(what, (seen.get(what) ?? 0) + 1);
    fc.assert(
      fc.property(anyObject, (raw) => {
        const object = readOrRefuse(raw);
        if (object === undefined) return;
        count(object.kind);
        checkPolicyObject(object);
        if ('faults' in object) {
          checkFaults(object, raw);
          count(object.faults.length > 0 ? `faulty ${object.kind}` : `sound ${object.kind}`);
        }
      }),
      { numRuns: 10_000, seed: 7 },
    );
    for (const kind of POLICY_KINDS)
      assert.ok((seen.get(kind) ?? 0) > 300, `${kind}: ${seen.get(kind)}`);
    for (const what of ['faulty', 'sound']) {
      for (const kind of POLICY_KINDS.filter((each) => each.endsWith('Policy'))) {
        assert.ok((seen.get(`${what} ${kind}`) ?? 0) > 100, `${what} ${kind}`);
      }
    }
  });
});

/** Checks that a faulty policy fails closed. */
function checkFaults(policy: Policy, raw: unknown): void {
  const context = JSON.stringify({ policy, raw });
  for (const { field, reason } of policy.faults) {
    assert.match(`${field}: ${reason}`, /^[\x20-\x7e]+$/);
    assert.match(field, /^(spec|metadata\.name)/, context);
  }
  for (const direction of ['ingress', 'egress'] as const) {
    for (const rule of policy[direction] ?? []) {
      const faulty = policy.faults.some(
        ({ field }) => field.startsWith(`${rule.path}.`) || field.startsWith(`${rule.path}[`),
      );
      if (faulty) assert.ok(isClosed(rule), context);
    }
  }
  const isUnsound = policy.faults.some(({ field }) =>
    /^(metadata\.name|spec\.(priority|tier|policyTypes.*))$/.test(field),
  );
  if (isUnsound) {
    const rules = [...(policy.ingress ?? []), ...(policy.egress ?? [])];
    assert.ok(rules.every(isClosed), context);
    if (policy.kind === 'NetworkPolicy') assert.ok(policy.ingress && policy.egress, context);
  }
}

function isClosed({ action, peers, ports }: PolicyRule): boolean {
  if (action === 'Allow') return peers?.length === 0 && ports?.length === 0;
  return action === 'Deny' && peers === undefined && ports === undefined;
}
