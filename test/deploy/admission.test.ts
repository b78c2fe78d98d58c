import assert from 'node:assert/strict';
import fc from 'fast-check';
import { ALL_PORT_FEATURES, portScheme } from '../../api/all-ports.ts';
import { MAX_VALUE_LENGTH } from '../../api/ports.ts';
import { readService } from '../../api/read-service.ts';
import { servedPorts } from '../../services/served-ports.ts';
import { CASES, serviceObject } from './admission-cases.ts';
import { readObject, readObjects } from './manifests.ts';
import { expressionTypes, judge, type PolicySpec, variablesOf } from './policy.ts';

const validating = readObject<{ spec: PolicySpec }>(
  'deploy/admission.yaml',
  'ValidatingAdmissionPolicy',
  'all-ports.portwide.dev',
);
const loadBalancing = readObject<{ spec: PolicySpec }>(
  'deploy/admission.yaml',
  'ValidatingAdmissionPolicy',
  'load-balancing.portwide.dev',
);
const NODE_PORTS = 'deploy/admission-node-ports.yaml';
const NODE_PORTS_BETA = 'deploy/admission-node-ports-v1beta1.yaml';
const mutating = readObject<{
  spec: PolicySpec & { mutations: readonly { applyConfiguration: { expression: string } }[] };
}>(NODE_PORTS, 'MutatingAdmissionPolicy');

/** Objects arrive as JSON, so undefined fields are missing. */
const json = (value: object): Record<string, object> => JSON.parse(JSON.stringify(value));

/** The agent's refusals, as `field: message`. */
function agentRefuses(service: object): string[] {
  const scheme = portScheme(readService(json(service)), ALL_PORT_FEATURES);
  if (scheme.kind !== 'refused') return [];
  return scheme.refusals.map(({ field, message }) => `${field}: ${message}`);
}

/** The policy's messages for a created Service; undefined if the policy does not apply. */
const policyRefuses = (service: object) =>
  judge(validating.spec, { object: json(service), oldObject: null });

describe('admission: policy and agent refuse the same Services, with the same messages', () => {
  for (const { title, service, refused, leftToAgent } of CASES) {
    it(title, () => {
      assert.deepEqual(agentRefuses(service), refused);
      const expected = refused.length === 0 || leftToAgent ? [] : [refused.join('; ')];
      assert.deepEqual(policyRefuses(service) ?? [], expected);
    });
  }

  it('policy and agent agree for any value, Service type and addresses', function () {
    // 2,000 evaluations in JavaScript: a quarter of a minute on a quiet machine.
    this.timeout(180_000);
    const separators = fc.constantFrom('-', '/', ',', ' ', '', '\t', '"', '\\', '--', '/TCP');
    const number = fc.oneof(fc.nat(70_000), fc.constantFrom(0, 1, 65535, 65536));
    const words = fc.constantFrom('all', 'false', 'TCP', 'UDP', 'SCTP', 'tcp', 'x');
    const texts = fc
      .array(fc.tuple(fc.oneof(number.map(String), words), separators), { maxLength: 6 })
      .map((parts) => parts.flat().join(''));
    const values = fc.option(fc.oneof(texts, fc.string()), { nil: undefined });
    const specs = fc.record(
      {
        type: fc.constantFrom('ClusterIP', 'NodePort', 'LoadBalancer'),
        allPorts: fc.boolean(),
        externalIPs: fc.constantFrom([], ['203.0.113.9']),
        ports: fc.constantFrom(undefined, [{ port: 1, protocol: 'TCP' }]),
        clusterIP: fc.constantFrom('None', '10.96.0.10'),
      },
      { requiredKeys: ['type', 'clusterIP'] },
    );
    let refusals = 0;
    fc.assert(
      fc.property(values, specs, (value, { clusterIP, ...spec }) => {
        const service = serviceObject(value, { ...spec, clusterIP, clusterIPs: [clusterIP] });
        const expected = agentRefuses(service);
        const messages = policyRefuses(service) ?? [];
        if (expected.length > 0) refusals += 1;
        // Control characters other than line breaks and tabs are escaped differently.
        if (/[^\P{Cc}\n\r\t]/u.test(value ?? '')) {
          assert.equal(messages.length > 0, expected.length > 0);
        } else {
          assert.deepEqual(messages, expected.length === 0 ? [] : [expected.join('; ')]);
        }
      }),
      { seed: 1, numRuns: 2000 },
    );
    assert.ok(refusals > 500);
  });
});

