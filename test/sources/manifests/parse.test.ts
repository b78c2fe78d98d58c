import assert from 'node:assert/strict';
import fc from 'fast-check';
import { POLICY_KINDS, SERVING_KINDS } from '../../../api/objects.ts';
import { parseManifest } from '../../../sources/manifests/parse.ts';
import { formatProblem } from '../../../sources/manifests/problem.ts';

/** `Service default/a@3` for objects, `file:line: ...` for problems. */
function outcome(text: string, file = 'm.yaml'): string[] {
  const { objects, problems } = parseManifest(text, file, SERVING_KINDS);
  return [
    ...objects.map(({ object, line }) => `${object.kind} ${object.key}@${line}`),
    ...problems.map((problem) => formatProblem({ file, ...problem })),
  ];
}

const service = (name: string) =>
  `apiVersion: v1\nkind: Service\nmetadata:\n  name: ${name}\nspec:\n  clusterIP: 10.0.0.1\n`;

const CNP = 'policy.networking.k8s.io';

describe('parse: manifests of a kind with two supported versions', () => {
  const policy = (name: string) => `{metadata: {name: ${name}}, spec: {subject: {namespaces: {}}}}`;
  const parsed = (text: string) => {
    const { objects, problems } = parseManifest(text, 'm.yaml', POLICY_KINDS);
    const names = objects.map(({ object, line }) => `${object.kind} ${object.key}@${line}`);
    return [...names, ...problems.map((problem) => formatProblem({ file: 'm.yaml', ...problem }))];
  };
  const document = (version: string, name: string) =>
    `apiVersion: ${CNP}/${version}\nkind: ClusterNetworkPolicy\nmetadata: {name: ${name}}\nspec: {subject: {namespaces: {}}}\n`;
  const list = (version: string, name: string) =>
    `apiVersion: ${CNP}/${version}\nkind: ClusterNetworkPolicyList\nitems:\n- ${policy(name)}\n`;

  it('accept both versions, also in lists', () => {
    const text = [
      document('v1alpha2', 'a'),
      document('v1beta1', 'b'),
      list('v1alpha2', 'c'),
      list('v1beta1', 'd'),
    ].join('---\n');
    assert.deepEqual(
      parsed(text).map((each) => each.replace(/@.*/, '')),
      ['a', 'b', 'c', 'd'].map((name) => `ClusterNetworkPolicy ${name}`),
    );
  });

  it('report an object in both versions as a duplicate', () => {
    assert.deepEqual(parsed(`${document('v1beta1', 'a')}---\n${document('v1alpha2', 'a')}`), [
      'ClusterNetworkPolicy a@1',
      'm.yaml:6: ClusterNetworkPolicy a: is already defined on line 1',
    ]);
  });

  it('reject a third version', () => {
    const either = `${CNP}/v1beta1 or ${CNP}/v1alpha2`;
    assert.deepEqual(parsed(`${document('v1', 'a')}---\n${list('v1', 'b')}`), [
      `m.yaml:1: ClusterNetworkPolicy a: apiVersion: must be ${either} for this kind, not "${CNP}/v1"`,
      `m.yaml:6: ClusterNetworkPolicyList: apiVersion: must be ${either}`,
    ]);
  });
});

describe('parse: skipped objects of a manifest', () => {
  const left = (text: string) =>
    Object.fromEntries(parseManifest(text, 'm.yaml', SERVING_KINDS).skippedKinds);

  it('are counted by kind', () => {
    const items =
      '[{kind: Service, apiVersion: v1, metadata: {name: a}}, {kind: Svc}, {kind: Pod}]';
    const pod = 'apiVersion: v1\nkind: Pod\n';
    assert.deepEqual(left(`${pod}---\napiVersion: v1\nkind: List\nitems: ${items}\n`), {
      Pod: 2,
      Svc: 1,
    });
  });

  it('do not include unused or unreadable objects', () => {
    const slice = 'apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a}\n';
    assert.deepEqual(left(`${slice}addressType: FQDN\n---\n${service('A_')}---\nkind: 7\n`), {});
  });
});

