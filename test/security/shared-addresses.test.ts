/** A tenant who may write Services and EndpointSlices of one namespace takes no ports of addresses that others have. */
import assert from 'node:assert/strict';
import { AGENT_FLAGS, Agent } from '../e2e/agent.ts';
import { ALL_PORTS, type Manifest } from '../e2e/manifests.ts';
import { answered, World } from '../e2e/scenarios/scenario.ts';
import { createLab, type Lab } from '../lab/lab.ts';
import { AdmittedFeed, NotAdmitted } from './admitted-feed.ts';

const OLD = '2026-01-01T00:00:00Z';
const YOUNG = '2026-02-01T00:00:00Z';
const PORTS = [22, 5060].map((port) => ({ name: `p${port}`, port }));

describe('addresses of Services of others', () => {
  let lab: Lab;
  let agent: Agent;
  let feed: AdmittedFeed;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 0 });
    await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
    feed = await AdmittedFeed.start(lab);
    agent = new Agent(lab, { feed });
    await agent.start([...AGENT_FLAGS, '--proxy-mode=nftables']);
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });

  for (const family of [4, 6] as const) {
    describe(`IPv${family}`, () => {
      let world: World;
      beforeEach(() => {
        world = new World(lab, agent, family);
      });

      const who = async (vip: string, port: number) =>
        answered(await lab.client.tcp(vip, port)).host;
      /** An all-ports Service with a load balancer IP, on pod-1. */
      const victim = (): Manifest[] => [
        world.service('all', {
          annotations: ALL_PORTS,
          created: OLD,
          ingress: [{ ip: world.vip(5) }],
          spec: { type: 'LoadBalancer', clusterIPs: [world.clusterIP(20)] },
        }),
        world.slice('all', [world.pod(0)]),
      ];
      /** A Service of the tenant with listed ports, on pod-2. */
      const claiming = (fields: { externalIPs?: string[]; ingress?: string[] }): Manifest[] => {
        const { externalIPs, ingress = [] } = fields;
        return [
          world.service('grab', {
            namespace: 'evil',
            created: YOUNG,
            ingress: ingress.map((ip) => ({ ip })),
            spec: {
              type: 'LoadBalancer',
              clusterIPs: [world.clusterIP(66)],
              ports: PORTS,
              ...(externalIPs && { externalIPs }),
            },
          }),
          world.slice('grab', [world.pod(1)], { namespace: 'evil', ports: PORTS }),
        ];
      };

      for (const [title, vip, fields] of [
        ['a cluster IP, by external IPs', 'cluster', 'externalIPs'],
        ['a cluster IP, by the load balancer status', 'cluster', 'ingress'],
        ['a load balancer IP, by external IPs', 'load balancer', 'externalIPs'],
        ['a load balancer IP of an older Service', 'load balancer', 'ingress'],
      ] as const)
        it(`no listed port of ${title}, reaches a pod of the tenant`, async () => {
          const address = vip === 'cluster' ? world.clusterIP(20) : world.vip(5);
          await agent.apply([...victim(), ...claiming({ [fields]: [address] })]);
          assert.deepEqual(await Promise.all([22, 5060, 80].map((port) => who(address, port))), [
            'pod-1',
            'pod-1',
            'pod-1',
          ]);
          // The addresses of its own are served.
          assert.equal(await who(world.clusterIP(66), 22), 'pod-2');
        });
    });
  }

  it('a Service with more ranges than the limit is not admitted', () => {
    const world = new World(lab, agent, 4);
    const ranges = Array.from({ length: 1025 }, (_, at) => `${1 + 2 * at}/UDP`).join();
    const annotations = { 'portwide.dev/ports': ranges };
    const service = world.service('many', { annotations, spec: { clusterIPs: ['10.96.0.99'] } });
    assert.throws(() => feed.write('many', [service]), NotAdmitted);
  });
});
