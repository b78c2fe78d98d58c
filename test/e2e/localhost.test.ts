import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createLab, type Lab, waitFor } from '../lab/lab.ts';
import { Scrape } from '../metrics/scrape.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { answered, World } from './scenarios/scenario.ts';

const HTTP = { ports: [{ name: 'http', port: 8080, protocol: 'TCP' }] };
const NODE_PORT = 30_280;
/** Constants of proc(5): TCP_LISTEN, and addresses in host byte order. */
const LISTEN = '0A';
const IN_PROC = { 4: '0100007F', 6: '00000000000000000000000001000000' } as const;
const LOCALHOST = { 4: '127.0.0.1', 6: '::1' } as const;
const REJECTED = 'kubeproxy_nftables_localhost_nodeport_rejected_packets_total';
const CONFIG = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: 10.244.0.0/16,fd00:10:244::/48
nodePortAddresses: [primary, localhost]
nftables: {minSyncPeriod: 10ms}
conntrack: {maxPerCore: 0}
portwide: {configRestartJitter: 0s}
`;

describe('node ports on localhost in mode nftables', () => {
  let lab: Lab;
  let agent: Agent;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 1 });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    agent = new Agent(lab);
    const flags = ['--proxy-mode=nftables', '--nodeport-addresses=primary,localhost'];
    await agent.start([...AGENT_FLAGS, ...flags]);
  });

  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });

  const scrape = async () => {
    const answer = await lab.node.httpGet('http://127.0.0.1:10249/metrics');
    assert.ok('body' in answer, 'the agent serves metrics');
    return new Scrape(answer.body);
  };

  const rejected = async (family: 4 | 6) => {
    const scraped = await scrape();
    return ['UDP', 'SCTP'].map((protocol) =>
      scraped.value(REJECTED, { ip_family: `IPv${family}`, protocol }),
    );
  };

  const objects = (world: World, pods: Parameters<World['slice']>[1], spec = {}) => [
    world.service('web', {
      spec: {
        type: 'NodePort',
        clusterIPs: [world.clusterIP(92)],
        ports: [{ name: 'http', port: 80, nodePort: NODE_PORT }],
        ...spec,
      },
    }),
    world.slice('web', pods, HTTP),
  ];

  for (const family of [4, 6] as const) {
    const host = LOCALHOST[family];
    const who = async () => {
      const outcome = await lab.node.tcp(host, NODE_PORT, { timeoutMs: 500 });
      return outcome.outcome === 'answered' ? outcome.reply.host : outcome.outcome;
    };
    const reaches = (expected: string) =>
      waitFor(`${host} reaches ${expected}`, async () => (await who()) === expected);

    it(`IPv${family}: a localhost node port reaches a pod of any node, and follows changes of the Service`, async () => {
      const world = new World(lab, agent, family);
      await world.apply(objects(world, [world.pod(0)]));
      await reaches('pod-1');
      const node = world.address(world.node);
      assert.equal(answered(await world.client.tcp(node, NODE_PORT)).host, 'pod-1', 'primary');
      await world.apply(objects(world, [world.remote(0)]));
      await reaches('remote-1');
      await world.apply(objects(world, [world.remote(0)], { externalTrafficPolicy: 'Local' }));
      await reaches('refused');
      await world.apply(objects(world, [world.pod(1)], { externalTrafficPolicy: 'Local' }));
      await reaches('pod-2');
      await world.apply(objects(world, []));
      await reaches('refused');
      await world.apply(objects(world, [world.pod(0)]));
      await reaches('pod-1');
      await world.apply([]);
      await reaches('refused');
    });

    it(`IPv${family}: connections to a localhost node port stay open after the Service is deleted`, async () => {
      const world = new World(lab, agent, family);
      await world.apply(objects(world, [world.pod(0)]));
      await reaches('pod-1');
      const held = await lab.node.hold(host, NODE_PORT);
      await world.apply([]);
      await reaches('refused');
      assert.match(await held.exchange('still there?'), /still there/);
      await held.close();
    });

    it(`IPv${family}: localhost node ports are not reachable from other hosts`, async () => {
      const world = new World(lab, agent, family);
      await world.apply(objects(world, [world.pod(0)]));
      await reaches('pod-1');
      const file = family === 4 ? '/proc/net/tcp' : '/proc/net/tcp6';
      const { stdout } = await lab.node.exec('cat', [file]);
      const listening = stdout
        .split('\n')
        .map((line) => line.trim().split(/\s+/))
        .filter(([, , , state]) => state === LISTEN)
        .flatMap(([, address = '']) => address)
        .filter((address) => Number.parseInt(address.split(':')[1] ?? '', 16) === NODE_PORT);
      assert.deepEqual(listening, [`${IN_PROC[family]}:${NODE_PORT.toString(16).toUpperCase()}`]);
    });
  }

  for (const family of [4, 6] as const) {
    it(`IPv${family}: rejects and counts UDP and SCTP to localhost node ports, even if a process listens`, async () => {
      const { node } = lab;
      const [host, world] = [LOCALHOST[family], new World(lab, agent, family)];
      const udp = async (address: string) => {
        const outcome = await node.udp(address, NODE_PORT);
        return outcome.outcome === 'answered' ? outcome.reply.host : outcome.outcome;
      };
      await node.serve({ protocol: 'UDP', port: NODE_PORT, address: host });
      try {
        await world.apply([]);
        assert.equal(await udp(host), 'node');
        assert.deepEqual(await rejected(family), [0, 0]);
        const ports = (['UDP', 'SCTP'] as const).map((protocol) => ({
          name: protocol.toLowerCase(),
          port: 53,
          protocol,
          nodePort: NODE_PORT,
        }));
        await world.apply([
          world.service('web', {
            spec: { type: 'NodePort', clusterIPs: [world.clusterIP(92)], ports },
          }),
          world.slice('web', [world.pod(0)], {
            ports: ports.map(({ name, protocol }) => ({ name, protocol, port: 5353 })),
          }),
        ]);
        assert.equal(await udp(host), 'refused');
        assert.equal((await node.sctpProbe(host, NODE_PORT)).outcome, 'refused');
        assert.equal((await node.sctpProbe(host, NODE_PORT)).outcome, 'refused');
        assert.deepEqual(await rejected(family), [1, 2]);
        const other = await world.client.udp(world.address(world.node), NODE_PORT);
        assert.equal(answered(other).host, 'pod-1', 'on the primary address');
        await world.apply([]);
        await waitFor('the process answers again', async () => (await udp(host)) === 'node');
      } finally {
        await node.stopServing({ protocol: 'UDP', ports: [NODE_PORT] });
      }
    });
  }

  it('reports a localhost node port in use by another process, and serves it once it is free', async () => {
    const world = new World(lab, agent, 4);
    await world.apply([]);
    await lab.node.serve({ protocol: 'TCP', port: NODE_PORT, address: '127.0.0.1' });
    await world.apply(objects(world, [world.pod(0)]));
    const line = await waitFor('the failure is logged', () =>
      agent.logged('cannot serve node port on localhost; retrying').at(0),
    );
    assert.deepEqual([line?.service, line?.family, line?.port], ['default/web', 'IPv4', NODE_PORT]);
    const scraped = await scrape();
    const name = 'kubeproxy_nftables_localhost_nodeport';
    const labels = { ip_family: 'IPv4' };
    assert.equal(scraped.value(`${name}_listeners`, labels), 0);
    assert.equal(scraped.value(`${name}_listener_creation_failures_total`, labels), 1);
    await lab.node.stopServing({ protocol: 'TCP', ports: [NODE_PORT] });
    await waitFor('the pod answers', async () => {
      const outcome = await lab.node.tcp('127.0.0.1', NODE_PORT, { timeoutMs: 500 });
      return outcome.outcome === 'answered' && outcome.reply.host === 'pod-1';
    });
  });

  it('closes localhost node ports when the agent exits, and serves them again after a restart', async () => {
    const world = new World(lab, agent, 4);
    await world.apply(objects(world, [world.pod(0)]));
    await waitFor('the pod answers', async () => {
      const { outcome } = await lab.node.tcp('127.0.0.1', NODE_PORT, { timeoutMs: 500 });
      return outcome === 'answered';
    });
    const counted = await rejected(4);
    await agent.stop();
    const { outcome } = await lab.node.tcp('127.0.0.1', NODE_PORT, { timeoutMs: 500 });
    assert.equal(outcome, 'refused');
    await agent.start();
    assert.deepEqual(await rejected(4), counted);
    await waitFor('the pod answers again', async () => {
      const again = await lab.node.tcp('127.0.0.1', NODE_PORT, { timeoutMs: 500 });
      return again.outcome === 'answered';
    });
  });

  it('delays a restart for a changed configuration file until connections to localhost node ports end', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'portwide-e2e-localhost-'));
    try {
      const file = join(directory, 'config.conf');
      writeFileSync(file, CONFIG);
      await agent.stop();
      const world = new World(lab, agent, 4);
      const { ended } = agent.launch([`--config=${file}`, '--hostname-override=node', '-v=3']);
      await world.apply(objects(world, [world.pod(0)]));
      const held = await waitFor('a pod accepts a connection', () =>
        lab.node.hold('127.0.0.1', NODE_PORT),
      );
      writeFileSync(file, `${CONFIG}# another version\n`);
      await waitFor('the ports are closed', async () => {
        const { outcome } = await lab.node.tcp('127.0.0.1', NODE_PORT, { timeoutMs: 500 });
        return outcome === 'refused';
      });
      assert.match(await held.exchange('still there?'), /still there/);
      await held.close();
      assert.match(await ended, /exit code 75/);
    } finally {
      rmSync(directory, { recursive: true });
    }
  });

  it('opens no localhost node port without localhost in --nodeport-addresses', async () => {
    const world = new World(lab, agent, 4);
    await agent.stop();
    await agent.start([
      ...AGENT_FLAGS,
      '--proxy-mode=nftables',
      '--nodeport-addresses=0.0.0.0/0,::/0',
    ]);
    await world.apply(objects(world, [world.pod(0)]));
    const { outcome } = await lab.node.tcp('127.0.0.1', NODE_PORT, { timeoutMs: 500 });
    assert.equal(outcome, 'refused');
    assert.equal((await scrape()).value(REJECTED, {}), undefined);
    const { stdout } = await lab.node.exec('nft', ['list', 'counters']);
    assert.doesNotMatch(stdout, /localhost/, 'the ports of the previous agent are closed');
  });
});
