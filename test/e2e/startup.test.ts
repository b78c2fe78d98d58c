/**
 * Readiness of an agent before its rules are written, and when the API server becomes unavailable
 * later.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, unlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createLab, type Lab, waitFor } from '../lab/lab.ts';
import { Scrape } from '../metrics/scrape.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS, Agent, IPTABLES_FLAGS } from './agent.ts';
import { ApiFeed } from './feed.ts';
import { holdTable } from './held-table.ts';
import { nodeManifest, serviceManifest, sliceManifest } from './manifests.ts';

const FLAGS = [...IPTABLES_FLAGS, '--iptables-variant=nft'];
const VIP = '10.96.0.10';
const OTHER_VIP = '10.96.0.11';
const HEALTH_PORT = 30_100;
const DEADLINE_MS = 60_000;
/** More requests than an agent makes during a test. */
const ALWAYS = 1_000_000;

/** Requests all pages of the agent, from inside the node. */
const LOOK = `
const get = async (url) => {
  const answer = await fetch(url, { signal: AbortSignal.timeout(5000) });
  return { code: answer.status, body: await answer.text() };
};
const none = () => ({ code: 0, body: '{}' });
const urls = ['10256/healthz', '10256/livez', '10249/healthz', '10249/metrics', '${HEALTH_PORT}/'];
const answers = urls.map((url) => get('http://127.0.0.1:' + url).catch(none));
console.log(JSON.stringify(await Promise.all(answers)));
`;

describe('an agent that starts with an API server', function () {
  // The waits below add up on a busy machine.
  this.timeout(240_000);
  let lab: Lab;
  let feed: ApiFeed;
  let agent: Agent;
  /** Directory with an ip6tables-restore that fails on demand. */
  let commands: string;
  const broken = () => join(commands, 'broken');
  const server = () => `the API server ${new URL(feed.double.url).host}`;

  before(async () => {
    commands = mkdtempSync(join(tmpdir(), 'portwide-commands-'));
    writeFileSync(
      join(commands, 'ip6tables-nft-restore'),
      `#!/bin/sh
[ ! -e ${broken()} ] || { echo 'failing on demand' >&2; exit 1; }
PATH=\${PATH#*:}
exec ip6tables-nft-restore "$@"
`,
      { mode: 0o755 },
    );
    lab = await createLab({ pods: 1, remotePods: 0 });
    await lab.pods[0]?.serveEveryPort();
    feed = await ApiFeed.start(lab);
    // A name that does not resolve fails at once.
    const env = { PATH: `${commands}:${process.env.PATH}`, RES_OPTIONS: 'timeout:1 attempts:1' };
    agent = new Agent(lab, { feed, env });
    agent.write('objects', [
      serviceManifest('web', {
        ingress: [{ ip: '203.0.113.50' }],
        spec: {
          type: 'LoadBalancer',
          clusterIPs: [VIP, 'fd00:10:96::10'],
          externalTrafficPolicy: 'Local',
          healthCheckNodePort: HEALTH_PORT,
          ports: [{ port: 80 }],
        },
      }),
      ...([4, 6] as const).map((family) =>
        sliceManifest('web', family, lab.pods, { ports: [{ name: '', port: 8080 }] }),
      ),
    ]);
    await feed.written();
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
    rmSync(commands, { recursive: true, force: true });
  });
  afterEach(async () => {
    await agent.stop();
    await feed.double.call('recover');
  });

  async function readStatus() {
    const script = ['--input-type=module', '-e', LOOK];
    const { stdout } = await lab.node.exec(process.execPath, script);
    const [healthz, livez, ping, metrics, servicePort] = JSON.parse(stdout);
    const { healthy, waitingFor } = JSON.parse(healthz.body);
    const scraped = new Scrape(metrics.body);
    return {
      healthz: healthz.code as number,
      healthy,
      waitingFor,
      livez: livez.code,
      ping: ping.body,
      synced: scraped.value('portwide_initial_sync_complete'),
      nodeMissing: scraped.value('portwide_node_missing'),
      serviceChanges: scraped.value('kubeproxy_sync_proxy_rules_service_changes_total'),
      servicePort: servicePort.code,
    };
  }

  const WAITING = {
    healthz: 503,
    healthy: true,
    livez: 200,
    ping: 'ok',
    synced: 0,
    servicePort: 0,
  };
  const READY = {
    ...{ healthz: 200, healthy: true, waitingFor: undefined, livez: 200, ping: 'ok' },
    ...{ synced: 1, nodeMissing: 0, servicePort: 200 },
  };

  const looksLike = (description: string, expected: object) =>
    waitFor(
      description,
      async () => {
        assert.partialDeepStrictEqual(await readStatus(), expected);
        return true;
      },
      DEADLINE_MS,
    );

  const listedFrom = (where: string) => [
    `Services from ${where}`,
    `EndpointSlices from ${where}`,
    `Node "node" from ${where}`,
  ];

  it('is not ready, names the API server, and stays alive while the API server name does not resolve', async () => {
    agent.launch([...FLAGS, '--master=https://api-server.invalid:6443']);
    const waitingFor = listedFrom('the API server api-server.invalid:6443');
    await looksLike('it waits', { ...WAITING, waitingFor });
  });

  it('becomes ready without a restart when the address in the kubeconfig is corrected', async () => {
    const kubeconfig = join(commands, 'kubeconfig');
    const use = (url: string) =>
      writeFileSync(
        kubeconfig,
        JSON.stringify({
          clusters: [{ name: 'c', cluster: { server: url } }],
          users: [{ name: 'u', user: {} }],
          contexts: [{ name: 'x', context: { cluster: 'c', user: 'u' } }],
          'current-context': 'x',
        }),
      );
    use('https://api-server.invalid:6443');
    agent.launch([...FLAGS, '--master=', `--kubeconfig=${kubeconfig}`]);
    await looksLike('it waits', WAITING);
    use(feed.double.url);
    await looksLike('it is ready', READY);
  });

  it('becomes ready once the API server no longer forbids its requests', async () => {
    const fault = { kind: 'status', code: 403, reason: 'Forbidden' } as const;
    await feed.double.call('fail', { fault, times: ALWAYS });
    agent.launch(FLAGS);
    await looksLike('it waits', { ...WAITING, waitingFor: listedFrom(server()) });
    await feed.double.call('recover');
    await looksLike('it is ready', READY);
  });

  it('names the kind that the API server forbids', async () => {
    const fault = { kind: 'status', code: 403, reason: 'Forbidden' } as const;
    await feed.double.call('fail', { fault, resource: 'endpointslices', times: ALWAYS });
    agent.launch(FLAGS);
    const waitingFor = [`EndpointSlices from ${server()}`];
    await looksLike('it waits for these', { ...WAITING, waitingFor });
  });

  it('stays ready when the API server becomes unavailable, but is not ready after a restart', async () => {
    agent.launch(FLAGS);
    await looksLike('it is ready', READY);
    await feed.double.call('close');
    const missed = () => agent.logged('list or watch failed; retrying').length > 0;
    await waitFor('the agent notices that the API server is unavailable', missed, DEADLINE_MS);
    assert.partialDeepStrictEqual(await readStatus(), READY);

    await agent.kill();
    agent.launch(FLAGS);
    await looksLike('it waits', { ...WAITING, waitingFor: listedFrom(server()) });
    const { outcome } = await lab.client.tcp(VIP, 80);
    assert.equal(outcome, 'answered', 'the rules of the previous agent remain');
    await feed.double.call('listen');
    await looksLike('it is ready again', READY);
    const written = agent.logged('synced').map((line) => line.written);
    assert.deepEqual(written.slice(0, 2), [0, 0], 'it only waited for a full sync');
  });

  it('is not ready when the rules of one family cannot be written, and serves the other', async () => {
    // Existing rules would only be compared, not written.
    await lab.node.exec('ip6tables-nft', ['-t', 'nat', '-F']);
    writeFileSync(broken(), '');
    try {
      agent.launch(FLAGS);
      await looksLike('it waits for the other family', {
        ...WAITING,
        waitingFor: ['the first sync of IPv6 rules'],
        // Over IPv4, where rules exist.
        servicePort: 200,
      });
    } finally {
      unlinkSync(broken());
    }
    await looksLike('it is ready', READY);
  });

  it('waits for its Node object before it is ready', async () => {
    const node = nodeManifest([lab.node.ipv4, lab.node.ipv6]);
    await feed.double.call('delete', node);
    agent.launch(FLAGS);
    await looksLike('it waits', {
      ...WAITING,
      nodeMissing: 1,
      waitingFor: [`Node "node" (${server()} has no such object)`],
    });
    // While the agent waits, it tracks Services without writing rules.
    const other = (port: number) =>
      serviceManifest('other', { spec: { clusterIPs: [OTHER_VIP], ports: [{ port }] } });
    for (const port of [81, 82, 83]) {
      const changes = (await readStatus()).serviceChanges ?? 0;
      await feed.double.call('put', other(port));
      const isCounted = async () => ((await readStatus()).serviceChanges ?? 0) > changes;
      await waitFor('the agent received a Service', isCounted, DEADLINE_MS);
    }
    assert.partialDeepStrictEqual(await readStatus(), { ...WAITING, nodeMissing: 1 });
    assert.deepEqual(agent.logged('serving'), []);
    await feed.double.call('delete', other(83));
    await feed.double.call('put', node);
    await looksLike('it is ready', READY);
  });
});

