/** `portwide trace` and `portwide flows` in IPVS mode. The kernel has no nf_tables families, so it cannot trace. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ComputedTrace, TraceAnswer } from '../../../status/api/trace.ts';
import type { FlowEvent, FlowLine } from '../../../status/api/traffic.ts';
import { StatusClient } from '../../../status/client.ts';
import { compareWithPackets, manyServices } from '../../e2e/trace-cases.ts';
import { waitFor } from '../../lab/lab.ts';
import { PORTWIDE } from '../../portwide.ts';
import { FAMILIES, IPVS_FLAGS, IpvsLab, listed, vips } from '../ipvs-lab.ts';
import { STOCK_KERNEL } from '../kernels.ts';

/** Milliseconds without an answer after which a packet counts as dropped, on a slow machine. */
const QUIET_MS = 20_000;

describe('portwide trace and flows in IPVS mode', () => {
  let ipvs: IpvsLab;
  let directory: string;
  let socket: string;

  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-trace-'));
    socket = join(directory, 'agent.sock');
    ipvs = await IpvsLab.create();
    await ipvs.agent.start([...IPVS_FLAGS, `--status-socket=${socket}`]);
  });
  after(async () => {
    await ipvs?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  const command = (...args: readonly string[]) =>
    ipvs.lab.node.exec(PORTWIDE, [...args, `--status-socket=${socket}`], {
      reject: false,
      timeoutMs: 60_000,
    });
  let localPort = 20_000;
  const options = {
    quietMs: QUIET_MS,
    localPort: () => {
      localPort += 1;
      return localPort;
    },
  };

  for (const family of FAMILIES) {
    it(`IPv${family}: the computed trace is what packets get`, async () => {
      const { targets, manifests } = manyServices(ipvs.lab, family);
      await ipvs.agent.apply(manifests);
      const client = new StatusClient({ socketPath: socket });
      const verdicts = await compareWithPackets(
        ipvs.lab,
        family,
        targets,
        async (query) => (await client.get<TraceAnswer>('/api/v1/trace', ['paths'], query)).paths,
        options,
      );
      for (const verdict of ['translated', 'rejected', 'dropped'] as const) {
        assert.ok(verdicts.has(verdict), `no packet is ${verdict}`);
      }
    });
  }

  it('trace --live prints the computed path, says what the live trace needs, and ends with status 2', async () => {
    await ipvs.agent.apply([...listed('web', 30, ipvs.pods(0)), ...listed('empty', 31, [])]);
    for (const [index, vip] of vips(30).entries()) {
      const from = index === 0 ? ipvs.lab.client.ipv4 : ipvs.lab.client.ipv6;
      const computed = await command('trace', from, vip, '--port=80');
      assert.equal(computed.exitCode, 0, computed.stderr);
      assert.match(computed.stdout, /\[Service default\/web\]/);
      const live = await command('trace', from, vip, '--port=80', '--live');
      assert.equal(live.exitCode, 2, live.stdout);
      assert.match(live.stdout, /^Computed, IPv/);
      assert.match(live.stderr, /iptables-legacy.*live tracing needs iptables-nft/);
      assert.doesNotMatch((await ipvs.lab.node.exec('iptables-legacy-save')).stdout, /TRACE/);
    }
    const [vip] = vips(31);
    const rejected = await command('trace', 'external', vip, '--port=80', '-o', 'json');
    assert.equal(rejected.exitCode, 1);
    const [path] = (JSON.parse(rejected.stdout) as { computed: { paths: ComputedTrace[] } })
      .computed.paths;
    assert.equal(path?.verdict, 'rejected');
  });

  it('flows shows connections of both families, and says if the kernel cannot log refused packets', async () => {
    await ipvs.agent.apply(listed('web', 30, ipvs.pods(0)));
    const flows = ipvs.lab.node.spawn(PORTWIDE, [
      ...['flows', '-o', 'json', `--status-socket=${socket}`],
    ]);
    flows.catch(() => {});
    let text = '';
    flows.stdout?.on('data', (chunk) => {
      text += String(chunk);
    });
    const lines = () =>
      text
        .split('\n')
        .slice(0, -1)
        .map((line) => JSON.parse(line) as FlowLine);
    try {
      await waitFor('the stream starts', () => lines().length > 0, 60_000);
      const [started] = lines();
      const notes = JSON.stringify(started);
      if (STOCK_KERNEL !== undefined) assert.doesNotMatch(notes, /are not shown: [^"]*the kernel/);
      else
        assert.match(
          notes,
          /rejected and dropped packets are not shown: IPv4, IPv6: the kernel has no nf_tables tables with an owner for this IP family \(/,
        );
      for (const family of FAMILIES) {
        const vip = vips(30)[family === 4 ? 0 : 1];
        const outcome = await ipvs.lab.client.tcp(vip, 80, { timeoutMs: 20_000 });
        assert.ok(outcome.outcome === 'answered', JSON.stringify(outcome));
        const opened = await waitFor('the flow is reported', () =>
          lines().find(
            (line): line is FlowEvent =>
              line.event === 'opened' && 'flow' in line && line.flow.destination === vip,
          ),
        );
        assert.equal(opened.service, 'default/web');
        assert.equal(opened.flow.endpoint, ipvs.pods(0)[0]?.addresses[family][0]);
      }
    } finally {
      flows.kill('SIGKILL');
    }
  });
});
