import assert from 'node:assert/strict';
import { createLab, type Host, type Lab, repeatUntil, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { type EndpointFields, type Manifest, withPods } from './manifests.ts';
import { answered, refused, World } from './scenarios/scenario.ts';

const OWNED = {
  'portwide.dev/owned-ports': '20000-20999/UDP',
  'portwide.dev/ports-per-pod': '100',
};
/** Slices that one exact lookup finds, see nftables/exact-slice-chains.ts. */
const EXACT = {
  'portwide.dev/owned-ports': '19968-20991/UDP',
  'portwide.dev/ports-per-pod': '128',
};
const owner = (host: Host, ordinal: number, fields: EndpointFields = {}) =>
  [host, { targetRef: { kind: 'Pod', name: `media-${ordinal}` }, ...fields }] as const;

describe('owned ports: other rules, restarts, and pods in two Services', () => {
  let lab: Lab;
  let agent: Agent;
  const flags = [...AGENT_FLAGS, '--proxy-mode=nftables'];

  before(async () => {
    lab = await createLab({ pods: 3, remotePods: 1 });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    await lab.client.serve({ protocol: 'UDP', port: 9000 });
    agent = new Agent(lab, { syncs: 2 });
    await agent.start(flags);
  });

  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });

  const apply = (objects: readonly Manifest[]) => agent.apply(withPods(objects));

  for (const family of [4, 6] as const) {
    describe(`IPv${family}`, () => {
      let world: World;
      /** A Service with owned ports and pods 0 and 1. */
      const media = (
        name: string,
        {
          vip = 20,
          created = '2026-01-01T00:00:00Z',
          annotations = OWNED,
          shared = {},
        }: {
          vip?: number;
          created?: string;
          annotations?: Record<string, string>;
          shared?: { ingress?: readonly { ip: string }[]; type?: string };
        } = {},
      ): Manifest[] => [
        world.service(name, {
          annotations,
          created,
          ...(shared.ingress && { ingress: shared.ingress }),
          spec: {
            clusterIPs: [world.clusterIP(vip)],
            ...(shared.type !== undefined && { type: shared.type }),
          },
        }),
        world.slice(name, [owner(world.pod(0), 0), owner(world.pod(1), 1)]),
      ];

      beforeEach(() => {
        world = new World(lab, agent, family);
      });

      /** The source that the client sees when pod 0 speaks from a port. */
      const speakerAt = async (localPort: number) => {
        const to = world.address(world.client);
        const reply = answered(await world.pod(0).udp(to, 9000, { localPort }));
        return [reply.remoteAddress, reply.remotePort];
      };

      const WIDER = { ...OWNED, 'portwide.dev/owned-ports': '20050-21999/UDP' };
      for (const [title, first, second, onlySecond] of [
        ['ranges', OWNED, WIDER, 20120],
        ['exact, then ranges', EXACT, WIDER, 20120],
        ['ranges, then exact', OWNED, EXACT, 19980],
      ] as const)
        it(`a pod that owns a port of two Services speaks for the older, until it is gone (${title})`, async () => {
          const younger = { vip: 21, created: '2026-01-02T00:00:00Z', annotations: second };
          await apply([...media('a', { annotations: first }), ...media('b', younger)]);
          assert.deepEqual(await speakerAt(20060), [world.clusterIP(20), 20060]);
          assert.deepEqual(await speakerAt(onlySecond), [world.clusterIP(21), onlySecond]);
          assert.equal(answered(await world.client.udp(world.clusterIP(20), 20060)).host, 'pod-1');
          await apply(media('b', younger));
          assert.deepEqual(await speakerAt(20060), [world.clusterIP(21), 20060]);
          assert.equal(answered(await world.client.udp(world.clusterIP(21), 20060)).host, 'pod-1');
        });

      const LANES = 4;
      /**
       * Sends packets to an owned port while `change` runs. At each change the last answers of who served the port before
       * may leave unchanged, one of each lane. @returns the hosts that answered, and counts of losses.
       */
      const underTraffic = async (change: () => Promise<void>, vip = world.clusterIP(20)) => {
        let isOver = false;
        const hosts = new Set<string>();
        const lost = { refused: 0, timeout: 0, errors: 0 };
        const traffic = repeatUntil(
          () => isOver,
          async () => {
            const options = { protocol: 'UDP', concurrency: LANES, timeoutMs: 1000 } as const;
            const tally = await world.client.burst(vip, 20060, 100, options);
            for (const host of Object.keys(tally.answered)) hosts.add(host);
            lost.refused += tally.refused;
            lost.timeout += tally.timeout;
            lost.errors += Object.keys(tally.errors).length;
          },
        );
        try {
          await change();
        } finally {
          isOver = true;
          await traffic;
        }
        return { hosts: [...hosts].sort(), ...lost };
      };

      it('turns from spread to owned and back under traffic, without a rejected packet', async () => {
        const spread = { 'portwide.dev/ports': '20000-20999/UDP' };
        await apply(media('a', { annotations: spread }));
        const TURNS = 6;
        const { hosts, timeout, ...lost } = await underTraffic(async () => {
          for (let turn = 0; turn < TURNS; turn++)
            await apply(media('a', { annotations: turn % 2 === 0 ? OWNED : spread }));
        });
        assert.deepEqual(lost, { refused: 0, errors: 0 });
        assert.ok(timeout <= (TURNS / 2) * LANES, `${timeout} lost`);
        for (const host of hosts) assert.match(host, /^pod-[12]$/);
      });

      it('slices get another size under traffic, without a rejected packet', async () => {
        await apply(media('a'));
        const TURNS = 6;
        const { timeout, ...seen } = await underTraffic(async () => {
          for (let turn = 0; turn < TURNS; turn++)
            await apply(media('a', { annotations: turn % 2 === 0 ? EXACT : OWNED }));
        });
        assert.deepEqual(seen, { hosts: ['pod-1'], refused: 0, errors: 0 });
        assert.ok(timeout <= TURNS * LANES, `${timeout} lost`);
      });

      it('owners of slices of different sizes reach each other, and no vacant slice', async () => {
        const exact = {
          'portwide.dev/owned-ports': '20480-21503/UDP',
          'portwide.dev/ports-per-pod': '128',
        };
        const [a, b] = [world.clusterIP(20), world.clusterIP(21)];
        await apply([
          ...media('a'),
          world.service('b', { annotations: exact, spec: { clusterIPs: [b] } }),
          world.slice('b', [owner(world.pod(2), 0)]),
        ]);
        for (const [from, localPort, vip, to, port, host, vacant] of [
          [world.pod(0), 20005, a, b, 20485, 'pod-3', 20608],
          [world.pod(2), 20486, b, a, 20106, 'pod-2', 20200],
        ] as const) {
          const reply = answered(await from.udp(to, port, { localPort }));
          assert.deepEqual(
            [reply.host, reply.remoteAddress, reply.remotePort],
            [host, vip, localPort],
          );
          refused(await from.udp(to, vacant, { localPort }));
        }
      });

      it('a successor that owned nothing takes over without a rejected packet', async () => {
        const [first, second] = [world.pod(0), world.pod(2)];
        const ending = { conditions: { ready: false, serving: true, terminating: true } };
        const states = [
          [owner(first, 0)],
          [owner(first, 0, ending), owner(second, 0)],
          [owner(second, 0)],
          [owner(second, 0, ending), owner(first, 0)],
        ];
        const [service = {}] = media('a');
        await apply([service, world.slice('a', states[0] ?? [])]);
        const TURNS = 12;
        const { timeout, ...seen } = await underTraffic(async () => {
          for (let turn = 1; turn <= TURNS; turn++)
            await apply([service, world.slice('a', states[turn % 4] ?? [])]);
        });
        assert.deepEqual(seen, { hosts: ['pod-1', 'pod-3'], refused: 0, errors: 0 });
        assert.ok(timeout <= (TURNS / 2) * LANES, `${timeout} lost`);
      });

      it('an exact port of another Service comes and goes under traffic, without a rejected packet', async () => {
        const shared = { ingress: [{ ip: world.vip(5) }], type: 'LoadBalancer' };
        const dns = world.service('dns', {
          ingress: shared.ingress,
          spec: {
            type: shared.type,
            clusterIPs: [world.clusterIP(21)],
            ports: [{ name: 'dns', port: 20060, protocol: 'UDP', targetPort: 53 }],
          },
        });
        const ports = [{ name: 'dns', port: 53, protocol: 'UDP' }] as const;
        const exact = [dns, world.slice('dns', [world.pod(2)], { ports })];
        await apply(media('a', { shared }));
        const TURNS = 8;
        const { timeout, ...seen } = await underTraffic(async () => {
          for (let turn = 0; turn < TURNS; turn++) {
            const isThere = turn % 2 === 0;
            await apply([...media('a', { shared }), ...(isThere ? exact : [])]);
            // The Service with owned ports may be written after the other one.
            await waitFor('the port has changed hands', async () => {
              const reply = answered(await world.client.udp(world.vip(5), 20060));
              return reply.host === (isThere ? 'pod-3' : 'pod-1');
            });
          }
        }, world.vip(5));
        assert.deepEqual(seen, { hosts: ['pod-1', 'pod-3'], refused: 0, errors: 0 });
        assert.ok(timeout <= TURNS * LANES, `${timeout} lost`);
      });

      it('masquerade rules of a CNI plug-in and strict reverse path filters change nothing', async () => {
        const ip = world.pick('ip', 'ip6');
        const pods = world.pick('10.244.0.0/16', 'fd00:10:244::/48');
        await lab.node.exec('nft', ['-f', '-'], {
          input: `table ${ip} cni { chain post { type nat hook postrouting priority 90;
            ${ip} saddr ${pods} ${ip} daddr != ${pods} masquerade; }; }`,
        });
        const rpFilters = ['all', 'default', 'eth0'].map(
          (name) => `net.ipv4.conf.${name}.rp_filter=1`,
        );
        await lab.node.exec('sysctl', ['-qw', ...rpFilters]);
        try {
          await apply(media('a'));
          assert.deepEqual(await speakerAt(20070), [world.clusterIP(20), 20070]);
          const reply = answered(await world.client.udp(world.clusterIP(20), 20170));
          assert.deepEqual(
            [reply.host, reply.remoteAddress],
            ['pod-2', world.address(world.client)],
          );
        } finally {
          await lab.node.exec('nft', ['delete', 'table', ip, 'cni']);
          await lab.node.exec('sysctl', [
            '-qw',
            ...rpFilters.map((text) => text.replace('=1', '=0')),
          ]);
        }
      });

      for (const [size, annotations] of [
        [100, OWNED],
        [128, EXACT],
      ] as const) {
        it(`slices of ${size} ports: a killed agent leaves the rules, and its successor writes none of them again`, async () => {
          await apply(media('a', { annotations }));
          // The last sync may still have to delete what `apply` added and removed.
          for (const ip of ['ip', 'ip6']) {
            await waitFor(`family ${ip} has one listed cluster IP`, async () => {
              const args = ['-j', 'list', 'set', ip, 'portwide', 'cluster-ips'];
              const { stdout } = await lab.node.exec('nft', args);
              const { nftables } = JSON.parse(stdout) as {
                nftables: { set?: { elem?: unknown[] } }[];
              };
              return nftables.find(({ set }) => set)?.set?.elem?.length === 1;
            });
          }
          await agent.kill();
          assert.equal(answered(await world.client.udp(world.clusterIP(20), 20000)).host, 'pod-1');
          await agent.start(flags);
          assert.equal(answered(await world.client.udp(world.clusterIP(20), 20100)).host, 'pod-2');
          const written = agent.logged('synced').map(({ written: count }) => count);
          assert.ok(written.length >= 2 && written.every((count) => count === 0), written.join());
        });

        it(`slices of ${size} ports: an agent takes over the maps of an earlier version, and no packet is lost`, async () => {
          await apply(media('a', { annotations }));
          await agent.kill();
          const rendering = flags.filter((flag) => !/^-v|sync-period/.test(flag));
          const args = [
            'render',
            ...rendering,
            `--manifests=${agent.directory}`,
            `--ip-family=${world.pick('IPv4', 'IPv6')}`,
          ];
          const { stdout } = await lab.node.exec(PORTWIDE, args);
          const input = stdout
            .replaceAll('udp-owner-', 'slice-')
            .replaceAll('udp-owners-', 'slice-owners-')
            .replaceAll('tracked-owners-', 'tracked-slice-owners-')
            .replaceAll('remote-owners-', 'remote-slice-owners-')
            .replaceAll('udp-vip-ports', 'owned-vip-ports')
            .replaceAll('vip-ranges-', 'ranges-of-vips-');
          assert.doesNotMatch(input, /udp-/);
          await lab.node.exec('nft', ['-f', '-'], { input: `${input}\n` });
          assert.equal(answered(await world.client.udp(world.clusterIP(20), 20060)).host, 'pod-1');
          const seen = await underTraffic(() => agent.start(flags));
          assert.deepEqual(seen, { hosts: ['pod-1'], refused: 0, timeout: 0, errors: 0 });
          assert.deepEqual(
            agent.logged('replacing an nftables table of an incompatible version'),
            [],
          );
        });
      }

      it('rules that another program deletes come back', async () => {
        await apply(media('a'));
        const ip = world.pick('ip', 'ip6');
        await lab.node.exec('nft', ['flush', 'set', ip, 'portwide', 'owned-addresses']);
        await waitFor('the owner answers again', async () => {
          const outcome = await world.client.udp(world.clusterIP(20), 20000, { timeoutMs: 300 });
          return outcome.outcome === 'answered';
        });
      });

      for (const [size, annotations, name] of [
        [100, OWNED, /udp-owner-vips-\d+/],
        [128, EXACT, /udp-owner-vips-of-128/],
      ] as const)
        it(`an agent replaces a map of slices of ${size} ports of another version`, async () => {
          await apply(media('a', { annotations }));
          await agent.kill();
          const ip = world.pick('ip', 'ip6');
          const { stdout } = await lab.node.exec('nft', ['list', 'maps', ip]);
          const [map = ''] = name.exec(stdout) ?? [];
          const other = `map ${map} { type inet_service : inet_service; }`;
          const script = `delete table ${ip} portwide\ntable ${ip} portwide {\n${other}\n}\n`;
          await lab.node.exec('nft', ['-f', '-'], { input: script });
          await agent.start(flags);
          assert.equal(answered(await world.client.udp(world.clusterIP(20), 20000)).host, 'pod-1');
          const [replaced] = agent.logged('replacing an nftables table of an incompatible version');
          assert.match(String(replaced?.reason), /^set udp-owner-vips-.*: EEXIST$/);
        });

      it('an agent replaces a table of another version, and packets reach the same pod', async () => {
        await apply(media('a'));
        await agent.kill();
        const set = `set ${world.pick('ip', 'ip6')} portwide allowed-ranges`;
        // No rule looks up this set yet.
        await lab.node.exec('nft', [`delete ${set}; add ${set} { type mark; }`]);
        assert.equal(answered(await world.client.udp(world.clusterIP(20), 20060)).host, 'pod-1');
        const seen = await underTraffic(() => agent.start(flags));
        // Packets that arrive during the transaction may be lost: its hooks change one after the other.
        assert.deepEqual([seen.hosts, seen.errors], [['pod-1'], 0]);
        const [replaced] = agent.logged('replacing an nftables table of an incompatible version');
        assert.ok(replaced !== undefined);
      });

      it('the chains and maps are gone after the next full sync without owned ports', async () => {
        await apply(media('a'));
        await apply([]);
        await agent.kill();
        await agent.start(flags);
        const ip = world.pick('ip', 'ip6');
        const { stdout } = await lab.node.exec('nft', ['list', 'table', ip, 'portwide']);
        assert.doesNotMatch(stdout, /owned-|owners-|udp-/);
      });
    });
  }
});
