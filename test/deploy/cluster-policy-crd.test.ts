import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { parse, parseAllDocuments } from 'yaml';
import { InvalidObject } from '../../api/errors.ts';
import { readObject as readApiObject } from '../../api/read-object.ts';
import { policyResources } from '../../sources/kubernetes/resources.ts';
import { CLUSTER_POLICY_CASES, KINDS } from './cluster-policy-cases.ts';
import {
  type CustomResourceDefinition,
  objectFaults,
  type Schema,
  structuralFaults,
} from './crd.ts';
import { type RawObject, readObject, readText } from './manifests.ts';

const FOLDER = 'deploy/admin-network-policy';
const crdOf = (kind: string) =>
  readObject<CustomResourceDefinition>(
    `${FOLDER}/${kind.replace('Policy', 'Policies').toLowerCase()}.yaml`,
    'CustomResourceDefinition',
  );
const schemas = new Map<string, Schema>();
for (const kind of KINDS) {
  const [version] = crdOf(kind).spec.versions;
  assert.ok(version !== undefined);
  schemas.set(kind, version.schema.openAPIV3Schema);
}
const schemaOf = (kind: unknown): Schema => schemas.get(String(kind)) ?? assert.fail(String(kind));

/** Policies that the agent would not enforce as written. */
function agentFaults(object: unknown): number {
  try {
    const read = readApiObject(object, KINDS);
    return read !== undefined && 'faults' in read ? read.faults.length : 1;
  } catch (error) {
    if (error instanceof InvalidObject) return 1;
    throw error;
  }
}

for (const kind of KINDS) {
  describe(`CRD of ${kind}`, () => {
    const crd = crdOf(kind);

    it('has the name and resource that the agent watches', () => {
      const { group, names, scope, versions } = crd.spec;
      assert.equal(crd.metadata.name, `${names.plural}.${group}`);
      assert.deepEqual([names.kind, names.listKind, scope], [kind, `${kind}List`, 'Cluster']);
      assert.deepEqual(
        versions.map(({ name, served, storage }) => ({ name, served, storage })),
        [{ name: 'v1alpha1', served: true, storage: true }],
      );
      const resource = policyResources().find((resource) => resource.kind === kind);
      assert.deepEqual(resource?.paths, [`/apis/${group}/v1alpha1/${names.plural}`]);
    });

    it('has the approval annotation for unapproved changes, and names its origin', () => {
      const { annotations } = crd.metadata as { annotations?: Record<string, string> };
      assert.match(annotations?.['api-approved.kubernetes.io'] ?? '', /^unapproved/);
      const text = readText(`${FOLDER}/${crd.spec.names.plural}.yaml`);
      assert.match(
        text,
        /kubernetes-sigs\/network-policy-api.*Copyright\n# The Kubernetes Authors/,
      );
      assert.match(text, /Apache License, Version 2\.0/);
    });

    it('has a structural schema with CEL rules that compile', () => {
      assert.deepEqual(structuralFaults(schemaOf(kind)), []);
    });
  });
}

it('cluster-policy-crd: the upstream CEL rule for networks does not compile for a list or object', () => {
  const rule = { rule: 'self.to.exists(peer, has(peer.networks))', message: '' };
  const egress = schemaOf('AdminNetworkPolicy').properties?.spec?.properties?.egress?.items ?? {};
  assert.match(
    structuralFaults({ ...egress, 'x-kubernetes-validations': [rule] }).join(),
    /has\(peer\.networks\)\): .*networks/,
  );
  const cidr = {
    type: 'string',
    'x-kubernetes-validations': [{ rule: 'isCIDR(self)', message: '' }],
  };
  const untyped = { 'x-kubernetes-preserve-unknown-fields': true, properties: { cidr } };
  assert.deepEqual(structuralFaults(untyped), ['.cidr: has rules below a field without a type']);
});

describe('cluster-policy-crd: CRDs and agent accept the same cluster policies', () => {
  for (const { title, object, refused, leftToAgent } of CLUSTER_POLICY_CASES) {
    it(`${refused === undefined && !leftToAgent ? 'accepts' : 'refuses'} ${title}`, () => {
      const json = JSON.parse(JSON.stringify(object));
      const faults = objectFaults(schemaOf(object.kind), json);
      if (refused === undefined) assert.deepEqual(faults, []);
      else assert.ok(faults.join('\n').includes(refused), faults.join('\n'));
      assert.equal(agentFaults(json) > 0, refused !== undefined || leftToAgent === true);
    });
  }

  it('CRDs and agent accept the examples, and the example of NPEP-182', () => {
    const example = readFileSync(
      new URL('../../examples/admin-network-policy.yaml', import.meta.url),
      'utf8',
    );
    const policies = [
      ...parseAllDocuments(example).map((each) => each.toJS()),
      parse(NPEP_182),
    ].filter(({ kind }: RawObject) => schemas.has(kind));
    assert.equal(policies.length, 2);
    for (const policy of policies) {
      assert.deepEqual(objectFaults(schemaOf(policy.kind), policy), []);
      assert.equal(agentFaults(policy), 0);
    }
  });
});

/** The example policy of the proposal, with one struct for `networks`. */
const NPEP_182 = `
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
`;
