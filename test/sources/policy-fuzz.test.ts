/**
 * Fuzzes both sources with malformed objects of network policy. Nothing crashes, all values are
 * safe in a rule, and valid objects are still read.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { stringify } from 'yaml';
import { type Kind, POLICY_KINDS } from '../../api/objects.ts';
import { readObject } from '../../api/read-object.ts';
import { policyResources } from '../../sources/kubernetes/resources.ts';
import { ManifestSource } from '../../sources/manifests/source.ts';
import { checkPolicyObject } from '../api/policy-checks.ts';
import type { Manifest } from '../e2e/manifests.ts';
import { lastPart, PATIENT, SourceFixture } from './kubernetes/source-fixture.ts';
import { everyMutation, mutatedGroup } from './mutations.ts';
import { RecordingSink, until } from './recording-sink.ts';

const RESOURCES = policyResources().filter(({ kind }) => kind !== 'Node');
const ADMIN = 'policy.networking.k8s.io/v1alpha1';
const SELECTOR = {
  matchLabels: { app: 'web' },
  matchExpressions: [
    { key: 'tier', operator: 'In', values: ['a', 'b'] },
    { key: 'old', operator: 'DoesNotExist' },
  ],
};
const PODS = { namespaceSelector: SELECTOR, podSelector: SELECTOR };
const object = (apiVersion: string, kind: string, name: string, more: object): Manifest => ({
  apiVersion,
  kind,
  metadata: { name, namespace: 'default', uid: 'u', labels: { app: 'web' } },
  ...more,
});
/** Seeds of malformed objects; together they have every field that is read. */
const OBJECTS: readonly Manifest[] = [
  object('v1', 'Pod', 'victim', {
    spec: {
      nodeName: 'node-1',
      hostNetwork: false,
      containers: [{ ports: [{ name: 'http', containerPort: 80, protocol: 'TCP' }] }],
      initContainers: [{ restartPolicy: 'Always', ports: [{ name: 'a', containerPort: 1 }] }],
    },
    status: {
      phase: 'Running',
      podIP: '10.244.0.1',
      podIPs: [{ ip: '10.244.0.1' }, { ip: 'fd00::1' }],
    },
  }),
  object('v1', 'Namespace', 'victim', {}),
  object(ADMIN, 'CIDRGroup', 'victim', { spec: { cidrs: ['10.0.0.0/8', 'fd00::/8'] } }),
  object('networking.k8s.io/v1', 'NetworkPolicy', 'victim', {
    spec: {
      podSelector: SELECTOR,
      policyTypes: ['Ingress', 'Egress'],
      ingress: [
        {
          from: [
            { podSelector: SELECTOR, namespaceSelector: SELECTOR },
            { ipBlock: { cidr: '10.0.0.0/8', except: ['10.1.0.0/16'] } },
          ],
          ports: [{ protocol: 'UDP', port: 80, endPort: 90 }, { port: 'http' }],
        },
      ],
      egress: [{ to: [{ podSelector: SELECTOR }], ports: [{ port: 443 }] }],
    },
  }),
  object(ADMIN, 'AdminNetworkPolicy', 'victim', {
    spec: {
      priority: 7,
      subject: { namespaces: SELECTOR },
      ingress: [
        { name: 'in', action: 'Pass', from: [{ pods: PODS }], ports: [{ namedPort: 'a' }] },
      ],
      egress: [
        {
          action: 'Allow',
          to: [
            { domainNames: ['a.io', '*.b.io'] },
            { networks: ['10.0.0.0/8'] },
            { networks: [{ cidrs: ['10.0.0.0/8'] }, { cidrGroups: SELECTOR }] },
            { networks: { cidrGroups: SELECTOR } },
          ],
          ports: [
            { portNumber: { protocol: 'TCP', port: 80 } },
            { portRange: { protocol: 'UDP', start: 1, end: 9 } },
          ],
        },
        { action: 'Deny', to: [{ nodes: SELECTOR }, { namespaces: {} }] },
      ],
    },
  }),
  object(ADMIN, 'BaselineAdminNetworkPolicy', 'default', {
    spec: {
      subject: { pods: PODS },
      ingress: [{ action: 'Deny', from: [{ namespaces: SELECTOR }] }],
      egress: [{ action: 'Allow', to: [{ networks: { cidrs: ['::/0'] } }] }],
    },
  }),
  object('policy.networking.k8s.io/v1alpha2', 'ClusterNetworkPolicy', 'victim', {
    spec: {
      tier: 'Admin',
      priority: 7,
      subject: { namespaces: SELECTOR },
      ingress: [
        {
          action: 'Accept',
          from: [{ namespaces: {} }],
          protocols: [
            { tcp: { destinationPort: { number: 80 } } },
            { sctp: { destinationPort: { range: { start: 1, end: 9 } } } },
            { destinationNamedPort: 'http' },
          ],
        },
      ],
      egress: [{ action: 'Deny', to: [{ networks: ['0.0.0.0/0'] }] }],
    },
  }),
];
const GROUPS = OBJECTS.map((each) => [each]);
const GOOD = object('networking.k8s.io/v1', 'NetworkPolicy', 'good', {
  spec: { podSelector: {}, ingress: [{ ports: [{ port: 80 }] }] },
});
const LAST = POLICY_KINDS.map((kind) => {
  const like = OBJECTS.find((each) => each.kind === kind);
  return { ...like, metadata: { name: 'last', namespace: 'default' } } as Manifest;
});

