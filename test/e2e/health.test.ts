import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, unlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent, IPTABLES_FLAGS } from './agent.ts';
import {
  ALL_PORTS,
  type EndpointFields,
  type Manifest,
  nodeManifest,
  serviceManifest,
  sliceManifest,
} from './manifests.ts';

interface Answer {
  /** 0 if the connection is refused. */
  readonly code: number;
  readonly reason?: string;
  readonly weight: string | null;
  readonly body: Readonly<Record<string, unknown>>;
}

const DRAINING = { conditions: { ready: false, serving: true, terminating: true } };
const HTTP = [{ name: '', port: 8080 }];
/** Load balancer VIPs, which the client routes to the node. */
const VIPS = {
  all: ['203.0.113.50', '2001:db8:113::50'],
  web: ['203.0.113.51', '2001:db8:113::51'],
};
const PORT = { all: 30_100, web: 30_101 };
type Name = keyof typeof PORT;
const NAMES: readonly Name[] = ['all', 'web'];

describe('health servers', () => {
  let lab: Lab;
  let agent: Agent;
  /** Directory with an iptables-restore that fails on demand. */
  let commands: string;
  const broken = () => join(commands, 'broken');

  before(async () => {
    commands = mkdtempSync(join(tmpdir(), 'portwide-commands-'));
    writeFileSync(
      join(commands, 'iptables-nft-restore'),
      `#!/bin/sh
[ ! -e ${broken()} ] || { echo 'failing on demand' >&2; exit 1; }
PATH=\${PATH#*:}
exec iptables-nft-restore "$@"
`,
      { mode: 0o755 },
    );
    lab = await createLab({ pods: 1, remotePods: 1 });
    agent = new Agent(lab, { env: { PATH: `${commands}:${process.env.PATH}` } });
    const flags = ['--iptables-variant=nft', '--iptables-sync-period=1s'];
    await agent.start([...IPTABLES_FLAGS, ...flags]);
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
    rmSync(commands, { recursive: true, force: true });
  });

  async function ask(
    host: Host,
    address: string,
    port: number,
    path = '/healthz',
  ): Promise<Answer> {
    const authority = address.includes(':') ? `[${address}]` : address;
    const url = `http://${authority}:${port}${path}`;
    const answer = await host.httpGet(url);
    if ('error' in answer) return { code: 0, reason: answer.error, weight: null, body: {} };
    const { code, headers, body } = answer;
    const weight = headers['x-load-balancing-endpoint-weight']?.toString() ?? null;
    return { code, weight, body: JSON.parse(body) as Answer['body'] };
  }

  /**
   * Requests until the response is as expected, because rules are in force slightly before health
   * servers report them.
   * @param expected fields that the response must have
   */
  async function expectAnswer(
    host: Host,
    address: string,
    port: number,
    expected: Readonly<Record<string, unknown>>,
  ): Promise<void> {
    await waitFor(`${address} port ${port} answers right`, async () => {
      assert.partialDeepStrictEqual(await ask(host, address, port, '/any/path'), expected);
      return true;
    });
  }

  const nodeAddresses = () => [lab.node.ipv4, lab.node.ipv6];
  const addressesOf = (name: Name) => [...nodeAddresses(), ...VIPS[name]];

  /** An all-ports and an ordinary Service with the same pods. */
  const services = (
    pods: readonly (Host | readonly [Host, EndpointFields])[],
    spec: Readonly<Record<string, unknown>> = {},
  ): Manifest[] =>
    NAMES.flatMap((name, index) => [
      serviceManifest(name, {
        ...(name === 'all' ? { annotations: ALL_PORTS } : {}),
        ingress: VIPS[name].map((ip) => ({ ip })),
        spec: {
          type: 'LoadBalancer',
          clusterIPs: [`10.96.0.${index + 50}`, `fd00:10:96::${index + 50}`],
          externalTrafficPolicy: 'Local',
          healthCheckNodePort: PORT[name],
          ports: [{ port: 80 }],
          ...spec,
        },
      }),
      ...([4, 6] as const).map((family) => sliceManifest(name, family, pods, { ports: HTTP })),
    ]);

  const first = (hosts: readonly Host[]): Host => {
    assert.ok(hosts[0] !== undefined);
    return hosts[0];
  };

  /** Pass-through load balancers keep the VIP as destination; nodes have a route for it. */
  async function withVips(run: () => Promise<void>): Promise<void> {
    const route = async (action: string) => {
      for (const vip of [...VIPS.all, ...VIPS.web]) {
        const family = vip.includes(':') ? '-6' : '-4';
        await lab.node.exec('ip', [family, 'route', action, 'local', vip, 'dev', 'lo']);
      }
    };
    await route('add');
    try {
      await run();
    } finally {
      await route('del');
    }
  }

  it('serves /healthz and /livez to other hosts over both families, and counts responses', async () => {
    for (const address of nodeAddresses()) {
      for (const path of ['/healthz', '/livez']) {
        const { code, body } = await ask(lab.client, address, 10_256, path);
        assert.equal(code, 200);
        assert.equal(body.lastUpdated, body.currentTime);
        assert.equal(body.healthy, true);
        assert.equal(body.nodeEligible, path === '/healthz' ? true : undefined);
        const status = body.status as Record<string, { healthy: boolean }>;
        assert.deepEqual(
          Object.entries(status).map(([family, { healthy }]) => [family, healthy]),
          [
            ['IPv4', true],
            ['IPv6', true],
          ],
        );
      }
    }
    const fetchMetrics =
      "fetch('http://127.0.0.1:10249/metrics').then((answer) => answer.text()).then(console.log)";
    const { stdout } = await lab.node.exec(process.execPath, ['-e', fetchMetrics]);
    for (const name of ['healthz', 'livez']) {
      assert.match(stdout, new RegExp(`^kubeproxy_proxy_${name}_total{code="200"} 2$`, 'm'));
    }
  });

  it('reports local ready endpoints on health check node ports, on node addresses and VIPs', () =>
    withVips(async () => {
      const pod = first(lab.pods);
      const remote = first(lab.remotePods);
      for (const [pods, code, count] of [
        [[pod, remote], 200, 1],
        [[remote], 503, 0],
        [[pod], 200, 1],
        [[[pod, DRAINING] as const], 503, 0],
        [[], 503, 0],
      ] as const) {
        await agent.apply(services(pods));
        for (const name of NAMES) {
          for (const address of addressesOf(name)) {
            await expectAnswer(lab.client, address, PORT[name], {
              code,
              weight: String(count),
              body: {
                service: { namespace: 'default', name },
                localEndpoints: count,
                serviceProxyHealthy: true,
              },
            });
          }
        }
      }
    }));

  it('reports local ready endpoints in both families though the Service has one', async () => {
    const port = 30_102;
    for (const [clusterIP, family] of [
      ['10.96.0.51', 4],
      ['fd00:10:96::51', 6],
    ] as const) {
      await agent.apply([
        serviceManifest('one', {
          spec: {
            type: 'LoadBalancer',
            clusterIPs: [clusterIP],
            externalTrafficPolicy: 'Local',
            healthCheckNodePort: port,
            ports: [{ port: 80 }],
          },
        }),
        sliceManifest('one', family, [first(lab.pods)], { ports: HTTP }),
      ]);
      for (const address of nodeAddresses()) {
        await expectAnswer(lab.client, address, port, {
          code: 200,
          body: { service: { namespace: 'default', name: 'one' }, localEndpoints: 1 },
        });
      }
    }
    await agent.apply([]);
    for (const address of nodeAddresses())
      await expectAnswer(lab.client, address, port, { code: 0, reason: 'ECONNREFUSED' });
  });

  it('closes the health check node port of a Service that is no longer Local, for use by another Service', async () => {
    const pods = [first(lab.pods)];
    await agent.apply(services(pods));
    await agent.apply(services(pods, { externalTrafficPolicy: 'Cluster', healthCheckNodePort: 0 }));
    for (const name of NAMES) {
      for (const address of nodeAddresses()) {
        await expectAnswer(lab.client, address, PORT[name], { code: 0, reason: 'ECONNREFUSED' });
      }
    }
    // One change deletes a Service and gives its port to another.
    await agent.apply(services(pods));
    const [, ...withoutAll] = services(pods, { healthCheckNodePort: PORT.all });
    await agent.apply(withoutAll);
    await expectAnswer(lab.client, lab.node.ipv4, PORT.all, {
      code: 200,
      body: { service: { namespace: 'default', name: 'web' } },
    });
    assert.deepEqual(agent.logged('cannot serve health check node port; retrying'), []);
  });

  it('warns of a health check node port in use, serves other ports meanwhile, and that port once it is free', async () => {
    await agent.apply([]);
    await lab.node.serve({ protocol: 'TCP', ports: [PORT.web] });
    try {
      await agent.apply(services([first(lab.pods)]));
      const warnings = await waitFor('the failure is logged for both families', () => {
        const found = agent.logged('cannot serve health check node port; retrying');
        return found.length === 2 ? found : undefined;
      });
      for (const { service, port, level } of warnings) {
        assert.deepEqual([service, port, level], ['default/web', PORT.web, 40]);
      }
      await expectAnswer(lab.client, lab.node.ipv6, PORT.all, { code: 200 });
    } finally {
      await lab.node.stopServing();
    }
    await waitFor(
      'both families are served',
      () => agent.logged('health check node port served').length === 2,
      20_000,
    );
    for (const address of nodeAddresses()) {
      await expectAnswer(lab.client, address, PORT.web, { code: 200 });
    }
  });

  it('fails /healthz but not /livez while the node is being deleted', async () => {
    await agent.apply(services([first(lab.pods)]));
    const taints = [{ key: 'ToBeDeletedByClusterAutoscaler' }];
    agent.write('node', [nodeManifest(nodeAddresses(), { taints })]);
    const { body } = await waitFor('/healthz fails', async () => {
      const answer = await ask(lab.client, lab.node.ipv4, 10_256);
      return answer.code === 503 ? answer : undefined;
    });
    assert.deepEqual([body.nodeEligible, body.healthy], [false, true]);
    assert.equal((await ask(lab.client, lab.node.ipv4, 10_256, '/livez')).code, 200);
    await expectAnswer(lab.client, lab.node.ipv4, PORT.all, { code: 200 });
    agent.write('node', [nodeManifest(nodeAddresses())]);
    await waitFor('/healthz returns 200', async () => {
      return (await ask(lab.client, lab.node.ipv4, 10_256)).code === 200;
    });
  });

  it('reports unhealthy while rules cannot be written', async () => {
    const pods = [first(lab.pods)];
    await agent.apply(services(pods));
    writeFileSync(broken(), '');
    try {
      agent.write('objects', services([...pods, first(lab.remotePods)]));
      const { body } = await waitFor(
        '/healthz fails',
        async () => {
          const answer = await ask(lab.client, lab.node.ipv4, 10_256);
          return answer.code === 503 ? answer : undefined;
        },
        20_000,
      );
      const status = body.status as Record<string, { healthy: boolean }>;
      assert.deepEqual(
        [body.healthy, body.nodeEligible, status.IPv4?.healthy, status.IPv6?.healthy],
        [false, true, false, true],
      );
      assert.equal((await ask(lab.client, lab.node.ipv6, 10_256, '/livez')).code, 503);
      for (const address of nodeAddresses()) {
        const answer = await ask(lab.client, address, PORT.web);
        assert.equal(answer.code, 503);
        assert.deepEqual([answer.body.localEndpoints, answer.body.serviceProxyHealthy], [1, false]);
      }
    } finally {
      unlinkSync(broken());
    }
    await waitFor(
      'the proxy is healthy again',
      async () => (await ask(lab.client, lab.node.ipv4, PORT.web)).code === 200,
      40_000,
    );
  });

  it('listens on the addresses in flags', async () => {
    await agent.stop();
    const flags = ['--iptables-variant=nft', '--healthz-bind-address='];
    const addresses = '--nodeport-addresses=192.168.77.0/24,fd00:77::/64';
    await agent.start([...IPTABLES_FLAGS, ...flags, addresses]);
    await agent.apply(services([first(lab.pods)]));
    for (const address of nodeAddresses()) {
      await expectAnswer(lab.client, address, PORT.web, { code: 200 });
      assert.equal((await ask(lab.client, address, 10_256)).code, 0);
    }
    for (const address of ['127.0.0.1', '::1']) {
      assert.equal((await ask(lab.node, address, PORT.web)).code, 0);
    }
  });

  it('answers health checks on the VIP in mode nftables as in other modes', async () => {
    const other = ['192.168.99.1', 'fd00:99::1'];
    for (const [index, address] of other.entries()) {
      const family = index === 0 ? '-4' : '-6';
      await lab.node.exec('ip', [family, 'address', 'add', address, 'dev', 'lo']);
    }
    await agent.stop();
    await agent.start([...AGENT_FLAGS, '--proxy-mode=nftables']);
    await agent.apply(services([first(lab.pods)]));
    for (const address of [...nodeAddresses(), ...other]) {
      await expectAnswer(lab.node, address, PORT.web, { code: 200 });
    }
  });
});
