import assert from 'node:assert/strict';
import type { ResultPromise } from 'execa';
import { RemoteDouble } from '../api-server/remote.ts';
import { createLab, type Host, iptablesRules, type Lab, waitFor } from '../lab/lab.ts';
import { KUBE_PROXY_PROBLEMS, promtoolProblems } from '../metrics/promtool.ts';
import { Scrape } from '../metrics/scrape.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS, Agent, IPTABLES_FLAGS } from './agent.ts';
import {
  ALL_PORTS,
  type Manifest,
  nodeManifest,
  serviceManifest,
  sliceManifest,
} from './manifests.ts';

const VIPS = ['10.96.0.10', 'fd00:10:96::10'];
const FAMILIES = [
  [4, 'IPv4'],
  [6, 'IPv6'],
] as const;

/** Requests a page of the agent from inside the node's namespace. */
async function get(lab: Lab, path: string): Promise<string> {
  const answer = await lab.node.httpGet(`http://127.0.0.1:10249${path}`);
  if ('error' in answer) throw new Error(answer.error);
  return answer.body;
}

/**
 * Scrapes until the metrics are as expected, because rules are in force slightly before they are
 * counted.
 */
const eventually = (assertion: () => Promise<void>) =>
  waitFor('the metrics report the rules in force', async () => {
    await assertion();
    return true;
  });

const scrape = async (lab: Lab) => new Scrape(await get(lab, '/metrics'));

function triggered(slice: Manifest, time: Date): Manifest {
  const annotations = { 'endpoints.kubernetes.io/last-change-trigger-time': time.toISOString() };
  return { ...slice, metadata: { ...(slice.metadata as object), annotations } };
}

for (const variant of ['nft', 'legacy'] as const) {
  describe(`metrics of an agent on iptables-${variant}`, () => {
    let lab: Lab;
    let agent: Agent;
    const service = serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: VIPS } });
    const flags = [
      ...IPTABLES_FLAGS,
      `--iptables-variant=${variant}`,
      '--iptables-sync-period=500ms',
    ];

    before(async () => {
      lab = await createLab({ pods: 2, remotePods: 0 });
      agent = new Agent(lab);
      await agent.start(flags);
      await agent.apply([service, sliceManifest('all', 4, lab.pods.slice(0, 1))]);
    });
    after(async () => {
      await agent?.destroy();
      await lab?.destroy();
    });

    it('counts the rules that the kernel has', () =>
      eventually(async () => {
        const scraped = await scrape(lab);
        for (const [family, ip_family] of FAMILIES) {
          for (const table of ['mangle', 'nat', 'filter'] as const) {
            const saved = await iptablesRules(lab.node, variant, family, table);
            const own = saved.match(/^-A KUBE-(?!FIREWALL)/gm)?.length ?? 0;
            const labels = { table, ip_family };
            const name = 'kubeproxy_sync_proxy_rules_iptables_total';
            assert.equal(scraped.value(name, labels), own, `${ip_family} ${table}`);
          }
        }
      }));

    it('measures how long a change of an endpoint took', async () => {
      const name = 'kubeproxy_network_programming_duration_seconds_count';
      const changed = sliceManifest('all', 4, lab.pods);
      assert.equal((await scrape(lab)).value(name), undefined);
      const partial = 'kubeproxy_sync_partial_proxy_rules_duration_seconds_count';
      const before = (await scrape(lab)).value(partial, { ip_family: 'IPv4' }) ?? 0;
      await agent.apply([service, triggered(changed, new Date())]);
      await eventually(async () => {
        const scraped = await scrape(lab);
        assert.equal(scraped.value(name, { ip_family: 'IPv4' }), 1);
        assert.ok((scraped.value(partial, { ip_family: 'IPv4' }) ?? 0) > before);
      });
    });

    it('reports refused Services', async () => {
      const spec = { clusterIPs: ['10.96.0.11'], type: 'NodePort' };
      await agent.apply([service, serviceManifest('bad', { annotations: ALL_PORTS, spec })]);
      const scraped = await scrape(lab);
      assert.equal(scraped.value('portwide_refused_services', { reason: 'NodePort' }), 1);
      assert.equal(scraped.value('portwide_all_ports_services', { kind: 'all' }), 1);
    });

    it('counts restores after another program removes rules', async () => {
      const lost = () =>
        agent.log
          .filter(({ msg }) => msg === 'rules were changed by another program; restoring them')
          .map(({ change }) => change);
      for (const [args, expected] of [
        [['-t', 'nat', '-F', 'KUBE-PROXY-CANARY'], /^chain KUBE-PROXY-CANARY of table nat$/],
        [['-t', 'filter', '-F', 'FORWARD'], /^jump from FORWARD to KUBE-\S+ in table filter$/],
      ] as const) {
        // Remove the rule repeatedly, in case a periodic full sync restores the rule.
        await waitFor('the removal is detected', async () => {
          await lab.node.exec(`iptables-${variant}`, args);
          return lost().some((what) => expected.test(String(what)));
        });
      }
    });

    it('reports the mode and the build', async () => {
      assert.equal(await get(lab, '/proxyMode'), 'iptables');
      assert.equal(await get(lab, '/healthz'), 'ok');
      const slis = new Scrape(await get(lab, '/metrics/slis'));
      assert.equal(slis.value('kubernetes_healthcheck', { name: 'ping' }), 1);
    });

    it('passes promtool check metrics', async () => {
      assert.deepEqual(
        (await promtoolProblems(await get(lab, '/metrics'))).sort(),
        KUBE_PROXY_PROBLEMS,
      );
    });
  });
}

