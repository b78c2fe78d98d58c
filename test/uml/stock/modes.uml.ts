/**
 * An agent with network policy changes its mode while clients send TCP and UDP, in both families, to all ports and to a
 * listed port. Connections and associations of the kernel's SCTP continue.
 */
import assert from 'node:assert/strict';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { AGENT_FLAGS, Agent } from '../../e2e/agent.ts';
import { ALL_PORTS, serviceManifest, sliceManifest } from '../../e2e/manifests.ts';
import { networkPolicy, policyPods } from '../../e2e/policy-manifests.ts';
import { answered, droppedSilently } from '../../e2e/scenarios/scenario.ts';
import {
  createLab,
  type HeldConnection,
  type Host,
  type Lab,
  PREFIXES,
  waitFor,
} from '../../lab/lab.ts';

const PEER = new URL('./sctp-peer.ts', import.meta.url).pathname;
const FAMILIES = [4, 6] as const;
const PROTOCOLS = ['TCP', 'UDP', 'SCTP'] as const;
/** A port that no Service lists, and one that a Service lists. */
const ANY_PORT = 2905;
const LISTED_PORT = 36_412;
const TARGETS = [
  ['10.96.0.10', ANY_PORT],
  ['fd00:10:96::10', ANY_PORT],
  ['10.96.0.11', LISTED_PORT],
  ['fd00:10:96::11', LISTED_PORT],
] as const;
const [[ALL_VIP], [ALL_VIP6], [LISTED_VIP], [LISTED_VIP6]] = TARGETS;
const iptables = (variant: string) => ['--proxy-mode=iptables', `--iptables-variant=${variant}`];
const MODES = {
  nftables: ['--proxy-mode=nftables'],
  ipvs: ['--proxy-mode=ipvs', '--iptables-variant=nft'],
  'iptables-nft': iptables('nft'),
  'iptables-legacy': iptables('legacy'),
};
/** Between nftables, ipvs and iptables in both directions; each variant of iptables takes over once. */
const TAKEOVERS: readonly (keyof typeof MODES)[] = [
  ...(['nftables', 'ipvs', 'nftables'] as const),
  ...(['iptables-legacy', 'ipvs', 'iptables-nft', 'nftables'] as const),
];
/** Milliseconds: so long that a packet without answer is lost, also in an emulated processor. */
const PROBE = { timeoutMs: 20_000 };
/** Milliseconds in which a packet that is not denied would arrive. */
const DENIED = { timeoutMs: 4000 };
/** Milliseconds between probes, which would otherwise take the processors from the agent. */
const PAUSE_MS = 300;