describe('an agent without --proxy-mode on a node without nf_tables', () => {
  let lab: Lab;
  let feed: ApiFeed;
  let agent: Agent;
  let directory: string;
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-fallback-'));
    lab = await createLab({ pods: 0, remotePods: 0 });
    await holdTable(lab.node, 'ip', 'portwide-probe');
    feed = await ApiFeed.start(lab);
    agent = new Agent(lab, { feed });
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  it('says by an Event on the Node, in status and by a metric that it falls back to iptables', async () => {
    const socket = `--status-socket=${join(directory, 'agent.sock')}`;
    await agent.start([...AGENT_FLAGS, socket]);
    const reason = 'nftables is not supported: the kernel refuses table portwide-probe: EPERM';
    const event = await waitFor('the Event', async () =>
      (await feed.double.call('events')).find((each) => each.reason === 'ProxyModeFallback'),
    );
    const { type, action, note, regarding } = event as unknown as Record<string, unknown>;
    const message = `--proxy-mode is unset and ${reason}; --proxy-mode=iptables keeps this mode without a warning`;
    assert.deepEqual([type, action, note], ['Warning', 'StartPortwide', message]);
    assert.partialDeepStrictEqual(regarding, { kind: 'Node', name: 'node' });
    const { stdout } = await lab.node.exec(PORTWIDE, ['status', socket], { reject: false });
    assert.match(stdout, new RegExp(`^Mode: +iptables \\(${message}`, 'm'));
    const look = "console.log(await (await fetch('http://127.0.0.1:10249/metrics')).text())";
    const script = ['--input-type=module', '-e', look];
    const metrics = await lab.node.exec(process.execPath, script);
    assert.equal(new Scrape(metrics.stdout).value('portwide_proxy_mode_fallback'), 1);
  });
});