describe('metrics of an agent on nftables', () => {
  let lab: Lab;
  let agent: Agent;
  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 0 });
    agent = new Agent(lab);
    await agent.start([...AGENT_FLAGS, '--proxy-mode=nftables', '--nftables-sync-period=500ms']);
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });

  /** Number of elements of each non-empty map in the kernel. */
  const inKernel = async (family: 'ip' | 'ip6') => {
    const { stdout } = await lab.node.exec('nft', ['-j', 'list', 'table', family, 'portwide']);
    const { nftables } = JSON.parse(stdout) as {
      nftables: Record<string, { name: string; elem?: unknown[] }>[];
    };
    const sets = nftables.flatMap(({ map, set }) => map ?? set ?? []);
    return Object.fromEntries(
      sets.flatMap(({ name, elem }) => (elem ? [[name, elem.length]] : [])),
    );
  };
  const reported = async (ip_family: string) => {
    const { samples = [] } = (await scrape(lab)).metrics.get('portwide_nftables_elements') ?? {};
    const own = samples.filter(
      ({ labels, value }) => labels.ip_family === ip_family && value !== 0,
    );
    return Object.fromEntries(own.map(({ labels, value }) => [labels.map, value]));
  };

  it('counts the elements that the kernel has, after changes of Services and of other programs', async () => {
    const all = serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: VIPS } });
    const web = serviceManifest('web', {
      spec: {
        type: 'NodePort',
        clusterIPs: ['10.96.0.11'],
        ports: [{ port: 80, nodePort: 30_080 }],
      },
    });
    const slices = (pods: readonly Host[]) => [
      sliceManifest('all', 4, pods),
      sliceManifest('all', 6, pods),
      sliceManifest('web', 4, pods, { ports: [{ name: '', port: 8080 }] }),
    ];
    for (const objects of [
      [all, ...slices(lab.pods)],
      [all, web, ...slices(lab.pods.slice(0, 1))],
      [web, ...slices(lab.pods)],
      [],
      [all, web, ...slices(lab.pods)],
    ]) {
      await agent.apply(objects);
      for (const [family, ip_family] of [
        ['ip', 'IPv4'],
        ['ip6', 'IPv6'],
      ] as const) {
        await eventually(async () =>
          assert.deepEqual(await reported(ip_family), await inKernel(family)),
        );
      }
    }
    const before = await inKernel('ip');
    assert.ok((before.endpoints ?? 0) >= 2 && (before['endpoint-ips'] ?? 0) >= 2);
    await lab.node.exec('nft', ['delete', 'table', 'ip', 'portwide']);
    await waitFor('the table is restored', async () => {
      assert.deepEqual(await inKernel('ip').catch(() => undefined), before);
      return true;
    });
    await eventually(async () => assert.deepEqual(await reported('IPv4'), before));
  });

  it('reports mode nftables, and no failures', async () => {
    assert.equal(await get(lab, '/proxyMode'), 'nftables');
    const scraped = await scrape(lab);
    for (const kind of ['sync', 'cleanup']) {
      const name = `kubeproxy_sync_proxy_rules_nftables_${kind}_failures_total`;
      assert.equal(scraped.value(name, { ip_family: 'IPv4' }), 0);
      assert.equal(scraped.value(name, { ip_family: 'IPv6' }), 0);
    }
    const problems = KUBE_PROXY_PROBLEMS.filter((line) => !line.includes('iptables'));
    assert.deepEqual(await promtoolProblems(await get(lab, '/metrics')), problems);
  });
});

