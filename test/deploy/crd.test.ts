import assert from 'node:assert/strict';
import { readObject as readApiObject } from '../../api/read-object.ts';
import { policyResources } from '../../sources/kubernetes/resources.ts';
import { type CustomResourceDefinition, objectFaults, structuralFaults } from './crd.ts';
import { readObject } from './manifests.ts';

const crd = readObject<CustomResourceDefinition>(
  'deploy/crds/cidrgroup.yaml',
  'CustomResourceDefinition',
);
const [version] = crd.spec.versions;
assert.ok(version !== undefined);
const schema = version.schema.openAPIV3Schema;

const group = (spec: unknown, more: object = {}) => ({
  apiVersion: 'policy.networking.k8s.io/v1alpha1',
  kind: 'CIDRGroup',
  metadata: { name: 'cloud-1', labels: { env: 'cloud-1' } },
  spec,
  ...more,
});
const many = (count: number) => Array.from({ length: count }, (_, index) => `10.${index}.0.0/16`);

describe('crd: CIDRGroup', () => {
  it('has the name and resource that the agent watches', () => {
    const { group: apiGroup, names, scope, versions } = crd.spec;
    assert.equal(crd.metadata.name, `${names.plural}.${apiGroup}`);
    assert.equal(names.listKind, `${names.kind}List`);
    assert.equal(scope, 'Cluster');
    assert.deepEqual(
      versions.map(({ name, served, storage }) => ({ name, served, storage })),
      [{ name: 'v1alpha1', served: true, storage: true }],
    );
    const resource = policyResources().find(({ kind }) => kind === names.kind);
    assert.deepEqual(resource?.paths, [`/apis/${apiGroup}/${version.name}/${names.plural}`]);
    assert.equal(resource.optional, true);
  });

  it('has the approval annotation that a Kubernetes API group requires', () => {
    const { annotations } = crd.metadata as { annotations?: Record<string, string> };
    assert.match(crd.spec.group, /\.k8s\.io$/);
    assert.match(annotations?.['api-approved.kubernetes.io'] ?? '', /^unapproved/);
  });

  it('has a structural schema', () => {
    assert.deepEqual(structuralFaults(schema), []);
    assert.deepEqual(structuralFaults({ type: 'object', properties: { a: {} } }), [
      '.a: has type ""',
    ]);
    assert.deepEqual(structuralFaults({ type: 'array' }), [': has no items']);
  });

  for (const spec of [
    { cidrs: ['192.0.2.0/24', '203.0.113.0/24', '198.51.100.0/24'] },
    { cidrs: ['fd00::/8', '10.1.2.3/8'] },
    { cidrs: ['ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128'] },
    { cidrs: many(25) },
  ]) {
    it(`accepts ${JSON.stringify(spec).slice(0, 60)}, like the agent`, () => {
      assert.deepEqual(objectFaults(schema, group(spec)), []);
      assert.ok(readApiObject(group(spec), ['CIDRGroup']) !== undefined);
    });
  }

  for (const [spec, fault] of [
    [{ cidrs: many(26) }, '.spec.cidrs: must have at most 25 items'],
    [{ cidrs: '10.0.0.0/8' }, '.spec.cidrs: must be a list'],
    [{ cidrs: [10] }, '.spec.cidrs[0]: must be a string'],
    [{ cidrs: ['10.0.0.0'] }, '.spec.cidrs[0]: must be a CIDR such as 10.0.0.0/8 or fd00::/8'],
    [{ cidrs: ['10.0.0.0/33'] }, '.spec.cidrs[0]: must be a CIDR such as 10.0.0.0/8 or fd00::/8'],
    [
      { cidrs: ['::ffff:10.0.0.0/104'] },
      '.spec.cidrs[0]: must be a CIDR such as 10.0.0.0/8 or fd00::/8',
    ],
    [{ cidr: '10.0.0.0/8' }, '.spec.cidr: is an unknown field'],
    [[], '.spec: must be an object'],
    [{ cidrs: [] }, '.spec.cidrs: must have at least 1 items'],
    [{}, '.spec: must have at least 1 members'],
    [undefined, '.spec: is required'],
  ] as const) {
    it(`refuses ${JSON.stringify(spec)?.slice(0, 60)}, like the agent`, () => {
      const object = JSON.parse(JSON.stringify(group(spec)));
      assert.ok(objectFaults(schema, object).includes(fault));
      assert.throws(() => readApiObject(object, ['CIDRGroup']));
    });
  }

  it('accepts the status in the example of NPEP-182', () => {
    const condition = {
      lastTransitionTime: '2022-12-29T14:53:50Z',
      status: 'True',
      type: 'Reconciled',
    };
    const status = (conditions: unknown) =>
      group({ cidrs: ['10.0.0.0/8'] }, { status: { conditions } });
    assert.deepEqual(objectFaults(schema, status([condition])), []);
    assert.deepEqual(objectFaults(schema, status([{ status: 'Yes' }])), [
      '.status.conditions[0].type: is required',
      '.status.conditions[0].status: is not an allowed value',
    ]);
  });
});
