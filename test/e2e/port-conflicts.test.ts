import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { RemoteDouble } from '../api-server/remote.ts';
import { createLab, type Lab, waitFor } from '../lab/lab.ts';
import { Scrape } from '../metrics/scrape.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { type Manifest, nodeManifest, serviceManifest, sliceManifest } from './manifests.ts';

interface Event {
  readonly type: string;
  readonly reason: string;
  readonly note: string;
  readonly regarding: { readonly kind: string; readonly name: string };
}

describe('listening ports of the agent', () => {
  let lab: Lab;
  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 0 });
    await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
  });
  after(async () => lab?.destroy());

  it('reports listening ports in use by Events on the Node and the Service', async () => {
    // The API server itself uses the port of all three.
    const double = await RemoteDouble.start(lab.node.spawn);
    const { port } = double;
    const service: Manifest = serviceManifest('web', {
      ingress: [{ ip: '192.0.2.10' }],
      spec: {
        type: 'LoadBalancer',
        clusterIPs: ['10.96.0.10'],
        externalTrafficPolicy: 'Local',
        healthCheckNodePort: port,
      },
    });
    await double.call('put', service, nodeManifest([lab.node.ipv4]));
    const agent = lab.node.spawn(PORTWIDE, [
      'run',
      `--master=${double.url}`,
      ...AGENT_FLAGS,
      `--metrics-bind-address=127.0.0.1:${port}`,
      `--healthz-bind-address=127.0.0.1:${port}`,
    ]);
    agent.catch(() => {});
    const reported = async () =>
      ((await double.call('events')) as unknown as readonly Event[])
        .map(({ type, reason, regarding: { kind, name }, note }) => {
          assert.match(note, reason === 'Starting' ? /^$/ : /EADDRINUSE/);
          return `${type} ${reason} on ${kind} ${name}`;
        })
        .sort();
    const expected = [
      'Normal Starting on Node node',
      'Warning FailedToStartMetricServer on Node node',
      'Warning FailedToStartProxierHealthcheck on Node node',
      'Warning FailedToStartServiceHealthcheck on Service web',
    ];
    await waitFor('all Events', async () => (await reported()).length >= expected.length, 30_000);
    assert.deepEqual(await reported(), expected);
    agent.kill('SIGKILL');
    await double.kill();
  });

  it('is degraded while another process has a health check node port, and binds it afterwards', async () => {
    const port = 30_500;
    await lab.node.serve({ protocol: 'TCP', port });
    const agent = new Agent(lab);
    const socket = join(agent.directory, 'socket');
    agent.firstFlags = ['--status-bind-address=none', `--status-socket=${socket}`];
    const ask = async (...command: string[]) => {
      const args = [...command, `--status-socket=${socket}`];
      const { exitCode, stdout } = await lab.node.exec(PORTWIDE, args, { reject: false });
      return { exitCode, text: stdout };
    };
    const unbound = async () => {
      const script = `process.stdout.write(await (await fetch('http://127.0.0.1:10249/metrics')).text())`;
      const args = ['--input-type=module', '-e', script];
      return new Scrape((await lab.node.exec(process.execPath, args)).stdout).value(
        'portwide_unbound_health_check_node_ports',
      );
    };
    const problem =
      /FailedToStartServiceHealthcheck .*health check node port 0\.0\.0\.0:30500 cannot be served \(listen EADDRINUSE.*\); load balancers may believe/;
    try {
      agent.write('web', [
        serviceManifest('web', {
          ingress: [{ ip: '192.0.2.10' }],
          spec: {
            type: 'LoadBalancer',
            clusterIPs: ['10.96.0.12'],
            externalTrafficPolicy: 'Local',
            healthCheckNodePort: port,
          },
        }),
      ]);
      await agent.start();
      await waitFor(
        'the failure is logged',
        () => agent.logged('cannot serve health check node port; retrying').length > 0,
        30_000,
      );
      const status = await ask('status');
      assert.match(status.text, problem);
      assert.equal(status.exitCode, 1);
      assert.match(status.text, /degraded/);
      const described = (await ask('describe', 'service', 'web')).text;
      assert.match(described, problem);
      assert.match(described, /Warning +FailedToStartServiceHealthcheck/);
      assert.equal(await unbound(), 1);
      await lab.node.stopServing({ protocol: 'TCP', port });
      await waitFor(
        'the agent has the port',
        () => agent.logged('health check node port served').length > 0,
        30_000,
      );
      assert.doesNotMatch((await ask('status')).text, problem);
      assert.doesNotMatch((await ask('describe', 'service', 'web')).text, problem);
      assert.equal(await unbound(), 0);
    } finally {
      await lab.node.stopServing({ protocol: 'TCP', port });
      await agent.destroy();
    }
  });

  it('serves a listed port on a node address that is the node port of another Service, and warns both', async () => {
    const agent = new Agent(lab);
    const port = 30_123;
    try {
      const [owners, takers] = lab.pods;
      assert.ok(owners && takers);
      const ports = [{ name: '', port: 8080 }];
      agent.write('web', [
        serviceManifest('door', {
          spec: {
            type: 'NodePort',
            clusterIPs: ['10.96.0.21'],
            ports: [{ port: 80, nodePort: port }],
          },
        }),
        sliceManifest('door', 4, [owners], { ports }),
        serviceManifest('taker', {
          namespace: 'evil',
          spec: {
            clusterIPs: ['10.96.0.22'],
            externalIPs: [lab.node.ipv4],
            ports: [{ port }],
          },
        }),
        sliceManifest('taker', 4, [takers], { namespace: 'evil', ports }),
      ]);
      await agent.start();
      const result = await lab.client.tcp(lab.node.ipv4, port);
      assert.equal(result.outcome, 'answered');
      assert.equal(result.reply.host, takers.name);
      const warnings = () =>
        agent
          .logged('Service is served with a warning')
          .map((line) => [line.service, String(line.message).slice(0, 60)]);
      await waitFor('both warnings', () => warnings().length >= 2, 30_000);
      assert.deepEqual(warnings().sort(), [
        ['default/door', 'spec.ports.nodePort: 30123/TCP on 192.168.77.10 leads to a S'],
        ['evil/taker', 'spec.externalIPs: 192.168.77.10 is an address of this node, '],
      ]);
    } finally {
      await agent.destroy();
    }
  });

  it('serves Services on listening ports of the node, and warns', async () => {
    const agent = new Agent(lab);
    try {
      const web = { clusterIPs: ['10.96.0.11'], externalIPs: [lab.node.ipv4] };
      const ports = [{ port: 22 }];
      agent.write('web', [
        serviceManifest('own-ssh', { spec: { ...web, ports } }),
        serviceManifest('lost', { spec: { type: 'NodePort', clusterIPs: [], ports } }),
        sliceManifest('absent', 4, []),
      ]);
      const broken = join(agent.directory, 'broken.yaml');
      writeFileSync(broken, 'kind: [');
      await agent.start();
      const warnings = () =>
        agent.log
          .filter(({ msg }) => msg === 'Service is served with a warning')
          .map(({ message }) => String(message));
      await waitFor('three warnings', () => warnings().length >= 3, 30_000);
      for (const expected of [
        /^spec\.externalIPs: 192\.168\.77\.10 is an address of this node, and 22\/TCP is the port of ssh/,
        /^spec\.clusterIPs: no cluster IP/,
        /^metadata\.labels.*Service default\/absent does not exist/,
      ]) {
        assert.equal(warnings().filter((line) => expected.test(line)).length, 1, String(expected));
      }
      const numbers = async () => {
        const script = `process.stdout.write(await (await fetch('http://127.0.0.1:10249/metrics')).text())`;
        const args = ['--input-type=module', '-e', script];
        const { stdout } = await lab.node.exec(process.execPath, args);
        return stdout.match(/^portwide_(faulty_manifests|services_on_own_ports) .*$/gm);
      };
      assert.deepEqual(await numbers(), [
        'portwide_services_on_own_ports 1',
        'portwide_faulty_manifests 1',
      ]);
      writeFileSync(broken, JSON.stringify(nodeManifest([])).replace('"node"', '"other"'));
      await waitFor(
        'the fault is cleared',
        () =>
          agent.log.some(
            ({ file, msg }) => file === broken && msg === 'manifest is no longer faulty',
          ),
        30_000,
      );
      assert.deepEqual(await numbers(), [
        'portwide_services_on_own_ports 1',
        'portwide_faulty_manifests 0',
      ]);
    } finally {
      await agent.destroy();
    }
  });

  it('exits with --bind-address-hard-fail when a listening port is in use', async () => {
    const double = await RemoteDouble.start(lab.node.spawn);
    const { port } = double;
    for (const flag of ['--metrics-bind-address', '--healthz-bind-address']) {
      const { exitCode, stdout, stderr } = await lab.node.exec(
        PORTWIDE,
        [
          'run',
          `--master=${double.url}`,
          ...AGENT_FLAGS,
          '--bind-address-hard-fail',
          `${flag}=127.0.0.1:${port}`,
        ],
        { reject: false },
      );
      assert.equal(exitCode, 1);
      assert.ok(`${stdout}${stderr}`.includes(flag), 'it logs the reason');
    }
    await double.kill();
  });
});