class Store extends RecordingSink {
  check(): void {
    for (const each of this.objects.values()) {
      assert.ok((POLICY_KINDS as readonly string[]).includes(each.kind));
      checkPolicyObject(each as Parameters<typeof checkPolicyObject>[0]);
    }
    const good = readObject(GOOD, POLICY_KINDS);
    assert.deepEqual(this.objects.get('NetworkPolicy default/good'), good);
    for (const word of ['allPorts', 'ready', 'kind']) assert.ok(!(word in {}), `polluted: ${word}`);
  }
}

/** Gives each copy its own name. */
function numbered(group: readonly unknown[], number: number): unknown[] {
  const text = JSON.stringify(group).replace(/"victim"/g, `"victim${number}"`);
  return JSON.parse(text) as unknown[];
}

const kindOf = (each: unknown): unknown => (each as { kind?: unknown } | null)?.kind;

/** An object of that kind, or of no known kind. */
function listText(kind: Kind, version: number, objects: readonly unknown[]): string {
  const items = objects.filter((each) => {
    const own = kindOf(each);
    return own === kind || !POLICY_KINDS.some((known) => known === own);
  });
  const metadata = { resourceVersion: String(version) };
  return JSON.stringify({ kind: `${kind}List`, apiVersion: 'v1', metadata, items });
}

const MANY = 150;

/** Lists all objects, then sends some of them again as events. */
async function throughApi(objects: readonly unknown[]): Promise<void> {
  const sink = new Store();
  const fixture = new SourceFixture({ timeouts: PATIENT, sink, resources: RESOURCES });
  const { double } = fixture;
  await double.listen();
  const pathOf = new Map(RESOURCES.map(({ kind, paths: [path] }) => [kind, lastPart(path)]));
  for (const [kind, resource] of pathOf) {
    const text = listText(kind, double.version, objects);
    double.fail({ verb: 'list', resource, fault: { kind: 'text', text } });
  }
  try {
    await fixture.startAndWatch([...pathOf.values()]);
    sink.check();
    for (const each of objects.slice(-MANY)) {
      const resource = pathOf.get(kindOf(each) as Kind);
      if (resource === undefined) continue;
      const { metadata } = each as { metadata?: unknown };
      const isObject =
        typeof metadata === 'object' && metadata !== null && !Array.isArray(metadata);
      const versioned = { ...(isObject && metadata), resourceVersion: String(double.version) };
      for (const type of ['MODIFIED', 'DELETED', 'ADDED']) {
        const event = { type, object: { ...(each as object), metadata: versioned } };
        double.sendRaw(resource, `${JSON.stringify(event)}\n`);
      }
    }
    // After an event that causes a relist, the source finds these objects.
    double.put(GOOD, ...LAST);
    await until('all objects are read', () =>
      [...pathOf.keys()].every((kind) =>
        [...sink.objects.values()].some((each) => each.kind === kind && each.name === 'last'),
      ),
    );
    sink.check();
  } finally {
    await fixture.stop();
  }
}

