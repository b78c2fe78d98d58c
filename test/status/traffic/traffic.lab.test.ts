import assert from 'node:assert/strict';
import { release } from 'node:os';
import { IPTABLES_TRAFFIC } from '../../../iptables/backend.ts';
import { NFTABLES_TRAFFIC } from '../../../nftables/backend.ts';
import type { FlowEvent, FlowLine, FlowNotice, TopRow } from '../../../status/api/traffic.ts';
import { AGENT_FLAGS, Agent } from '../../e2e/agent.ts';
import { ALL_PORTS, type Manifest, serviceManifest, sliceManifest } from '../../e2e/manifests.ts';
import { createLab, type Lab, waitFor } from '../../lab/lab.ts';
import { TrafficClient } from './traffic-client.ts';

const VIPS = { 4: '10.96.0.10', 6: 'fd00:10:96::10' } as const;
const ALL_VIP = '10.96.0.20';
const EMPTY_VIP = '10.96.0.30';
const LB_VIP = '203.0.113.5';
const NODE_PORT = 30_080;
const [MAJOR = 0, MINOR = 0] = release().split('.').map(Number);
/** From Linux 6.14 on the kernel tells when a connection opened. */
const TELLS_OPENED = MAJOR > 6 || (MAJOR === 6 && MINOR >= 14);
/** Rules of the client that count what it exchanges with a VIP, independently of conntrack. */
const COUNTERS = `
table inet count {
  counter sent { }
  chain out { type filter hook output priority 0; ip daddr ${VIPS[4]} counter name sent; }
  chain in { type filter hook input priority 0; ip saddr ${VIPS[4]} counter name sent; }
}`;

