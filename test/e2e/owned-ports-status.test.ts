import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { SLICE_PARTS } from '../../nftables/maps.ts';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { numberRange } from '../nftables/elements.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { type EndpointFields, type Manifest, withPods } from './manifests.ts';
import { answered, refused, World } from './scenarios/scenario.ts';
import { only, summary, TraceApi } from './trace-api.ts';

const owner = (host: Host, ordinal: number, fields: EndpointFields = {}) =>
  [host, { targetRef: { kind: 'Pod', name: `media-${ordinal}` }, ...fields }] as const;

const OWNED = {
  'portwide.dev/owned-ports': '20000-20999/UDP,30000-30999/TCP',
  'portwide.dev/ports-per-pod': '100',
};

describe('what users see of owned ports', () => {
  let lab: Lab;
  let agent: Agent;
  let other: Agent;
  let directory: string;
  let socket: string;
  let api: TraceApi;

  const worldOf = (family: 4 | 6) => new World(lab, agent, family);
  const objectsOf = (family: 4 | 6): Manifest[] => {
    const world = worldOf(family);
    const name = `media${family}`;
    const pods = [
      owner(world.pod(0), 0),
      owner(world.remote(0), 1),
      owner(world.pod(1), 3, { conditions: { ready: false, serving: false } }),
      [world.remote(1), {}] as const,
    ];
    return [
      world.service(name, {
        annotations: OWNED,
        spec: { clusterIPs: [world.clusterIP(20)] },
      }),
      world.slice(name, pods),
    ];
  };
  const objects = () => withPods([...objectsOf(4), ...objectsOf(6)]);

  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-owned-'));
    socket = join(directory, 'agent.sock');
    api = new TraceApi(socket);
    lab = await createLab({ pods: 2, remotePods: 2 });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    await lab.client.serve({ protocol: 'UDP', port: 9000 });
    const flags = [...AGENT_FLAGS, '--proxy-mode=nftables'];
    agent = new Agent(lab, { syncs: 2 });
    other = new Agent({ ...lab, node: lab.node2 }, { syncs: 2 });
    // The first sync already has owned ports.
    for (const each of [agent, other]) each.write('objects', objects());
    await Promise.all([
      agent.start([...flags, `--status-socket=${socket}`]),
      other.start([...flags, '--hostname-override=node2']),
    ]);
    await Promise.all([agent.apply(objects()), other.apply(objects())]);
  });

  after(async () => {
    await Promise.all([agent?.destroy(), other?.destroy()]);
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  const run = (...args: readonly string[]) =>
    lab.node.exec(PORTWIDE, [...args, '--status-socket', socket], { reject: false });

  it('get shows slices, owners, and endpoints that own nothing', async () => {
    const services = (await run('get', 'services', 'default/media4', '--no-headers')).stdout;
    assert.match(services, /20000-20999\/UDP \(100 per pod\),30000-30999\/TCP \(100 per pod\)/);
    const endpoints = (await run('get', 'endpoints', 'default/media4', '-o', 'wide')).stdout;
    const line = (host: Host | undefined) =>
      endpoints.split('\n').find((each) => each.includes(` ${host?.ipv4} `)) ?? '';
    assert.match(line(lab.pods[0]), /yes +owns ports +20000-20099\/UDP,30000-30099\/TCP/);
    assert.match(line(lab.pods[1]), /no +owns ports, but does not serve +20300-20399\/UDP/);
    assert.match(line(lab.remotePods[1]), /no +has no ordinal in its name +<none>/);
    const routes = (await run('get', 'routes', 'default/media4', '-o', 'wide', '--no-headers'))
      .stdout;
    assert.match(routes, /20000-20999\/UDP \(100 per pod\) .*reject .* none /);
    assert.match(routes, /30000-30999\/TCP \(100 per pod\) .*reject .* remote owners /);
  });

  it('describe and diff find what another program does to slices, until the agent mends it', async () => {
    const { stdout } = await run('describe', 'service', 'default/media4');
    assert.match(stdout, /^Kernel objects:\n {2}[1-9]\d*, all as they should be$/m);
    assert.match(stdout, /^ {2}2 +20200-20299\/UDP,30200-30299\/TCP +<none> +vacant$/m);
    assert.equal((await run('diff')).exitCode, 0);
    const world = worldOf(4);
    const vip = world.clusterIP(20);
    const part = Number(vip.split('.').at(-1)) % SLICE_PARTS;
    for (const script of [
      `delete element ip portwide udp-owners-${part} { ${numberRange(vip, 20_000, 20_099)} }`,
      `flush table ip portwide`,
      `add element ip portwide udp-owners-${part} { ${numberRange(vip, 20_900, 20_999)} : 10.244.9.9 }`,
      'delete table ip portwide',
    ]) {
      await lab.node.exec('nft', ['-f', '-'], { input: script });
      await waitFor('the agent mends it', async () => (await run('diff')).exitCode === 0, 20_000);
      assert.equal(answered(await world.client.udp(vip, 20_000)).host, 'pod-1', script);
      refused(await world.client.udp(vip, 20_950));
    }
  });

  it('flows say that no pod owns a port', async () => {
    const flows = lab.node.spawn(PORTWIDE, [
      'flows',
      ...['--event=rejected', '-o', 'json', '--status-socket', socket],
    ]);
    flows.catch(() => {});
    let text = '';
    flows.stdout?.on('data', (chunk) => {
      text += String(chunk);
    });
    try {
      await waitFor('the stream starts', () => text.includes('"started"'));
      for (const family of [4, 6] as const) {
        const world = worldOf(family);
        for (const [port, reason] of [
          [20_250, 'no pod owns port 20250/UDP: slice 20200-20299/UDP is vacant'],
          [20_350, `pod ${world.address(world.pod(1))} owns port 20350/UDP, and does not serve`],
        ] as const) {
          refused(await world.client.udp(world.clusterIP(20), port));
          await waitFor(reason, () => text.includes(`"reason":"${reason}"`));
        }
      }
    } finally {
      flows.kill('SIGKILL');
    }
  });

  for (const family of [4, 6] as const) {
    describe(`trace, IPv${family}`, () => {
      it('UDP and TCP packets do what is computed', async () => {
        const world = worldOf(family);
        const to = world.clusterIP(20);
        for (const host of [world.client, world.pod(1), world.remote(1), world.node]) {
          const isNode = host === world.node;
          for (const [protocol, port] of [
            ['UDP', 20_000],
            ['UDP', 20_100],
            ['UDP', 20_200],
            ['UDP', 20_300],
            ['TCP', 30_000],
            ['TCP', 30_100],
            ['TCP', 30_250],
          ] as const) {
            // The node of a remote pod translates its packets itself.
            if (host === world.remote(1) && protocol === 'TCP') continue;
            const from = world.address(host);
            const [computed] = await api.trace({ from, to, port, protocol });
            const outcome = await (protocol === 'UDP' ? host.udp(to, port) : host.tcp(to, port));
            const text = `${host.name} ${protocol} ${port}: ${JSON.stringify(outcome)}`;
            assert.ok(computed, text);
            if (computed.verdict === 'rejected') refused(outcome);
            else {
              const reply = answered(outcome);
              const [endpoint] = computed.endpoints;
              assert.deepEqual(
                [reply.localAddress, reply.localPort],
                [endpoint?.address, port],
                text,
              );
              if (!isNode) assert.equal(reply.remoteAddress !== from, endpoint?.masqueraded, text);
            }
          }
        }
      });

      it('live traces show untracked packets, and name the rules that rewrite them', async () => {
        const world = worldOf(family);
        const to = world.clusterIP(20);
        for (const [host, from] of [
          [world.client, world.address(world.client)],
          [world.node, 'node'],
        ] as const) {
          for (const port of [20_000, 20_100]) {
            const live = await api.live({ from, to, port, protocol: 'udp', seconds: 1 });
            answered(await host.udp(to, port));
            const { paths, differences } = await summary(live);
            assert.deepEqual(differences, []);
            const { translatedTo, masqueradedAs, translatedBy } = only(paths);
            assert.match(translatedTo ?? '', new RegExp(`:${port}$`));
            assert.equal(masqueradedAs, null);
            assert.equal(translatedBy?.owner, 'portwide');
            assert.match(translatedBy?.purpose ?? '', /untracked UDP packets to the owner/);
            assert.match(translatedBy?.text ?? '', / daddr set .*@udp-owners-\d+ notrack accept$/);
          }
        }
        const vacant = await api.live({
          from: world.address(world.client),
          to,
          port: 20_250,
          protocol: 'udp',
          seconds: 1,
        });
        refused(await world.client.udp(to, 20_250));
        const { paths, differences } = await summary(vacant);
        assert.deepEqual([differences, only(paths).result], [[], 'rejected']);
      });

      it('rules of other programs see the owner from priority raw on, and are named', async () => {
        const world = worldOf(family);
        const [vip, port] = [world.clusterIP(20), 20_010];
        const [from, owner] = [world.address(world.client), world.address(world.pod(0))];
        const table = `${family === 4 ? 'ip' : 'ip6'} firewall`;
        for (const [priority, address, isDropped] of [
          [-150, owner, true],
          [-150, vip, false],
          [-310, owner, false],
          [-310, vip, true],
        ] as const) {
          const rule = `${table.split(' ')[0]} daddr ${address} udp dport ${port} drop`;
          const chain = `type filter hook prerouting priority ${priority};`;
          const input = `table ${table} { chain guard { ${chain} ${rule}; }; }`;
          await lab.node.exec('nft', ['-f', '-'], { input });
          const text = `priority ${priority}, to ${address}`;
          const { outcome } = await world.client.udp(vip, port, { timeoutMs: 400 });
          assert.equal(outcome, isDropped ? 'timeout' : 'answered', text);
          // The agent keeps rules of other programs for a second.
          await waitFor(`the trace evaluates the rule: ${text}`, async () => {
            const [computed] = await api.trace({ from, to: vip, port, protocol: 'udp' });
            const step = computed?.steps.find((each) => each.step === 'foreignRules');
            return isDropped
              ? step?.decision.includes('base chain guard') === true
              : step?.decision.startsWith('none of 1 base chains') === true;
          });
          await lab.node.exec('nft', ['delete', 'table', ...table.split(' ')]);
          await waitFor('the rule is gone', async () => {
            const [computed] = await api.trace({ from, to: vip, port, protocol: 'udp' });
            return JSON.stringify(computed).includes('none of 0 base chains');
          });
        }
      });

      it('an owner that sends from its port speaks as the VIP, computed and live', async () => {
        const world = worldOf(family);
        const [pod, to] = [world.pod(0), world.address(world.client)];
        const query = { from: world.address(pod), to, port: 9000, protocol: 'udp' };
        const [computed] = await api.trace(query);
        assert.deepEqual(computed?.speaksAs, [
          { vip: world.clusterIP(20), ports: ['20000-20099/UDP'] },
        ]);
        for (const [localPort, expected] of [
          [20_044, world.clusterIP(20)],
          [45_000, world.address(pod)],
        ] as const) {
          const args = ['trace', query.from, to, '--port=9000', '--proto=udp'];
          const { stdout } = await run(...args, `--source-port=${localPort}`);
          const becomes = family === 4 ? `${expected}:${localPort}` : `[${expected}]:${localPort}`;
          assert.equal(stdout.includes(`the source becomes ${becomes}, `), localPort === 20_044);
          const live = await api.live({ ...query, sourcePort: localPort, seconds: 1 });
          answered(await pod.udp(to, 9000, { localPort: localPort + 1 }));
          const reply = answered(await pod.udp(to, 9000, { localPort }));
          assert.equal(reply.remoteAddress, expected);
          const { paths, differences } = await summary(live);
          assert.deepEqual(differences, []);
          const { source, masqueradedAs, masqueradedBy } = only(paths);
          assert.ok(paths.length === 1 && source.endsWith(`:${localPort}`), source);
          const isOwned = localPort === 20_044;
          assert.equal(masqueradedAs, isOwned ? expected : null);
          assert.equal(masqueradedBy?.purpose?.includes('by the VIP') ?? false, isOwned);
        }
      });
    });
  }
});
