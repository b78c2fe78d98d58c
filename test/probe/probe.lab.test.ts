import assert from 'node:assert/strict';
import { AGENT_FLAGS, Agent } from '../e2e/agent.ts';
import { ALL_PORTS, serviceManifest, sliceManifest } from '../e2e/manifests.ts';
import { createLab, type Lab } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { temporarySocket } from '../status/unix-server.ts';
import { parseXml } from './xml.ts';

const VIPS = ['10.96.0.10', 'fd00:10:96::10'] as const;
/** Without endpoints: the rules reject. */
const EMPTY_VIP = '10.96.0.11';
const DNS_VIP = '10.96.0.22';
const RANGES_VIP = '10.96.0.23';
const DNS_PORTS = [
  { name: 'udp', port: 53, protocol: 'UDP' },
  { name: 'tcp', port: 53 },
  { name: 'metrics', port: 9153 },
  { name: 'sctp', port: 99, protocol: 'SCTP' },
] as const;
/** In a network that the node drops. */
const DROPPED = '10.96.9.9';
/** A pattern makes each probe wait for the whole timeout for its answer, also on a slow machine. */
const EXPECT = ['--timeout=10s', '--expect-text="host":"pod-[12]"'];

describe('probe: portwide probe', () => {
  let lab: Lab;
  let agent: Agent;
  const socket = temporarySocket();

  before(async () => {
    lab = await createLab({ pods: 3 });
    const [first, second] = lab.pods;
    assert.ok(first && second);
    await Promise.all([first, second].map((pod) => pod.serveEveryPort()));
    agent = new Agent(lab);
    agent.write('services', [
      serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: VIPS } }),
      serviceManifest('empty', { annotations: ALL_PORTS, spec: { clusterIPs: [EMPTY_VIP] } }),
      serviceManifest('dns', {
        spec: {
          clusterIPs: [DNS_VIP],
          ports: DNS_PORTS,
        },
      }),
      serviceManifest('wide', {
        annotations: { 'portwide.dev/ports': '20000-29999/UDP' },
        spec: { clusterIPs: [RANGES_VIP] },
      }),
      sliceManifest('dns', 4, [first, second], { ports: DNS_PORTS }),
      serviceManifest('headless', { spec: { clusterIP: 'None', clusterIPs: ['None'] } }),
      ...([4, 6] as const).map((family) => sliceManifest('all', family, [first, second])),
    ]);
    const flags = ['--proxy-mode=nftables', `--status-socket=${socket.path}`];
    await agent.start([...AGENT_FLAGS, ...flags]);
    await lab.node.exec('nft', ['-f', '-'], {
      input: `table ip firewall {
        chain output { type filter hook output priority 100; ip daddr ${DROPPED} drop; }
        chain forward { type filter hook forward priority 100; meta l4proto { tcp, udp } th dport 5061 drop; }
      }`,
    });
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
    socket[Symbol.dispose]();
  });

  /** Runs the command in the node's network namespace, without rejecting. */
  const probe = (...args: readonly string[]) =>
    lab.node.exec(PORTWIDE, ['probe', ...args, '--status-socket', socket.path], { reject: false });
  const json = async (...args: readonly string[]) => {
    const { stdout, stderr, exitCode } = await probe(...args, '--output=json');
    assert.notEqual(stdout, '', stderr);
    return { exitCode, ...JSON.parse(stdout) };
  };
  /** `TCP answered 200` for each row. */
  const summary = ({ results }: { readonly results: readonly Record<string, unknown>[] }) =>
    results.map(({ protocol, outcome, probes }) => `${protocol} ${outcome} ${probes}`);

  for (const vip of VIPS) {
    it(`200 random ports of an all-ports Service answer over both protocols, by both pods: ${vip}`, async () => {
      const found = await json(vip, '--ports=random:200', '--proto=tcp,udp', ...EXPECT);
      assert.deepEqual(summary(found), ['TCP answered 200', 'UDP answered 200']);
      assert.equal(found.exitCode, 0);
      for (const { details } of found.results) {
        const endpoints = details.map(({ text }: { readonly text: string }) => text);
        assert.deepEqual(endpoints.sort(), ['pod-1', 'pod-2']);
      }
    });
  }

  it('probes all VIPs of a Service by its name, also from a pod', async () => {
    const pod = lab.pods[2];
    assert.ok(pod);
    for (const args of [['default/all'], ['service/default/all', '--netns', pod.namespace]]) {
      const found = await json(...args, '--ports=random:20', '--proto=tcp,udp', ...EXPECT);
      assert.deepEqual(
        [found.service, found.allAnswered, found.exitCode],
        ['default/all', true, 0],
      );
      assert.deepEqual(
        found.vips.map((report: { vip: string; results: never }) => [report.vip, summary(report)]),
        VIPS.map((vip) => [vip, ['TCP answered 20', 'UDP answered 20']]),
      );
    }
    const source = `--source=${lab.node.ipv6}`;
    const { vips } = await json('default/all', '--ports=80', source, ...EXPECT);
    assert.deepEqual(
      vips.map(({ vip }: { vip: string }) => vip),
      VIPS.slice(1),
    );
    const empty = await json('default/empty', '--ports=80', '--timeout=5s');
    assert.deepEqual([empty.exitCode, summary(empty.vips[0])], [1, ['TCP rejected 1']]);
  });

  it('names the port that is rejected', async () => {
    const [first, second] = lab.pods;
    const ranges = { 'portwide.dev/ports': '7000-7004/TCP' };
    assert.ok(first && second);
    await agent.apply([
      serviceManifest('ranges', { annotations: ranges, spec: { clusterIPs: ['10.96.0.12'] } }),
      sliceManifest('ranges', 4, [first, second]),
    ]);
    const { stdout, exitCode } = await probe('10.96.0.12', '--ports=7000-7005', ...EXPECT);
    assert.equal(exitCode, 1);
    assert.match(stdout, /^TCP +answered +5 +7000-7004 +pod-/m);
    assert.match(stdout, /^TCP +rejected +1 +7005$/m);
  });

  it('a VIP without endpoints rejects every port', async () => {
    const found = await json(EMPTY_VIP, '--ports=80,443', '--proto=tcp,udp', '--timeout=10s');
    assert.deepEqual(summary(found), ['TCP rejected 2', 'UDP rejected 2']);
    assert.equal(found.exitCode, 1);
  });

  it('a dropped VIP times out', async () => {
    const args = ['--ports=5061', '--proto=tcp,udp', '--timeout=300ms'];
    const found = await json(VIPS[0], ...args, `--netns=${lab.pods[2]?.namespace}`);
    assert.deepEqual(summary(found), ['TCP timed out 1', 'UDP timed out 1']);
  });

  it('a datagram that a rule of the client drops is named as such', async () => {
    const found = await json(DROPPED, '--ports=80-81', '--proto=tcp,udp', '--timeout=300ms');
    assert.deepEqual(summary(found), ['TCP timed out 2', 'UDP failed 2']);
    assert.match(found.results[1].details[0].text, /EPERM/);
  });

  it('connects from the network namespace of a pod, by name and by path', async () => {
    const pod = lab.pods[2];
    assert.ok(pod);
    const drop = (action: string) =>
      pod.exec('iptables-nft', [
        '-w',
        action,
        'OUTPUT',
        '-p',
        'tcp',
        '--dport',
        '5060',
        '-j',
        'REJECT',
      ]);
    await drop('-A');
    for (const netns of [pod.namespace, `/run/netns/${pod.namespace}`]) {
      const found = await json(VIPS[0], '--ports=5060,5062', '--netns', netns, ...EXPECT);
      assert.deepEqual(summary(found), ['TCP answered 1', 'TCP rejected 1']);
      assert.equal(found.exitCode, 1);
    }
    await drop('-D');
    const source = `--source=${pod.ipv4}`;
    const found = await json(
      VIPS[0],
      '--ports=5060',
      `--netns=${pod.namespace}`,
      source,
      ...EXPECT,
    );
    assert.deepEqual(summary(found), ['TCP answered 1']);
    assert.equal(found.exitCode, 0);
  });

  it('probes the ports that a Service lists, with their protocols', async () => {
    const found = await json('default/dns', ...EXPECT);
    assert.deepEqual(found.vips.map(summary), [['TCP answered 2', 'UDP answered 1']]);
    assert.equal(found.exitCode, 0);
    const { stdout } = await probe('default/dns', ...EXPECT);
    assert.match(
      stdout,
      /^PROTOCOL .*\nTCP +answered +2 +53,9153 .*\nUDP +answered +1 +53 .*\nProbed 10\.96\.0\.22 in [^\n]*$/,
    );
    const tcp = await json('default/dns', '--proto=tcp', ...EXPECT);
    assert.deepEqual(tcp.vips.map(summary), [['TCP answered 2']]);
  });

  it('writes JUnit XML with the ports that do not answer', async () => {
    const args = ['--ports=5060-5061,80', '--timeout=3s', '--expect-text=pod', '--output=junit'];
    const { stdout, exitCode } = await probe(VIPS[0], `--netns=${lab.pods[2]?.namespace}`, ...args);
    assert.equal(exitCode, 1);
    const [suite] = parseXml(stdout).children;
    const cases = suite?.children.filter(({ name }) => name === 'testcase');
    assert.deepEqual(
      cases?.map(({ attributes, children }) => [attributes.name, children[0]?.text]),
      [
        ['5060-5061', 'timed out: 5061'],
        ['80', undefined],
      ],
    );
  });

  it('an answer without the expected text fails', async () => {
    const found = await json(VIPS[0], '--ports=80', '--timeout=3s', '--expect-text=^nginx');
    assert.deepEqual(summary(found), ['TCP unexpected 1']);
  });

  it('names the socket if no agent runs', async () => {
    const path = '/nonexistent/portwide.sock';
    const args = ['probe', 'default/all', '--ports=80', `--status-socket=${path}`];
    const { stdout, stderr, exitCode } = await lab.node.exec(PORTWIDE, args, { reject: false });
    assert.deepEqual([exitCode, stdout], [2, '']);
    assert.match(stderr, /no agent runs on this node: socket \/nonexistent\/portwide\.sock/);
  });

  for (const [args, expected, status = 2] of [
    [['10.0.0.300', '--ports=80'], /Use an IP address/],
    [['all', '--ports=80'], /Use an IP address, or NAMESPACE\/NAME of a Service/],
    [['10.96.0.0/12', '--ports=80'], /Use an IP address, or NAMESPACE\/NAME of a Service/],
    [['default/gone', '--ports=80'], /this agent knows no Service "default\/gone"/, 1],
    [['default/headless', '--ports=80'], /this node serves no VIP of Service "default\/headless"/],
    [['default/empty', '--ports=80', '--source=fd00::1'], /not of the same IP family/],
    [[VIPS[0]], /--ports is needed for an address/],
    [['default/all'], /Service "default\/all" serves all ports: select some with --ports/],
    [['default/wide'], /Service "default\/wide" serves 20000-29999\/UDP: select some with --ports/],
    [['default/wide', '--proto=tcp'], /Service "default\/wide" serves no TCP port/],
    [['default/headless'], /this node serves no VIP of Service "default\/headless"/],
    [[VIPS[0], '--ports=0'], /--ports: "0" is not a port/],
    [[VIPS[0], '--ports=80', '--proto=sctp'], /Use tcp, udp/],
    [[VIPS[0], '--ports=80', '--count=0'], /--count.*1 to 1000/],
    [[VIPS[0], '--ports=80', '--timeout=5h'], /--timeout.*10ms to 1m/],
    [[VIPS[0], '--ports=80', '--expect-text=('], /--expect-text.*Invalid regular expression/],
    [[VIPS[0], '--ports=all', '--count=100'], /6553500 probes are more than 1000000/],
    [[VIPS[0], '--ports=80', '--source=fd00::1'], /not of the same IP family/],
    [
      [VIPS[0], '--ports=80', '--source=192.0.2.9'],
      /--source 192\.0\.2\.9: .*no interface .* has this address \(EADDRNOTAVAIL\)/,
    ],
    [[VIPS[0], '--ports=80', '--netns=nowhere'], /no network namespace \/run\/netns\/nowhere/],
  ] as const) {
    it(`rejects ${args.join(' ')} with status ${status}`, async () => {
      const { stdout, stderr, exitCode } = await probe(...args);
      assert.deepEqual([exitCode, stdout], [status, '']);
      assert.match(stderr, expected);
    });
  }
});
