/** ServiceCIDR objects: packets to cluster IPs that no Service has, in mode nftables. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { ApiFeed } from './feed.ts';
import { type Manifest, serviceManifest, sliceManifest } from './manifests.ts';
import { answered, refused, SHORT } from './scenarios/scenario.ts';

const FLAGS = [...AGENT_FLAGS, '--proxy-mode=nftables'];
const FAMILIES = [4, 6] as const;
const VIPS = { 4: '10.96.0.10', 6: 'fd00:10:96::10' };
/** Addresses that no Service has. Routes of the node lead to a pod that has them, too. */
const UNALLOCATED = { 4: '10.96.7.7', 6: 'fd00:10:96::77' };
const RANGES = ['10.96.0.0/16', 'fd00:10:96::/112'];

const serviceCidr = (name: string, cidrs: readonly string[], extra = {}): Manifest => ({
  apiVersion: 'networking.k8s.io/v1',
  kind: 'ServiceCIDR',
  metadata: { name, uid: `uid-${name}`, ...extra },
  spec: { cidrs },
  // The agent, like kube-proxy, uses ServiceCIDRs whatever their status.
  status: { conditions: [{ type: 'Ready', status: 'False' }] },
});

describe('packets to cluster IPs that no Service has', () => {
  let lab: Lab;
  let feed: ApiFeed;
  let agent: Agent;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 0 });
    const [pod] = lab.pods;
    assert.ok(pod !== undefined);
    await pod.exec('ip', ['addr', 'add', `${UNALLOCATED[4]}/32`, 'dev', 'lo']);
    await pod.exec('ip', ['addr', 'add', `${UNALLOCATED[6]}/128`, 'dev', 'lo', 'nodad']);
    await lab.node.exec('ip', ['route', 'add', UNALLOCATED[4], 'via', pod.ipv4]);
    await lab.node.exec('ip', ['-6', 'route', 'add', UNALLOCATED[6], 'via', pod.ipv6]);
    await pod.serveEveryPort();
    feed = await ApiFeed.start(lab);
    agent = new Agent(lab, { feed });
    agent.write('web', [
      serviceManifest('web', {
        spec: { clusterIPs: Object.values(VIPS), ports: [{ port: 80 }] },
      }),
      ...FAMILIES.map((family) =>
        sliceManifest('web', family, lab.pods.slice(0, 1), { ports: [{ name: '', port: 8080 }] }),
      ),
    ]);
    await feed.written();
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });
  afterEach(async () => {
    agent.write('cidrs', []);
    await agent.stop();
    await feed.double.call('recover');
  });

  const clients = (): Host[] => [lab.client, lab.node, ...lab.pods.slice(1)];
  /** Waits until all clients see this outcome at unallocated addresses, in both families. */
  const unallocated = (expected: 'answered' | 'timeout') =>
    waitFor(`packets to unallocated addresses: ${expected}`, async () => {
      for (const family of FAMILIES)
        for (const host of clients())
          if ((await host.tcp(UNALLOCATED[family], 80, SHORT)).outcome !== expected) return false;
      return true;
    });
  /** Cluster IPs are served, and their other ports rejected, at any time. */
  const clusterIPsWork = async () => {
    for (const family of FAMILIES) {
      for (const host of clients()) answered(await host.tcp(VIPS[family], 80));
      refused(await lab.client.tcp(VIPS[family], 81));
    }
  };

  it('drops them while a ServiceCIDR has the address, as kube-proxy does, also while it is deleted', async () => {
    await agent.start(FLAGS);
    await unallocated('answered');
    await clusterIPsWork();
    agent.write('cidrs', [serviceCidr('kubernetes', RANGES)]);
    await unallocated('timeout');
    await clusterIPsWork();
    // A pod and the outside are no cluster IPs.
    answered(await lab.client.tcp(lab.pods[0]?.ipv4 ?? '', 80));
    const deleting = { deletionTimestamp: '2026-01-01T00:00:00Z' };
    agent.write('cidrs', [serviceCidr('kubernetes', RANGES, deleting)]);
    await agent.apply([]);
    await unallocated('timeout');
    agent.write('cidrs', []);
    await unallocated('answered');
    await clusterIPsWork();
  });

  it('drops them after a restart of the agent, too', async () => {
    agent.write('cidrs', [serviceCidr('a', RANGES.slice(0, 1)), serviceCidr('b', RANGES.slice(1))]);
    await feed.written();
    for (let start = 0; start < 2; start++) {
      await agent.start(FLAGS);
      await unallocated('timeout');
      await clusterIPsWork();
      await agent.stop();
      await unallocated('timeout');
    }
  });

  it('keeps dropping them while a new agent waits for the list of ServiceCIDRs', async () => {
    agent.write('cidrs', [serviceCidr('kubernetes', RANGES)]);
    await feed.written();
    await agent.start(FLAGS);
    await unallocated('timeout');
    await agent.stop();
    await feed.double.call('fail', {
      fault: { kind: 'hold' },
      resource: 'servicecidrs',
      verb: 'list',
    });
    agent.launch(FLAGS);
    const server = `the API server ${new URL(feed.double.url).host}`;
    await waitFor('the agent waits for ServiceCIDRs only', async () => {
      const answer = await lab.node.httpGet('http://127.0.0.1:10256/healthz');
      if (!('code' in answer) || answer.code !== 503) return false;
      const { waitingFor } = JSON.parse(answer.body) as { waitingFor: string[] };
      return isDeepStrictEqual(waitingFor, [`ServiceCIDRs from ${server}`]);
    });
    await unallocated('timeout');
    await clusterIPsWork();
    assert.deepEqual(agent.logged('synced'), []);
    await feed.double.call('release');
    await agent.apply([]);
    await unallocated('timeout');
    await clusterIPsWork();
  });

  it('ignores a ServiceCIDR with addresses of the node or its pods, and says so', async () => {
    await agent.start(FLAGS);
    const wrong = ['0.0.0.0/0', '::/0', `${lab.node.ipv4}/24`];
    agent.write(
      'cidrs',
      wrong.map((cidr, index) => serviceCidr(`wrong-${index}`, [cidr])),
    );
    const event = await waitFor('Events', async () => {
      const events = await feed.double.call('events');
      const found = events.filter(({ reason }) => reason === 'ServiceCIDRIgnored');
      return found.length === wrong.length ? found : undefined;
    });
    assert.deepEqual(
      event.map(({ regarding }) => (regarding as { kind: string }).kind),
      wrong.map(() => 'ServiceCIDR'),
    );
    // The node still reaches its API server, pods and other hosts.
    for (const family of FAMILIES) {
      const address = (host: Host) => (family === 4 ? host.ipv4 : host.ipv6);
      for (const host of lab.pods.slice(0, 1)) answered(await lab.node.tcp(address(host), 80));
    }
    await unallocated('answered');
    await clusterIPsWork();
  });

  for (const [title, prepare] of [
    ['without the API', () => feed.double.call('uninstall', 'servicecidrs')],
    [
      'that forbids it',
      () =>
        feed.double.call('fail', {
          fault: { kind: 'status', code: 403, reason: 'Forbidden' },
          resource: 'servicecidrs',
          times: 1_000_000,
        }),
    ],
  ] as const) {
    it(`uses --service-cidrs with an API server ${title}, and is healthy`, async () => {
      await prepare();
      const directory = mkdtempSync(join(tmpdir(), 'portwide-cidrs-'));
      try {
        const socket = `--status-socket=${join(directory, 'agent.sock')}`;
        await agent.start([...FLAGS, socket]);
        await unallocated('answered');
        await clusterIPsWork();
        const { stdout, exitCode } = await lab.node.exec(PORTWIDE, ['status', socket], {
          reject: false,
        });
        assert.equal(exitCode, 0, stdout);
        await agent.stop();
        await agent.start([...FLAGS, `--service-cidrs=${RANGES.join(',')}`]);
        await unallocated('timeout');
        await clusterIPsWork();
      } finally {
        await feed.double.call('install', 'servicecidrs');
        rmSync(directory, { recursive: true });
      }
    });
  }
});