/**
 * Each object in its own file, alternately JSON and YAML; a large number of objects in one list.
 */
async function throughManifests(objects: readonly unknown[]): Promise<void> {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-fuzz-'));
  const sink = new Store();
  const list = { apiVersion: 'v1', kind: 'List', items: objects.slice(MANY) };
  writeFileSync(join(directory, 'z.json'), JSON.stringify(list));
  for (const [index, each] of objects.slice(0, MANY).entries()) {
    const isYaml = index % 2 === 1;
    const text = isYaml ? stringify(each, { aliasDuplicateObjects: false }) : JSON.stringify(each);
    writeFileSync(join(directory, `${index}.${isYaml ? 'yaml' : 'json'}`), text);
  }
  const source = new ManifestSource({
    directory,
    kinds: POLICY_KINDS,
    sink,
    onProblem: () => {},
    rescanMs: 3_600_000,
  });
  try {
    await source.start();
    sink.check();
  } finally {
    await source.stop();
    rmSync(directory, { recursive: true, force: true });
  }
}

const nested = (depth: number): unknown =>
  JSON.parse(`${'{"a":['.repeat(depth)}1${']}'.repeat(depth)}`);
const policy = OBJECTS.find((each) => each.kind === 'NetworkPolicy');
const spec = (fields: object): Manifest => ({
  ...policy,
  spec: { podSelector: {}, ...fields },
});
const many = <T>(count: number, item: (index: number) => T) =>
  Array.from({ length: count }, (_, index) => item(index));

/** Too large or too deep for the generator. */
const EXTREMES: Readonly<Record<string, Manifest>> = {
  'twenty thousand rules, each with a fault': spec({
    ingress: many(20_000, () => ({ ports: [{ endPort: 1 }] })),
  }),
  'twenty thousand ports': spec({
    ingress: [{ ports: many(20_000, (index) => ({ port: index + 1 })) }],
  }),
  'twenty thousand exceptions': spec({
    egress: [
      {
        to: [
          {
            ipBlock: {
              cidr: '10.0.0.0/8',
              except: many(20_000, (index) => `10.${index >> 8}.${index & 255}.0/24`),
            },
          },
        ],
      },
    ],
  }),
  'a selector of twenty thousand labels': spec({
    podSelector: { matchLabels: Object.fromEntries(many(20_000, (index) => [`a${index}`, 'b'])) },
  }),
  'a field of a megabyte': spec({ ['x\n'.repeat(1 << 19)]: 1 }),
  'deep nesting in an ignored field': { ...policy, status: nested(200) },
  'deep nesting in a field that is read': spec({ ingress: [nested(200)] }),
};

for (const [source, through] of [
  ['the API', throughApi],
  ['manifests', throughManifests],
] as const) {
  describe(`policy-fuzz: malformed objects of network policy through ${source}`, function () {
    this.timeout(120_000);

    it('tolerates generated objects', () =>
      fc.assert(
        fc.asyncProperty(
          fc.array(mutatedGroup(GROUPS), { minLength: 40, maxLength: 40 }),
          (groups) => through([...groups.flatMap(numbered), GOOD]),
        ),
        { seed: 50, numRuns: 25, endOnFailure: true },
      ));

    it('tolerates every odd value in every field', async () => {
      for (const group of GROUPS) await through([GOOD, ...everyMutation(group).flatMap(numbered)]);
    });

    for (const [what, extreme] of Object.entries(EXTREMES)) {
      it(`tolerates ${what}`, () => through([extreme, GOOD]));
    }
  });
}
