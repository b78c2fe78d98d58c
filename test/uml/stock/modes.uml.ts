/** Associations of the kernel's SCTP through all modes, and from mode to mode. */
import assert from 'node:assert/strict';
import { createInterface } from 'node:readline';
import { AGENT_FLAGS, Agent } from '../../e2e/agent.ts';
import { ALL_PORTS, serviceManifest, sliceManifest } from '../../e2e/manifests.ts';
import { createLab, type Host, type Lab } from '../../lab/lab.ts';

const PEER = new URL('./sctp-peer.ts', import.meta.url).pathname;
const FAMILIES = [4, 6] as const;
/** A port that no Service lists, and one that a Service lists. */
const ANY_PORT = 2905;
const LISTED = { port: 36_412, targetPort: ANY_PORT };
const VIPS = {
  all: { 4: '10.96.0.10', 6: 'fd00:10:96::10' },
  listed: { 4: '10.96.0.11', 6: 'fd00:10:96::11' },
};
const iptables = (variant: string) => ['--proxy-mode=iptables', `--iptables-variant=${variant}`];
const MODES = {
  nftables: ['--proxy-mode=nftables'],
  ipvs: ['--proxy-mode=ipvs', '--iptables-variant=nft'],
  'iptables-nft': iptables('nft'),
  'iptables-legacy': iptables('legacy'),
};

/** An association that stays open. */
interface Association {
  /** Sends a message. @returns the name of the pod that answered. */
  ask(): Promise<string>;
}

describe('SCTP associations', () => {
  let lab: Lab;
  let agent: Agent;
  const held: Association[] = [];

  before(async () => {
    lab = await createLab({ pods: 1, remotePods: 1 });
    await lab.node.exec('modprobe', ['sctp']);
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => serve(pod)));
    agent = new Agent(lab, { syncs: 2 });
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });

  const address = (host: Host, family: 4 | 6) => (family === 4 ? host.ipv4 : host.ipv6);

  async function serve(pod: Host): Promise<void> {
    for (const family of FAMILIES) {
      const args = ['serve', pod.name, address(pod, family), String(ANY_PORT)];
      await linesOf(pod.spawn('node', [PEER, ...args])).next();
    }
  }

  function associate(family: 4 | 6, vip: string, port: number): Association {
    const args = ['ask', address(lab.client, family), vip, String(port)];
    const child = lab.client.spawn('node', [PEER, ...args], { stdin: 'pipe' });
    const lines = linesOf(child);
    return {
      ask: async () => {
        child.stdin?.write('\n');
        const { value } = await lines.next();
        if (value !== undefined) return value;
        return child.then(
          () => 'the client ended',
          (error: unknown) => String(error),
        );
      },
    };
  }

  const objects = () => [
    serviceManifest('all', {
      annotations: ALL_PORTS,
      spec: { clusterIPs: Object.values(VIPS.all) },
    }),
    serviceManifest('listed', {
      spec: { clusterIPs: Object.values(VIPS.listed), ports: [{ ...LISTED, protocol: 'SCTP' }] },
    }),
    ...FAMILIES.flatMap((family) => [
      sliceManifest('all', family, [...lab.pods, ...lab.remotePods]),
      sliceManifest('listed', family, lab.pods, {
        ports: [{ name: '', port: ANY_PORT, protocol: 'SCTP' }],
      }),
    ]),
  ];

  for (const [mode, flags] of Object.entries(MODES)) {
    it(`reach pods in mode ${mode}, and the associations of earlier modes continue`, async () => {
      await agent.stop();
      await agent.start([...AGENT_FLAGS, ...flags]);
      await agent.apply(objects());
      const opened = FAMILIES.flatMap((family) => [
        associate(family, VIPS.all[family], ANY_PORT),
        associate(family, VIPS.listed[family], LISTED.port),
      ]);
      const answers = await Promise.all([...opened, ...held].map((each) => each.ask()));
      for (const [index, answer] of answers.entries())
        assert.match(answer, index % 2 === 0 ? /^(pod|remote)-1$/ : /^pod-1$/, String(index));
      held.push(...opened);
    });
  }
});

function linesOf(child: ReturnType<Host['spawn']>): AsyncIterator<string, undefined> {
  const { stdout } = child;
  assert.ok(stdout !== null && stdout !== undefined);
  return createInterface({ input: stdout })[Symbol.asyncIterator]();
}
