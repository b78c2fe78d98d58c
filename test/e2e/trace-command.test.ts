import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { LiveTraceLine } from '../../status/api/trace.ts';
import { createLab, type Host, type Lab, type Outcome, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { MODES, STOCK_KERNEL } from '../uml/kernels.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { type Manifest, serviceManifest, sliceManifest } from './manifests.ts';
import { networkPolicy, policyPods } from './policy-manifests.ts';

/** Of a live trace: long enough for the connections, which take longer in an emulated kernel. */
const SECONDS = STOCK_KERNEL === undefined ? 2 : 20;
const TABLE = 'portwide-trace';
const VIP = '10.96.0.60';
const VIP6 = 'fd00:10:96::6:60';
const CLOSED_VIP = '10.96.0.61';
const RANGE_VIP = '10.96.0.62';
const LB_VIP = '203.0.113.7';
const NODE_PORT = 30_080;
const PORTS = [{ name: 'http', port: 8080, protocol: 'TCP' }];
const HTTP = [{ name: 'http', port: 80 }];

interface Result {
  readonly exitCode: number | undefined;
  readonly stdout: string;
  readonly stderr: string;
}

/** An agent in a lab, and `portwide trace` there. */
class TraceLab {
  readonly lab: Lab;
  readonly agent: Agent;
  readonly #directory = mkdtempSync(join(tmpdir(), 'portwide-trace-'));

  constructor(lab: Lab) {
    this.lab = lab;
    this.agent = new Agent(lab, { syncs: 2 });
  }

  get #socket(): string {
    return `--status-socket=${join(this.#directory, 'agent.sock')}`;
  }

  async start(flags: readonly string[], objects: readonly Manifest[]): Promise<void> {
    const { lab, agent } = this;
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    const others = flags.filter((flag) => !flag.startsWith('--status-socket'));
    await agent.start([...others, this.#socket]);
    await agent.apply(objects);
  }

  async destroy(): Promise<void> {
    await this.agent.destroy();
    await this.lab.destroy();
    rmSync(this.#directory, { recursive: true, force: true });
  }

  async trace(...args: readonly string[]): Promise<Result> {
    return await this.lab.node.exec(PORTWIDE, ['trace', this.#socket, ...args], { reject: false });
  }

  /** Traces while `connect` runs. */
  async live(args: readonly string[], connect: () => Promise<unknown>): Promise<Result> {
    const traced = this.trace(...args, '--live', `--seconds=${SECONDS}`);
    const tables = () => this.lab.node.exec('nft', ['list', 'tables']);
    await waitFor('the trace is armed', async () => (await tables()).stdout.includes(TABLE));
    await connect();
    return await traced;
  }

  async liveLines(args: readonly string[], connect: () => Promise<unknown>) {
    const result = await this.live([...args, '-o', 'json'], connect);
    const { live } = JSON.parse(result.stdout) as { live: LiveTraceLine[] };
    const summary = live.find((line) => line.event === 'summary');
    const armed = live.find((line) => line.event === 'armed');
    assert.ok(summary && armed, result.stdout);
    return { ...result, summary, armed };
  }
}

const sourcesOf = (paths: readonly { readonly source: string }[]) =>
  new Set(paths.map(({ source }) => source.slice(0, source.lastIndexOf(':'))));

function answered(outcome: Outcome): void {
  assert.equal(outcome.outcome, 'answered');
}

for (const mode of MODES) {
  describe(`portwide trace, mode ${mode}`, () => {
    let traces: TraceLab;
    let lab: Lab;
    let pod: Host;

    const flags = [...AGENT_FLAGS, `--proxy-mode=${mode}`, '--network-policy'];
    const objects = (): Manifest[] => [
      serviceManifest('web', {
        spec: {
          type: 'NodePort',
          clusterIPs: [VIP, VIP6],
          ports: [{ name: 'http', port: 80, nodePort: NODE_PORT }],
        },
      }),
      sliceManifest('web', 4, lab.pods.slice(0, 1), { ports: PORTS }),
      sliceManifest('web', 6, lab.pods.slice(0, 1), { ports: PORTS }),
      serviceManifest('closed', { spec: { clusterIPs: [CLOSED_VIP], ports: HTTP } }),
      sliceManifest('closed', 4, lab.pods.slice(1, 2), { ports: PORTS }),
      serviceManifest('range', { spec: { clusterIPs: [RANGE_VIP], ports: HTTP } }),
      sliceManifest('range', 4, lab.pods.slice(2, 3), { ports: PORTS }),
      serviceManifest('lb', {
        ingress: [{ ip: LB_VIP }],
        spec: {
          type: 'LoadBalancer',
          clusterIPs: ['10.96.0.63'],
          ports: [...HTTP, { name: 'https', port: 443 }],
          allocateLoadBalancerNodePorts: false,
          loadBalancerSourceRanges: [`${lab.client.ipv4}/32`],
        },
      }),
      sliceManifest('lb', 4, lab.pods.slice(0, 1), {
        ports: [...PORTS, { ...PORTS[0], name: 'https' }],
      }),
      ...policyPods(lab),
      networkPolicy('closed', { podSelector: { matchLabels: { pod: 'pod-2' } } }),
      networkPolicy('range', {
        podSelector: { matchLabels: { pod: 'pod-3' } },
        ingress: [{ from: [{ ipBlock: { cidr: `${lab.client.ipv4}/32` } }] }],
      }),
    ];

    before(async () => {
      lab = await createLab({ pods: 4, remotePods: 1 });
      traces = new TraceLab(lab);
      pod = lab.pods[3] as Host;
      await traces.start(flags, objects());
      await waitFor('policies are enforced', async () => {
        const { outcome } = await pod.tcp(CLOSED_VIP, 80, { timeoutMs: 200 });
        return outcome === 'timeout';
      });
    });

    after(() => traces?.destroy());

    it('external --live: packets of pods and of the node are no packets from outside', async () => {
      const { summary, exitCode, stdout } = await traces.liveLines(
        ['external', 'default/web'],
        async () => {
          answered(await pod.tcp(VIP, 80));
          answered(await lab.node.tcp(VIP, 80));
          answered(await lab.client.tcp(VIP, 80));
        },
      );
      assert.deepEqual(summary.differences, []);
      assert.deepEqual(sourcesOf(summary.paths), new Set([lab.client.ipv4]), stdout);
      assert.equal(exitCode, 0);
    });

    it('external --live: compares each packet with the path of its own source', async () => {
      const second = lab.client.addresses[4][1] ?? '';
      const args = ['external', LB_VIP, '--port=443'];
      const { summary, exitCode } = await traces.liveLines(args, async () => {
        answered(await lab.client.tcp(LB_VIP, 443));
        await lab.client.tcp(LB_VIP, 443, { localAddress: second, timeoutMs: 500 });
      });
      assert.deepEqual(sourcesOf(summary.paths), new Set([lab.client.ipv4, second]));
      assert.deepEqual(summary.differences, []);
      assert.equal(exitCode, 1, 'a packet was dropped');
    });

    it('external: 1 if no client arrives, 2 if it depends on the client, 0 if all arrive', async () => {
      const second = lab.client.addresses[4][1] ?? '';
      for (const localAddress of [lab.client.ipv4, second]) {
        const { outcome } = await lab.client.tcp(CLOSED_VIP, 80, { localAddress, timeoutMs: 300 });
        assert.equal(outcome, 'timeout');
      }
      const closed = await traces.trace('external', CLOSED_VIP, '--port=80');
      assert.match(
        closed.stdout,
        /Ingress policy: .* deny the connection \[NetworkPolicy default\/closed\]/,
      );
      assert.equal(closed.exitCode, 1, closed.stdout);

      answered(await lab.client.tcp(RANGE_VIP, 80));
      const options = { localAddress: second, timeoutMs: 300 };
      assert.equal((await lab.client.tcp(RANGE_VIP, 80, options)).outcome, 'timeout');
      const range = await traces.trace('external', 'default/range');
      assert.match(range.stdout, /uncertain: .*default\/range.* depends on the source address/);
      assert.equal(range.exitCode, 2, range.stdout);

      answered(await lab.client.tcp(VIP, 80));
      const open = await traces.trace('external', 'default/web');
      assert.equal(open.exitCode, 0, open.stdout);
      assert.equal(open.stdout.includes('uncertain'), false);
    });

    it('refuses ends that no packet has, and says what to use', async () => {
      for (const [from, to, message] of [
        ['127.0.0.1', 'default/web', /FROM must not be a loopback address .*: use node/],
        ['::1', 'default/web', /FROM must not be a loopback address .*: use node/],
        [
          '0.0.0.0',
          'default/web',
          /FROM must not be the unspecified address 0.0.0.0: use .*external/,
        ],
        ['::', 'default/web', /FROM must not be the unspecified address ::: use .*external/],
        ['224.0.0.1', 'default/web', /FROM must not be the multicast address/],
        [
          CLOSED_VIP,
          'default/web',
          /FROM must not be a cluster IP .*default\/closed.*use .*external/,
        ],
        ['node', '224.0.0.1', /TO must not be the multicast address 224.0.0.1: use a Service/],
        ['node', 'ff02::1', /TO must not be the multicast address/],
        ['node', '255.255.255.255', /TO must not be the broadcast address/],
        ['node', '0.0.0.0', /TO must not be the unspecified address/],
        ['external', '127.0.0.1', /TO must not be a loopback address .* source is node/],
        ['default/pod-4', '127.0.0.1', /TO must not be a loopback address .* source is node/],
        ['nowhere', VIP, /FROM must be an IP address, namespace\/name of a pod/],
        ['service/default/web', VIP, /FROM must be an IP address, namespace\/name of a pod/],
      ] as const) {
        const { exitCode, stderr, stdout } = await traces.trace(from, to, '--port=80');
        assert.match(stderr, message, `${from} to ${to}: ${stdout}`);
        assert.equal(exitCode, 2);
      }
      const vip = await traces.trace(LB_VIP, 'default/web');
      assert.match(vip.stdout, /uncertain: 203.0.113.7 is a VIP of Service default\/lb/);
      assert.equal(vip.exitCode, 2);
    });

    it('node ports on localhost: reached only if a connection is', async () => {
      for (const [host, address] of [
        [lab.node, '127.0.0.1'],
        [lab.node, '::1'],
        [lab.node, lab.node.ipv4],
      ] as const) {
        const { outcome } = await host.tcp(address, NODE_PORT);
        const { exitCode, stdout } = await traces.trace('node', address, `--port=${NODE_PORT}`);
        assert.equal(exitCode, outcome === 'answered' ? 0 : 1, `${outcome}: ${stdout}`);
        const isServed =
          address === lab.node.ipv4 || (mode === 'iptables' && address === '127.0.0.1');
        assert.equal(outcome === 'answered', isServed);
      }
    });

    it('--live: says which IP family of a dual-stack Service it traces, and how to trace the other', async () => {
      const { stdout, exitCode } = await traces.live(['default/pod-4', 'default/web'], async () => {
        answered(await pod.tcp(VIP, 80));
      });
      assert.match(stdout, /^Live: tracing IPv4 packets to 10\.96\.0\.60 port 80\/TCP/m);
      assert.match(
        stdout,
        /note: IPv6 is not traced; for it use fd00:10:96::6:60 --port 80 --proto tcp/,
      );
      assert.match(stdout, /packet 1: went to a pod of this node; translated to/);
      assert.equal(exitCode, 0);
      const six = await traces.live([pod.ipv6, 'default/web'], async () => {
        answered(await pod.tcp(VIP6, 80));
      });
      assert.match(six.stdout, /^Live: tracing IPv6 packets to fd00:10:96::6:60 port 80/m);
      assert.equal(six.stdout.includes('is not traced'), false);
    });

    it('options and names: --seconds without --live, kubectl names, a missing port', async () => {
      const seconds = await traces.trace('node', VIP, '--port=80', '--seconds=5');
      assert.equal(seconds.exitCode, 2);
      assert.match(seconds.stderr, /--seconds needs --live/);
      for (const args of [
        ['default/pod-4', 'service/default/web'],
        ['pod/default/pod-4', 'svc/default/web'],
        ['pod/pod-4', 'service/web', '-n', 'default'],
        ['pod-4', 'services/web', '-n', 'default'],
      ]) {
        const { stdout, stderr, exitCode } = await traces.trace(...args);
        // The whole output may tell the age of rules of other programs.
        assert.deepEqual([stderr, exitCode], ['', 0]);
        assert.match(stdout, /Source: .* \[Pod default\/pod-4\]$/m);
        assert.match(stdout, /Service: 10\.96\.0\.60 .* \[Service default\/web\]$/m);
      }
      const toPod = await traces.trace('node', 'pod/default/pod-4', '--port=80');
      assert.equal(toPod.exitCode, 0, toPod.stderr);
      for (const [to, message] of [
        ['service/default/pod-4', /this agent knows no Service default\/pod-4$/m],
        ['pod/default/web', /this agent knows no pod default\/web/],
        ['service/web', /this agent knows no Service service\/web, .*service\/NAMESPACE\/web/],
        ['default/lb', /--port is missing: only a Service with one port needs none/],
        [VIP, /--port is missing/],
      ] as const) {
        const { exitCode, stderr } = await traces.trace('node', to);
        assert.equal(exitCode, 2);
        assert.match(stderr, message);
      }
    });

    it('external --live without a CIDR of pods: counts packets of pods that it knows', async () => {
      await traces.agent.stop();
      await traces.start(
        [...flags.filter((flag) => !flag.startsWith('--cluster-cidr'))],
        objects(),
      );
      const { stdout, exitCode } = await traces.live(['external', 'default/web'], async () => {
        answered(await pod.tcp(VIP, 80));
        answered(await lab.client.tcp(VIP, 80));
      });
      assert.match(stdout, /^ {2}\d+ other packets came from pods or this node$/m);
      assert.equal(stdout.includes(pod.ipv4), false);
      assert.equal(exitCode, 0, stdout);
    });

    it('external --live leaves out packets from interfaces of pods', async () => {
      await traces.agent.stop();
      const detector = [
        '--detect-local-mode=InterfaceNamePrefix',
        '--pod-interface-name-prefix=pw',
      ];
      await traces.start([...flags, ...detector], objects());
      const args = ['external', 'default/web'];
      const { summary, armed } = await traces.liveLines(args, async () => {
        answered(await pod.tcp(VIP, 80));
        answered(await lab.client.tcp(VIP, 80));
      });
      assert.equal(armed.filter.exceptPods, 'pw+');
      // The kernel has left them out, so the agent has none to count.
      assert.deepEqual([summary.others, summary.differences], [0, []]);
      assert.deepEqual(sourcesOf(summary.paths), new Set([lab.client.ipv4]));
    });

    it('node ports on localhost that the agent serves itself', async () => {
      await traces.agent.stop();
      await traces.start([...flags, '--nodeport-addresses=primary,localhost'], objects());
      const isServed = mode !== 'ipvs';
      const connect = async () => (await lab.node.tcp('127.0.0.1', NODE_PORT)).outcome;
      if (isServed)
        await waitFor('the node port answers', async () => (await connect()) === 'answered');
      else assert.equal(await connect(), 'refused');
      const traced = await traces.trace('node', '127.0.0.1', `--port=${NODE_PORT}`);
      assert.equal(traced.exitCode, isServed ? 0 : 1, traced.stdout);
      const other = await lab.node.tcp('127.0.0.2', NODE_PORT);
      const toOther = await traces.trace('node', '127.0.0.2', `--port=${NODE_PORT}`);
      assert.equal(toOther.exitCode, other.outcome === 'answered' ? 0 : 1, toOther.stdout);
    });
  });
}