describe('an agent that changes its mode', () => {
  let lab: Lab;
  let agent: Agent;
  let associations: (line: string) => Promise<string[]>;
  const held: HeldConnection[] = [];
  let lastPort = 10_000;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 1 });
    await lab.node.exec('modprobe', ['sctp']);
    const [server, denied] = lab.pods;
    const [remote] = lab.remotePods;
    assert.ok(server !== undefined && denied !== undefined && remote !== undefined);
    await Promise.all([server, remote].map(serve));
    associations = openAssociations();
    agent = new Agent(lab, { syncs: 2 });
    agent.write('policies', [...policyPods(lab), allowClient(server)]);
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });

  /** The lab's own SCTP servers would answer the same packets as the kernel. */
  async function serve(pod: Host): Promise<void> {
    for (const protocol of ['TCP', 'UDP'] as const) await pod.serve({ protocol, port: ANY_PORT });
    const args = ['serve', pod.name, String(ANY_PORT), pod.ipv4, pod.ipv6];
    await linesOf(pod.spawn('node', [PEER, ...args])).next();
  }

  /** A function that sends a line to a client and returns its answers, by association. */
  function openAssociations(): typeof associations {
    const child = lab.client.spawn('node', [PEER, 'ask'], { stdin: 'pipe' });
    const lines = linesOf(child);
    return async (line) => {
      child.stdin?.write(`${line}\n`);
      const { value } = await lines.next();
      if (value !== undefined) return value.split(',');
      return [`the client ended: ${await child.then(() => '', String)}`];
    };
  }

  /** The second pod may not reach the first. */
  const allowClient = ({ name }: Host) =>
    networkPolicy('client', {
      podSelector: { matchLabels: { pod: name } },
      ingress: [{ from: FAMILIES.map((family) => ({ ipBlock: { cidr: PREFIXES.lan[family] } })) }],
    });

  const objects = () => {
    const [server] = lab.pods;
    assert.ok(server !== undefined);
    const ports = PROTOCOLS.map((protocol) => ({ name: protocol.toLowerCase(), protocol }));
    return [
      serviceManifest('all', {
        annotations: ALL_PORTS,
        spec: { clusterIPs: [ALL_VIP, ALL_VIP6] },
      }),
      serviceManifest('listed', {
        spec: {
          clusterIPs: [LISTED_VIP, LISTED_VIP6],
          ports: ports.map((each) => ({ ...each, port: LISTED_PORT, targetPort: ANY_PORT })),
        },
      }),
      ...FAMILIES.flatMap((family) => [
        sliceManifest('all', family, [server, ...lab.remotePods]),
        sliceManifest('listed', family, [server], {
          ports: ports.map((each) => ({ ...each, port: ANY_PORT })),
        }),
      ]),
    ];
  };

  /** A source port that the client has not used: IPVS identifies answers by pod and client port only. */
  const unused = () => {
    lastPort += 1;
    return { ...PROBE, localPort: lastPort };
  };

  /** Sends packets to each target, by TCP and UDP in turn, while a change runs. Returns the packets without answer. */
  async function lostDuring(change: () => Promise<void>): Promise<string[]> {
    let isRunning = true;
    const lost: string[] = [];
    const clients = TARGETS.map(async ([vip, port]) => {
      for (let count = 0; isRunning || count < 2; count++) {
        const protocol = count % 2 === 0 ? 'tcp' : 'udp';
        const { outcome } = await lab.client[protocol](vip, port, unused());
        if (outcome !== 'answered') lost.push(`${protocol} ${vip} ${port}: ${outcome}`);
        await sleep(PAUSE_MS);
      }
    });
    try {
      await change();
    } finally {
      isRunning = false;
      await Promise.all(clients);
    }
    return lost;
  }

  for (const [index, mode] of TAKEOVERS.entries()) {
    const previous = TAKEOVERS[index - 1];
    const title =
      previous === undefined
        ? `packets reach pods that policies allow, in mode ${mode}`
        : `no packet is lost from mode ${previous} to ${mode}, and connections continue`;
    it(title, async () => {
      const [, denied] = lab.pods;
      assert.ok(denied !== undefined);
      const changeMode = async () => {
        await agent.stop();
        await agent.start([...AGENT_FLAGS, ...MODES[mode], '--network-policy']);
        await agent.apply(objects());
      };
      if (previous === undefined) {
        await changeMode();
        for (const [vip, port] of TARGETS.slice(2))
          await waitFor(`policies deny ${vip}`, async () => {
            const { outcome } = await denied.udp(vip, port, DENIED);
            return outcome === 'timeout';
          });
      } else assert.deepEqual(await lostDuring(changeMode), []);

      for (const [vip, port] of TARGETS) {
        const isListed = port === LISTED_PORT;
        for (const protocol of ['tcp', 'udp'] as const) {
          for (const from of [lab.client, lab.node]) {
            const reply = answered(await from[protocol](vip, port, unused()));
            assert.match(reply.host, isListed ? /^pod-1$/ : /^(pod|remote)-1$/);
            assert.equal(reply.localPort, ANY_PORT);
          }
        }
        if (isListed)
          for (const outcome of await Promise.all([
            denied.tcp(vip, port, DENIED),
            denied.udp(vip, port, DENIED),
          ]))
            droppedSilently(outcome);
        held.push(await lab.client.hold(vip, port, unused()));
        const address = vip.includes(':') ? lab.client.ipv6 : lab.client.ipv4;
        const [peer = ''] = await associations(`open ${address} ${vip} ${port}`);
        assert.match(peer, isListed ? /^pod-1$/ : /^(pod|remote)-1$/);
      }
      for (const connection of held)
        assert.equal(await connection.exchange('still', PROBE.timeoutMs), 'still');
      const peers = await associations('ask');
      assert.equal(peers.length, held.length);
      for (const peer of peers) assert.match(peer, /^(pod|remote)-1$/);
    });
  }
});

function linesOf(child: ReturnType<Host['spawn']>): AsyncIterator<string, undefined> {
  const { stdout } = child;
  assert.ok(stdout !== null && stdout !== undefined);
  return createInterface({ input: stdout })[Symbol.asyncIterator]();
}
