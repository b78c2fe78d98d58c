/** Pods of an API server: ports owned by pods at the start, without rights, and while the API server is away. */
import assert from 'node:assert/strict';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { ApiFeed } from './feed.ts';
import { addressedPod, type Manifest, serviceManifest, sliceManifest } from './manifests.ts';
import { answered, refused } from './scenarios/scenario.ts';

const VIP = '10.96.0.20';
const WEB = '10.96.0.21';
const PORT = 20_000;
const FAILURE = 'list or watch failed; retrying';
const FORBIDDEN = { kind: 'status', code: 403, reason: 'Forbidden' } as const;
const OWNED = {
  'portwide.dev/owned-ports': '20000-20999/UDP',
  'portwide.dev/ports-per-pod': '100',
};

describe('owned ports with an API server', function () {
  // The waits below add up on a busy machine.
  this.timeout(240_000);
  let lab: Lab;
  let feed: ApiFeed;
  let agent: Agent;
  const flags = [...AGENT_FLAGS, '--proxy-mode=nftables'];

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 0 });
    await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
    feed = await ApiFeed.start(lab);
  });
  beforeEach(() => {
    agent = new Agent(lab, { feed, syncs: 2 });
  });
  afterEach(async () => {
    await feed.double.call('recover');
    await agent?.kill();
  });
  after(() => lab?.destroy());

  const host = (index: number): Host => {
    const found = lab.pods[index];
    assert.ok(found !== undefined);
    return found;
  };
  const media = (namespace: string): Manifest[] => [
    serviceManifest('media', { namespace, annotations: OWNED, spec: { clusterIPs: [VIP] } }),
    sliceManifest('media', 4, [[host(0), { hostname: 'media-0' }]], { namespace }),
    addressedPod('media-0', [host(0).ipv4], { namespace }),
  ];
  const web = (): Manifest[] => [
    serviceManifest('web', { spec: { clusterIPs: [WEB], ports: [{ port: 80 }] } }),
    sliceManifest('web', 4, [host(1)], { ports: [{ name: '', port: 80 }] }),
  ];
  const udp = () => lab.client.udp(VIP, PORT, { timeoutMs: 300 });
  const answers = (is: boolean) =>
    waitFor(`the owner ${is ? 'answers' : 'does not answer'}`, async () => {
      const { outcome } = await udp();
      return outcome === (is ? 'answered' : 'refused');
    });
  const keepsAnswering = async () => {
    for (let packet = 0; packet < 30; packet++) assert.equal(answered(await udp()).host, 'pod-1');
  };
  const podRequests = async () =>
    (await feed.double.call('requests')).filter(({ resource }) => resource === 'pods');

  it('Pods are watched from the first Service with owned ports of a namespace to the last', async () => {
    await agent.start(flags);
    await agent.apply(web());
    assert.deepEqual(await podRequests(), []);
    await agent.apply([...web(), ...media('voice')]);
    await answers(true);
    assert.equal(await feed.double.call('watching', 'pods'), 1);
    const paths = (await podRequests()).map(({ path }) => path);
    assert.deepEqual([...new Set(paths)], ['/api/v1/namespaces/voice/pods']);
    await agent.apply(web());
    // Not at once: a Service that changes to and fro must not list the Pods each time.
    await waitFor(
      'the watch ends',
      async () => (await feed.double.call('watching', 'pods')) === 0,
      120_000,
    );
    assert.deepEqual(agent.logged(FAILURE), []);
  });

  it('a restart withdraws no owner, although the list of Pods comes late', async () => {
    agent.write('objects', [...web(), ...media('voice')]);
    await feed.written();
    await agent.start(flags);
    await answers(true);
    await agent.kill();
    await feed.double.call('fail', {
      fault: { kind: 'hold' },
      verb: 'list',
      resource: 'pods',
      times: 1,
    });
    const { ended } = agent.launch(flags);
    await waitFor('all but the Pods is listed', () => agent.logged('listed objects').length === 4);
    await keepsAnswering();
    assert.deepEqual(agent.logged('serving'), []);
    await feed.double.call('release');
    await waitFor('the agent serves', () => agent.logged('serving').length === 2);
    assert.equal(answered(await udp()).host, 'pod-1');
    assert.equal(await Promise.race([ended, 'running']), 'running');
  });

  it('a restart withdraws no owner, although the first list of Pods is forbidden', async () => {
    agent.write('objects', [...web(), ...media('voice')]);
    await feed.written();
    await agent.start(flags);
    await answers(true);
    await agent.kill();
    const rule = { verb: 'list', resource: 'pods', times: 1 } as const;
    await feed.double.call('fail', { ...rule, fault: FORBIDDEN });
    await feed.double.call('fail', { ...rule, fault: { kind: 'hold' } });
    const lists = async () => (await podRequests()).filter(({ verb }) => verb === 'list').length;
    const before = await lists();
    const { ended } = agent.launch(flags);
    await waitFor('the second list is requested', async () => (await lists()) === before + 2);
    await keepsAnswering();
    assert.deepEqual(agent.logged('serving'), []);
    await feed.double.call('release');
    await waitFor('the agent serves', () => agent.logged('serving').length === 2);
    assert.equal(answered(await udp()).host, 'pod-1');
    assert.equal(await Promise.race([ended, 'running']), 'running');
  });

  it('a namespace whose Pods must not be listed holds up no Service', async () => {
    agent.write('objects', [...web(), ...media('voice')]);
    await feed.written();
    await feed.double.call('fail', { fault: FORBIDDEN, resource: 'pods', times: 1_000_000 });
    const { ended } = agent.launch(flags);
    // Before the end of the 30 s for which other failures are awaited.
    await waitFor('the agent serves', () => agent.logged('serving').length === 2, 25_000);
    assert.equal(answered(await lab.client.tcp(WEB, 80)).host, 'pod-2');
    refused(await udp());
    const [failure] = await waitFor('the failure is logged', () => {
      const failures = agent.logged(FAILURE);
      return failures.length > 0 ? failures : undefined;
    });
    assert.deepEqual(
      [failure?.kinds, /pods.*voice|Forbidden/.test(JSON.stringify(failure))],
      [['Pod'], true],
    );
    await waitFor('the Service has a warning', () =>
      agent
        .logged('Service is served with a warning')
        .some(
          ({ service, message }) =>
            service === 'voice/media' && /cannot be listed/.test(String(message)),
        ),
    );
    await feed.double.call('recover');
    await answers(true);
    assert.equal(await Promise.race([ended, 'running']), 'running');
  });

  it('what is known of Pods stays in force while the API server is away', async () => {
    agent.write('objects', [...web(), ...media('voice')]);
    await feed.written();
    await agent.start(flags);
    await answers(true);
    const port = feed.double.port;
    await feed.double.call('close');
    try {
      await waitFor('the failure is logged', () => agent.logged(FAILURE).length > 0);
      await keepsAnswering();
    } finally {
      await feed.double.call('listen', port);
    }
    const [service, slice] = media('voice');
    assert.ok(service !== undefined && slice !== undefined);
    agent.write('objects', [...web(), service, slice]);
    await answers(false);
  });
});