for (const [mode, modeTraffic] of [
  ['nftables', NFTABLES_TRAFFIC],
  ['iptables', IPTABLES_TRAFFIC],
] as const) {
  /** As `waitFor`, until a sample shows the condition: on a busy machine samples are up to a minute apart. */
  const sampled: typeof waitFor = (description, condition) =>
    waitFor(description, condition, 50_000);

  describe(`traffic of Services in mode ${mode}`, function () {
    this.timeout(180_000);
    let lab: Lab;
    let agent: Agent;
    let client: TrafficClient;
    let objects: Manifest[];

    before(async () => {
      lab = await createLab({ pods: 2, remotePods: 0 });
      await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
      await lab.node.exec('sysctl', ['-qw', 'net.netfilter.nf_conntrack_acct=1']);
      objects = [
        serviceManifest('web', {
          spec: {
            clusterIPs: [VIPS[4], VIPS[6]],
            type: 'NodePort',
            ports: [
              { name: 'http', port: 80, targetPort: 8080, nodePort: NODE_PORT },
              { name: 'dns', port: 53, targetPort: 5353, protocol: 'UDP' },
            ],
          },
        }),
        ...([4, 6] as const).map((family) =>
          sliceManifest('web', family, lab.pods, {
            ports: [
              { name: 'http', port: 8080 },
              { name: 'dns', port: 5353, protocol: 'UDP' },
            ],
          }),
        ),
        serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: [ALL_VIP] } }),
        sliceManifest('all', 4, lab.pods.slice(0, 1)),
        serviceManifest('empty', { spec: { clusterIPs: [EMPTY_VIP], ports: [{ port: 80 }] } }),
        serviceManifest('restricted', {
          ingress: [{ ip: LB_VIP }],
          spec: {
            clusterIPs: ['10.96.0.40'],
            type: 'LoadBalancer',
            loadBalancerSourceRanges: ['192.0.2.0/24'],
            ports: [{ port: 80 }],
          },
        }),
        sliceManifest('restricted', 4, lab.pods, { ports: [{ name: '', port: 80 }] }),
      ];
      agent = new Agent(lab);
      await agent.start([...AGENT_FLAGS, `--proxy-mode=${mode}`]);
      await agent.apply(objects);
    });
    beforeEach(async () => {
      await lab.node.exec('conntrack', ['-F']);
      client = new TrafficClient();
      await client.start(lab, objects, { modeTraffic });
    });
    afterEach(() => client?.destroy());
    after(async () => {
      await agent?.destroy();
      await lab?.destroy();
    });

    const row = async (query: string, is: (row: TopRow) => boolean = () => true) =>
      (await client.top(query)).items.find(is);
    const clientBytes = async () => {
      const list = ['-j', 'list', 'counters', 'table', 'inet', 'count'];
      const { stdout } = await lab.client.exec('nft', list);
      const { nftables } = JSON.parse(stdout) as { nftables: { counter?: { bytes: number } }[] };
      return nftables.find(({ counter }) => counter !== undefined)?.counter?.bytes;
    };
    const isEvent = (line: FlowLine): line is FlowEvent => 'flow' in line;

    for (const [what, timeout] of [
      ['that stay in conntrack', 120],
      ['that end between two samples', 1],
    ] as const) {
      it(`counts 1,000 connections ${what}, and their bytes, exactly`, async () => {
        const timeouts = ['fin_wait', 'close_wait', 'last_ack', 'time_wait', 'close'];
        for (const each of timeouts) {
          const name = `net.netfilter.nf_conntrack_tcp_timeout_${each}`;
          await lab.node.exec('sysctl', ['-qw', `${name}=${timeout}`]);
        }
        await lab.client.exec('nft', ['-f', '-'], { input: COUNTERS });
        try {
          const { sample } = await client.top('by=service');
          assert.equal(sample.countsBytes, true);
          const tally = await lab.client.burst(VIPS[4], 80, 1000);
          assert.equal((tally.answered['pod-1'] ?? 0) + (tally.answered['pod-2'] ?? 0), 1000);
          const web = await sampled('all connections and bytes are counted', async () => {
            const found = await row('by=service&service=default/web');
            const sent = await clientBytes();
            const { connections, bytes } = found?.total ?? {};
            return connections === 1000 && bytes === sent ? found : undefined;
          });
          assert.equal(web.connectionsPerSecond === null, false);
          const port = await row('by=port&service=default/web', ({ port }) => port === 80);
          assert.deepEqual(port?.total, web.total);
          for (const pod of lab.pods) {
            const endpoint = await row(
              'by=endpoint&service=default/web',
              (each) => each.endpoint === `${pod.ipv4}:8080`,
            );
            assert.equal(endpoint?.total.connections, tally.answered[pod.name]);
          }
          if (timeout === 1) {
            await sampled('no connection is left', async () => {
              const found = await row('by=service&service=default/web');
              return found?.connections === 0;
            });
            const after = await row('by=service&service=default/web');
            assert.deepEqual(after?.total, web.total);
          } else assert.equal(web.connections, 1000);
        } finally {
          await lab.client.exec('nft', ['delete', 'table', 'inet', 'count']);
        }
      });
    }

    it('counts datagrams by port of an all-ports Service, to the byte', async () => {
      await client.top('by=service');
      const payload = 'x'.repeat(100);
      let bytes = 0;
      for (const port of [20_104, 20_104, 30_000]) {
        const outcome = await lab.client.udp(ALL_VIP, port, { payload });
        assert.ok(outcome.outcome === 'answered');
        bytes += 28 + payload.length + 28 + Buffer.byteLength(JSON.stringify(outcome.reply));
      }
      const all = await sampled('the datagrams are counted', async () => {
        const found = await row('by=service&service=default/all');
        return found?.total.packets === 6 ? found : undefined;
      });
      assert.deepEqual(all.total, { connections: 3, packets: 6, bytes });
      const inNamespace = (namespace: string) => row(`by=service&namespace=${namespace}`);
      assert.equal((await inNamespace('default'))?.service, 'default/all');
      assert.equal(await inNamespace('other'), undefined);
      const ports = (await client.top('by=port&service=default/all')).items;
      const counted = ports.map(({ protocol, port, total }) => [protocol, port, total.connections]);
      assert.deepEqual(counted.sort(), [
        ['UDP', 20_104, 2],
        ['UDP', 30_000, 1],
      ]);
    });

    it('says that packets and bytes are not counted without nf_conntrack_acct', async () => {
      await lab.node.exec('sysctl', ['-qw', 'net.netfilter.nf_conntrack_acct=0']);
      try {
        await client.top('by=service');
        await lab.client.burst(VIPS[4], 80, 10);
        const web = await sampled('the connections are counted', async () => {
          const found = await row('by=service&service=default/web');
          return found?.total.connections === 10 ? found : undefined;
        });
        assert.deepEqual(web.total, { connections: 10, packets: null, bytes: null });
        assert.equal(web.bytesPerSecond, null);
        const { sample } = await client.top('by=service');
        assert.match(sample.notes.join(), /nf_conntrack_acct=0/);
      } finally {
        await lab.node.exec('sysctl', ['-qw', 'net.netfilter.nf_conntrack_acct=1']);
      }
    });

    for (const family of [4, 6] as const) {
      it(`names Service and endpoint of opened and closed flows over IPv${family}`, async () => {
        const stream = await client.flows('service=default/web&protocol=TCP');
        const elsewhere = await client.flows('namespace=other&protocol=TCP');
        const here = await client.flows('namespace=default&protocol=TCP');
        const outcome = await lab.client.tcp(VIPS[family], 80);
        assert.ok(outcome.outcome === 'answered');
        const opened = await waitFor('the flow is reported', () =>
          stream.lines.filter(isEvent).find(({ event }) => event === 'opened'),
        );
        assert.equal(opened.service, 'default/web');
        const { flow } = opened;
        assert.equal(flow.source, lab.client.addresses[family][0]);
        assert.equal(flow.sourcePort, outcome.localPort);
        assert.equal(flow.destination, VIPS[family]);
        assert.equal(flow.endpoint, outcome.reply.localAddress);
        assert.equal(flow.endpointPort, 8080);
        await lab.node.exec('conntrack', ['-D', '-d', VIPS[family], '-f', `ipv${family}`]);
        const closed = await waitFor('the end is reported', () =>
          stream.lines.filter(isEvent).find(({ event }) => event === 'closed'),
        );
        assert.equal(closed.flow.sourcePort, outcome.localPort);
        assert.ok((closed.flow.bytes ?? 0) > 0);
        await waitFor('the namespace is selected', () => here.lines.some(isEvent));
        assert.equal(elsewhere.lines.some(isEvent), false);
        for (const each of [stream, elsewhere, here]) each.close();
      });
    }

    it('reports flows to a node port', async () => {
      const stream = await client.flows(`port=${NODE_PORT}`);
      await lab.client.tcp(lab.node.ipv4, NODE_PORT);
      const opened = await waitFor('the flow is reported', () => stream.lines.find(isEvent));
      assert.equal(opened.service, 'default/web');
      stream.close();
    });

    it('reports rejected and dropped packets with the reason', async () => {
      const stream = await client.flows('');
      assert.deepEqual(
        stream.lines.flatMap((line) => ('notes' in line ? line.notes : [])),
        ['packets denied by policies are not shown: set --policy-log-group'],
      );
      const refused = await lab.client.tcp(EMPTY_VIP, 80);
      assert.equal(refused.outcome, 'refused');
      const rejected = await waitFor('the rejected packet is reported', () =>
        stream.lines.filter(isEvent).find(({ event }) => event === 'rejected'),
      );
      assert.equal(rejected.service, 'default/empty');
      assert.equal(rejected.reason, 'no endpoint');
      assert.equal(rejected.flow.destination, EMPTY_VIP);

      await lab.client.tcp(LB_VIP, 80, { timeoutMs: 200 });
      const dropped = await waitFor('the dropped packet is reported', () =>
        stream.lines.filter(isEvent).find(({ event }) => event === 'dropped'),
      );
      assert.equal(dropped.service, 'default/restricted');
      assert.match(dropped.reason, /is not in loadBalancerSourceRanges$/);

      // A Service that loses its endpoints while a client looks.
      await client.apply(objects.filter((each) => !JSON.stringify(each).includes('"all-ipv4"')));
      await agent.apply(objects.filter((each) => !JSON.stringify(each).includes('"all-ipv4"')));
      await waitFor('packets to the Service are reported', async () => {
        await lab.client.tcp(ALL_VIP, 4000, { timeoutMs: 200 });
        return stream.lines.filter(isEvent).some(({ service }) => service === 'default/all');
      });
      stream.close();
      await agent.apply(objects);
    });

    it('says that it was stopped, and has the times of the kernel', async () => {
      const setting = 'net.netfilter.nf_conntrack_timestamp';
      await lab.node.exec('sysctl', ['-qw', `${setting}=1`]);
      try {
        const stream = await client.flows('');
        client.signal('SIGSTOP');
        await lab.client.tcp(VIPS[4], 80);
        await lab.client.tcp(EMPTY_VIP, 80);
        const done = Date.now();
        await waitFor('a long stop', () => Date.now() > done + 1500);
        client.signal('SIGCONT');
        const kinds = await waitFor('both are reported', () => {
          const found = stream.lines.map(({ event }) => event);
          return found.includes('opened') && found.includes('rejected') ? found : undefined;
        });
        const late = kinds.indexOf('late');
        assert.ok(late > 0 && kinds.slice(1, late).every((kind) => kind === 'notes'), `${kinds}`);
        const { seconds } = stream.lines[late] as FlowNotice;
        assert.ok(seconds !== undefined && seconds >= 1, `${seconds}`);
        for (const { event, at } of stream.lines.filter(isEvent)) {
          if (event === 'rejected' || (event === 'opened' && TELLS_OPENED))
            assert.ok(Date.parse(at) <= done, `${event} ${at}, ${done}`);
        }
        stream.close();
      } finally {
        client.signal('SIGCONT');
        await lab.node.exec('sysctl', ['-qw', `${setting}=0`]);
      }
    });

    it('reports packets that a policy denies, or that it cannot see them', async () => {
      await client.kill();
      await client.start(lab, objects, { modeTraffic, policyLogGroup: 7 });
      // As network policy logs and drops.
      const rule = `ip daddr ${lab.pods[0]?.ipv4} tcp dport 9 log prefix "portwide deny network-policy ingress " group 7 drop`;
      const table = `table inet denies { chain c { type filter hook forward priority 10; ${rule}; }; }`;
      await lab.node.exec('nft', ['-f', '-'], { input: table });
      try {
        const stream = await client.flows('event=denied');
        await lab.client.tcp(lab.pods[0]?.ipv4 ?? '', 9, { timeoutMs: 200 });
        const denied = await waitFor('the denied packet is reported', () =>
          stream.lines.find(isEvent),
        );
        assert.equal(denied.reason, 'network policy (tier NetworkPolicy, ingress)');
        assert.equal(denied.flow.destination, lab.pods[0]?.ipv4);
        assert.equal(denied.service, 'default/all');
        const ofVip = await client.flows(`service=default/all&ip=${ALL_VIP}&port=9`);
        await lab.client.tcp(ALL_VIP, 9, { timeoutMs: 200 });
        const translated = await waitFor('the denied packet to the VIP is reported', () =>
          ofVip.lines.filter(isEvent).find(({ event }) => event === 'denied'),
        );
        assert.equal(translated.service, 'default/all');
        assert.equal(translated.flow.endpoint, lab.pods[0]?.ipv4);
        ofVip.close();
        const other = new TrafficClient();
        try {
          await other.start(lab, objects, { modeTraffic, policyLogGroup: 7 });
          const { lines } = await other.flows('');
          const notes = lines.flatMap((line) => ('notes' in line ? line.notes : []));
          assert.match(notes.join(), /denied by policies are not shown: bind NFLOG group 7: EPERM/);
        } finally {
          await other.destroy();
        }
        stream.close();
      } finally {
        await lab.node.exec('nft', ['delete', 'table', 'inet', 'denies']);
      }
    });

    it('reads nothing and leaves nothing after the last viewer, or when it is killed', async () => {
      const groups = async () => {
        const { stdout } = await lab.node.exec('cat', ['/proc/net/netlink']);
        // Protocol 12 (netfilter) with groups of conntrack: bits 0 to 2.
        return stdout
          .split('\n')
          .map((line) => line.trim().split(/ +/))
          .filter(([, protocol, , mask]) => protocol === '12' && Number(`0x${mask}`) & 7).length;
      };
      const tables = async () => (await lab.node.exec('nft', ['list', 'tables'])).stdout;
      assert.equal(await groups(), 0);
      assert.equal((await client.state()).isRunning, false);
      const [first, second] = [await client.flows(''), await client.flows('')];
      await client.top('by=service');
      assert.match(await tables(), /table ip portwide-flows/);
      assert.equal(await groups(), 2);
      first.close();
      second.close();
      await waitFor('nothing is open', async () => !(await client.state()).isRunning, 30_000);
      assert.equal(await groups(), 0);
      assert.doesNotMatch(await tables(), /portwide-flows/);

      const third = await client.flows('');
      assert.equal(await groups(), 1);
      await client.kill();
      assert.doesNotMatch(await tables(), /portwide-flows/);
      assert.equal(await groups(), 0);
      third.close();
    });
  });
}
