import assert from 'node:assert/strict';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { request } from 'node:http';
import { createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { KernelDiff, KernelObject } from '../../status/api/kernel.ts';
import type { NodeStatus } from '../../status/api/node-status.ts';
import type { EndpointList, ServiceDetail, ServiceList } from '../../status/api/services.ts';
import { createLab, type Lab, repeatUntil, waitFor } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent, IPTABLES_FLAGS } from './agent.ts';
import { ALL_PORTS, serviceManifest, sliceManifest } from './manifests.ts';

const PORT = 10_270;
const VIPS = ['10.96.0.10', 'fd00:10:96::a'];

/** An answer of the socket; code 0 if nothing listens. */
async function getFrom(socketPath: string, path: string): Promise<{ code: number; body: string }> {
  const client = request({ socketPath, path, host: 'portwide' });
  client.end();
  try {
    const [response] = await once(client, 'response');
    let body = '';
    for await (const chunk of response) body += chunk;
    return { code: response.statusCode, body };
  } catch (error) {
    const { code = '' } = error as NodeJS.ErrnoException;
    assert.match(code, /^(ENOENT|ECONNREFUSED|EACCES)$/);
    return { code: 0, body: code };
  }
}

describe('status API of an agent', () => {
  let lab: Lab;
  let agent: Agent;
  let directory: string;
  let socket: string;
  const flags = () => [
    ...AGENT_FLAGS,
    `--status-socket=${socket}`,
    `--status-bind-address=127.0.0.1:${PORT}`,
  ];
  const get = async <T>(path: string) => {
    const { code, body } = await getFrom(socket, `/api/v1/${path}`);
    assert.equal(code, 200, body);
    return JSON.parse(body) as T;
  };

  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-status-'));
    socket = join(directory, 'run', 'portwide.sock');
    lab = await createLab({ pods: 2 });
    await lab.pods[0]?.serveEveryPort();
    agent = new Agent(lab);
    await agent.start(flags());
    await agent.apply([
      serviceManifest('media', { annotations: ALL_PORTS, spec: { clusterIPs: VIPS } }),
      sliceManifest('media', 4, lab.pods.slice(0, 1)),
      serviceManifest('bad', {
        annotations: ALL_PORTS,
        spec: { clusterIPs: ['10.96.0.11'], type: 'NodePort' },
      }),
    ]);
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  it('answers on a socket that only root can open', async () => {
    assert.equal(statSync(socket).mode & 0o777, 0o600);
    assert.equal(statSync(join(directory, 'run')).mode & 0o777, 0o700);
    const status = await get<NodeStatus>('status');
    assert.equal(status.mode.name, 'nftables');
    assert.equal(status.nodeName, 'node');
    assert.deepEqual(
      status.families.map(({ family, lastSync }) => [family, lastSync !== null]),
      [
        ['IPv4', true],
        ['IPv6', true],
      ],
    );
    assert.deepEqual(
      status.refusals.map(({ service, reason }) => [service, reason]),
      [['default/bad', 'NodePort']],
    );
  });

  it('shows the Services that answer packets', async () => {
    const { items } = await get<ServiceList>('services?state=partial');
    const media = items.find(({ name }) => name === 'media');
    assert.deepEqual(media?.ports, ['all']);
    const [vip = ''] = VIPS;
    assert.equal((await lab.client.tcp(vip, 12_345)).outcome, 'answered');
    const endpoints = await get<EndpointList>('endpoints?service=default/media');
    assert.deepEqual(
      endpoints.items.map(({ address, cluster }) => [address, cluster.used]),
      [[lab.pods[0]?.ipv4, true]],
    );
  });

  it('shows a change as soon as packets see it', async () => {
    await agent.apply([
      serviceManifest('media', { annotations: ALL_PORTS, spec: { clusterIPs: VIPS } }),
      sliceManifest(
        'media',
        4,
        lab.pods.slice(0, 1).map((pod) => [pod, { conditions: { ready: false } }] as const),
      ),
    ]);
    const { items } = await get<EndpointList>('endpoints?service=default/media');
    assert.deepEqual(items[0]?.cluster, { used: false, reason: 'not ready' });
    const { items: services } = await get<ServiceList>('services?state=noEndpoints');
    assert.ok(services.some(({ name }) => name === 'media'));
  });

  it('says whether connections may bypass the rules, or why not', async () => {
    await agent.stop();
    await agent.start([...flags(), '--nftables-flowtable']);
    const { feature, problems } = await waitFor('an answer', async () => {
      const status = await get<NodeStatus>('status');
      const found = status.kernel.features.find(({ name }) => name === '--nftables-flowtable');
      return found?.value === 'waits' ? undefined : { feature: found, ...status };
    });
    // This kernel may have flowtables, or not.
    assert.match(`${feature?.ok} ${feature?.value}`, /^(true on: \d+ veth|true refused)$/);
    assert.match(feature?.note ?? '', /bypass the rules$|; all packets take the rules$/);
    assert.equal(
      problems.some(({ message }) => message.startsWith('--nftables-flowtable refused: ')),
      feature?.ok === false,
    );
    await agent.stop();
    await agent.start(flags());
    const { kernel } = await get<NodeStatus>('status');
    assert.equal(kernel.features.find(({ name }) => name === feature?.name)?.value, 'off');
  });

  it('answers on the loopback port of the node, and not to other names', async () => {
    const local = await lab.node.httpGet(`http://127.0.0.1:${PORT}/api/v1/status`);
    assert.ok(!('error' in local), JSON.stringify(local));
    assert.equal(local.code, 200);
    const outside = await lab.client.httpGet(`http://${lab.node.ipv4}:${PORT}/api/v1/status`);
    assert.deepEqual(outside, { error: 'ECONNREFUSED' });
  });

  it('arms no live trace for a process that is not root: the loopback port names the command and the socket', async () => {
    const query = `from=external&to=${VIPS[0]}&port=80`;
    const url = `http://127.0.0.1:${PORT}/api/v1/trace`;
    const computed = await lab.node.httpGet(`${url}?${query}`);
    assert.ok(!('error' in computed) && computed.code === 200, JSON.stringify(computed));
    const live = await lab.node.httpGet(`${url}/live?${query}`);
    assert.ok(!('error' in live), JSON.stringify(live));
    assert.equal(live.code, 403);
    assert.ok(
      live.body.includes(
        `needs root: run \`portwide trace FROM TO --live\` on the node, which uses ${socket}`,
      ),
      live.body,
    );
    const { stdout } = await lab.node.exec('nft', ['list', 'tables']);
    assert.doesNotMatch(stdout, /portwide-trace/);
  });

  it('names a bad parameter', async () => {
    const { code, body } = await getFrom(socket, '/api/v1/services?limit=no');
    assert.equal(code, 400);
    assert.match(body, /"parameter":"limit"/);
  });

  it('removes the socket when it stops, and replaces the socket of a killed agent', async () => {
    await agent.stop();
    assert.ok(!existsSync(socket));
    await agent.start();
    await agent.kill();
    assert.ok(existsSync(socket));
    assert.deepEqual(await getFrom(socket, '/api/v1/status'), { code: 0, body: 'ECONNREFUSED' });
    await agent.start();
    assert.equal((await get<NodeStatus>('status')).state, 'healthy');
  });

  describe('when it cannot listen', () => {
    let holder: Server | undefined;

    it('keeps a file at the path of the socket', async () => {
      await agent.stop();
      const file = join(directory, 'important');
      writeFileSync(file, 'content');
      const rest = flags().filter((flag) => !flag.startsWith('--status-socket='));
      await agent.start([...rest, `--status-socket=${file}`]);
      const [warning] = agent.logged('cannot listen; retrying');
      assert.match(JSON.stringify(warning?.err), /exists and is not a socket/);
      assert.equal(readFileSync(file, 'utf8'), 'content');
    });

    after(() => {
      holder?.close();
    });

    it('leaves the socket to another agent that uses it', async () => {
      await agent.stop();
      const used = join(directory, 'used.sock');
      const other = createServer((connection) => connection.destroy());
      other.listen(used);
      await once(other, 'listening');
      const rest = flags().filter((flag) => !flag.startsWith('--status-socket='));
      await agent.start([...rest, `--status-socket=${used}`]);
      const [warning] = agent.logged('cannot listen; retrying');
      assert.match(JSON.stringify(warning?.err), /EADDRINUSE/);
      assert.ok(existsSync(used));
      other.close();
      await once(other, 'close');
      await waitFor('the log line', () => agent.logged('listening again').length > 0, 30_000);
    });

    it('serves Services while another program has the port, and listens once it is free', async () => {
      await agent.stop();
      const port = { protocol: 'TCP', port: PORT } as const;
      await lab.node.serve({ ...port, address: '127.0.0.1' });
      await agent.start(flags());
      const [warning] = agent.logged('cannot listen; retrying');
      assert.equal(warning?.flag, '--status-bind-address');
      assert.match(JSON.stringify(warning), /EADDRINUSE/);
      await agent.apply([
        serviceManifest('media', { annotations: ALL_PORTS, spec: { clusterIPs: VIPS } }),
        sliceManifest('media', 4, lab.pods.slice(0, 1)),
      ]);
      assert.equal((await lab.client.tcp(VIPS[0] ?? '', 12_345)).outcome, 'answered');
      await lab.node.stopServing(port);
      await waitFor('the log line', () => agent.logged('listening again').length > 0, 30_000);
      const answer = await lab.node.httpGet(`http://127.0.0.1:${PORT}/api/v1/status`);
      assert.ok(!('error' in answer) && answer.code === 200, JSON.stringify(answer));
    });

    it('serves Services, warns, and listens once it can', async () => {
      await agent.stop();
      const blocked = join(directory, 'blocked');
      // A file where the directory of the socket should be.
      holder = createServer();
      holder.listen(blocked);
      await once(holder, 'listening');
      const given = flags().map((flag) =>
        flag.startsWith('--status-socket=') ? `--status-socket=${blocked}/p.sock` : flag,
      );
      await agent.start(given);
      const warnings = () =>
        agent.log.filter(({ flag, msg }) => flag === '--status-socket' && msg.startsWith('cannot'));
      assert.ok(warnings().length >= 1);
      holder.close();
      await once(holder, 'close');
      rmSync(blocked, { force: true });
      mkdirSync(blocked);
      chmodSync(blocked, 0o700);
      await waitFor('the socket', () => existsSync(join(blocked, 'p.sock')), 30_000);
      await waitFor('the log line', () => agent.logged('listening again').length > 0, 10_000);
    });
  });
});

