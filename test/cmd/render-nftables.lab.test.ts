import assert from 'node:assert/strict';
import { AGENT_FLAGS, Agent } from '../e2e/agent.ts';
import {
  ALL_PORTS,
  type Manifest,
  serviceManifest,
  sliceManifest,
  withPods,
} from '../e2e/manifests.ts';
import { answered, refused } from '../e2e/scenarios/scenario.ts';
import { createLab, type Lab } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';

const FLAGS = [
  ...AGENT_FLAGS,
  '--proxy-mode=nftables',
  '--service-cidrs=10.96.0.0/16,fd00:10:96::/112',
  '--nodeport-addresses=primary,localhost',
];
const FAMILIES = [
  [4, 'IPv4', 'ip'],
  [6, 'IPv6', 'ip6'],
] as const;
const vips = (number: number) => [`10.96.0.${number}`, `fd00:10:96::${number}`];

describe('render-nftables: portwide render --proxy-mode nftables', () => {
  let lab: Lab;
  let agent: Agent;
  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 1 });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
  });
  after(async () => lab?.destroy());
  beforeEach(() => {
    agent = new Agent(lab);
  });
  afterEach(async () => {
    await agent.destroy();
    await lab.node.exec(PORTWIDE, ['cleanup']);
  });

  /** Every kind of Service. Session affinity is IPv4 only, because nft 1.0.6 crashes on it with IPv6. */
  const objects = (without: readonly string[] = []): Manifest[] => {
    const balanced = {
      type: 'LoadBalancer',
      allocateLoadBalancerNodePorts: false,
      externalTrafficPolicy: 'Local',
      healthCheckNodePort: 30_100,
    };
    const sticky = { sessionAffinity: 'ClientIP' };
    const services = {
      all: { annotations: ALL_PORTS, spec: { clusterIPs: vips(10) } },
      ranges: {
        annotations: { 'portwide.dev/ports': '5060/UDP,8000-8100' },
        ingress: ['203.0.113.1', '2001:db8::1'].map((ip) => ({ ip })),
        spec: {
          ...balanced,
          clusterIPs: vips(11),
          loadBalancerSourceRanges: ['192.168.0.0/16', 'fd00:77::/64'],
        },
      },
      web: {
        spec: {
          type: 'NodePort',
          clusterIPs: vips(12),
          externalIPs: ['203.0.113.2', '2001:db8::2'],
          internalTrafficPolicy: 'Local',
          ports: [{ port: 80, nodePort: 30_080 }],
        },
      },
      'sticky-web': { spec: { clusterIPs: ['10.96.0.13'], ports: [{ port: 80 }], ...sticky } },
      'sticky-all': {
        annotations: ALL_PORTS,
        spec: { clusterIPs: ['10.96.0.14'], ...sticky },
      },
      'hashed-web': {
        annotations: { 'portwide.dev/load-balancing': 'consistent-hash-client-port' },
        spec: { clusterIPs: vips(19), ports: [{ port: 80 }] },
      },
      'hashed-all': {
        annotations: { ...ALL_PORTS, 'portwide.dev/load-balancing': 'consistent-hash' },
        spec: { clusterIPs: vips(20) },
      },
      dns: {
        spec: {
          type: 'NodePort',
          clusterIPs: vips(16),
          ports: [{ port: 53, protocol: 'UDP', nodePort: 30_053 }],
        },
      },
      owned: {
        annotations: {
          'portwide.dev/owned-ports': '20000-20999/UDP,30000-30999/TCP',
          'portwide.dev/ports-per-pod': '100',
        },
        spec: { clusterIPs: vips(17) },
      },
      'owned-exact': {
        annotations: {
          'portwide.dev/owned-ports': '20480-21503/UDP',
          'portwide.dev/ports-per-pod': '128',
        },
        spec: { clusterIPs: vips(18) },
      },
      none: { spec: { clusterIPs: vips(15), ports: [{ port: 80 }] } },
    };
    const pods = [...lab.pods, ...lab.remotePods];
    const included = Object.entries(services).filter(([name]) => !without.includes(name));
    return included.flatMap(([name, fields]) => [
      serviceManifest(name, fields),
      ...(name === 'none' ? [] : FAMILIES).map(([family]) =>
        sliceManifest(
          name,
          family,
          name.startsWith('owned')
            ? pods.map((pod, at) => [pod, { targetRef: { name: `owned-${at}` } }] as const)
            : pods,
          name.endsWith('web') ? { ports: [{ name: '', port: 8080 }] } : {},
        ),
      ),
    ]);
  };
  const render = async (...flags: string[]) => {
    const args = ['render', `--manifests=${agent.directory}`, ...flags];
    const { stdout } = await lab.node.exec(PORTWIDE, args);
    return stdout;
  };
  const rendering = FLAGS.filter((flag) => !/^-v|sync-period/.test(flag));

  const load = async () => {
    for (const [, family] of FAMILIES) {
      const input = `${await render(...rendering, `--ip-family=${family}`)}\n`;
      await lab.node.exec('nft', ['-f', '-'], { input });
    }
  };

  it('prints rules that nft loads and an agent leaves unchanged', async () => {
    agent.write('objects', withPods(objects()));
    await load();
    // A second load replaces the table.
    await load();
    for (const index of [0, 1]) {
      const ofFamily = [10, 11, 12, 15].map((number) => vips(number)[index] ?? '');
      const [all = '', ranges = '', web = '', none = ''] = ofFamily;
      assert.equal(answered(await lab.client.tcp(all, 5061)).localPort, 5061);
      assert.equal(answered(await lab.client.udp(ranges, 5060)).localPort, 5060);
      refused(await lab.client.tcp(ranges, 5060));
      assert.equal(answered(await lab.client.tcp(web, 80)).localPort, 8080);
      refused(await lab.client.tcp(web, 81));
      refused(await lab.client.tcp(none, 80));
      assert.equal(answered(await lab.client.tcp(vips(19)[index] ?? '', 80)).localPort, 8080);
      assert.equal(answered(await lab.client.udp(vips(20)[index] ?? '', 5062)).localPort, 5062);
      const owned = vips(17)[index] ?? '';
      assert.equal(answered(await lab.client.udp(owned, 20_150)).host, 'pod-2');
      assert.equal(answered(await lab.client.tcp(owned, 30_050)).host, 'pod-1');
      refused(await lab.client.udp(owned, 20_350));
      const exact = vips(18)[index] ?? '';
      assert.equal(answered(await lab.client.udp(exact, 20_735)).host, 'pod-2');
      refused(await lab.client.udp(exact, 20_864));
    }
    answered(await lab.client.tcp(lab.node.ipv4, 30_080));
    refused(await lab.node.udp('127.0.0.1', 30_053));
    const { stdout } = await lab.node.exec('nft', ['list', 'counters', 'table', 'ip', 'portwide']);
    assert.match(stdout, /localhost-nodeport-rejected-udp \{\s+packets 1 /);
    // The agent programs maps of port ranges and owned ports in another form, which nft cannot write.
    agent.write('objects', objects(['ranges', 'owned', 'owned-exact']));
    await load();
    await agent.start(FLAGS);
    const synced = agent
      .logged('synced')
      .map(({ family, full, written }) => [family, full, written]);
    assert.deepEqual(synced.slice(0, 2).sort(), [
      ['IPv4', true, 0],
      ['IPv6', true, 0],
    ]);
  });

  it('is the default mode of render', async () => {
    agent.write('objects', objects());
    const named = await render('--proxy-mode=nftables');
    assert.equal(await render(), named);
    assert.match(named, /^table ip portwide \{$/m);
  });
});
