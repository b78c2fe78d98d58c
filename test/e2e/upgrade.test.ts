import assert from 'node:assert/strict';
import {
  createLab,
  type HeldConnection,
  type Host,
  type Lab,
  repeatUntil,
  waitFor,
} from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS, Agent, NO_STATUS } from './agent.ts';
import { type EarlierVersion, earlierRef, unpackVersion } from './earlier-version.ts';
import { ALL_PORTS, serviceManifest, sliceManifest } from './manifests.ts';

const FAMILIES = [4, 6] as const;
const ALL_VIPS = ['10.96.0.10', 'fd00:10:96::10'] as const;
const WEB_VIPS = ['10.96.0.11', 'fd00:10:96::11'] as const;
const FLAGS = [...AGENT_FLAGS, '--oom-score-adj=0', '--conntrack-max-per-core=0'];
/** Shorter than the first retransmission of a SYN (1 s), which would hide a lost packet. */
const BEFORE_RETRANSMIT_MS = 900;
/** Packets or connections that clients send to each agent, and while none runs. */
const ROUND = 300;
/** Below the ephemeral ports, which other clients take at random. */
const FLOW_PORT = 20_000;

const ref = earlierRef();
const from = ref ?? 'this version (the repository has no earlier one)';

describe(`upgrade and rollback: ${from} to this version and back`, () => {
  let lab: Lab;
  let earlier: EarlierVersion;

  before(async () => {
    [lab, earlier] = await Promise.all([createLab({ pods: 2, remotePods: 0 }), unpackVersion(ref)]);
    await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
  });
  after(async () => {
    await lab?.destroy();
    earlier?.remove();
  });

  const services = () => [
    serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: ALL_VIPS } }),
    serviceManifest('web', {
      spec: {
        clusterIPs: WEB_VIPS,
        ports: (['TCP', 'UDP'] as const).map((protocol) => ({
          name: protocol.toLowerCase(),
          protocol,
          port: 80,
          targetPort: 8080,
        })),
      },
    }),
    ...FAMILIES.flatMap((family) => [
      sliceManifest('all', family, lab.pods),
      sliceManifest('web', family, lab.pods, {
        ports: [
          { name: 'tcp', protocol: 'TCP', port: 8080 },
          { name: 'udp', protocol: 'UDP', port: 8080 },
        ],
      }),
    ]),
  ];

  /** Packets and connections since the start, and what went wrong. */
  class Traffic {
    readonly failures: string[] = [];
    /** What the agents do, for messages. */
    phase = '';
    #count = 0;
    #isRunning = true;
    #port = 5000;
    readonly #held: HeldConnection[] = [];
    readonly #clients: Promise<void>[] = [];

    async start(client: Host) {
      const nextPort = () => {
        this.#port = this.#port === 9999 ? 5000 : this.#port + 1;
        return this.#port;
      };
      const targets = [
        ...ALL_VIPS.map((vip) => [vip, nextPort] as const),
        ...WEB_VIPS.map((vip) => [vip, () => 80] as const),
      ];
      const timeoutMs = BEFORE_RETRANSMIT_MS;
      for (const [index, [vip, port]] of targets.entries()) {
        const flowPort = port();
        const flow = { timeoutMs, localPort: FLOW_PORT + index };
        const connection = await client.hold(vip, flowPort);
        this.#held.push(connection);
        this.#repeat(
          'TCP',
          vip,
          async () => (await client.tcp(vip, port(), { timeoutMs })).outcome,
        );
        this.#repeat(
          'UDP',
          vip,
          async () => (await client.udp(vip, port(), { timeoutMs })).outcome,
        );
        this.#repeat('UDP flow', vip, async () => (await client.udp(vip, flowPort, flow)).outcome);
        this.#repeat('TCP connection', vip, async () =>
          (await connection.exchange('x', timeoutMs)) === 'x' ? 'answered' : 'other answer',
        );
      }
    }

    #repeat(what: string, vip: string, send: () => Promise<string>) {
      const client = repeatUntil(
        () => !this.#isRunning,
        async () => {
          const outcome = await send().catch(String);
          this.#count += 1;
          if (outcome !== 'answered')
            this.failures.push(`${what} to ${vip}: ${outcome} ${this.phase}`);
        },
      );
      this.#clients.push(client);
    }

    /** Waits for so many more packets and connections. */
    async more(): Promise<void> {
      const goal = this.#count + ROUND;
      await waitFor('clients send more packets', () => this.#count >= goal, 30_000);
    }

    async stop() {
      this.#isRunning = false;
      await Promise.all(this.#clients);
      await Promise.all(this.#held.map((connection) => connection.close()));
    }
  }

  for (const mode of ['nftables', 'iptables'] as const) {
    it(`loses no packet of UDP and TCP in mode ${mode}, and each agent applies changes`, async function () {
      this.timeout(240_000);
      const agent = new Agent(lab);
      const flags = [...FLAGS, `--proxy-mode=${mode}`];

      /** Starts a version beside the rules of the last one; waits until it has applied a change. */
      const start = async (isEarlier: boolean) => {
        agent.program = isEarlier ? earlier.program : PORTWIDE;
        agent.firstFlags = isEarlier && !earlier.hasStatusApi ? [] : NO_STATUS;
        const { ended } = agent.launch(flags);
        const early = await Promise.race([agent.apply(services()), ended]);
        assert.equal(early, undefined, `the agent exited: ${early}`);
      };

      const traffic = new Traffic();
      try {
        await start(true);
        await traffic.start(lab.client);
        for (const isEarlier of [false, true]) {
          traffic.phase = 'before the agent stopped';
          await traffic.more();
          await agent.stop();
          traffic.phase = 'without an agent';
          await traffic.more();
          traffic.phase = `while the ${isEarlier ? 'earlier' : 'new'} version started`;
          await start(isEarlier);
        }
        traffic.phase = 'after the rollback';
        await traffic.more();
      } finally {
        await traffic.stop();
        await agent.destroy();
        await lab.node.exec('nft', ['flush', 'ruleset']);
        await lab.node.exec('conntrack', ['-F'], { reject: false });
      }
      assert.deepEqual(traffic.failures, []);
    });
  }
});
