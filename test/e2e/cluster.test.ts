import assert from 'node:assert/strict';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { Agent, IPTABLES_FLAGS } from './agent.ts';
import { ApiFeed } from './feed.ts';
import { ALL_PORTS, serviceManifest, sliceManifest } from './manifests.ts';
import { SCENARIOS } from './scenarios/all.ts';
import { SHORT, World } from './scenarios/scenario.ts';

/** Checks that the rules remain, repeatedly, long enough to notice a change. */
const FLAGS = [...IPTABLES_FLAGS, '--iptables-variant=nft', '--iptables-sync-period=500ms'];
const VIPS = ['10.96.0.10', 'fd00:10:96::10'];
const [VIP = ''] = VIPS;
const FAILURE = 'list or watch failed; retrying';

/** One scenario of each kind; the manifest directory runs all. */
const CORE = [
  'all-ports: every TCP, UDP and SCTP port of the VIP reaches a pod on the same port',
  'all-ports: by spec.allPorts (KEP-2610), and explicitly false',
  'all-ports: session affinity keeps a client on one pod across ports and protocols',
  'port ranges: a pod answers inside, connections outside are rejected',
  'all-ports: without a ready endpoint every port is rejected, and the node never answers',
  'all-ports: slices without ports, with a null port or with the placeholder work',
  'all-ports: connections stay open when it is set on a live Service and unset',
  'all-ports: refused Services are not programmed, including the placeholder, and do not affect others',
  'one VIP: exact port before range before all-ports, with or without endpoints',
  'two all-ports Services on one VIP: the older owns it, the other takes over',
  'a listed port reaches the target port; other ports do not',
  'a named port may differ from slice to slice',
  'no endpoint: rejected; unready ones do not count; terminating ones serve as a fallback',
  'internalTrafficPolicy Local: only pods of this node; dropped if there are none',
  'topology hints, and all endpoints with trafficDistribution and no hints',
  'ignored: headless, ExternalName, other proxies, the headless label',
  'dual stack: one Service, both families',
  'node port: answers on the node address, from outside and from the node, masqueraded',
  'external IPs: answer like load balancer addresses',
  'all-ports: the health check port of the VIP stays with the node',
];

describe('an agent with an API server', function () {
  // The waits below add up on a busy machine.
  this.timeout(240_000);
  let lab: Lab;
  let feed: ApiFeed;
  let agent: Agent;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 1 });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    feed = await ApiFeed.start(lab);
    agent = new Agent(lab, { feed });
    await agent.start(FLAGS);
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });

  const pod = (index: number): Host => {
    const host = lab.pods[index];
    assert.ok(host !== undefined);
    return host;
  };
  const servedBy = (host: Host) => [
    serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: VIPS } }),
    sliceManifest('all', 4, [host]),
    sliceManifest('all', 6, [host]),
  ];
  const who = async () => {
    const outcome = await lab.client.tcp(VIP, 4000, SHORT);
    return outcome.outcome === 'answered' ? outcome.reply.host : outcome.outcome;
  };
  /** Including the handles that the kernel assigns to each rule. */
  const ruleset = async () => {
    const { stdout } = await lab.node.exec('nft', ['--handle', 'list', 'ruleset']);
    return stdout.replaceAll(/packets \d+ bytes \d+/g, '');
  };
  const failures = () => agent.logged(FAILURE).length;

  for (const family of [4, 6] as const) {
    describe(`packets of IPv${family}`, () => {
      for (const title of CORE) {
        it(title, async () => {
          const scenarios = Object.values(SCENARIOS).flat();
          const scenario = scenarios.find((each) => each.title === title);
          assert.ok(scenario !== undefined);
          await scenario.run(new World(lab, agent, family));
        });
      }
    });
  }

  it('keeps its rules while the API server is unavailable, and then applies the missed changes', async () => {
    await agent.apply(servedBy(pod(0)));
    const held = await lab.client.hold(VIP, 5060);
    const before = await ruleset();
    await feed.double.call('close');
    await waitFor(
      'the agent notices that the API server is unavailable',
      () => failures() >= 3,
      60_000,
    );
    agent.write('objects', servedBy(pod(1)));
    await feed.written();
    assert.equal(await who(), 'pod-1');
    assert.equal(await ruleset(), before);
    // One warning, and repetitions at debug level.
    const levels = agent.logged(FAILURE).map(({ level }) => level);
    assert.ok(levels.includes(40) && levels.every((level) => level <= 40), String(levels));

    await feed.double.call('listen');
    await waitFor('the changes are programmed', async () => (await who()) === 'pod-2', 60_000);
    assert.equal(await held.exchange('still here'), 'still here');
    await held.close();
  });

  it('waits and writes nothing when restarted while the API server is unavailable', async () => {
    await agent.apply(servedBy(pod(0)));
    const held = await lab.client.hold(VIP, 5060);
    // The last removals of a sync may still be in progress. Once a new agent serves, its start is
    // complete.
    await agent.kill();
    await agent.start(FLAGS);
    await agent.kill();
    await feed.double.call('close');
    const before = await ruleset();
    const { ended } = agent.launch();
    await waitFor(
      'the agent notices that the API server is unavailable',
      () => failures() >= 6,
      60_000,
    );
    assert.equal(await ruleset(), before);
    assert.deepEqual(agent.logged('synced'), []);
    assert.equal(await who(), 'pod-1');
    assert.equal(await held.exchange('still here'), 'still here');

    // It can be stopped and restarted repeatedly meanwhile.
    await agent.stop();
    assert.match(await ended, /^ended/);
    agent.launch();
    await waitFor(
      'the agent notices that the API server is unavailable',
      () => failures() >= 3,
      60_000,
    );
    assert.equal(await ruleset(), before);

    await feed.double.call('listen');
    await waitFor('it serves', () => agent.logged('serving').length === 2, 60_000);
    const written = agent.logged('synced').map((line) => line.written);
    assert.deepEqual(written, [0, 0]);
    assert.equal(await ruleset(), before);
    agent.write('objects', servedBy(pod(1)));
    await waitFor('changes are programmed', async () => (await who()) === 'pod-2', 20_000);
    assert.equal(await held.exchange('still here'), 'still here');
    await held.close();
  });
});
