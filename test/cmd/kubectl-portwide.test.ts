import assert from 'node:assert/strict';
import { parse } from 'yaml';
import { waitFor } from '../lab/lab.ts';
import {
  SERVICES as ALL_SERVICES,
  DEGRADED,
  diff,
  HEALTHY,
  MISSING,
  service,
} from '../status/answers.ts';
import { fakeAgent, type UnixServer } from '../status/unix-server.ts';
import { type FakeKubectl, fakeKubectl } from './fake-kubectl.ts';

/** Without the Service with owned ports. */
const SERVICES = ALL_SERVICES.filter(({ name }) => name !== 'turn');

const LIST = { items: SERVICES, total: SERVICES.length, continue: null };

/** Output formats, with their parsers. */
const DOCUMENTS = [
  ['json', (text: string) => JSON.parse(text)],
  ['yaml', (text: string) => parse(text)],
] as const;

describe('kubectl portwide', () => {
  let healthy: UnixServer;
  let degraded: UnixServer;
  let kubectl: FakeKubectl;
  /** Requests for Services that the healthy agent got. */
  let polls = 0;
  before(async () => {
    healthy = await fakeAgent({
      '/api/v1/status': () => HEALTHY,
      '/api/v1/services': ({ query }) => {
        polls += 1;
        return query.get('namespace') === 'empty' ? { ...LIST, items: [] } : LIST;
      },
      '/api/v1/diff': () => diff([]),
    });
    degraded = await fakeAgent({
      '/api/v1/status': () => DEGRADED,
      '/api/v1/services': ({ query }) => {
        const items = query.get('namespace') === 'empty' ? [] : SERVICES.slice(1, 2);
        return { ...LIST, items };
      },
      '/api/v1/diff': () => diff([MISSING]),
    });
  });
  after(async () => {
    await healthy[Symbol.asyncDispose]();
    await degraded[Symbol.asyncDispose]();
  });
  beforeEach(() => {
    kubectl = fakeKubectl();
    kubectl.addAgent('node-1', healthy.path);
  });
  afterEach(() => kubectl[Symbol.dispose]());

  it('runs a command on the only agent, and passes its arguments', async () => {
    const { stdout, exitCode } = await kubectl.run('get', 'svc', '-n', 'a b', '--no-headers');
    assert.deepEqual([stdout.split('\n').length, exitCode], [3, 0]);
    const [list, exec] = kubectl.calls();
    assert.match(list ?? '', /^get pods -n kube-system -l k8s-app=portwide --field-selector=/);
    assert.equal(
      exec,
      'exec -i -n kube-system agent-node-1 -c portwide -- env PORTWIDE_WATCH_STDIN=1 /opt/portwide/portwide get svc -n a b --no-headers',
    );
  });

  it('runs a command on a node, and exits with its status', async () => {
    kubectl.addAgent('node-2', degraded.path);
    const two = await kubectl.run('--node', 'node-2', 'status');
    assert.equal(two.exitCode, 1);
    assert.match(two.stdout, /^State: +degraded$/m);
    const one = await kubectl.run('--node=node-1', 'status');
    assert.equal(one.exitCode, 0);
    assert.match(one.stdout, /^State: +healthy$/m);
  });

  it('finds the agent on the node of a pod', async () => {
    kubectl.addAgent('node-2', degraded.path);
    kubectl.addPod('shop', 'web-0', 'node-2');
    assert.equal((await kubectl.run('--pod', 'shop/web-0', 'status')).exitCode, 1);
  });

  it('passes --context and --kubeconfig to every kubectl', async () => {
    await kubectl.run('--context', 'two words', '--kubeconfig=/k', 'status');
    for (const call of kubectl.calls()) {
      assert.match(call, /^--context=two words --kubeconfig=\/k (get|exec) /);
    }
  });

  for (const [args, expected] of [
    [['status'], /several nodes have an agent: use --node, --pod or --all-nodes/],
    [['--node', 'node-9', 'status'], /no agent runs on node node-9/],
    [['--pod', 'web-0', 'status'], /--pod must be NAMESPACE\/POD, not web-0/],
    [['--pod', 'shop/gone', 'status'], /cannot read pod shop\/gone/],
    [['--node', 'a', '--all-nodes', 'status'], /use only one of --node, --pod and --all-nodes/],
    [['--node'], /option --node needs a value/],
    [['--node=', 'status'], /option --node needs a value/],
    [['-n', 'shop', 'get', 'svc'], /unknown option -n before the command/],
    [[], /^Usage: kubectl portwide/],
    [['--all-nodes', 'describe', 'service', 'a/b'], /--all-nodes is for status, get and diff/],
    [['--all-nodes', 'get', 'svc', '-w'], /--all-nodes cannot watch/],
    [['--all-nodes', 'get', 'svc', '-oname'], /prints a table, JSON or YAML, not -o name/],
    [['--all-nodes', 'status', '--output', 'wide'], /prints a table, JSON or YAML, not -o wide/],
  ] as const) {
    it(`exits with 2 and says why: ${args.join(' ')}`, async () => {
      kubectl.addAgent('node-2', degraded.path);
      const { stdout, stderr, exitCode } = await kubectl.run(...args);
      assert.deepEqual([stdout, exitCode], ['', 2]);
      assert.match(stderr, expected);
    });
  }

  it('says where it looked if there is no agent', async () => {
    using empty = fakeKubectl();
    const { stderr, exitCode } = await empty.run('status');
    assert.equal(exitCode, 2);
    assert.match(stderr, /no agent runs in namespace kube-system with label k8s-app=portwide/);
  });

  describe('--all-nodes', () => {
    const cells = (text: string) => text.split('\n').map((line) => line.split(/ {3,}/));

    it('prints one row for each node, aligned, and exits with the highest status', async () => {
      kubectl.addAgent('a-node-with-a-long-name', degraded.path);
      const { stdout, exitCode } = await kubectl.run('--all-nodes', 'status');
      assert.equal(exitCode, 1);
      const [header, ...rows] = cells(stdout);
      assert.deepEqual(header?.slice(0, 3), ['NODE', 'STATE', 'MODE']);
      assert.deepEqual(
        rows.map((row) => row.slice(0, 3)),
        [
          ['a-node-with-a-long-name', 'degraded', 'nftables'],
          ['node-1', 'healthy', 'nftables'],
        ],
      );
      const starts = stdout.split('\n').map((line) => line.search(/STATE|degraded|healthy/));
      assert.equal(new Set(starts).size, 1);
      const diffs = await kubectl.run('--all-nodes', 'diff');
      assert.equal(diffs.exitCode, 1);
      assert.deepEqual(
        cells(diffs.stdout).map((row) => row.slice(0, 3)),
        [
          ['NODE', 'COMPARED', 'DIFFERENT'],
          ['a-node-with-a-long-name', '120', '1'],
          ['node-1', '120', '0'],
        ],
      );
    });

    it('adds a column to the rows of get', async () => {
      kubectl.addAgent('node-2', degraded.path);
      const { stdout, exitCode } = await kubectl.run('--all-nodes', 'get', 'svc', '--sort-by=name');
      assert.equal(exitCode, 0);
      assert.deepEqual(
        cells(stdout).map((row) => row.slice(0, 3)),
        [
          ['NODE', 'NAMESPACE', 'NAME'],
          ['node-1', 'shop', 'bad'],
          ['node-1', 'voice', 'sip'],
          ['node-1', 'shop', 'web'],
          ['node-2', 'shop', 'web'],
        ],
      );
    });

    for (const [format, read] of DOCUMENTS) {
      it(`prints one list with -o ${format}; items have the name of the node`, async () => {
        kubectl.addAgent('node-2', degraded.path);
        const list = async (...args: readonly string[]) => {
          const result = await kubectl.run('--all-nodes', ...args, '-o', format);
          const { items, total, continue: next } = read(result.stdout);
          assert.deepEqual([total, next], [items.length, null], result.stderr);
          return { items, exitCode: result.exitCode };
        };
        const [bad, web, sip] = LIST.items;
        const on = (nodeName: string, item: object | undefined) => ({ nodeName, ...item });
        assert.deepEqual(await list('get', 'svc'), {
          items: [on('node-1', bad), on('node-1', web), on('node-1', sip), on('node-2', web)],
          exitCode: 0,
        });
        // An agent prints one Service as an object, not as a list.
        assert.deepEqual((await list('get', 'svc', 'shop/web')).items, [
          on('node-1', web),
          on('node-2', web),
        ]);
        assert.deepEqual((await list('get', 'svc', '-n', 'empty')).items, []);
        assert.deepEqual(await list('status'), { items: [HEALTHY, DEGRADED], exitCode: 1 });
        assert.deepEqual(await list('diff'), {
          items: [on('node-1', diff([])), on('node-2', diff([MISSING]))],
          exitCode: 1,
        });
      });
    }

    it('keeps text with line breaks and brackets in lists as it is', async () => {
      const text = '\n  ],\n    {\n  - x: 1\nitems:\n\n    }\n';
      await using agent = await fakeAgent({
        '/api/v1/services': () => ({ ...LIST, items: [service({ name: text }), service()] }),
        '/api/v1/diff': () => diff([{ ...MISSING, desired: text }]),
      });
      using one = fakeKubectl();
      one.addAgent('node-1', agent.path);
      for (const [format, read] of DOCUMENTS) {
        const services = await one.run('--all-nodes', 'get', 'svc', `-o${format}`);
        assert.deepEqual(
          read(services.stdout).items.map(({ name }: { name: string }) => name),
          [text, 'web'],
        );
        const { stdout } = await one.run('--all-nodes', 'diff', '--output', format);
        assert.equal(read(stdout).items[0].items[0].desired, text);
      }
    });

    it('names nodes that do not answer, and prints the others', async () => {
      kubectl.addBrokenAgent('node-2');
      for (let number = 3; number < 20; number += 1)
        kubectl.addAgent(`node-${number}`, healthy.path);
      const { stdout, stderr, exitCode } = await kubectl.run('--all-nodes', 'status');
      assert.equal(exitCode, 2);
      assert.equal(stderr, 'kubectl portwide: node node-2: error: pod agent-node-2 is broken');
      assert.equal(stdout.split('\n').length, 1 + 18);
    });
  });

  it('--watch ends in the pod when kubectl is gone', async () => {
    const watching = kubectl.start('get', 'svc', '-w');
    const before = polls;
    await waitFor('the watch polls', () => polls >= before + 2, 20_000);
    watching.kill();
    await watching.ended;
  });
});
