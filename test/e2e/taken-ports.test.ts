import assert from 'node:assert/strict';
import { RemoteDouble } from '../api-server/remote.ts';
import { createLab, type Lab, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS } from './agent.ts';
import { type Manifest, nodeManifest, serviceManifest } from './manifests.ts';

interface Event {
  readonly type: string;
  readonly reason: string;
  readonly note: string;
  readonly regarding: { readonly kind: string; readonly name: string };
}

describe('ports of the agent that are taken', () => {
  let lab: Lab;
  before(async () => {
    lab = await createLab({ pods: 0, remotePods: 0 });
  });
  after(async () => lab?.destroy());

  it('are told by Events, on the Node and on the Service', async () => {
    // What has the port of all three is the API server itself.
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
    const told = async () =>
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
    await waitFor('all Events', async () => (await told()).length >= expected.length, 30_000);
    assert.deepEqual(await told(), expected);
    agent.kill('SIGKILL');
    await double.kill();
  });

  it('end it with --bind-address-hard-fail', async () => {
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
      assert.ok(`${stdout}${stderr}`.includes(flag), 'it says why');
    }
    await double.kill();
  });
});
