import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createLab, type Host, type Lab, PATIENCE, repeatUntil, waitFor } from '../lab/lab.ts';
import { STOCK_KERNEL } from '../uml/kernels.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { holdTable } from './held-table.ts';
import { ALL_PORTS, type Manifest, serviceManifest, sliceManifest } from './manifests.ts';
import { portwideTables } from './nft-tables.ts';
import { answered, refused, SHORT } from './scenarios/scenario.ts';

const VIPS = ['10.96.0.10', 'fd00:10:96::10'] as const;
const LISTED_VIPS = ['10.96.0.11', 'fd00:10:96::11'] as const;
const [VIP, VIP6] = VIPS;
const [LISTED, LISTED6] = LISTED_VIPS;
/** An hour, so that no test passes by a periodic resync: repairs happen on kernel notifications. */
const FLAGS = [...AGENT_FLAGS, '--proxy-mode=nftables', '--nftables-sync-period=1h'];
const POD_PORTS = [8080, 8081, 8082, 8083];
/** How often an agent is killed during churn: a start takes half a minute in an emulated kernel. */
const KILLS = STOCK_KERNEL === undefined ? 8 : 2;

describe('life cycle of an agent on nftables', () => {
  let lab: Lab;
  let agent: Agent;

  before(async () => {
    lab = await createLab({ pods: 5, remotePods: 1 });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    agent = new Agent(lab);
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });
  beforeEach(async () => {
    if (!agent.runsWith(FLAGS)) await agent.start(FLAGS);
  });
  // An agent that still runs also serves the next test: a start takes longer than most tests.
  afterEach(async function () {
    agent.write('objects', []);
    if (this.currentTest?.state === 'passed' && agent.runsWith(FLAGS)) await agent.apply([]);
    else {
      await agent.kill();
      await lab.node.exec('nft', ['flush', 'ruleset']);
    }
    await lab.node.exec('conntrack', ['-F'], { reject: false });
  });

  const pods = (...indices: number[]): Host[] =>
    indices.map((index) => {
      const pod = lab.pods[index];
      assert.ok(pod !== undefined);
      return pod;
    });
  const sticky = (seconds: number) => ({
    sessionAffinity: 'ClientIP',
    sessionAffinityConfig: { clientIP: { timeoutSeconds: seconds } },
  });
  /** An all-ports and a listed Service with the same pods, in both families. */
  const services = (all: readonly Host[], spec: object = {}): Manifest[] => [
    serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: VIPS, ...spec } }),
    serviceManifest('web', {
      spec: { clusterIPs: LISTED_VIPS, ports: [{ port: 80 }], ...spec },
    }),
    ...([4, 6] as const).flatMap((family) => [
      sliceManifest('all', family, all),
      sliceManifest('web', family, all, { ports: [{ name: '', port: 8080 }] }),
    ]),
  ];
  const nft = async (...args: string[]) => (await lab.node.exec('nft', args)).stdout;
  /** The elements of an affinity map, without their remaining time. */
  const affinityEntries = async (map: string, ip: 'ip' | 'ip6' = 'ip') => {
    const args = ['list', 'map', ip, 'portwide', map];
    const { stdout: text } = await lab.node.exec('nft', args, { reject: false });
    const list = /elements = \{([^}]*)\}/.exec(text)?.[1] ?? '';
    return list
      .split(',')
      .map((line) => line.trim().replace(/ expires \w+/, ''))
      .filter((line) => line !== '');
  };
  const tables = async () => (await portwideTables(lab.node)).join('\n');

  /**
   * Runs `work` while clients connect continuously. Returns its result and the number of failed
   * connections.
   */
  async function throughout(
    probes: readonly (() => Promise<unknown>)[],
    work: () => Promise<void>,
  ) {
    let working = true;
    let count = 0;
    const failures: string[] = [];
    const clients = probes.map((probe) =>
      repeatUntil(
        () => !working,
        async () => {
          const outcome = await probe();
          count += 1;
          if ((outcome as { outcome: string }).outcome !== 'answered') {
            failures.push(JSON.stringify(outcome));
          }
        },
      ),
    );
    try {
      await work();
      const goal = count + 20;
      await waitFor('clients continued', () => count >= goal);
    } finally {
      working = false;
      await Promise.all(clients);
    }
    assert.deepEqual(failures, []);
  }

  const fourClients = () => [
    () => lab.client.tcp(VIP, 5060),
    () => lab.client.tcp(VIP6, 5061),
    () => lab.client.tcp(LISTED, 80),
    () => lab.client.tcp(LISTED6, 80),
  ];

  it('unmaps the pages of Node.js that only its start uses', async () => {
    const fileMegabytes = () => {
      const text = readFileSync(`/proc/${agent.pid}/status`, 'utf8');
      return Number(/^RssFile:\s+(\d+)/m.exec(text)?.[1]) / 1024;
    };
    // 53 MB without it.
    await waitFor('few pages are mapped', () => fileMegabytes() < 40, 30_000);
  });

  it('writes nothing at a restart if everything is as expected, and keeps affinity entries', async () => {
    await agent.apply(services(pods(0, 1, 2), sticky(1000)));
    for (const vip of VIPS) answered(await lab.client.tcp(vip, 5000));
    for (const vip of LISTED_VIPS) answered(await lab.client.tcp(vip, 80));
    const before = [
      await affinityEntries('affinity'),
      await affinityEntries('affinity-ips-0', 'ip6'),
    ];
    assert.deepEqual(
      before.map(({ length }) => length),
      [1, 1],
    );
    await agent.stop();
    await agent.start();
    const synced = agent.logged('synced').map(({ family, written }) => [family, written]);
    assert.deepEqual(synced.sort(), [
      ['IPv4', 0],
      ['IPv6', 0],
    ]);
    assert.deepEqual(
      [await affinityEntries('affinity'), await affinityEntries('affinity-ips-0', 'ip6')],
      before,
    );
  });

  it('keeps the nftables table when the agent exits', async () => {
    await agent.apply(services(pods(0)));
    await agent.stop();
    for (const vip of VIPS) assert.equal(answered(await lab.client.tcp(vip, 4000)).host, 'pod-1');
  });

  it('loses no connection and leaves nothing stale when killed at any moment during churn', async function () {
    this.timeout(180_000 * PATIENCE);
    const sets = [pods(0, 1), pods(0, 1, 2), pods(0, 2), pods(0)];
    await agent.apply(services(pods(0)));
    const held = await lab.client.hold(VIP, 5060);
    let probes = 0;
    const counted = fourClients().map((probe) => async () => {
      const outcome = await probe();
      probes += 1;
      return outcome;
    });
    await throughout(counted, async () => {
      // The number of probes answered meanwhile determines when the agent is killed.
      for (let round = 0; round < KILLS; round++) {
        for (let change = 0; change < 3; change++) {
          const spec = (round + change) % 2 === 0 ? sticky(60) : {};
          agent.write('objects', services(sets[(round + change) % sets.length] ?? [], spec));
          const goal = probes + 3 + ((round * 7 + change * 5) % 23);
          await waitFor('clients continued', () => probes >= goal);
        }
        await agent.kill();
        if (round % 3 === 0) agent.write('objects', services(sets[(round + 1) % 4] ?? []));
        await agent.start();
      }
    });
    assert.equal(await held.exchange('alive'), 'alive');
    await held.close();

    await agent.apply(services(pods(0, 2)));
    await agent.kill();
    await agent.start();
    const survived = await tables();
    await agent.kill();
    await lab.node.exec('nft', ['flush', 'ruleset']);
    await agent.start();
    assert.equal(survived, await tables());
  });

  it('repairs external changes of its table at once, and touches no other table', async function () {
    this.timeout(180_000 * PATIENCE);
    await agent.apply(services(pods(0, 1)));
    const other =
      'table ip other { chain c { type filter hook input priority 5; }; set s { type mark; }; }';
    await nft(other);
    const others = await nft('list', 'table', 'ip', 'other');
    const expected = await tables();
    const damages = [
      'delete table ip portwide; delete table ip6 portwide',
      'flush map ip portwide service-ips',
      'flush map ip6 portwide endpoints',
      `delete element ip portwide service-ips { ${VIP} }`,
      'add element ip portwide service-ips { 192.0.2.7 : drop }',
      'add element ip6 portwide range-vips { 2001:db8::7 : drop }',
      'insert rule ip portwide services accept',
      'flush chain ip6 portwide nat-prerouting',
      'flush table ip portwide',
      'add chain ip portwide foreign { type filter hook forward priority 0; policy drop; }',
      'add set ip portwide foreign { type mark; }',
      'add table ip portwide { flags dormant; }',
      'add chain ip portwide filter-forward { policy drop; }',
    ];
    const repairs = () => agent.logged('resync repaired external changes of the rules');
    for (const damage of damages) {
      agent.log.length = 0;
      await nft(damage);
      await waitFor(`restored after: ${damage}`, async () => (await tables()) === expected);
      await waitFor(`repair logged after: ${damage}`, () => repairs().length > 0);
      answered(await lab.client.tcp(VIP, 4000));
    }
    // Other tables are ignored. Notifications are ordered, so the agent has seen this one once it
    // reacts to a later one.
    agent.log.length = 0;
    await nft('add table ip6 other; add chain ip6 other c; delete table ip6 other');
    await nft('flush chain ip portwide services');
    const lost = () => agent.log.filter(({ change }) => change !== undefined);
    await waitFor('it receives notifications for its own table', () => lost().length > 0);
    assert.deepEqual([...new Set(lost().map(({ family }) => family))], ['IPv4']);
    // In rapid succession, so that the table is never complete in between.
    await nft('flush ruleset');
    await waitFor('the table is restored', async () => (await tables()) === expected);
    await nft(other);
    assert.equal(await nft('list', 'table', 'ip', 'other'), others);
  });

  it('serves new Services though a chain of another program reaches their chain from a filter hook', async () => {
    await agent.apply(services(pods(0)));
    const held = await lab.client.hold(VIP, 5060);
    await throughout(fourClients(), async () => {
      await agent.kill();
      for (const family of ['ip', 'ip6']) {
        await nft(
          `add chain ${family} portwide internal-port-2;
           flush chain ${family} portwide internal-port-2;
           add chain ${family} portwide foreign { type filter hook input priority 0; };
           add rule ${family} portwide foreign jump internal-port-2`,
        );
      }
      agent.write('objects', services(pods(0, 1)));
      await agent.start();
    });
    assert.equal(await held.exchange('alive'), 'alive');
    await held.close();
    assert.doesNotMatch(await tables(), /foreign/);
  });

  it('serves a connection whose first packet passed while rules were missing', async () => {
    await agent.apply(services(pods(0)));
    await agent.kill();
    // What the kernel tracks of such a packet, which the rules of another program may ask for.
    const localPort = 20_500;
    for (const [vip, client] of [
      [LISTED, lab.client.ipv4],
      [LISTED6, lab.client.ipv6],
    ] as const) {
      const flow = ['-s', client, '-d', vip, '--sport', String(localPort), '--dport', '80'];
      const state = ['--state', 'SYN_SENT', '-t', '120'];
      await lab.node.exec('conntrack', ['-I', '-p', 'tcp', ...flow, ...state]);
    }
    await agent.start();
    for (const vip of LISTED_VIPS) answered(await lab.client.tcp(vip, 80, { localPort }));
  });

  it('repairs external changes in one family while the other cannot be written', async () => {
    await agent.stop();
    await lab.node.exec('nft', ['flush', 'ruleset']);
    const held = await holdTable(lab.node, 'ip6', 'portwide');
    const own = new Agent(lab);
    try {
      own.write('objects', services(pods(0)));
      own.launch(FLAGS);
      const answers = async () => (await lab.client.tcp(VIP, 4000, SHORT)).outcome === 'answered';
      await waitFor('it serves', answers);
      // It subscribes after some seconds of waiting for the other family.
      const isNotified = async () => {
        await nft('add set ip portwide foreign { type mark; }');
        await nft('delete set ip portwide foreign').catch(() => {});
        return own.log.some(({ change }) => /in table ip portwide/.test(String(change)));
      };
      await waitFor('it receives notifications of external changes', isNotified, 30_000);
      await nft('delete table ip portwide');
      await waitFor('it serves again', answers);
      assert.ok(own.log.some(({ msg }) => /fail/.test(msg)));
    } finally {
      await own.destroy();
      await held.release();
    }
  });

  it('replaces a table of another version without dropping connections', async () => {
    await agent.kill();
    const [pod] = pods(0);
    assert.ok(pod);
    const old = ([ip, vip, to]: readonly [string, string, string]) => `
      delete table ${ip} portwide
      table ${ip} portwide {
        map endpoints { type mark : mark; elements = { 1 : 2 } }
        map service-ports { type mark : verdict; elements = { 7 : goto old } }
        chain old { ${ip} daddr ${vip} tcp dport 80 dnat to ${to}:8080; }
        chain nat-prerouting { type nat hook prerouting priority dstnat; jump old; }
      }`;
    const input = [old(['ip', LISTED, pod.ipv4]), old(['ip6', LISTED6, `[${pod.ipv6}]`])].join(
      '\n',
    );
    await lab.node.exec('nft', ['-f', '-'], { input });
    const held = await Promise.all(LISTED_VIPS.map((vip) => lab.client.hold(vip, 80)));
    agent.write('objects', services(pods(0), sticky(1000)));
    await throughout(fourClients().slice(2), async () => {
      await agent.start();
      await agent.apply(services(pods(0), sticky(1000)));
    });
    for (const connection of held) {
      assert.equal(await connection.exchange('still'), 'still');
      await connection.close();
    }
    assert.ok(agent.log.some(({ level, msg }) => level === 40 && /incompatible version/.test(msg)));
    const replaced = await tables();
    assert.equal((await affinityEntries('affinity')).length, 1);
    assert.equal((await affinityEntries('affinity', 'ip6')).length, 1);
    await agent.kill();
    await lab.node.exec('nft', ['flush', 'ruleset']);
    await agent.start();
    assert.equal(replaced, await tables());
  });

  it('loses and rejects no connection while endpoints change, as long as one endpoint remains', async function () {
    this.timeout(180_000 * PATIENCE);
    /** A Service has pods times ports endpoints; other pods have the rest. */
    const grown = (count: number, spec: object): Manifest[] => [
      ...services(pods(...[0, 1, 2, 3, 4].slice(0, Math.ceil(count / 4))), spec).filter(
        ({ kind, metadata }) =>
          kind === 'Service' || (metadata as { name: string }).name.startsWith('all'),
      ),
      ...([4, 6] as const).flatMap((family) =>
        POD_PORTS.map((port, index) =>
          sliceManifest(
            'web',
            family,
            lab.pods.slice(0, Math.max(0, Math.ceil((count - index) / 4))),
            { name: `web-${family}-${port}`, ports: [{ name: '', port }] },
          ),
        ),
      ),
    ];
    for (const spec of [{}, sticky(1000)]) {
      await agent.apply(grown(0, spec));
      refused(await lab.client.tcp(LISTED, 80, SHORT));
      await agent.apply(grown(1, spec));
      await throughout(fourClients(), async () => {
        for (let count = 1; count <= 20; count++) await agent.apply(grown(count, spec));
        for (let count = 20; count >= 1; count -= 3) await agent.apply(grown(count, spec));
        for (const count of [20, 1, 17, 2, 1]) await agent.apply(grown(count, spec));
      });
      await agent.apply(grown(0, spec));
      for (const vip of LISTED_VIPS) refused(await lab.client.tcp(vip, 80));
      for (const vip of VIPS) refused(await lab.client.tcp(vip, 80));
      assert.deepEqual(await affinityEntries('affinity'), []);
      assert.deepEqual(await affinityEntries('affinity-ips-0'), []);
    }
  });

  it('removes the affinity entries of a deleted endpoint and keeps the others', async () => {
    await agent.apply(services(pods(0, 1, 2, 3, 4), sticky(1000)));
    const clients = [lab.client, lab.node, lab.node2, ...pods(0, 1)];
    const who = async (client: Host, vip: string, port: number) =>
      answered(await client.tcp(vip, port)).host;
    const targets = [
      ...VIPS.map((vip) => [vip, 22] as const),
      ...LISTED_VIPS.map((vip) => [vip, 80] as const),
    ];
    const choices = async () => {
      const chosen = new Map<string, string>();
      for (const client of clients) {
        for (const [vip, port] of targets) {
          if (client === lab.node2) continue;
          chosen.set(`${client.name} ${vip}`, await who(client, vip, port));
        }
      }
      return chosen;
    };
    const first = await choices();
    assert.deepEqual(await choices(), first);
    const deletedPod = first.get(`client ${VIP}`) ?? '';
    const remainingPods = lab.pods.filter(({ name }) => name !== deletedPod);
    const entries = await affinityEntries('affinity-ips-0');
    const deletedAddress = lab.pods.find(({ name }) => name === deletedPod)?.ipv4 ?? '';
    await agent.apply(services(remainingPods, sticky(1000)));
    const otherEntries = entries.filter((entry) => !entry.endsWith(`: ${deletedAddress}`));
    assert.ok(otherEntries.length < entries.length);
    assert.deepEqual((await affinityEntries('affinity-ips-0')).sort(), otherEntries.sort());
    const second = await choices();
    for (const [key, pod] of first) {
      if (pod === deletedPod) assert.notEqual(second.get(key), deletedPod);
      else assert.equal(second.get(key), pod, key);
    }
    await agent.apply(services(lab.pods, sticky(1000)));
    assert.deepEqual(await choices(), second);
    // Turning affinity off makes entries useless; turned on again, old entries must not return.
    await agent.apply(services(lab.pods));
    assert.deepEqual(await affinityEntries('affinity-ips-0'), []);
    assert.deepEqual(await affinityEntries('affinity', 'ip6'), []);
    const seen = new Set<string>();
    await waitFor(
      'several pods answer',
      async () => seen.add(await who(lab.client, VIP, 22)).size > 2,
    );
    await agent.apply(services(lab.pods, sticky(1000)));
    assert.deepEqual(await choices(), await choices());
  });

  it('applies the affinity timeout of each Service', async () => {
    const [all, web, ...slices] = services(pods(0, 1, 2));
    const withAffinity = (manifest: Manifest | undefined, seconds: number): Manifest => ({
      ...manifest,
      spec: { ...(manifest?.spec as object), ...sticky(seconds) },
    });
    await agent.apply([withAffinity(all, 500), withAffinity(web, 2), ...slices]);
    answered(await lab.client.tcp(VIP, 22));
    answered(await lab.client.tcp(LISTED, 80));
    assert.match((await affinityEntries('affinity-ips-0')).join(), /timeout 8m20s/);
    assert.match((await affinityEntries('affinity')).join(), /timeout 2s/);
    await waitFor(
      'one affinity entry expired',
      async () => (await affinityEntries('affinity')).length === 0,
    );
    assert.equal((await affinityEntries('affinity-ips-0')).length, 1);
  });

  it('keeps affinity to an endpoint that is the node itself', async () => {
    await lab.node.serve({ protocol: 'TCP', port: 8080 });
    try {
      await agent.apply(services([lab.node, ...pods(0, 1)], sticky(1000)));
      const who = async () => answered(await lab.client.tcp(LISTED, 80)).host;
      await waitFor('the node was selected', async () => {
        await nft('flush', 'map', 'ip', 'portwide', 'affinity');
        return (await who()) === 'node';
      });
      assert.equal((await affinityEntries('affinity')).length, 1);
      for (let probe = 0; probe < 5; probe++) assert.equal(await who(), 'node');
    } finally {
      await lab.node.stopServing();
    }
  });

  it('does not restore a deleted endpoint for a flow without answers', async () => {
    // No host answers at this address of the LAN.
    const ghost = {
      ...pods(0)[0],
      name: 'pod-ghost',
      ipv4: '198.51.100.99',
      ipv6: '2001:db8:51::99',
    };
    await agent.apply(services([ghost as Host], sticky(1000)));
    const script = `const socket = require('node:dgram').createSocket('udp4');
      setInterval(() => socket.send('x', 5060, '${VIP}'), 1);`;
    const sender = lab.client.spawn(process.execPath, ['-e', script]);
    sender.catch(() => {});
    try {
      await waitFor(
        'the affinity entry exists',
        async () => (await affinityEntries('affinity-ips-0')).length === 1,
      );
      await agent.apply(services(pods(0), sticky(1000)));
      assert.equal(answered(await lab.client.udp(VIP, 5061)).host, 'pod-1');
      const [entry = ''] = await affinityEntries('affinity-ips-0');
      assert.ok(entry.endsWith(`: ${pods(0)[0]?.ipv4}`), entry);
    } finally {
      sender.kill('SIGKILL');
      await sender.catch(() => {});
    }
  });

  it('applies changes of externalTrafficPolicy', async () => {
    const [remote] = lab.remotePods;
    assert.ok(remote);
    const vip = '203.0.113.5';
    const balanced = (externalTrafficPolicy: string, spec: object = {}): Manifest[] => [
      serviceManifest('lb', {
        ingress: [{ ip: vip }],
        spec: {
          type: 'LoadBalancer',
          clusterIPs: [LISTED],
          ports: [{ port: 80 }],
          externalTrafficPolicy,
          ...spec,
        },
      }),
      sliceManifest('lb', 4, [...pods(0), remote], { ports: [{ name: '', port: 8080 }] }),
    ];
    const answers = async () => (await tally()).hosts;
    const tally = async () => {
      const hosts = new Set<string>();
      const clients = new Set<string>();
      for (let probe = 0; probe < 12; probe++) {
        const reply = answered(await lab.client.tcp(vip, 80));
        hosts.add(reply.host);
        clients.add(reply.remoteAddress);
      }
      return { hosts: [...hosts].sort(), clients: [...clients] };
    };
    for (let round = 0; round < 2; round++) {
      await agent.apply(balanced('Local'));
      assert.deepEqual(await tally(), { hosts: ['pod-1'], clients: [lab.client.ipv4] });
      await throughout([() => lab.client.tcp(vip, 80)], async () => {
        await agent.apply(balanced('Cluster'));
        await waitFor('both answer', async () => (await answers()).length === 2);
        await agent.apply(balanced('Local', sticky(100)));
        assert.deepEqual(await answers(), ['pod-1']);
        await agent.apply(balanced('Cluster', sticky(100)));
      });
    }
  });
});