describe('parse: manifest parsing', () => {
  const table: readonly (readonly [string, string, readonly string[], string?])[] = [
    ['an empty file', '', []],
    ['an empty JSON file', ' \n', [], 'm.json'],
    ['only comments and separators', '---\n# nothing\n---\n', []],
    [
      'several documents with their lines',
      `# first\n\n${service('a')}---\n\n# second\n${service('b')}...\n`,
      ['Service default/a@3', 'Service default/b@12'],
    ],
    ['other kinds', 'apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n', []],
    [
      'an unsupported version of a supported kind',
      'apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: {name: a}\n',
      [
        'm.yaml:1: EndpointSlice default/a: apiVersion: must be discovery.k8s.io/v1 for this kind, not "discovery.k8s.io/v1beta1"',
      ],
    ],
    [
      'a List with a bad item',
      'apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: a}\n  spec: {}\n- apiVersion: v1\n  kind: Service\n  metadata: {name: b}\n  spec:\n    ports: [{port: 0}]\n- 7\n',
      [
        'Service default/a@4',
        'm.yaml:8: Service default/b: spec.ports[0].port: must be an integer from 1 to 65535, not 0',
        'm.yaml:13: List: items[2]: must be a Kubernetes object',
      ],
    ],
    [
      'typed lists whose items have no kind',
      'apiVersion: v1\nkind: ServiceList\nitems: [{metadata: {name: a}, spec: {}}]\n---\napiVersion: v1\nkind: NodeList\nitems: [{metadata: {name: n}}]\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems:\n- {metadata: {name: s, labels: {kubernetes.io/service-name: a}}, addressType: IPv4}\n',
      ['Service default/a@3', 'Node n@7', 'EndpointSlice default/s@12'],
    ],
    ['a list without items', 'apiVersion: v1\nkind: List\nitems: null\n', []],
    [
      'a list in a list',
      'apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: List}\n',
      ['m.yaml:4: List: items[0]: must be a Kubernetes object'],
    ],
    [
      'a list of another version',
      'apiVersion: v2\nkind: List\n',
      ['m.yaml:1: List: apiVersion: must be v1'],
    ],
    [
      'a document that is not an object',
      '- a\n',
      ['m.yaml:1: must be a Kubernetes object, not a list'],
    ],
    ['a document without a kind', 'a: 1\n', ['m.yaml:1: kind: is required']],
    [
      'a syntax error, and the documents before it',
      `${service('a')}---\nkind: Service\n  oops: [\n`,
      [
        'Service default/a@1',
        'm.yaml:8: invalid YAML: Nested mappings are not allowed in compact mappings',
      ],
    ],
    [
      'a duplicate key',
      'kind: Service\napiVersion: v1\nkind: Service\n',
      ['m.yaml:3: invalid YAML: Map keys must be unique'],
    ],
    [
      'a duplicate object',
      `${service('a')}---\n${service('a')}`,
      ['Service default/a@1', 'm.yaml:8: Service default/a: is already defined on line 1'],
    ],
    [
      'anchors and merge keys',
      `x-a: &m {name: a}\n${service('b').replace('name: b', '<<: *m')}`,
      ['Service default/a@1'],
    ],
    [
      'a JSON list',
      '{"apiVersion": "v1", "kind": "List",\n "items": [\n  {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}},\n  {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "N"}}]}',
      [
        'Node n@3',
        `m.json:4: Node N: metadata.name: must be a DNS subdomain (a-z, 0-9, '-' and '.', at most 253 characters), not "N"`,
      ],
      'm.json',
    ],
    [
      'a duplicate key in JSON with an escape',
      '{"kind": "List",\n"k\\u0069nd": "List"}',
      ['m.json:2: has the key "kind" twice'],
      'm.json',
    ],
    [
      'a truncated JSON file',
      '{"kind":\n"List"',
      [
        "m.json:2: Expected ',' or '}' after property value in JSON at position 15 (line 2 column 7)",
      ],
      'm.json',
    ],
    [
      'a single bracket of JSON',
      '{\n',
      ["m.json:2: Expected property name or '}' in JSON at position 2 (line 2 column 1)"],
      'm.json',
    ],
  ];
  for (const [what, text, expected, file] of table) {
    it(`reads ${what}`, () => assert.deepEqual(outcome(text, file), expected));
  }

  it('reads kinds of network policy when requested', () => {
    const policies = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicyList
items: [{metadata: {name: a}, spec: {ingress: [{ports: [{endPort: 1}]}]}}]
---
apiVersion: v1
kind: PodList
items:
- metadata: {name: p, namespace: shop}
  status: {phase: Running, podIPs: [{ip: 10.244.0.1}, {ip: "fd00::1"}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
`;
    const { objects, problems } = parseManifest(policies, 'm.yaml', POLICY_KINDS);
    assert.deepEqual(
      objects.map(({ object, line }) => `${object.kind} ${object.key}@${line}`),
      ['NetworkPolicy default/a@3', 'Pod shop/p@8', 'Namespace shop@11'],
    );
    assert.deepEqual(problems, []);
    const [policy, pod] = objects.map(({ object }) => object);
    assert.ok(policy?.kind === 'NetworkPolicy' && policy.faults.length === 1);
    assert.ok(pod?.kind === 'Pod');
    assert.deepEqual(pod.addresses, ['10.244.0.1', 'fd00::1']);
  });

  it('skips lists of other kinds', () => {
    const calico = 'apiVersion: projectcalico.org/v3\nkind: NetworkPolicyList\nitems: [7]\n';
    assert.deepEqual(outcome(calico), []);
    assert.deepEqual(outcome('apiVersion: v1\nkind: PodList\nitems: {}\n'), []);
  });

  it('limits the time for a billion-laughs document', () => {
    const levels = 'abcdefghi'.split('');
    const bomb = levels.map((level, index) => {
      const below = index === 0 ? '"lol"' : `*${levels[index - 1]}`;
      return `${level}: &${level} [${Array(10).fill(below).join(', ')}]`;
    });
    const started = performance.now();
    const lines = outcome(`${bomb.join('\n')}\nspec: *i\n`);
    assert.deepEqual(lines, [
      'm.yaml:1: invalid YAML: Excessive alias count indicates a resource exhaustion attack',
    ]);
    assert.ok(performance.now() - started < 1000);
  });

  it('names the line of an alias or merge key that cannot be resolved, and reads other documents', () => {
    const text = `kind: Service\nspec:\n  ports: *x\n---\nkind: Service\nspec:\n  <<: 3\n---\n${service('a')}`;
    assert.deepEqual(
      outcome(text).map((line) => line.slice(0, 40)),
      [
        'Service default/a@9',
        'm.yaml:3: invalid YAML: Unresolved alias',
        'm.yaml:7: invalid YAML: Merge sources mu',
      ],
    );
  });

  it('rejects nesting deeper than the stack', () => {
    assert.deepEqual(outcome('['.repeat(100_000)), ['m.yaml:1: invalid YAML: nested too deeply']);
  });

  it('counts items of a JSON list that are not objects', () => {
    const list = '{"apiVersion":"v1","kind":"List","items":[\n1,\n"a",\n{"kind":"Service"}\n]}';
    const lines = outcome(list, 'm.json').map((problem) => problem.split(' ')[0]);
    assert.deepEqual(lines, ['m.json:2:', 'm.json:3:', 'm.json:4:']);
  });

  it('never throws, and formats each problem on one line', () => {
    const fragment = fc.oneof(
      fc.string(),
      fc.constantFrom(
        'kind: Service\n',
        'apiVersion: v1\n',
        '---\n',
        'metadata:\n  name: a\n',
        '- ',
        '{',
        '"',
        '&a ',
        '*a',
        '\n',
        '\u0000',
        '\u202e',
      ),
    );
    fc.assert(
      fc.property(fc.array(fragment), fc.constantFrom('a.yaml', 'a.json'), (parts, file) => {
        for (const line of outcome(parts.join(''), file)) assert.match(line, /^[\x20-\x7e]*$/);
      }),
      { numRuns: 300, seed: 7 },
    );
  });

  it('finds the same JSON items as JSON.parse', () => {
    fc.assert(
      fc.property(fc.array(fc.dictionary(fc.string(), fc.json())), fc.nat(3), (members, indent) => {
        const list = { 'it"ems': [{}], apiVersion: 'v1', kind: 'List', items: members };
        const { problems } = parseManifest(
          JSON.stringify(list, null, indent),
          'a.json',
          SERVING_KINDS,
        );
        assert.equal(problems.length, members.length);
        const lines = problems.map(({ line }) => line);
        const text = JSON.stringify(list, null, indent).split('\n');
        for (const line of lines) assert.match(text[(line ?? 0) - 1] ?? '', /\{/);
      }),
      { numRuns: 300, seed: 7 },
    );
  });
});
