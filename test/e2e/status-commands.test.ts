import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { NodeStatus } from '../../status/api/node-status.ts';
import type { TopList } from '../../status/api/traffic.ts';
import { type FakeKubectl, fakeKubectl } from '../cmd/fake-kubectl.ts';
import { createLab, type Lab, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { ALL_PORTS, serviceManifest, sliceManifest } from './manifests.ts';

describe('status commands with an agent', () => {
  let lab: Lab;
  let agent: Agent;
  let directory: string;
  let socket: string;

  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-status-'));
    // The agent creates the directory of its socket.
    socket = join(directory, 'run', 'portwide.sock');
    lab = await createLab();
    agent = new Agent(lab);
    await agent.start([...AGENT_FLAGS, `--status-socket=${socket}`]);
    const [ready, notReady] = lab.pods;
    assert.ok(ready !== undefined && notReady !== undefined);
    await ready.serveEveryPort();
    await agent.apply([
      serviceManifest('sip', { annotations: ALL_PORTS, spec: { clusterIPs: ['10.96.0.10'] } }),
      sliceManifest('sip', 4, [ready, [notReady, { conditions: { ready: false } }]]),
      serviceManifest('local', {
        spec: { clusterIPs: ['10.96.0.11'], internalTrafficPolicy: 'Local', ports: [{ port: 80 }] },
      }),
      sliceManifest('local', 4, lab.remotePods, { ports: [{ name: '', port: 8080 }] }),
      serviceManifest('bad', {
        annotations: { 'portwide.dev/ports': '99999' },
        spec: { clusterIPs: ['10.96.0.12'] },
      }),
    ]);
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  /** Runs a command on the node. */
  const run = (...args: readonly string[]) =>
    lab.node.exec(PORTWIDE, [...args, '--status-socket', socket], { reject: false });

  it('status names the refused Service, and exits with 1', async () => {
    const { stdout, exitCode } = await run('status');
    assert.equal(exitCode, 1);
    assert.match(stdout, /^Node: +node, zone zone-1\nState: +degraded\nProblems:\n/);
    assert.match(stdout, /^ {2}RefusedAnnotation +Service default\/bad +.*99999/m);
    const json = JSON.parse((await run('status', '-o', 'json')).stdout) as NodeStatus;
    assert.deepEqual([json.state, json.services.refused, json.families.length], ['degraded', 1, 2]);
  });

  it('get lists Services with the states that packets show', async () => {
    const { stdout } = await run('get', 'svc', '-n', 'default', '--no-headers');
    const rows = stdout.split('\n').map((line) => line.split(/ {3,}/));
    const row = (name: string) => rows.find(([first]) => first === name)?.slice(1, 7);
    assert.deepEqual(row('sip'), ['ClusterIP', 'served', '10.96.0.10', 'all', '1/2', '1']);
    assert.deepEqual(row('local'), [
      'ClusterIP',
      'noEndpoints',
      '10.96.0.11',
      '80/TCP',
      '1/1',
      '0',
    ]);
    assert.equal(row('bad')?.[1], 'refused');
    assert.equal((await lab.client.tcp('10.96.0.12', 1, { timeoutMs: 100 })).outcome, 'timeout');
  });

  it('get endpoints says why an endpoint is not in use', async () => {
    const { stdout } = await run('get', 'ep', 'default/sip', '--no-headers');
    const [ready, notReady] = lab.pods.map(({ ipv4 }) =>
      stdout.split('\n').find((line) => line.includes(ipv4)),
    );
    assert.match(ready ?? '', / ready +yes +ready +node \(this\)$/);
    assert.match(notReady ?? '', / notReady +no +not ready +node \(this\)$/);
  });

  it('describe puts the cause first', async () => {
    const { stdout, exitCode } = await run('describe', 'service', 'default/local');
    assert.equal(exitCode, 0);
    assert.match(
      stdout,
      /^Problems:\n {2}NoEndpoints +IPv4 +.*internalTrafficPolicy: Local, and no endpoint is on this node/m,
    );
    assert.equal((await run('describe', 'service', 'default/gone')).exitCode, 1);
  });

  it('diff finds no differences, and describe only objects as they should be', async () => {
    const { stdout, exitCode } = await run('diff');
    assert.equal(exitCode, 0, stdout);
    assert.match(stdout, /^no differences; [1-9]\d* objects compared$/);
    const described = await run('describe', 'service', 'default/sip');
    assert.match(described.stdout, /^Kernel objects:\n {2}[1-9]\d*, all as they should be$/m);
  });

  it('top and get --traffic count connections and datagrams, by port of an all-ports Service', async () => {
    await lab.node.exec('sysctl', ['-qw', 'net.netfilter.nf_conntrack_acct=1']);
    // The agent counts from the first request on.
    assert.equal((await run('top', 'services')).exitCode, 0);
    for (let count = 0; count < 3; count++) {
      assert.equal((await lab.client.tcp('10.96.0.10', 20_104)).outcome, 'answered');
    }
    assert.equal((await lab.client.udp('10.96.0.10', 30_000)).outcome, 'answered');
    const args = ['top', 'ports', '--service', 'default/sip'];
    const list = await waitFor('the connections are counted', async () => {
      const { stdout } = await run(...args, '-o', 'json');
      const read = JSON.parse(stdout) as TopList;
      return read.items.length === 2 && read.items.every(({ total }) => total.connections > 0)
        ? read
        : undefined;
    });
    assert.deepEqual(
      list.items.map(({ protocol, port, total }) => [protocol, port, total.connections]).sort(),
      [
        ['TCP', 20_104, 3],
        ['UDP', 30_000, 1],
      ],
    );
    assert.ok(list.items.every(({ connectionsPerSecond: rate }) => rate !== null));
    const { stdout } = await run(...args, '-o', 'wide', '--no-headers');
    assert.match(stdout, /^default +sip +20104\/TCP +3 +[\d.]+ +[\d.k]+ +[\d.]+(B|KiB) +3 /m);
    const traffic = async (kind: string) =>
      (await run('get', kind, 'default/sip', '--traffic', '--no-headers')).stdout.split('\n');
    assert.match((await traffic('svc'))[0] ?? '', / 4 +[\d.]+ +[\d.k]+ +[\d.]+(B|KiB)$/);
    const endpoints = await traffic('ep');
    assert.match(endpoints[0] ?? '', / 4 +[\d.]+ +[\d.k]+ +[\d.]+(B|KiB)$/);
    assert.match(endpoints[1] ?? '', / 0 +0 +0 +0B$/);
  });

  it('flows names the Service, the endpoint and the reason of each packet, until Ctrl-C', async () => {
    const args = ['flows', '--status-socket', socket, '--ip', lab.client.ipv4];
    const flows = lab.node.spawn(PORTWIDE, args);
    let output = '';
    flows.stdout?.on('data', (chunk) => {
      output += String(chunk);
    });
    const line = (word: string) =>
      waitFor(word, () => output.split('\n').find((each) => each.includes(word)), 20_000);
    await line('TIME');
    const outcome = await lab.client.tcp('10.96.0.10', 20_105);
    assert.ok(outcome.outcome === 'answered');
    const ends = [`${lab.client.ipv4}:${outcome.localPort}`, '10.96.0.10:20105'];
    const opened = (await line(' opened ')).split(/ +/);
    assert.deepEqual(opened.slice(4, 7), [...ends, `${lab.pods[0]?.ipv4}:20105`]);
    await lab.node.exec('conntrack', ['-D', '-d', '10.96.0.10', '-p', 'tcp']);
    assert.match(await line(' closed '), / default\/sip +TCP .* \d+ packets, [\d.]+(B|KiB)$/);
    await lab.client.tcp('10.96.0.11', 80, { timeoutMs: 200 });
    assert.match(
      await line(' 10.96.0.11:80 '),
      / dropped +default\/local .* no endpoint on this node, and the traffic policy is Local$/,
    );
    flows.kill('SIGINT');
    const { stderr } = await flows.catch((error: unknown) => error as { stderr: string });
    assert.equal(
      stderr,
      'portwide: packets denied by policies are not shown: set --policy-log-group',
    );
  });

  it('get policies says that the agent has none', async () => {
    const { stderr, exitCode } = await run('get', 'policies');
    assert.equal(exitCode, 1);
    assert.match(stderr, /it runs without --network-policy$/);
  });

  it('a bad parameter gets the message of the agent', async () => {
    const { stderr, exitCode } = await run('get', 'svc', '--vip', 'here');
    assert.deepEqual(
      [stderr, exitCode],
      ['portwide: parameter vip must be an IP address, not "here"', 2],
    );
  });

  it('kubectl portwide runs them in the pod of the agent', async () => {
    using kubectl: FakeKubectl = fakeKubectl();
    kubectl.addAgent('node', socket, `ip netns exec ${lab.node.namespace}`);
    const { stdout, exitCode } = await kubectl.run('--all-nodes', 'status');
    assert.equal(exitCode, 1);
    assert.match(stdout, /^NODE +STATE .*\nnode +degraded /);
  });

  it('status says that nothing listens after kill -9, and works after a restart', async () => {
    await agent.kill();
    const { stderr, exitCode } = await run('status');
    assert.equal(exitCode, 2);
    assert.match(stderr, /exists, but nothing listens on it/);
    await agent.start();
    await waitFor('the agent answers', async () => (await run('status')).exitCode === 1, 20_000);
    await agent.stop();
    assert.match((await run('status')).stderr, /no agent runs on this node/);
  });
});