describe('status API: differences from the kernel', () => {
  let lab: Lab;
  let agent: Agent;
  let directory: string;
  let socket: string;
  const flags = (minPeriod = '10ms') => [
    ...IPTABLES_FLAGS.filter((flag) => !flag.startsWith('--iptables-min-sync-period=')),
    `--iptables-min-sync-period=${minPeriod}`,
    '--iptables-variant=nft',
    // A resync would repair the rules.
    '--iptables-sync-period=1h',
    `--status-socket=${socket}`,
  ];
  const describeMedia = async () => {
    const { body } = await getFrom(socket, '/api/v1/services/default/media');
    return JSON.parse(body) as ServiceDetail;
  };
  /** Deletes the rules of one of the Service's chains. @returns the chain. */
  const flushChain = async () => {
    const { stdout } = await lab.node.exec('iptables-nft', ['-t', 'nat', '-S']);
    const rule = stdout.split('\n').find((line) => /^-A KUBE-SEP-\S+ .*-j DNAT/.test(line)) ?? '';
    const [, chain = ''] = rule.split(' ');
    assert.match(chain, /^KUBE-SEP-/);
    await lab.node.exec('iptables-nft', ['-t', 'nat', '-F', chain]);
    return chain;
  };
  const diff = async () => {
    const { code, body } = await getFrom(socket, '/api/v1/diff');
    assert.equal(code, 200, body);
    return JSON.parse(body) as KernelDiff;
  };
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-status-'));
    socket = join(directory, 'portwide.sock');
    lab = await createLab({ pods: 1 });
    await lab.pods[0]?.serveEveryPort();
    agent = new Agent(lab);
    await agent.start(flags());
    await agent.apply([
      serviceManifest('media', { annotations: ALL_PORTS, spec: { clusterIPs: VIPS } }),
      sliceManifest('media', 4, lab.pods),
    ]);
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  it('finds none, and compares every rule', async () => {
    const { items, compared } = await waitFor('a comparison between two syncs', async () => {
      const found = await diff();
      return found.stable ? found : undefined;
    });
    assert.deepEqual(items, []);
    assert.ok(compared > 50);
  });

  it('names the Service of a rule that another program deleted, while packets to the Service are lost', async () => {
    const [vip = ''] = VIPS;
    assert.equal((await lab.client.tcp(vip, 777)).outcome, 'answered');
    const chain = await flushChain();
    assert.notEqual((await lab.client.tcp(vip, 778, { timeoutMs: 500 })).outcome, 'answered');
    const { items } = await diff();
    const missing = items.filter(({ state, desired }) => state === 'missing' && desired !== null);
    assert.ok(
      missing.some(
        ({ desired, service }) => desired?.includes(chain) && service === 'default/media',
      ),
      JSON.stringify(items),
    );
    const { problems } = await describeMedia();
    assert.ok(problems.some(({ reason }) => reason === 'KernelDiffers'));
  });

  // Without a rate limit, a sync runs during most comparisons. With the default, a change always waits for it.
  for (const minPeriod of ['10ms', '1s']) {
    it(`names the deleted rule, and no other, while another Service changes all the time: ${minPeriod} between syncs`, async () => {
      await agent.stop();
      await agent.start(flags(minPeriod));
      const chain = await flushChain();
      const busy = (change: number) => [
        serviceManifest('busy', { spec: { clusterIPs: ['10.96.0.99'], ports: [{ port: 80 }] } }),
        sliceManifest('busy', 4, change % 2 === 0 ? lab.pods : [], {
          ports: [{ name: '', port: 80 + (change % 7) }],
        }),
      ];
      let change = 0;
      let isOver = false;
      const changing = repeatUntil(
        () => isOver,
        async () => agent.write('busy', busy(change++)),
      );
      try {
        const syncs = () => agent.logged('synced').length;
        for (let round = 0; round < 3; round++) {
          const before = syncs();
          await waitFor('syncs go on', () => syncs() > before + 2);
          const { problems, kernel } = await describeMedia();
          const isFault = ({ state, inProgress }: KernelObject) => state !== 'ok' && !inProgress;
          assert.ok(kernel.filter(isFault).some(({ desired }) => desired?.includes(chain)));
          assert.ok(problems.some(({ reason }) => reason === 'KernelDiffers'));
          const { items, different } = await diff();
          assert.ok(different > 0);
          const services = items.filter(isFault).map(({ service }) => service);
          assert.deepEqual([...new Set(services)], ['default/media']);
        }
      } finally {
        isOver = true;
        await changing;
      }
    });
  }
});
