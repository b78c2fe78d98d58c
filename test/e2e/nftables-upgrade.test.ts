import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createLab, type Host, type Lab, repeatUntil, waitFor } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { type EarlierVersion, knownRef, unpackVersion } from './earlier-version.ts';
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
  restrictedRange: { 4: '10.96.0.28', 6: 'fd00:10:96::28' },
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
/** A version with allowed sources in concatenated interval sets. nft cannot load its rules of port ranges from text. */
const CONCATENATED_SOURCES = '537ef3b5';
/** Tables of earlier versions: a script for nft, or a version that writes it. */
const TABLES: readonly { title: string; file?: string }[] = [
  { title: 'the earlier names', file: 'nftables-earlier-names.nft' },
  { title: 'concatenated sets of allowed sources' },
];

const declaredNames = (script: string) =>
  [...script.matchAll(/^\s*(?:chain|set|map) (\S+) \{/gm)].map(([, name = '']) => name);
const randomPort = () => 5000 + Math.floor(Math.random() * 1000);

for (const { title, file } of TABLES) {
  describe(`nftables upgrade: an agent takes over a table with ${title}`, () => {
    /** The script has no such Service. */
    const hasRestrictedRange = file === undefined;
    let earlier: EarlierVersion | undefined;
    let lab: Lab;
    let agent: Agent;
    /** Names of the chains, sets and maps of a new table. */
    let currentNames: readonly string[];
    /** Names of the earlier table. */
    let namesBefore: readonly string[];
    /** Names that only the earlier table has. */
    let earlierNames: ReadonlySet<string>;

    const newAgent = () => {
      agent = new Agent(lab);
      agent.write('objects', services());
    };
    const removeAgent = async () => {
      await agent.destroy();
      await lab.node.exec('nft', ['flush', 'ruleset']);
      await lab.node.exec('conntrack', ['-F'], { reject: false });
    };

    before(async () => {
      lab = await createLab({ pods: 2, remotePods: 0 });
      await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
      newAgent();
      await agent.start(FLAGS);
      currentNames = await tableNames();
      await removeAgent();
      const ref = knownRef(CONCATENATED_SOURCES);
      if (file === undefined) earlier = await unpackVersion(ref);
      await writeEarlierTables();
      namesBefore = await tableNames();
      await lab.node.exec('nft', ['flush', 'ruleset']);
      earlierNames = new Set(namesBefore.filter((name) => !currentNames.includes(name)));
      if (file !== undefined) assert.ok(earlierNames.size > 15);
      else if (ref !== undefined)
        assert.deepEqual(
          [...earlierNames].filter((name) => name.startsWith('allowed-')),
          ['allowed-ips', 'allowed-ports', 'allowed-range-sources'],
        );
    });
    after(async () => {
      await lab?.destroy();
      earlier?.remove();
    });
    beforeEach(newAgent);
    afterEach(removeAgent);

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
      ...(hasRestrictedRange
        ? [
            serviceManifest('restricted-range', {
              annotations: { 'portwide.dev/ports': '5000-5999' },
              spec: onlyClient('18'),
              ingress: Object.values(VIPS.restrictedRange).map((ip) => ({ ip })),
            }),
          ]
        : []),
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
        ...(hasRestrictedRange ? [sliceManifest('restricted-range', family, lab.pods)] : []),
      ]),
    ];

    const writeEarlierTables = async () => {
      if (file !== undefined) {
        for (const family of FAMILIES) await loadScript(file, family);
        return;
      }
      assert.ok(earlier !== undefined);
      const earlierAgent = new Agent(lab);
      earlierAgent.program = earlier.program;
      earlierAgent.write('objects', services());
      await earlierAgent.start(FLAGS);
      await earlierAgent.destroy();
    };

    /** Loads the table that an agent with the earlier names wrote for `services`. */
    const loadScript = async (name: string, family: Family) => {
      const values: Readonly<Record<string, string>> = {
        FAMILY: family === 4 ? 'ip' : 'ip6',
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
      };
      const script = readFileSync(new URL(name, import.meta.url), 'utf8')
        .replace(/\b[A-Z]+(?:_\d)?\b/g, (word) => values[word] ?? word)
        .split('\n')
        // nft 1.0.6 aborts on rules that update an affinity map with IPv6 keys.
        .filter((line) => family === 4 || !line.includes(' update @'));
      await lab.node.exec('nft', ['-f', '-'], { input: script.join('\n') });
    };

    /** Names of all chains, sets and maps of the table, in both families. */
    const tableNames = async () => {
      const lists = await Promise.all(
        ['chains', 'sets', 'maps'].map((objects) => lab.node.exec('nft', ['list', objects])),
      );
      return lists.flatMap(({ stdout }) => declaredNames(stdout)).sort();
    };
    const earlierNamesLeft = async () =>
      new Set((await tableNames()).filter((name) => earlierNames.has(name)));

    /** Starts the agent, and kills it once an object exists that only a current table has. */
    const killDuringTakeover = async () => {
      agent.launch(FLAGS);
      await waitFor('the takeover began', async () =>
        (await tableNames()).some(
          (name) => currentNames.includes(name) && !namesBefore.includes(name),
        ),
      );
      await agent.kill();
    };

    for (const [round, isKilled] of [false, false, true, true].entries()) {
      const how = isKilled ? 'agent killed during the takeover' : 'agent not killed';
      it(`loses no connection and leaves no earlier name (round ${round + 1}, ${how})`, async function () {
        this.timeout(120_000);
        await writeEarlierTables();
        assert.deepEqual(await earlierNamesLeft(), earlierNames);

        const served: (readonly [from: Host, to: string, port: () => number])[] = FAMILIES.flatMap(
          (family) => [
            [lab.client, VIPS.web[family], () => 80] as const,
            [lab.client, addressOf(lab.node, family), () => NODE_PORT] as const,
            [lab.client, VIPS.all[family], randomPort] as const,
            [lab.client, VIPS.range[family], randomPort] as const,
            [lab.client, VIPS.restricted[family], () => 80] as const,
            [lab.client, VIPS.restrictedAll[family], randomPort] as const,
            ...(hasRestrictedRange
              ? [[lab.client, VIPS.restrictedRange[family], randomPort] as const]
              : []),
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
          await waitFor(
            'earlier names are removed',
            async () => (await earlierNamesLeft()).size === 0,
          );
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

        assert.deepEqual(await tableNames(), currentNames, 'the same objects as in a new table');
      });
    }
  });
}
