import assert from 'node:assert/strict';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { Agent, IPTABLES_FLAGS } from './agent.ts';
import { ApiFeed } from './feed.ts';
import { ALL_PORTS, serviceManifest, sliceManifest } from './manifests.ts';
import { SCENARIOS } from './scenarios/all.ts';
import { SHORT, World } from './scenarios/scenario.ts';

/** Also looks whether the rules still stand, often enough for a test to see what it does then. */
const FLAGS = [...IPTABLES_FLAGS, '--iptables-variant=nft', '--iptables-sync-period=500ms'];
const VIPS = ['10.96.0.10', 'fd00:10:96::10'];
const [VIP = ''] = VIPS;
const FAILURE = 'list or watch failed; retrying';

/** One of each kind of thing that an agent does; the manifest directory runs all. */
const CORE = [
  'every TCP, UDP and SCTP port of the VIP reaches a pod at the same port',
  'by spec.allPorts (KEP-2610), and explicitly false',
  'with session affinity a client stays on one pod across ports and protocols',
  'ranges: inside a pod answers, outside everything is refused',
  'without a ready endpoint every port is refused, and the node never answers',
  'slices with no ports, with a null port and with the placeholder all serve',
  'set on a live Service and unset again: connections to pods that stay live on',
  'refused Services are not programmed, placeholder included, and disturb nobody',
  'one VIP: exact port before range before all, with or without endpoints',
  'two all-ports Services on one VIP: the older has it, the other takes over',
  'a listed port reaches the target port; other ports do not',
  'a named port may differ from slice to slice',
  'no endpoint: refused; unready ones do not count; draining ones serve as a last resort',
  'internalTrafficPolicy Local: pods of this node only, dropped when there are none',
  'topology hints, and trafficDistribution without hints',
  'left alone: headless, ExternalName, other proxies, the headless label',
  'dual stack: one Service, both families',
  'a node port answers on the node address, from outside and from the node, masqueraded',
  'external IPs answer like load balancer addresses',
  'all-ports: the health check port of the VIP stays with the node',
];

describe('an agent fed by a cluster', function () {
  // On a busy machine the waits below add up.
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
  /** Also with the handles that the kernel gives each rule when it is written. */
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

  it('keeps what it has while the API server is away, and takes what changed meanwhile', async () => {
    await agent.apply(servedBy(pod(0)));
    const held = await lab.client.hold(VIP, 5060);
    const before = await ruleset();
    await feed.double.call('close');
    await waitFor('the API server is missed', () => failures() >= 3, 60_000);
    agent.write('objects', servedBy(pod(1)));
    await feed.written();
    assert.equal(await who(), 'pod-1');
    assert.equal(await ruleset(), before);
    // A warning, and what repeats it for those who debug.
    const levels = agent.logged(FAILURE).map(({ level }) => level);
    assert.ok(levels.includes(40) && levels.every((level) => level <= 40), String(levels));

    await feed.double.call('listen');
    await waitFor('what changed is programmed', async () => (await who()) === 'pod-2', 60_000);
    assert.equal(await held.exchange('still here'), 'still here');
    await held.close();
  });

  it('killed and started while the API server is away, it waits and writes nothing', async () => {
    await agent.apply(servedBy(pod(0)));
    const held = await lab.client.hold(VIP, 5060);
    // What a sync takes away last may be under way yet; a start has ended when it serves.
    await agent.kill();
    await agent.start(FLAGS);
    await agent.kill();
    await feed.double.call('close');
    const before = await ruleset();
    const { ended } = agent.launch();
    await waitFor('the API server is missed', () => failures() >= 6, 60_000);
    assert.equal(await ruleset(), before);
    assert.deepEqual(agent.logged('synced'), []);
    assert.equal(await who(), 'pod-1');
    assert.equal(await held.exchange('still here'), 'still here');

    // It ends and starts again just as well, and as often as one likes.
    await agent.stop();
    assert.match(await ended, /^ended/);
    agent.launch();
    await waitFor('the API server is missed', () => failures() >= 3, 60_000);
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