describe("an agent's writes to the API server", () => {
  let lab: Lab;
  before(async () => {
    lab = await createLab({ pods: 0, remotePods: 0 });
  });
  after(async () => lab?.destroy());

  /** Lines that a process has printed so far. */
  function linesOf(process: ResultPromise): () => string[] {
    let text = '';
    process.stdout?.on('data', (chunk) => {
      text += String(chunk);
    });
    return () => text.split('\n').slice(0, -1);
  }

  it('writes only Events about its start and refused Services, and counts its requests', async () => {
    const refused = serviceManifest('bad', {
      annotations: ALL_PORTS,
      spec: { clusterIPs: VIPS, type: 'NodePort' },
    });
    const metadata = { ...(refused.metadata as object), uid: 'uid-1' };
    const api = await RemoteDouble.start(lab.node.spawn);
    await api.call('put', { ...refused, metadata }, nodeManifest([lab.node.ipv4]));
    const agent = lab.node.spawn(PORTWIDE, ['run', `--master=${api.url}`, ...AGENT_FLAGS]);
    const log = linesOf(agent);
    const events = await waitFor('both Events', async () => {
      const written = await api.call('events');
      return written.length === 2 ? written : undefined;
    });
    const reported = events.map(({ type, reason, action, note, regarding, reportingInstance }) => {
      const { kind, name, uid } = regarding as Record<string, string>;
      return [type, reason, action, note, `${kind} ${name} ${uid}`, reportingInstance];
    });
    const message = 'a NodePort Service cannot serve all ports of a node';
    const instance = 'portwide-node';
    assert.deepEqual(reported, [
      ['Normal', 'Starting', 'StartPortwide', '', 'Node node node', instance],
      [
        'Warning',
        'RefusedNodePort',
        'ServeService',
        `spec.type: ${message}`,
        'Service bad uid-1',
        // The agent of every node reports this Event.
        'portwide',
      ],
    ]);
    const logged = log().map((line) => JSON.parse(line));
    assert.ok(logged.some((line) => line.service === 'default/bad' && line.message === message));

    const scraped = await scrape(lab);
    const host = `127.0.0.1:${api.port}`;
    const count = (code: string, method: string) =>
      scraped.value('rest_client_requests_total', { code, method, host });
    assert.equal(count('201', 'POST'), 2);
    // A list and a watch for each of three kinds; reopened watches count too.
    const gets = count('200', 'GET') ?? 0;
    const timed = scraped.value('rest_client_request_duration_seconds_count', { verb: 'GET' });
    assert.ok(gets >= 6 && (timed ?? 0) >= gets, `${gets} requests, ${timed} of them timed`);
    for (const kind of ['Service', 'EndpointSlice', 'Node']) {
      assert.equal(scraped.value('portwide_api_watch_state', { kind }), 1, kind);
    }
    assert.equal(scraped.value('portwide_events_dropped_total', { reason: 'rejected' }), 0);
    await api.kill();
    await waitFor(
      'the agent notices that the watches are closed',
      async () => (await scrape(lab)).value('portwide_api_watch_state', { kind: 'Service' }) === 0,
    );
  });
});
