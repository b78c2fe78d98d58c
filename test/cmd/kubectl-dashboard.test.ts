import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { waitFor } from '../lab/lab.ts';
import { HEALTHY } from '../status/answers.ts';
import { fakeAgent, type UnixServer } from '../status/unix-server.ts';
import { type FakeKubectl, fakeKubectl, type StartedPlugin } from './fake-kubectl.ts';

const DEADLINE_MS = 20_000;

describe('kubectl portwide dashboard', () => {
  let agent: UnixServer;
  let kubectl: FakeKubectl;
  let started: StartedPlugin | undefined;
  /** A server on a port that is in use. */
  let other: Server;
  let freePort: number;
  const portOf = (server: Server) => (server.address() as AddressInfo).port;
  before(async () => {
    agent = await fakeAgent({
      '/api/v1': () => ({ paths: [] }),
      '/api/v1/status': () => HEALTHY,
    });
    other = createServer().listen(0, '127.0.0.1');
    await once(other, 'listening');
  });
  after(async () => {
    other.close();
    await agent[Symbol.asyncDispose]();
  });
  beforeEach(async () => {
    const free = createServer().listen(0, '127.0.0.1');
    await once(free, 'listening');
    freePort = portOf(free);
    free.close();
    await once(free, 'close');
    setUp(freePort);
  });
  afterEach(async () => {
    started?.kill('SIGTERM');
    await started?.ended;
    started = undefined;
    kubectl[Symbol.dispose]();
  });

  /** @param statusPort port of --status-bind-address. */
  function setUp(statusPort: number): void {
    kubectl?.[Symbol.dispose]();
    kubectl = fakeKubectl({ PORTWIDE_STATUS_PORT: String(statusPort) });
    kubectl.addAgent('node-1', agent.path);
    kubectl.addAgent('node-2', '/nonexistent/agent.sock');
    kubectl.addBrokenAgent('node-3');
  }

  /** Starts a dashboard. @returns the URL of the page once it is printed. */
  async function dashboard(...args: readonly string[]): Promise<string> {
    const plugin = kubectl.start('--node', 'node-1', ...args);
    started = plugin;
    await Promise.race([
      waitFor('the dashboard runs', () => plugin.output().includes('Ctrl-C ends'), DEADLINE_MS),
      plugin.ended.then(({ stderr }) => assert.fail(stderr)),
    ]);
    const pattern = /^Status page, pod agent-node-1: (http:\/\/127\.0\.0\.1:\d+\/)$/m;
    return pattern.exec(plugin.output())?.[1] ?? assert.fail(plugin.output());
  }

  for (const [signal, status] of [
    ['SIGINT', 0],
    ['SIGTERM', 143],
    ['SIGHUP', 129],
  ] as const) {
    it(`forwards the port of the page until ${signal}, which leaves no kubectl`, async () => {
      const url = await dashboard('dashboard');
      assert.equal(new URL(url).port, String(freePort));
      const answer = await fetch(`${url}api/v1/status`);
      assert.deepEqual(await answer.json(), HEALTHY);
      const pid = kubectl.forwarder();
      assert.ok(existsSync(`/proc/${pid}`));
      started?.kill(signal);
      assert.equal((await started?.ended)?.exitCode, status);
      assert.equal(existsSync(`/proc/${pid}`), false);
      assert.deepEqual(kubectl.temporaryFiles(), []);
    });
  }

  it('asks only the agent whether the page answers, without credentials', async () => {
    const url = await dashboard('--context=c', 'dashboard');
    const [list, forward, check, ...more] = kubectl.calls();
    assert.match(list ?? '', /^--context=c get pods /);
    const ports = `${freePort}:${freePort}`;
    assert.equal(
      forward,
      `--context=c port-forward -n kube-system pod/agent-node-1 --address 127.0.0.1 ${ports}`,
    );
    // Without a parameter such as that of --request-timeout, which the agent refuses.
    assert.equal(check, `--kubeconfig=/dev/null --server=${url} get --raw /api/v1`);
    assert.deepEqual(more, []);
  });

  it('uses a free local port if the port of the page is in use', async () => {
    setUp(portOf(other));
    const url = await dashboard('dashboard');
    assert.notEqual(new URL(url).port, String(portOf(other)));
    assert.equal((await fetch(`${url}api/v1/status`)).status, 200);
  });

  it('uses the port of --port', async () => {
    setUp(portOf(other));
    assert.equal(
      new URL(await dashboard('dashboard', '--port', `${freePort}`)).port,
      `${freePort}`,
    );
  });

  it('opens a browser with --open', async () => {
    const calls = kubectl.addProgram('xdg-open');
    const url = await dashboard('dashboard', '--open');
    await waitFor('the browser is open', () => existsSync(calls) && readFileSync(calls, 'utf8'));
    assert.equal(readFileSync(calls, 'utf8'), `${url}\n`);
  });

  it('ends with status 2 when the connection to the pod is lost', async () => {
    await dashboard('dashboard');
    process.kill(kubectl.forwarder());
    const ended = await started?.ended;
    assert.equal(ended?.exitCode, 2);
    assert.match(ended?.stderr ?? '', /kubectl port-forward to pod agent-node-1 ended/);
    assert.deepEqual(kubectl.temporaryFiles(), []);
  });

  for (const [args, expected] of [
    [['dashboard'], /several nodes have an agent/],
    [
      ['--node', 'node-2', 'dashboard'],
      /pod agent-node-2 does not answer at port \d+ .*: lost conn/,
    ],
    [['--node', 'node-3', 'dashboard'], /cannot forward a port to .*: pod agent-node-3 is broken/],
    [['--all-nodes', 'dashboard'], /--all-nodes is for status, get and diff, not for dashboard/],
    [['dashboard', '--port'], /option --port needs a value/],
    [['dashboard', '--port='], /--port must be a port from 1 to 65535, not $/],
    [['dashboard', '--port=0'], /--port must be a port from 1 to 65535, not 0/],
    [['dashboard', '--port=65536'], /--port must be a port from 1 to 65535, not 65536/],
    [['dashboard', '--port', '1e3'], /--port must be a port from 1 to 65535, not 1e3/],
    [['dashboard', 'now'], /dashboard takes --port and --open, not now/],
  ] as const) {
    it(`exits with 2 and says why: ${args.join(' ')}`, async () => {
      const { stdout, stderr, exitCode } = await kubectl.run(...args);
      assert.deepEqual([stdout, exitCode], ['', 2], stderr);
      assert.match(stderr, expected);
      assert.deepEqual(kubectl.temporaryFiles(), []);
    });
  }

  it('does not look for another port if --port is in use', async () => {
    const port = portOf(other);
    const { stderr, exitCode } = await kubectl.run('--node=node-1', 'dashboard', `--port=${port}`);
    assert.equal(exitCode, 2);
    assert.match(stderr, /cannot forward port \d+ to pod agent-node-1: unable to listen on any/);
  });
});
