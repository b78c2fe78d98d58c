/** An endpoint owns ports only if a pod of the Service's namespace has its address: tenants cannot take addresses of others. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { AGENT_FLAGS, Agent } from '../e2e/agent.ts';
import { ALL_PORTS, addressedPod, type Manifest, sliceManifest } from '../e2e/manifests.ts';
import { answered, World } from '../e2e/scenarios/scenario.ts';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { AdmittedFeed } from './admitted-feed.ts';

const ALL_UDP = {
  'portwide.dev/owned-ports': '1-65535/UDP',
  'portwide.dev/ports-per-pod': '65535',
};
const OWNED = {
  'portwide.dev/owned-ports': '20000-20999/UDP',
  'portwide.dev/ports-per-pod': '100',
};
const EVIL = 'evil/x';
const NO_POD =
  'endpoints own no ports, because no Pod of their namespace has their address in status.podIPs; select pods of the namespace, and with --manifests add their Pods';

for (const [title, extra] of [
  ['owned ports of a hostile tenant', []],
  ['owned ports of a hostile tenant, with network policy', ['--network-policy']],
] as const)
  describe(title, function () {
    // The waits below add up on a busy machine.
    this.timeout(240_000);
    let lab: Lab;
    let feed: AdmittedFeed;
    let agent: Agent;
    let directory: string;
    let socket: string;

    before(async () => {
      directory = mkdtempSync(join(tmpdir(), 'portwide-tenants-'));
      socket = join(directory, 'agent.sock');
      lab = await createLab({ pods: 3, remotePods: 0 });
      await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
      await lab.client.serve({ protocol: 'UDP', port: 9000 });
      feed = await AdmittedFeed.start(lab);
      agent = new Agent(lab, { feed, syncs: 2 });
      await agent.start([
        ...AGENT_FLAGS,
        '--proxy-mode=nftables',
        `--status-socket=${socket}`,
        ...extra,
      ]);
    });
    after(async () => {
      await agent?.destroy();
      await lab?.destroy();
      rmSync(directory, { recursive: true, force: true });
    });

    const portwide = async (...args: readonly string[]) =>
      (await lab.node.exec(PORTWIDE, [...args, '--status-socket', socket], { reject: false }))
        .stdout;

    for (const family of [4, 6] as const) {
      describe(`IPv${family}`, () => {
        let world: World;
        /** DNS, the VIP of another tenant, and an owner. */
        const others = (): Manifest[] => [
          world.service('dns', {
            namespace: 'kube-system',
            spec: {
              clusterIPs: [world.clusterIP(10)],
              ports: [{ name: 'dns', port: 53, protocol: 'UDP' }],
            },
          }),
          world.slice('dns', [world.pod(0)], {
            namespace: 'kube-system',
            ports: [{ name: 'dns', port: 53, protocol: 'UDP' }],
          }),
          world.service('shop', {
            annotations: ALL_PORTS,
            spec: { clusterIPs: [world.clusterIP(11)] },
          }),
          world.slice('shop', [world.pod(0)]),
          addressedPod('dns', [world.address(world.pod(0))], { namespace: 'kube-system' }),
          world.service('media', {
            annotations: OWNED,
            spec: { clusterIPs: [world.clusterIP(20)] },
          }),
          world.slice('media', [[world.pod(1), { hostname: 'media-0' }]]),
          addressedPod('media-0', [world.address(world.pod(1))]),
        ];
        const evil = (address: string, pods: readonly Manifest[] = []): Manifest[] => [
          world.service('x', {
            namespace: 'evil',
            annotations: ALL_UDP,
            spec: { clusterIPs: [world.clusterIP(66)] },
          }),
          sliceManifest(
            'x',
            family,
            [[{ name: 'x', ipv4: address, ipv6: address }, { hostname: 'x-0' }]],
            { namespace: 'evil' },
          ),
          addressedPod('own', [world.pick('10.244.9.9', 'fd00:10:244:9::9')], {
            namespace: 'evil',
          }),
          ...pods,
        ];
        const udp = async (from: Host, address: string, port: number) =>
          answered(await from.udp(address, port)).host;

        beforeEach(() => {
          world = new World(lab, agent, family);
        });

        for (const [what, target] of [
          ['the cluster IP of the DNS server', () => [world.clusterIP(10), 53, 'pod-1'] as const],
          ['a pod of another namespace', () => [world.address(world.pod(0)), 53, 'pod-1'] as const],
          ['a host outside', () => [world.address(world.client), 9000, 'client'] as const],
          ['the VIP of another tenant', () => [world.clusterIP(11), 5060, 'pod-1'] as const],
        ] as const) {
          it(`UDP to ${what} goes on, although an EndpointSlice names the address`, async () => {
            const [address, port, host] = target();
            await agent.apply([...others(), ...evil(address)]);
            const [vip, owned] = [world.clusterIP(20), 20_000];
            await waitFor('the rightful owner answers', async () => {
              const { outcome } = await world.pod(2).udp(vip, owned, { timeoutMs: 200 });
              return outcome === 'answered';
            });
            assert.equal(await udp(world.pod(2), vip, owned), 'pod-2');
            assert.equal(await udp(world.pod(2), address, port), host);
            assert.equal(await udp(world.node, address, port), host);
            const owners = [world.pick('ip', 'ip6'), 'portwide', 'owned-addresses'];
            const { stdout } = await lab.node.exec('nft', ['list', 'set', ...owners]);
            assert.match(stdout, new RegExp(`${world.address(world.pod(1))}\\b`));
            assert.doesNotMatch(stdout, new RegExp(`${address}\\b`));
          });
        }

        it('log, Event, describe, trace and endpoints name the reason', async () => {
          await agent.apply([...others(), ...evil(world.address(world.pod(0)))]);
          const warnings = () =>
            agent
              .logged('Service is served with a warning')
              .filter(({ service }) => service === EVIL)
              .map(({ message }) => message);
          await waitFor('the warning is logged', () => warnings().includes(NO_POD), 60_000);
          await waitFor(
            'an Event',
            async () => {
              const events = await feed.double.call('events');
              return events.some(({ note, regarding }) => {
                const { namespace, name } = regarding as { namespace: string; name: string };
                return `${namespace}/${name}` === EVIL && note === NO_POD;
              });
            },
            60_000,
          );
          const reason = 'has no pod in its namespace';
          const address = world.address(world.pod(0));
          const described = await portwide('describe', 'service', EVIL);
          assert.ok(described.includes(NO_POD), described);
          assert.match(described, new RegExp(`${address} +0 +${reason}`));
          assert.match(
            await portwide('get', 'endpoints', EVIL, '-o', 'wide'),
            new RegExp(`${address} .*no +${reason}`),
          );
          assert.match(
            await portwide(
              'trace',
              ...[world.address(world.pod(2)), world.clusterIP(66)],
              ...['--port', '5060', '--proto', 'udp'],
            ),
            new RegExp(`endpoint ${address} with ordinal 0 ${reason}`),
          );
        });

        it('an endpoint gets its ports as soon as a pod of its namespace has the address', async () => {
          const address = world.address(world.pod(2));
          const pod = (namespace: string, fields = {}) => [
            addressedPod('x-0', [address], { namespace, ...fields }),
          ];
          const reaches = (pods: readonly Manifest[], isReached: boolean) =>
            agent.apply([...others(), ...evil(address, pods)]).then(() =>
              waitFor(`the endpoint ${isReached ? 'owns' : 'owns no'} ports`, async () => {
                const { outcome } = await world.client.udp(world.clusterIP(66), 5060, {
                  timeoutMs: 200,
                });
                return outcome === (isReached ? 'answered' : 'refused');
              }),
            );
          await reaches(pod('default'), false);
          await reaches(pod('evil', { hostNetwork: true }), false);
          assert.match(await portwide('get', 'endpoints', EVIL), /is on the host network/);
          await reaches(pod('evil', { phase: 'Failed' }), false);
          await reaches(pod('evil'), true);
          await reaches([], false);
        });
      });
    }
  });
