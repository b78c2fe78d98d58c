import assert from 'node:assert/strict';
import { AGENT_FLAGS, Agent } from '../../e2e/agent.ts';
import { ALL_PORTS, serviceManifest, sliceManifest } from '../../e2e/manifests.ts';
import { createLab, type Lab } from '../../lab/lab.ts';
import { PORTWIDE } from '../../portwide.ts';

const MODE = ['--proxy-mode=ipvs', '--cluster-cidr=10.244.0.0/16,fd00:10:244::/48'];

describe('portwide render --proxy-mode ipvs', () => {
  let lab: Lab;
  let agent: Agent;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 1, podRules: 'legacy' });
    agent = new Agent(lab);
  });

  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });

  it('prints a script after which the agent finds no differences', async () => {
    const http = { ports: [{ name: '', port: 8080, protocol: 'TCP' }] };
    const pods = [...lab.pods, ...lab.remotePods];
    const both = (name: string, fields = {}) =>
      ([4, 6] as const).map((family) => sliceManifest(name, family, pods, fields));
    const local = {
      type: 'LoadBalancer',
      externalTrafficPolicy: 'Local',
      healthCheckNodePort: 32_000,
      loadBalancerSourceRanges: ['192.168.77.0/24', 'fd00:77::/64', '198.51.100.9/32'],
    };
    agent.write('objects', [
      serviceManifest('web', {
        spec: {
          ...local,
          clusterIPs: ['10.96.0.1', 'fd00:10:96::1'],
          ports: [{ port: 80, nodePort: 30_080 }],
          sessionAffinity: 'ClientIP',
        },
        ingress: [{ ip: '203.0.113.1' }, { ip: '2001:db8:113::1' }],
      }),
      ...both('web', http),
      serviceManifest('all', {
        annotations: ALL_PORTS,
        spec: { ...local, clusterIPs: ['10.96.0.2', 'fd00:10:96::2'] },
        ingress: [{ ip: '203.0.113.1' }, { ip: '2001:db8:113::1' }],
      }),
      ...both('all'),
      serviceManifest('ranges', {
        annotations: { 'portwide.dev/ports': '5060/UDP,20000-40000/UDP,8000-8100' },
        spec: { ...local, clusterIPs: ['10.96.0.3', 'fd00:10:96::3'] },
        ingress: [{ ip: '203.0.113.2' }, { ip: '2001:db8:113::2' }],
      }),
      ...both('ranges'),
      serviceManifest('empty', {
        annotations: ALL_PORTS,
        spec: { clusterIPs: ['10.96.0.4', 'fd00:10:96::4'] },
      }),
      serviceManifest('sctp', {
        spec: {
          type: 'NodePort',
          clusterIPs: ['10.96.0.5', 'fd00:10:96::5'],
          ports: [{ port: 80, nodePort: 30_081, protocol: 'SCTP' }],
        },
      }),
    ]);
    for (const family of ['IPv4', 'IPv6']) {
      const args = ['render', `--manifests=${agent.directory}`, `--ip-family=${family}`];
      const options = ['--hostname-override=node', ...MODE];
      const { stdout } = await lab.node.exec(PORTWIDE, [...args, ...options]);
      // The script uses `iptables`, which is the nf_tables variant here.
      const input = stdout.replace('tables-restore', 'tables-legacy-restore');
      await lab.node.exec('sh', ['-e'], { input });
    }
    await agent.start([...AGENT_FLAGS, ...MODE, '--iptables-variant=legacy']);
    const synced = agent.logged('synced').map(({ family, written }) => `${family} ${written}`);
    assert.deepEqual(synced.sort(), ['IPv4 0', 'IPv6 0']);
  });
});
