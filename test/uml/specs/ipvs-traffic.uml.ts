/** Traffic of Services in IPVS mode. */
import assert from 'node:assert/strict';
import { ALL_PORTS, type Manifest } from '../../e2e/manifests.ts';
import { waitFor } from '../../lab/lab.ts';
import { TrafficClient } from '../../status/traffic/traffic-client.ts';
import { IPVS_FLAGS, IpvsLab, service, vips } from '../ipvs-lab.ts';

describe('traffic of Services in IPVS mode', () => {
  let ipvs: IpvsLab;
  let client: TrafficClient;
  let objects: Manifest[];

  before(async () => {
    ipvs = await IpvsLab.create();
    await ipvs.lab.node.exec('sysctl', ['-qw', 'net.netfilter.nf_conntrack_acct=1']);
    objects = service('counted', 30, ipvs.pods(0), { annotations: ALL_PORTS });
    await ipvs.agent.start(IPVS_FLAGS);
    await ipvs.agent.apply(objects);
    client = new TrafficClient();
    await client.start(ipvs.lab, objects, { mode: 'ipvs' });
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
});
