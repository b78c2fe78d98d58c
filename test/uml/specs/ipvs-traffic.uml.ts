/** Traffic of Services in IPVS mode. */
import assert from 'node:assert/strict';
import { socketAddress } from '../../../api/addresses.ts';
import { IPVS_TRAFFIC } from '../../../ipvs/plan.ts';
import type { TopRow } from '../../../status/api/traffic.ts';
import { ALL_PORTS, type Manifest } from '../../e2e/manifests.ts';
import { type Host, waitFor } from '../../lab/lab.ts';
import { TrafficClient } from '../../status/traffic/traffic-client.ts';
import { IPVS_FLAGS, IpvsLab, listed, service, vips } from '../ipvs-lab.ts';

const CONNECTIONS = 1000;
/** Timeouts of conntrack for connections that one side has closed. */
const CLOSING = ['fin_wait', 'close_wait', 'last_ack', 'time_wait', 'close'];

describe('traffic of Services in IPVS mode', () => {
  let ipvs: IpvsLab;
  let client: TrafficClient;
  let objects: Manifest[];

  before(async () => {
    ipvs = await IpvsLab.create();
    await ipvs.lab.node.exec('sysctl', ['-qw', 'net.netfilter.nf_conntrack_acct=1']);
    objects = [
      ...service('counted', 30, ipvs.pods(0), { annotations: ALL_PORTS }),
      ...listed('busy', 31, ipvs.pods(1, 2)),
    ];
    await ipvs.agent.start(IPVS_FLAGS);
    await ipvs.agent.apply(objects);
    client = new TrafficClient();
    await client.start(ipvs.lab, objects, { modeTraffic: IPVS_TRAFFIC });
  });
  after(async () => {
    await client?.destroy();
    await ipvs?.destroy();
  });

  it('counts datagrams of each family by Service and endpoint, to the byte', async () => {
    const { lab } = ipvs;
    await client.top('by=service');
    const payload = 'x'.repeat(100);
    for (const [index, vip] of vips(30).entries()) {
      const headers = index === 0 ? 28 : 48;
      let bytes = 0;
      for (const port of [20_104, 20_105]) {
        const outcome = await lab.client.udp(vip, port, { payload, timeoutMs: 20_000 });
        assert.ok(outcome.outcome === 'answered', JSON.stringify(outcome));
        bytes += headers * 2 + payload.length;
        bytes += Buffer.byteLength(JSON.stringify(outcome.reply));
      }
      const [pod] = ipvs.pods(0);
      const address = index === 0 ? pod?.ipv4 : pod?.ipv6;
      const row = await waitFor('the datagrams are counted', async () => {
        const { items } = await client.top('by=endpoint&service=default/counted');
        const found = items.find(({ endpoint }) => endpoint === address);
        return found?.total.packets === 4 ? found : undefined;
      });
      assert.deepEqual(row.total, { connections: 2, packets: 4, bytes });
    }
  });

  it('names Service and endpoint of a flow', async () => {
    const stream = await client.flows('protocol=TCP&event=opened');
    const [vip = ''] = vips(30);
    const outcome = await ipvs.lab.client.tcp(vip, 5060, { timeoutMs: 20_000 });
    assert.equal(outcome.outcome, 'answered');
    const opened = await waitFor('the flow is reported', () =>
      stream.lines.find((line) => 'flow' in line),
    );
    stream.close();
    assert.ok('flow' in opened);
    assert.equal(opened.service, 'default/counted');
    assert.equal(opened.flow.endpoint, ipvs.pods(0)[0]?.ipv4);
  });

  for (const [index, family] of ([4, 6] as const).entries()) {
    for (const [what, timeout] of [
      ['that stay in conntrack', 120],
      ['that end between two samples', 1],
    ] as const) {
      it(`counts 1,000 TCP connections over IPv${family} ${what}, and their bytes, exactly`, async () => {
        const { lab } = ipvs;
        const vip = vips(31)[index] ?? '';
        const timeouts = CLOSING.map(
          (each) => `net.netfilter.nf_conntrack_tcp_timeout_${each}=${timeout}`,
        );
        await lab.node.exec('sysctl', ['-qw', ...timeouts]);
        await lab.node.exec('conntrack', ['-F']);
        const counters = await countBytes(lab.client, family, vip);
        try {
          // Another sample than that of an earlier test begins.
          await waitFor('nobody looks', async () => !(await client.state()).isRunning, 60_000);
          const look = () => client.top('by=service');
          await look();
          let isOver = false;
          const burst = lab.client
            .burst(vip, 80, CONNECTIONS, { timeoutMs: 20_000, concurrency: 16 })
            .finally(() => {
              isOver = true;
            });
          // On a loaded machine a burst takes longer than the agent counts without a viewer.
          const [tally] = await Promise.all([
            burst,
            waitFor('the burst is over', async () => (await look()) && isOver, 240_000),
          ]);
          const answered = Object.values(tally.answered).reduce((sum, each) => sum + each, 0);
          assert.equal(answered, CONNECTIONS, JSON.stringify(tally));
          const row = async (query: string, is = (_: TopRow) => true) =>
            (await client.top(`${query}&service=default/busy`)).items.find(is);
          const busy = await waitFor(
            'all connections and bytes are counted',
            async () => {
              const found = await row('by=service');
              const sent = await counters.bytes();
              const { connections, bytes } = found?.total ?? {};
              const isCounted = connections === CONNECTIONS && bytes === sent;
              if (!isCounted) throw new Error(`sent ${sent} bytes: ${JSON.stringify(found)}`);
              return timeout === 1 && found?.connections !== 0 ? undefined : found;
            },
            60_000,
          );
          assert.equal(busy.connections, timeout === 1 ? 0 : CONNECTIONS);
          const port = await row('by=port', (each) => each.port === 80);
          assert.deepEqual(port?.total, busy.total);
          for (const pod of ipvs.pods(1, 2)) {
            const address = pod.addresses[family][0] ?? '';
            const endpoint = await row(
              'by=endpoint',
              (each) => each.endpoint === socketAddress(address, 8080),
            );
            assert.equal(endpoint?.total.connections, tally.answered[pod.name]);
          }
        } finally {
          await counters.remove();
        }
      });
    }
  }
});

/** Counts the bytes that the client exchanges with a VIP, independently of conntrack. */
async function countBytes(client: Host, family: 4 | 6, vip: string) {
  const tool = family === 4 ? 'iptables-legacy' : 'ip6tables-legacy';
  const rules = [
    ['OUTPUT', '-d', vip],
    ['INPUT', '-s', vip],
  ];
  for (const rule of rules) await client.exec(tool, ['-w', '10', '-A', ...rule]);
  return {
    bytes: async () => {
      const { stdout } = await client.exec(`${tool}-save`, ['-c', '-t', 'filter']);
      const counted = stdout.matchAll(/^\[\d+:(\d+)\] -A (?:OUTPUT|INPUT) -[sd] /gm);
      return [...counted].reduce((sum, [, bytes]) => sum + Number(bytes), 0);
    },
    remove: async () => {
      for (const rule of rules) await client.exec(tool, ['-w', '10', '-D', ...rule]);
    },
  };
}