describe('admission: owned ports', () => {
  it('policy and agent agree for any ranges and numbers of ports', function () {
    this.timeout(180_000);
    const port = fc.oneof(fc.integer({ min: 1, max: 60 }), fc.constantFrom(0, 65_535, 65_536));
    const end = fc.constantFrom('/UDP', '/TCP', '/SCTP', '', '/udp', '/');
    const range = fc
      .tuple(port, fc.option(port), end, fc.constantFrom('', ' ', '\t'))
      .map(
        ([from, to, protocol, space]) =>
          `${space}${from}${to === null ? '' : `-${to}`}${protocol}${space}`,
      );
    const sound = fc
      .tuple(fc.integer({ min: 1, max: 9 }), fc.nat(20), fc.constantFrom('UDP', 'TCP'))
      .map(([from, length, protocol]) => `${from}-${from + length}/${protocol}`);
    const values = fc
      .array(fc.oneof({ arbitrary: sound, weight: 6 }, range), { minLength: 1, maxLength: 4 })
      .map((items) => items.join());
    const counts = fc.constantFrom(undefined, '1', ' 5 ', '10', '0', 'x', '70000', '');
    const seen = { served: 0, refused: 0 };
    fc.assert(
      fc.property(values, counts, (value, count) => {
        const service = serviceObject(undefined) as { metadata: object };
        const annotations = {
          'portwide.dev/owned-ports': value,
          ...(count === undefined ? {} : { 'portwide.dev/ports-per-pod': count }),
        };
        const object = { ...service, metadata: { ...service.metadata, annotations } };
        const expected = agentRefuses(object).filter((text) => !text.includes(' slices, but '));
        const items = value.split(',').map((item) => item.trim().replace(/^(\d+)\//, '$1-$1/'));
        // The policy does not see a range that is written twice.
        const isRepeated = new Set(items).size < items.length;
        seen[expected.length > 0 ? 'refused' : 'served'] += 1;
        if (isRepeated) return;
        assert.deepEqual(policyRefuses(object), expected.length > 0 ? [expected.join('; ')] : []);
      }),
      { seed: 1, numRuns: 1000 },
    );
    assert.ok(seen.served > 50 && seen.refused > 300, JSON.stringify(seen));
  });

  it('checks an update of either annotation', () => {
    const annotated = (ports: string, perPod: string) => {
      const service = serviceObject(undefined) as { metadata: object };
      const annotations = {
        'portwide.dev/owned-ports': ports,
        'portwide.dev/ports-per-pod': perPod,
      };
      return json({ ...service, metadata: { ...service.metadata, annotations } });
    };
    const bad = annotated('20000-20999/UDP', '0');
    const update = (oldObject: object, object: object) =>
      judge(validating.spec, { object, oldObject });
    assert.equal(update(bad, bad), undefined);
    assert.equal(update(annotated('20000-20999/UDP', '1'), bad)?.length, 1);
    assert.equal(update(annotated('20000-20998/UDP', '0'), bad)?.length, 1);
  });
});

describe('admission: load balancing', () => {
  const annotated = (annotations: Record<string, string>, spec: object = {}) => {
    const service = serviceObject(undefined, spec) as { metadata: object };
    return json({ ...service, metadata: { ...service.metadata, annotations } });
  };
  const LOAD_BALANCING = 'portwide.dev/load-balancing';
  const OWNED = {
    'portwide.dev/owned-ports': '20000-20999/UDP',
    'portwide.dev/ports-per-pod': '9',
  };

  for (const value of ['random', ' consistent-hash', 'consistent-hash-client-port', 'hash', '']) {
    for (const annotations of [{}, { 'portwide.dev/ports': 'all' }, OWNED]) {
      it(`policy and agent agree on ${JSON.stringify({ ...annotations, [LOAD_BALANCING]: value })}`, () => {
        const object = annotated({ ...annotations, [LOAD_BALANCING]: value });
        const { refusals } = servedPorts(readService(object), ALL_PORT_FEATURES);
        assert.deepEqual(
          judge(loadBalancing.spec, { object, oldObject: null }),
          refusals.map(({ field, message }) => `${field}: ${message}`),
        );
      });
    }
  }

  it('applies only to changes of Services with the annotation and a VIP', () => {
    const bad = annotated({ [LOAD_BALANCING]: 'hash' });
    const update = (oldObject: object, object: object) =>
      judge(loadBalancing.spec, { object, oldObject });
    assert.equal(update(bad, bad), undefined);
    assert.equal(update(annotated({}), bad)?.length, 1);
    assert.equal(update(bad, annotated({})), undefined);
    const headless = annotated({ [LOAD_BALANCING]: 'hash' }, { clusterIP: 'None' });
    assert.equal(judge(loadBalancing.spec, { object: headless, oldObject: null }), undefined);
  });
});

describe('admission: validating policy', () => {
  it("limits the annotation to the agent's maximum length", () => {
    const isTooLong = validating.spec.variables?.find(({ name }) => name === 'isTooLong');
    assert.equal(isTooLong?.expression, `variables.value.size() > ${MAX_VALUE_LENGTH}`);
  });

  it('does not parse a value that is too long', () => {
    const object = json(serviceObject(','.repeat(200_000)));
    const { variables } = variablesOf(validating.spec, { object, oldObject: null });
    const { text, sound, backward, bad } = variables;
    assert.deepEqual(
      { text, sound, backward, bad },
      { text: '', sound: '', backward: [], bad: [] },
    );
  });

  it('has CEL expressions of the types that an API server requires', () => {
    for (const [what, type] of [validating, loadBalancing].flatMap(({ spec }) => [
      ...expressionTypes(spec),
    ])) {
      if (/^(condition|validation)/.test(what)) assert.equal(type, 'bool', what);
      if (/^message/.test(what)) assert.equal(type, 'string', what);
    }
    for (const [what, type] of expressionTypes(mutating.spec)) assert.equal(type, 'bool', what);
  });

  it('does not apply to Services that are not all-ports', () => {
    assert.equal(policyRefuses(serviceObject(undefined, { type: 'NodePort' })), undefined);
    assert.equal(policyRefuses(serviceObject(' false ', { type: 'NodePort' })), undefined);
    assert.deepEqual(policyRefuses(serviceObject('all')), []);
  });

  it('checks only updates that change relevant fields', () => {
    const refused = ['spec.type: a NodePort Service cannot serve all ports of a node'];
    const update = (before: object, after: object) =>
      judge(validating.spec, { object: json(after), oldObject: json(before) });
    const bad = serviceObject('all', { type: 'NodePort' });
    assert.deepEqual(update(serviceObject('all'), bad), refused);
    assert.deepEqual(update(serviceObject(undefined, { type: 'NodePort' }), bad), refused);
    assert.deepEqual(update(serviceObject('80', { type: 'NodePort' }), bad), refused);

    // For example, a controller sets a finalizer on a Service that is older than the policy.
    const { metadata, ...rest } = json(bad);
    const held = { ...rest, metadata: { ...metadata, finalizers: ['example.com/held'] } };
    assert.equal(update(bad, held), undefined);
    assert.deepEqual(update(bad, serviceObject('80', { type: 'NodePort' })), refused);
  });

  it('accepts updates of a Service that is being deleted', () => {
    const { metadata, spec, ...rest } = json(serviceObject('all', { type: 'NodePort' }));
    const going = { ...rest, metadata: { ...metadata, deletionTimestamp: '2026-01-01T00:00:00Z' } };
    const object = { ...going, spec: { ...spec, externalIPs: ['203.0.113.9'] } };
    const oldObject = { ...going, spec };
    assert.equal(judge(validating.spec, { object, oldObject }), undefined);
    assert.notEqual(
      judge(validating.spec, { object: { ...object, metadata }, oldObject }),
      undefined,
    );
  });

  it('has a fallback message for a messageExpression that an API server rejects', () => {
    assert.deepEqual(policyRefuses(serviceObject('x'.repeat(6000))), [
      'metadata.annotations["portwide.dev/ports"]: cannot be read',
    ]);
  });

  it('has a binding with action Deny', () => {
    for (const { name } of [validating.metadata, loadBalancing.metadata]) {
      const { spec } = readObject<{ spec: object }>(
        'deploy/admission.yaml',
        'ValidatingAdmissionPolicyBinding',
        name,
      );
      assert.deepEqual(spec, { policyName: name, validationActions: ['Deny'] });
    }
  });
});

describe('admission: mutating policy for node ports of all-ports load balancers', () => {
  const matches = (service: object) =>
    judge(mutating.spec, { object: json(service), oldObject: null }) !== undefined;
  const loadBalancer = { type: 'LoadBalancer', allocateLoadBalancerNodePorts: true };

  for (const [title, service, expected] of [
    ['by annotation', serviceObject('all', loadBalancer), true],
    ['with ranges', serviceObject('80', loadBalancer), true],
    ['by the field', serviceObject(undefined, { ...loadBalancer, allPorts: true }), true],
    ['without an explicit default', serviceObject('all', { type: 'LoadBalancer' }), true],
    ['a load balancer with listed ports', serviceObject(undefined, loadBalancer), false],
    ['annotation "false"', serviceObject('false', loadBalancer), false],
    ['a ClusterIP Service', serviceObject('all'), false],
    [
      'one without node ports',
      serviceObject('all', { ...loadBalancer, allocateLoadBalancerNodePorts: false }),
      false,
    ],
  ] as const) {
    it(`applies to ${title}: ${expected ? 'yes' : 'no'}`, () =>
      assert.equal(matches(service), expected));
  }

  it('changes only allocateLoadBalancerNodePorts', () => {
    // A constant of the API server's object type, which the CEL library lacks.
    assert.deepEqual(
      mutating.spec.mutations.map(({ applyConfiguration }) => applyConfiguration.expression),
      ['Object{spec: Object.spec{allocateLoadBalancerNodePorts: false}}'],
    );
  });

  it('has a binding for the mutating policy', () => {
    const { spec } = readObject<{ spec: object }>(
      'deploy/admission-node-ports.yaml',
      'MutatingAdmissionPolicyBinding',
    );
    assert.deepEqual(spec, { policyName: mutating.metadata.name });
  });

  it('has the same mutating policy in version v1beta1', () => {
    const beta = readObjects(NODE_PORTS_BETA);
    assert.deepEqual(
      beta.map(({ apiVersion, ...rest }) => ({
        apiVersion: apiVersion.replace('beta1', ''),
        ...rest,
      })),
      readObjects(NODE_PORTS),
    );
    assert.ok(
      beta.every(({ apiVersion }) => apiVersion === 'admissionregistration.k8s.io/v1beta1'),
    );
  });

  it('selects all-ports Services like the validating policy', () => {
    assert.equal(
      mutating.spec.matchConditions[0]?.expression,
      validating.spec.matchConditions[0]?.expression,
    );
  });
});
