/** Packets while a CIDRGroup gains and loses networks that overlap its others. */
import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { createLab, type Lab, waitFor } from '../lab/lab.ts';
import { MODES, STOCK_KERNEL } from '../uml/kernels.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { adminPolicy, cidrGroup, namespaceManifest, podManifest } from './policy-manifests.ts';

const FLOOD = fileURLToPath(new URL('../policy/flood.ts', import.meta.url));
const PORT = 7000;
/** An emulated processor takes ten seconds for each. */
const CHANGES = STOCK_KERNEL === undefined ? 40 : 12;
/** Networks with the client, and the end of the network in the set as nft lists it. */
const NETWORKS = [
  { cidrs: ['192.168.77.100/32', 'fd00:77::100/128'], listed: '192.168.77.100' },
  { cidrs: ['192.168.77.0/24', 'fd00:77::/64'], listed: '192.168.77.0/24' },
] as const;

describe('a CIDRGroup with overlapping networks', () => {
  let lab: Lab;
  let agent: Agent;
  before(async () => {
    lab = await createLab({ pods: 1, remotePods: 0 });
    agent = new Agent(lab);
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });

  it('denies without a gap while a network replaces another', async () => {
    const [pod] = lab.pods;
    assert.ok(pod !== undefined);
    agent.write('pods', [namespaceManifest('default'), podManifest(pod)]);
    agent.write('policies', [
      adminPolicy('AdminNetworkPolicy', 'groups', {
        priority: 1,
        subject: { pods: { namespaceSelector: {}, podSelector: {} } },
        egress: [
          {
            action: 'Deny',
            to: [{ networks: [{ cidrGroups: { matchLabels: { name: 'bad' } } }] }],
          },
        ],
      }),
    ]);
    const change = async (index: number) => {
      const { cidrs, listed } = NETWORKS[index % 2] ?? NETWORKS[0];
      agent.write('groups', [cidrGroup('bad', [...cidrs])]);
      await waitFor(`the kernel has ${listed}`, async () => {
        const args = ['list', 'set', 'ip', 'portwide-policy', 'networks'];
        const { stdout } = await lab.node.exec('nft', args, { reject: false });
        const elements = /elements = \{([^}]*)\}/.exec(stdout)?.[1]?.split(',') ?? [];
        return elements.map((each) => each.trim().split(' . ')[1]).join() === listed;
      });
    };
    await agent.start([...AGENT_FLAGS, `--proxy-mode=${MODES[0]}`, '--network-policy']);
    await change(0);

    const table = `table inet arrivals`;
    const rule = `type filter hook input priority 0; udp dport ${PORT} counter name arrived;`;
    const input = `${table} { counter arrived { }; chain input { ${rule} }; }`;
    await lab.client.exec('nft', ['-f', '-'], { input });
    const { ipv4, ipv6 } = lab.client;
    const flood = pod.spawn(process.execPath, [FLOOD, String(PORT), ipv4, ipv6]);
    try {
      const denied = async () =>
        (
          await lab.node.exec('nft', [
            'list',
            'counter',
            'ip',
            'portwide-policy',
            'deny-admin-egress',
          ])
        ).stdout;
      await waitFor('packets are denied', async () => !/packets 0 /.test(await denied()));
      for (let index = 1; index <= CHANGES; index++) await change(index);
    } finally {
      flood.kill('SIGKILL');
      await flood.catch(() => undefined);
    }
    const { stdout } = await lab.client.exec('nft', [
      'list',
      'counter',
      'inet',
      'arrivals',
      'arrived',
    ]);
    assert.match(stdout, /packets 0 /);
  });
});
