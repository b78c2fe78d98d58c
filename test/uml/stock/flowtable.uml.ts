/** Packets with `--nftables-flowtable`, in a kernel that has flowtables. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { AGENT_FLAGS, Agent } from '../../e2e/agent.ts';
import { type Manifest, serviceManifest, sliceManifest } from '../../e2e/manifests.ts';
import { networkPolicy, policyPods } from '../../e2e/policy-manifests.ts';
import { answered, droppedSilently } from '../../e2e/scenarios/scenario.ts';
import { createLab, type HeldConnection, type Host, type Lab, waitFor } from '../../lab/lab.ts';
import { PORTWIDE } from '../../portwide.ts';

const FAMILIES = [4, 6] as const;
type Family = (typeof FAMILIES)[number];
const VIPS: Readonly<Record<Family, string>> = { 4: '10.96.0.10', 6: 'fd00:10:96::10' };
const PORT = 80;
const TARGET = 8080;
const DNS_PORT = 53;
const NODE_PORT = 30_080;
const FLAGS = [...AGENT_FLAGS, '--proxy-mode=nftables', '--network-policy'];
/** Milliseconds: so long that a packet without answer is lost, also in an emulated processor. */
const PROBE = { timeoutMs: 20_000 };
const LOST = { timeoutMs: 4000 };
/** Exchanges after which a connection has more than 20 packets. */
const MANY = 15;
const START_MS = 60_000;

