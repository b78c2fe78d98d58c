import assert from 'node:assert/strict';
import { allPortsAffinityMap } from '../../nftables/maps.ts';
import { staticServiceChains, tableDeclarationScript } from '../../nftables/static-chains.ts';
import { createLab, type Host, type Lab, repeatUntil, waitFor } from '../lab/lab.ts';
import { modeOptions } from '../nftables/options.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { EARLIER_TABLE, earlierTable } from './earlier-table.ts';
import { ALL_PORTS, type Manifest, serviceManifest, sliceManifest } from './manifests.ts';

const FAMILIES = [4, 6] as const;
type Family = (typeof FAMILIES)[number];

const VIPS = {
  web: { 4: '10.96.0.10', 6: 'fd00:10:96::10' },
  all: { 4: '10.96.0.12', 6: 'fd00:10:96::12' },
  none: { 4: '10.96.0.13', 6: 'fd00:10:96::13' },
  empty: { 4: '10.96.0.14', 6: 'fd00:10:96::14' },
  range: { 4: '10.96.0.15', 6: 'fd00:10:96::15' },
  /** Load balancer IPs that let in only the client. */
  restricted: { 4: '10.96.0.26', 6: 'fd00:10:96::26' },
  restrictedAll: { 4: '10.96.0.27', 6: 'fd00:10:96::27' },
};
const PODS = { 4: '10.244.0.0/16', 6: 'fd00:10:244::/48' };
const NODE_PORT = 30_080;
const AFFINITY = {
  sessionAffinity: 'ClientIP',
  sessionAffinityConfig: { clientIP: { timeoutSeconds: 1000 } },
};
/** A test may not lower its OOM score nor set the host's conntrack limit, which the agent would warn of. */
const FLAGS = [
  ...AGENT_FLAGS,
  '--proxy-mode=nftables',
  '--oom-score-adj=0',
  '--conntrack-max-per-core=0',
];
/** Shorter than the first retransmission of a SYN (1 s), which would hide a lost packet. */
const BEFORE_RETRANSMIT_MS = 900;

const declaredNames = (script: string) =>
  [...script.matchAll(/^\s*(?:chain|set|map) (\S+) \{/gm)].map(([, name = '']) => name);
const randomPort = () => 5000 + Math.floor(Math.random() * 1000);
const CURRENT_NAMES = declaredNames(
  tableDeclarationScript(staticServiceChains(modeOptions()), 'IPv4'),
).concat(allPortsAffinityMap(0), allPortsAffinityMap(1));
/** Names of chains, sets and maps that only the earlier table has. */
const EARLIER_NAMES = new Set(
  declaredNames(EARLIER_TABLE).filter((name) => !CURRENT_NAMES.includes(name)),
);

describe('nftables upgrade: an agent takes over a table with the earlier names', () => {
  let lab: Lab;
  let agent: Agent;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 0 });
    await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
  });
  after(async () => lab?.destroy());
  beforeEach(() => {
    agent = new Agent(lab);
    agent.write('objects', services());
  });
  afterEach(async () => {
    await agent.destroy();
    await lab.node.exec('nft', ['flush', 'ruleset']);
    await lab.node.exec('conntrack', ['-F'], { reject: false });
  });

  const addressOf = (host: Host | undefined, family: Family) => {
    assert.ok(host !== undefined);
    return family === 4 ? host.ipv4 : host.ipv6;
  };

  const onlyClient = (last: string) => ({
    type: 'LoadBalancer',
    clusterIPs: [`10.96.0.${last}`, `fd00:10:96::${last}`],
    loadBalancerSourceRanges: [`${lab.client.ipv4}/32`, `${lab.client.ipv6}/128`],
  });

  /** The Services that the earlier table has. */
  const services = (): Manifest[] => [
    serviceManifest('web', {
      spec: {
        type: 'NodePort',
        clusterIPs: Object.values(VIPS.web),
        ports: [{ port: 80, nodePort: NODE_PORT }],
        ...AFFINITY,
      },
    }),
    serviceManifest('all', {
      annotations: ALL_PORTS,
      spec: { clusterIPs: Object.values(VIPS.all), ...AFFINITY },
    }),
    serviceManifest('range', {
      annotations: { 'portwide.dev/ports': '5000-5999' },
      spec: { clusterIPs: Object.values(VIPS.range), ...AFFINITY },
    }),
    serviceManifest('restricted', {
      spec: { ...onlyClient('16'), ports: [{ port: 80 }] },
      ingress: Object.values(VIPS.restricted).map((ip) => ({ ip })),
    }),
    serviceManifest('restricted-all', {
      annotations: ALL_PORTS,
      spec: onlyClient('17'),
      ingress: Object.values(VIPS.restrictedAll).map((ip) => ({ ip })),
    }),
    serviceManifest('none', {
      spec: { clusterIPs: Object.values(VIPS.none), ports: [{ port: 80 }] },
    }),
    serviceManifest('empty', {
      annotations: ALL_PORTS,
      spec: { clusterIPs: Object.values(VIPS.empty) },
    }),
    ...FAMILIES.flatMap((family) => [
      sliceManifest('web', family, lab.pods, { ports: [{ name: '', port: 8080 }] }),
      sliceManifest('all', family, lab.pods),
      sliceManifest('range', family, lab.pods),
      sliceManifest('restricted', family, lab.pods, { ports: [{ name: '', port: 8080 }] }),
      sliceManifest('restricted-all', family, lab.pods),
    ]),
  ];

  /** Loads the table that an agent with the earlier names wrote for `services`. */
  const loadEarlierTable = async (family: Family) => {
    const input = earlierTable(family, {
      PODS: PODS[family],
      NODE: addressOf(lab.node, family),
      WEB: VIPS.web[family],
      ALL: VIPS.all[family],
      NONE: VIPS.none[family],
      EMPTY: VIPS.empty[family],
      RANGE: VIPS.range[family],
      OPEN: VIPS.restricted[family],
      WIDE: VIPS.restrictedAll[family],
      CLIENT: addressOf(lab.client, family),
      POD_1: addressOf(lab.pods[0], family),
      POD_2: addressOf(lab.pods[1], family),
    });
    await lab.node.exec('nft', ['-f', '-'], { input });
  };

  /** Names of all chains, sets and maps of the table, in both families. */
  const tableNames = async () => {
    const lists = await Promise.all(
      ['chains', 'sets', 'maps'].map((objects) => lab.node.exec('nft', ['list', objects])),
    );
    return lists.flatMap(({ stdout }) => declaredNames(stdout)).sort();
  };
  const earlierNames = async () =>
    new Set((await tableNames()).filter((name) => EARLIER_NAMES.has(name)));

  /** Starts the agent, and kills it once a chain with a current name exists. */
  const killDuringTakeover = async () => {
    agent.launch(FLAGS);
    await waitFor('the takeover began', async () =>
      (await tableNames()).includes('cluster-ips-check'),
    );
    await agent.kill();
  };

  for (const [round, isKilled] of [false, false, true, true].entries()) {
    const how = isKilled ? 'agent killed during the takeover' : 'agent not killed';
    it(`loses no connection and leaves no earlier name (round ${round + 1}, ${how})`, async function () {
      this.timeout(120_000);
      for (const family of FAMILIES) await loadEarlierTable(family);
      assert.ok(EARLIER_NAMES.size > 15);
      assert.deepEqual(await earlierNames(), EARLIER_NAMES);

      const served: (readonly [from: Host, to: string, port: () => number])[] = FAMILIES.flatMap(
        (family) => [
          [lab.client, VIPS.web[family], () => 80] as const,
          [lab.client, addressOf(lab.node, family), () => NODE_PORT] as const,
          [lab.client, VIPS.all[family], randomPort] as const,
          [lab.client, VIPS.range[family], randomPort] as const,
          [lab.client, VIPS.restricted[family], () => 80] as const,
          [lab.client, VIPS.restrictedAll[family], randomPort] as const,
          [lab.pods[1] as Host, VIPS.web[family], () => 80] as const,
          [lab.node, VIPS.web[family], () => 80] as const,
        ],
      );
      const rejected = FAMILIES.flatMap((family) =>
        [VIPS.none[family], VIPS.empty[family], VIPS.range[family]].map(
          (vip) => [lab.client, vip, () => 80] as const,
        ),
      );
      const held = await Promise.all(served.map(([from, to, port]) => from.hold(to, port())));

      let isRunning = true;
      let answers = 0;
      const failures: string[] = [];
      /** Endpoints that served the client of each VIP with session affinity. */
      const endpoints = new Map<string, Set<string>>();
      const probe = async (from: Host, to: string, port: number, expected: string) => {
        const result = await from.tcp(to, port, { timeoutMs: BEFORE_RETRANSMIT_MS });
        if (result.outcome !== expected)
          failures.push(`${from.name} to ${to} port ${port}: ${result.outcome}`);
        if (result.outcome !== 'answered') return;
        answers += 1;
        const key = `${from.name} to ${to}`;
        endpoints.set(key, (endpoints.get(key) ?? new Set()).add(result.reply.host));
      };
      const clients = [
        ...served.map((each) => [...each, 'answered'] as const),
        ...rejected.map((each) => [...each, 'refused'] as const),
      ].map(([from, to, port, expected]) =>
        repeatUntil(
          () => !isRunning,
          () => probe(from, to, port(), expected),
        ),
      );
      const moreAnswers = async () => {
        const goal = answers + 100;
        await waitFor('clients get more answers', () => answers >= goal, 20_000);
      };
      try {
        await moreAnswers();
        if (isKilled) {
          await killDuringTakeover();
          await moreAnswers();
        }
        await agent.start(FLAGS);
        await waitFor('earlier names are removed', async () => (await earlierNames()).size === 0);
        await moreAnswers();
      } finally {
        isRunning = false;
        await Promise.all(clients);
      }
      assert.deepEqual(failures, []);
      for (const connection of held) {
        assert.equal(await connection.exchange('still'), 'still');
        await connection.close();
      }
      // The affinity maps keep their names, and their entries. The earlier IPv6 table has no entries.
      for (const [key, hosts] of endpoints) {
        if (/ 10\.96\.0\.1[025]$/.test(key)) assert.equal(hosts.size, 1, `${key}: one endpoint`);
      }
      assert.deepEqual(
        agent.log.filter(({ level, setting }) => level >= 40 && setting === undefined),
        [],
      );

      const upgraded = await tableNames();
      await agent.kill();
      await lab.node.exec('nft', ['flush', 'ruleset']);
      await agent.start(FLAGS);
      assert.deepEqual(upgraded, await tableNames(), 'the same objects as in a new table');
    });
  }
});