describe('a flowtable', () => {
  let lab: Lab;
  let agent: Agent;
  let directory: string;
  let first: Host | undefined;
  let lastPort = 20_000;
  const pods = (...indexes: readonly number[]) => indexes.map((index) => lab.pods[index] as Host);
  const nft = async (...args: readonly string[]) => (await lab.node.exec('nft', args)).stdout;
  const ip = (text: string) => lab.node.exec('ip', text.split(' '));

  const socket = () => `--status-socket=${join(directory, 'portwide.sock')}`;
  const withFlowtable = () => [...FLAGS, '--nftables-flowtable', socket()];

  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-flowtable-'));
    lab = await createLab({ pods: 3, remotePods: 1 });
    [first] = lab.pods;
    for (const pod of [...lab.pods, ...lab.remotePods])
      for (const protocol of ['TCP', 'UDP'] as const) await pod.serve({ protocol, port: TARGET });
    agent = new Agent(lab);
    agent.write('policies', policyPods(lab));
    await agent.start(withFlowtable());
    await agent.apply(objects([0]));
    await waitFor(
      'both flowtables have the interfaces',
      async () =>
        (await devices()).every((names) =>
          ['eth0', 'pw1', 'pw2', 'pw3'].every((each) => names.includes(each)),
        ),
      START_MS,
    );
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  /** A Service with endpoints on these pods. */
  function objects(endpoints: readonly number[]): Manifest[] {
    const ports = [
      { name: 'tcp', protocol: 'TCP', port: PORT, targetPort: TARGET, nodePort: NODE_PORT },
      { name: 'udp', protocol: 'UDP', port: PORT, targetPort: TARGET },
      { name: 'dns', protocol: 'UDP', port: DNS_PORT, targetPort: TARGET },
    ];
    return [
      serviceManifest('web', {
        spec: { type: 'NodePort', clusterIPs: [VIPS[4], VIPS[6]], ports },
      }),
      ...FAMILIES.map((family) =>
        sliceManifest('web', family, pods(...endpoints), {
          ports: ports.map(({ name, protocol }) => ({ name, protocol, port: TARGET })),
        }),
      ),
    ];
  }

  /** The interfaces of the flowtable, in each family. */
  async function devices(): Promise<string[][]> {
    const found: string[][] = [];
    for (const family of ['ip', 'ip6']) {
      const text = await nft('list', 'flowtables', family);
      const [, names = ''] = /devices = \{([^}]*)\}/.exec(text) ?? [];
      found.push(names.split(',').map((name) => name.replaceAll('"', '').trim()));
    }
    return found;
  }

  /** The connection from this client port in conntrack; empty if there is none. */
  async function entry(family: Family, protocol: 'tcp' | 'udp', port: number): Promise<string> {
    const args = ['-L', '-f', `ipv${family}`, '-p', protocol, '--orig-port-src', String(port)];
    return (await lab.node.exec('conntrack', args)).stdout;
  }
  const isOffloaded = async (family: Family, protocol: 'tcp' | 'udp', port: number) =>
    (await entry(family, protocol, port)).includes('[OFFLOAD]');

  /** A source port that the client has not used. */
  const unused = () => {
    lastPort += 1;
    return { ...PROBE, localPort: lastPort };
  };

  /** Opens a TCP connection. */
  const open = (family: Family, from: Host = lab.client, address = VIPS[family], port = PORT) =>
    from.hold(address, port, unused());

  /** Sends so many packets that the connection is in the flowtable. */
  async function exchange(connection: HeldConnection, count = MANY): Promise<void> {
    for (let at = 0; at < count; at++)
      assert.equal(await connection.exchange(`text ${at}`, PROBE.timeoutMs), `text ${at}`);
  }

  /** Sends UDP packets from one port. Returns the port, and the pod that answered. */
  async function ask(family: Family, count = MANY, probe = unused(), port = PORT) {
    let host = '';
    for (let at = 0; at < count; at++)
      host = answered(await lab.client.udp(VIPS[family], port, probe)).host;
    return { host, probe };
  }

  /** Runs `step` while the node drops all packets that it forwards through the hooks. */
  async function withoutForwarding(step: () => Promise<void>): Promise<void> {
    await lab.node.exec('nft', ['-f', '-'], {
      input:
        'table inet other { chain forward { type filter hook forward priority -10; policy drop; }; }',
    });
    try {
      await step();
    } finally {
      await nft('delete', 'table', 'inet', 'other');
    }
  }

  for (const family of FAMILIES) {
    describe(`IPv${family}`, () => {
      it('has established TCP and UDP connections bypass the rules of all programs', async () => {
        const connection = await open(family);
        await exchange(connection, 3);
        assert.equal(await isOffloaded(family, 'tcp', connection.localPort), false);
        await exchange(connection);
        const { probe } = await ask(family);
        assert.equal(await isOffloaded(family, 'tcp', connection.localPort), true);
        assert.equal(await isOffloaded(family, 'udp', probe.localPort), true);
        await withoutForwarding(async () => {
          await exchange(connection);
          await ask(family, 3, probe);
          assert.equal((await lab.client.udp(VIPS[family], PORT, LOST)).outcome, 'timeout');
        });
      });

      it('counts the packets of connections in conntrack', async () => {
        const { probe } = await ask(family);
        const packets = async () => {
          const text = await entry(family, 'udp', probe.localPort);
          return Number(/packets=(\d+)/.exec(text)?.[1]);
        };
        const before = await packets();
        await ask(family, 3, probe);
        assert.equal((await packets()) - before, 3);
      });

      it('takes connections to a node port', async () => {
        const connection = await open(family, lab.client, lab.node[`ipv${family}`], NODE_PORT);
        await exchange(connection);
        assert.equal(await isOffloaded(family, 'tcp', connection.localPort), true);
      });

      it('leaves hairpins, DNS and connections of no Service to the rules', async () => {
        assert.ok(first !== undefined);
        for (const connection of [
          await open(family, first),
          await open(family, lab.client, first[`ipv${family}`], TARGET),
        ]) {
          await exchange(connection);
          assert.equal(await isOffloaded(family, 'tcp', connection.localPort), false);
        }
        const { probe } = await ask(family, MANY, unused(), DNS_PORT);
        assert.equal(await isOffloaded(family, 'udp', probe.localPort), false);
      });

      it('moves a UDP flow when its endpoint is removed, and keeps a TCP connection', async () => {
        const connection = await open(family);
        await exchange(connection);
        const { host, probe } = await ask(family);
        assert.equal(host, 'pod-1');
        await agent.apply(objects([1]));
        await waitFor(
          'the flow moves',
          async () => (await ask(family, 1, probe)).host === 'pod-2',
          START_MS,
        );
        await ask(family, MANY, probe);
        assert.equal(await isOffloaded(family, 'udp', probe.localPort), true);
        await exchange(connection);
        await agent.apply(objects([0]));
      });

      it('follows a route change', async () => {
        assert.ok(first !== undefined);
        const address = first[`ipv${family}`];
        const connection = await open(family);
        await exchange(connection);
        const { probe } = await ask(family);
        const blocked = `-${family} rule add to ${address} prohibit priority 10`;
        await ip(blocked);
        assert.notEqual(
          (await lab.client.udp(VIPS[family], PORT, { ...probe, ...LOST })).outcome,
          'answered',
        );
        await ip(blocked.replace('add', 'del'));
        await ask(family, MANY, probe);
        await exchange(connection);
        assert.equal(await isOffloaded(family, 'udp', probe.localPort), true);
      });

      it('keeps established connections when a policy denies new ones, as the rules do', async () => {
        assert.ok(first !== undefined);
        const connection = await open(family);
        await exchange(connection);
        agent.write('policies', [
          ...policyPods(lab),
          networkPolicy('none', {
            podSelector: { matchLabels: { pod: first.name } },
            policyTypes: ['Ingress'],
          }),
        ]);
        await waitFor(
          'the policy denies new connections',
          async () => (await lab.client.udp(VIPS[family], PORT, LOST)).outcome === 'timeout',
          START_MS,
        );
        droppedSilently(await lab.client.tcp(VIPS[family], PORT, LOST));
        await exchange(connection);
        agent.write('policies', policyPods(lab));
        await waitFor(
          'the policy is gone',
          async () => (await lab.client.udp(VIPS[family], PORT, LOST)).outcome === 'answered',
          START_MS,
        );
      });
    });
  }

  describe('and the node', () => {
    it('adds the interface of a new pod, and forgets a deleted one, without a sync', async () => {
      const syncs = agent.logged('synced').length;
      await ip('link add pwnew type veth peer name pwpeer');
      const has = async (name: string) => (await devices()).every((names) => names.includes(name));
      const sets = () => nft('list', 'set', 'ip', 'portwide', 'flowtable-devices');
      await waitFor('the flowtable has the interface', () => has('pwnew'), START_MS);
      assert.match(await sets(), /"pwnew"/);
      await ip('link add pwtunnel type vxlan id 7 dstport 4789');
      await ip('link del pwnew');
      await waitFor('the sets forget it', async () => !/"pwnew"/.test(await sets()), START_MS);
      assert.equal(await has('pwnew'), false);
      assert.doesNotMatch(await sets(), /"pwtunnel"/);
      await ip('link del pwtunnel');
      assert.equal(agent.logged('synced').length, syncs);
      assert.deepEqual(agent.logged('the kernel refuses an interface in the flowtable'), []);
      assert.deepEqual(agent.logged('cannot update the interfaces of the flowtable'), []);
    });

    it('is in the status with its interfaces, and has no difference', async () => {
      const text = async (command: string) =>
        (await lab.node.exec(PORTWIDE, [command, socket()])).stdout;
      assert.match(await text('status'), /--nftables-flowtable +yes +on: \d+ veth/);
      assert.match(await text('diff'), /^no differences/);
    });

    it('ends the bypass when the MTU of an interface is lowered', async () => {
      const handles = async () => {
        const text = await nft('-j', 'list', 'flowtables');
        return [...text.matchAll(/"flowtable": \{[^}]*"handle": (\d+)/g)].map(
          ([, handle]) => handle,
        );
      };
      const connections = [await open(4), await open(6)];
      for (const connection of connections) await exchange(connection);
      const before = await handles();
      assert.equal(before.length, 2);
      await ip('link set pw1 mtu 1400');
      await waitFor(
        'other flowtables have the interfaces',
        async () =>
          (await handles()).every((handle) => !before.includes(handle)) &&
          (await devices()).every((names) => names.includes('pw1')),
        START_MS,
      );
      for (const [index, connection] of connections.entries()) {
        await exchange(connection);
        assert.equal(await isOffloaded(index === 0 ? 4 : 6, 'tcp', connection.localPort), true);
      }
    });

    it('ends the bypass when an MTU was lowered while no agent ran', async () => {
      const [second] = pods(1);
      await agent.apply(objects([1]));
      const asked = [await ask(4), await ask(6)] as const;
      assert.deepEqual(
        asked.map(({ host }) => host),
        ['pod-2', 'pod-2'],
      );
      await agent.stop();
      await ip('link set pw2 mtu 1400');
      await second?.exec('ip', ['link', 'set', 'eth0', 'mtu', '1400']);
      let isStarted = false;
      const started = agent.start(withFlowtable()).finally(() => {
        isStarted = true;
      });
      // The kernel forgets flows that are idle for 30 s.
      while (!isStarted) {
        for (const [index, { probe }] of asked.entries()) await ask(FAMILIES[index] ?? 4, 1, probe);
      }
      await started;
      const payload = 'x'.repeat(1440);
      for (const [index, { probe }] of asked.entries()) {
        const vip = VIPS[FAMILIES[index] ?? 4];
        // The node drops the first one, and tells its MTU.
        await waitFor(
          `a datagram that is larger than the MTU reaches ${vip}`,
          async () =>
            (await lab.client.udp(vip, PORT, { ...probe, ...LOST, payload })).outcome ===
            'answered',
          START_MS,
        );
      }
      await agent.apply(objects([0]));
    });

    it('keeps the conntrack entry of a long UDP flow', async () => {
      const timeout = 'net.netfilter.nf_conntrack_udp_timeout_stream';
      await lab.node.exec('sysctl', ['-qw', `${timeout}=5`]);
      const { probe } = await ask(4);
      const id = async () =>
        /id=(\d+)/.exec(
          (
            await lab.node.exec('conntrack', [
              '-L',
              '-o',
              'id',
              '-p',
              'udp',
              '--orig-port-src',
              String(probe.localPort),
            ])
          ).stdout,
        )?.[1];
      const before = await id();
      const end = Date.now() + 15_000;
      while (Date.now() < end) await ask(4, 1, probe);
      assert.equal(await id(), before);
      await lab.node.exec('sysctl', ['-qw', `${timeout}=120`]);
    });

    it('comes back with its interfaces after another program deletes the table', async () => {
      await nft('delete', 'table', 'ip', 'portwide');
      await waitFor(
        'the flowtable has interfaces',
        async () => (await devices()).every((names) => names.includes('pw1')),
        START_MS,
      );
      const connection = await open(4);
      await exchange(connection);
      assert.equal(await isOffloaded(4, 'tcp', connection.localPort), true);
    });

    it('drops the flows of a deleted pod, whose clients reach another', async () => {
      await agent.apply(objects([2]));
      const { host, probe } = await ask(4);
      assert.equal(host, 'pod-3');
      assert.equal(await isOffloaded(4, 'udp', probe.localPort), true);
      await ip('link del pw3');
      await waitFor(
        'the flow has left the flowtable',
        async () => !(await isOffloaded(4, 'udp', probe.localPort)),
        START_MS,
      );
      await agent.apply(objects([0]));
      await waitFor(
        'the flow moves',
        async () => {
          const outcome = await lab.client.udp(VIPS[4], PORT, { ...probe, ...LOST });
          return outcome.outcome === 'answered' && outcome.reply.host === 'pod-1';
        },
        START_MS,
      );
    });

    it('goes without the flag, and connections continue', async () => {
      const connections = [await open(4), await open(6)];
      for (const connection of connections) await exchange(connection);
      await agent.stop();
      for (const connection of connections) await exchange(connection);
      await agent.start(FLAGS);
      await agent.apply(objects([0]));
      assert.doesNotMatch(await nft('list', 'flowtables'), /services/);
      const table = await nft('list', 'table', 'ip', 'portwide');
      assert.doesNotMatch(table, /flow/);
      for (const [index, connection] of connections.entries()) {
        assert.equal(await isOffloaded(index === 0 ? 4 : 6, 'tcp', connection.localPort), false);
        await exchange(connection);
      }
    });
  });
});
