import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  createLab,
  type Host,
  iptablesRules,
  type Lab,
  PREFIXES,
  removeRules,
  repeatUntil,
  waitFor,
} from '../lab/lab.ts';
import { iptablesTool } from '../lab/rules.ts';
import { PORTWIDE } from '../portwide.ts';
import { Agent, IPTABLES_FLAGS } from './agent.ts';
import { type KubeProxyCluster, kubeProxyIptables } from './kube-proxy-rules.ts';
import { ALL_PORTS, type Manifest, serviceManifest, sliceManifest } from './manifests.ts';
import { answered, refused, SHORT } from './scenarios/scenario.ts';

const VIPS = ['10.96.0.10', 'fd00:10:96::10'];
const LISTED_VIPS = ['10.96.0.11', 'fd00:10:96::11'];
const FAMILIES = [4, 6] as const;
const VIP = '10.96.0.10';
/** Number of connections that clients make, some hundred, also on a machine with other load. */
const CLIENTS_MS = 30_000;

/** Portwide's chains and jumps, without the timestamps of iptables-save. */
function rulesOnly(saved: string): string {
  return saved.replaceAll(/^#.*$/gm, '').replaceAll(/\[\d+:\d+\]/g, '');
}

for (const variant of ['nft', 'legacy'] as const) {
  describe(`life cycle of an agent on iptables-${variant}`, () => {
    let lab: Lab;
    let agent: Agent;
    const flags = [...IPTABLES_FLAGS, `--iptables-variant=${variant}`, '--iptables-sync-period=1s'];

    before(async () => {
      lab = await createLab({ pods: 3, remotePods: 1 });
      await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
      agent = new Agent(lab);
    });
    after(async () => {
      await agent?.destroy();
      await lab?.destroy();
    });
    beforeEach(async () => {
      if (!agent.runsWith(flags)) await agent.start(flags);
    });
    // An agent that still runs also serves the next test: a start takes longer than most tests.
    afterEach(async function () {
      agent.write('objects', []);
      if (this.currentTest?.state === 'passed' && agent.runsWith(flags)) await agent.apply([]);
      else await startOver();
    });

    /** Stops the agent and removes all rules. */
    const startOver = async () => {
      await agent.kill();
      await removeRules(lab.node);
    };
    /** An all-ports and a listed Service with the same pods, in both families. */
    const services = (pods: readonly Host[]): Manifest[] => [
      serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: VIPS } }),
      serviceManifest('web', { spec: { clusterIPs: LISTED_VIPS, ports: [{ port: 80 }] } }),
      ...([4, 6] as const).flatMap((family) => [
        sliceManifest('all', family, pods),
        sliceManifest('web', family, pods, { ports: [{ name: '', port: 8080 }] }),
      ]),
    ];
    const pods = (...indices: number[]) =>
      indices.map((index) => {
        const pod = lab.pods[index];
        assert.ok(pod !== undefined);
        return pod;
      });
    /**
     * The cluster as kube-proxy knew it: `default/web` with one pod, and a Service that was deleted
     * while no proxy ran.
     */
    const clusterOf = (family: 4 | 6, pod: Host | undefined): KubeProxyCluster => {
      assert.ok(pod !== undefined);
      const [web, late, gone] = [11, 97, 99].map((n) =>
        family === 4 ? `10.96.0.${n}` : `fd00:10:96::${n}`,
      );
      assert.ok(web !== undefined && late !== undefined && gone !== undefined);
      return {
        family,
        podCidr: PREFIXES.allPods[family],
        serviceCidr: PREFIXES.services[family],
        nodeIp: family === 4 ? lab.node.ipv4 : lab.node.ipv6,
        web,
        pod: family === 4 ? pod.ipv4 : pod.ipv6,
        late,
        gone,
      };
    };
    const allRules = async () => {
      const texts: string[] = [];
      for (const family of [4, 6] as const) {
        for (const table of ['mangle', 'nat', 'filter'] as const) {
          texts.push(rulesOnly(await iptablesRules(lab.node, variant, family, table)));
        }
      }
      return texts.join('\n');
    };

    it('keeps established connections through 40 endpoint changes', async () => {
      await agent.apply(services(pods(0)));
      const held = await Promise.all([
        lab.client.hold(VIP, 5060),
        lab.client.hold(LISTED_VIPS[1] ?? '', 80),
        lab.pods[1]?.hold(VIP, 22),
      ]);
      const sets = [pods(0, 1), pods(0, 1, 2), pods(0, 2), pods(0)];
      for (let change = 0; change < 40; change++) {
        await agent.apply(services(sets[change % sets.length] ?? []));
        if (change % 10 === 9) {
          for (const connection of held) {
            assert.equal(await connection?.exchange(`change ${change}`), `change ${change}`);
          }
        }
      }
      await agent.apply(services(pods(0)));
      for (const connection of held) {
        assert.equal(await connection?.exchange('bye'), 'bye');
        await connection?.close();
      }
    });

    it('loses no connection and leaves no stale rule when killed at any moment during churn', async () => {
      const sets = [pods(0, 1), pods(0, 1, 2), pods(0, 2), pods(0)];
      await agent.apply(services(pods(0)));
      const held = await lab.client.hold(VIP, 5060);

      // Clients connect continuously; a lost connection appears as a failed probe.
      let churning = true;
      const failures: string[] = [];
      let probes = 0;
      const clients = [
        () => lab.client.tcp(VIP, 1000 + (probes % 5000)),
        () => lab.client.tcp(LISTED_VIPS[1] ?? '', 80),
      ].map((probe) =>
        repeatUntil(
          () => !churning,
          async () => {
            const outcome = await probe();
            probes += 1;
            if (outcome.outcome !== 'answered') failures.push(JSON.stringify(outcome));
          },
        ),
      );

      // The number of probes answered meanwhile determines when the agent is killed.
      for (let round = 0; round < 8; round++) {
        for (let change = 0; change < 3; change++) {
          agent.write('objects', services(sets[(round + change) % sets.length] ?? []));
          const goal = probes + 3 + ((round * 7 + change * 5) % 23);
          await waitFor('clients continued', () => probes >= goal, CLIENTS_MS);
        }
        await agent.kill();
        if (round % 3 === 0)
          agent.write('objects', services(sets[(round + 1) % sets.length] ?? []));
        const starting = agent.start();
        if (round % 4 === 1) {
          const goal = probes + 20 + 10 * round;
          await waitFor('the new agent has started', () => probes >= goal, CLIENTS_MS);
        }
        await starting;
      }
      churning = false;
      await Promise.all(clients);
      assert.deepEqual(failures, []);
      assert.equal(await held.exchange('alive'), 'alive');
      await held.close();

      await agent.apply(services(pods(0, 2)));
      await agent.kill();
      await agent.start();
      const survived = await allRules();
      await startOver();
      await agent.start();
      assert.equal(survived, await allRules());
    });

    it('lets a second agent wait until the first exits', async () => {
      await agent.apply(services(pods(0)));
      const second = new Agent(lab);
      try {
        const started = second.start([...flags, '--metrics-bind-address=127.0.0.1:10250']);
        await waitFor('it logs that', () =>
          second.log.some(({ msg }) => /waiting for the node lock/.test(msg)),
        );
        answered(await lab.client.tcp(VIP, 4000));
        await agent.kill();
        await started;
        assert.equal((await lab.client.tcp(VIP, 4000, SHORT)).outcome, 'timeout');
      } finally {
        await second.destroy();
      }
    });

    it('writes nothing at a restart if all rules are as expected', async () => {
      await agent.apply(services(pods(0, 1)));
      await agent.stop();
      await agent.start();
      assert.deepEqual(
        agent
          .logged('synced')
          .map(({ family, written }) => [family, written])
          .sort(),
        [
          ['IPv4', 0],
          ['IPv6', 0],
        ],
      );
    });

    it('keeps iptables rules when the agent exits', async () => {
      await agent.apply(services(pods(0)));
      await agent.stop();
      for (const vip of VIPS) assert.equal(answered(await lab.client.tcp(vip, 4000)).host, 'pod-1');
    });

    it('restores rules that another program removes', async function () {
      // Wait a hundred times as long as a full comparison takes.
      this.timeout(900_000);
      await agent.apply(services(pods(0)));
      const expected = await allRules();
      const iptables = `iptables-${variant}`;
      const restoreCount = () =>
        agent.log.filter(({ msg }) =>
          /^rules were changed by another program|^resync repaired/.test(msg),
        ).length;
      const damages: string[][][] = [
        [['-t', 'nat', '-F']],
        [
          ['-t', 'nat', '-F'],
          ['-t', 'nat', '-X'],
        ],
        [['-F'], ['-X']],
        [
          ['-t', 'mangle', '-F'],
          ['-t', 'mangle', '-X'],
        ],
        [['-t', 'nat', '-D', 'PREROUTING', '1']],
        // Changes that only a full resync detects, all at once.
        [
          ['-t', 'nat', '-F', 'KUBE-SERVICES'],
          ['-t', 'nat', '-F', 'KUBE-MARK-MASQ'],
          ['-F', 'KUBE-FORWARD'],
          ['-t', 'nat', '-F', /KUBE-SVC-\w{16}/.exec(expected)?.[0] ?? ''],
          ['-t', 'nat', '-I', 'KUBE-POSTROUTING', '-j', 'RETURN'],
        ],
      ];
      for (const damage of damages) {
        const before = restoreCount();
        for (const command of damage) await lab.node.exec(iptables, ['-w', '5', ...command]);
        await waitFor(
          'the rules are restored',
          async () => restoreCount() > before && (await allRules()) === expected,
          600_000,
        );
      }
      assert.equal(answered(await lab.client.tcp(VIP, 4000)).host, 'pod-1');
    });

    it("takes over kube-proxy's rules in place, keeping connections and removing stale chains", async () => {
      await startOver();
      const endpoints = pods(0);
      for (const family of FAMILIES) {
        const tool = iptablesTool(variant, family, 'restore');
        const input = kubeProxyIptables(clusterOf(family, endpoints[0]));
        await lab.node.exec(tool, ['--noflush'], { input });
        // The kubelet's chains.
        const kubelets =
          '*mangle\n:KUBE-IPTABLES-HINT - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n';
        await lab.node.exec(tool, ['--noflush'], { input: kubelets });
      }
      const held = await Promise.all(LISTED_VIPS.map((vip) => lab.client.hold(vip, 80)));
      agent.write('objects', services(endpoints));
      const outcomes: string[] = [];
      let taking = true;
      const clients = LISTED_VIPS.map((vip) =>
        repeatUntil(
          () => !taking,
          async () => outcomes.push(`${vip} ${(await lab.client.tcp(vip, 80)).outcome}`),
        ),
      );
      await agent.start();
      await agent.apply(services(endpoints));
      taking = false;
      await Promise.all(clients);
      assert.deepEqual(
        [...new Set(outcomes)].sort(),
        LISTED_VIPS.map((vip) => `${vip} answered`),
      );
      for (const connection of held) {
        assert.equal(await connection.exchange('still'), 'still');
        await connection.close();
      }
      for (const family of FAMILIES) {
        const nat = await iptablesRules(lab.node, variant, family, 'nat');
        assert.match(
          nat,
          /KUBE-SVC-LOLE4ISW44XBNF3G/,
          'kube-proxy and Portwide derive the same chain name',
        );
        assert.doesNotMatch(nat, /AAAAAAAAAAAAAAAA|BBBBBBBBBBBBBBBB/);
        const jumps = nat.split('\n').filter((line) => /^-A PREROUTING .*KUBE-SERVICES/.test(line));
        assert.equal(jumps.length, 1);
      }

      await agent.kill();
      await lab.node.exec(PORTWIDE, ['cleanup']);
      const left = (await allRules()).split('\n').filter((line) => line.includes('KUBE-'));
      const kubelets = ['KUBE-IPTABLES-HINT', 'KUBE-KUBELET-CANARY', 'KUBE-FIREWALL'];
      for (const line of left)
        assert.ok(
          kubelets.some((name) => line.includes(name)),
          line,
        );
      for (const family of FAMILIES) {
        const input = '*mangle\n-X KUBE-IPTABLES-HINT\n-X KUBE-KUBELET-CANARY\nCOMMIT\n';
        const tool = iptablesTool(variant, family, 'restore');
        await lab.node.exec(tool, ['--noflush'], { input });
      }
    });

    it('removes all rules with cleanup on a node without a kubelet, and refuses cleanup beside a running agent', async () => {
      await agent.apply(services(pods(0)));
      const expected = await allRules();
      await assert.rejects(lab.node.exec(PORTWIDE, ['cleanup']), /stop the agent first/);
      assert.equal(await allRules(), expected);
      await agent.kill();
      await lab.node.exec(PORTWIDE, ['cleanup']);
      assert.doesNotMatch(await allRules(), /KUBE-/);
    });

    it('is not blocked by a foreign rule that jumps to a stale chain', async () => {
      await agent.apply(services(pods(0)));
      const nat = await iptablesRules(lab.node, variant, 4, 'nat');
      const chain = /KUBE-SVC-\w{16}/.exec(nat)?.[0] ?? '';
      const rule = ['OUTPUT', '-d', '192.0.2.99/32', '-j', chain];
      await lab.node.exec(`iptables-${variant}`, ['-t', 'nat', '-A', ...rule]);
      await agent.apply([]);
      const left = await iptablesRules(lab.node, variant, 4, 'nat');
      assert.deepEqual(left.match(/^:KUBE-(SVC|SEP)-\w{16} /gm), [`:${chain} `]);
      const warned = agent.logged('cannot remove iptables chains that are in use');
      assert.ok(warned.some(({ chains }) => Array.isArray(chains) && chains.includes(chain)));
      await agent.apply(services(pods(0)));
      answered(await lab.client.tcp(VIP, 4000));
      await lab.node.exec(`iptables-${variant}`, ['-t', 'nat', '-D', ...rule]);
    });

    it('can be replaced by kube-proxy, whose first sync removes unknown chains', async () => {
      const nodePort = serviceManifest('np', {
        spec: {
          type: 'NodePort',
          clusterIPs: ['10.96.0.12', 'fd00:10:96::12'],
          ports: [{ port: 80, nodePort: 30_080 }],
        },
      });
      const ports = [{ name: '', port: 8080 }];
      await agent.apply([
        ...services(pods(0)),
        nodePort,
        ...FAMILIES.map((family) => sliceManifest('np', family, pods(0), { ports })),
      ]);
      const held = await Promise.all(LISTED_VIPS.map((vip) => lab.client.hold(vip, 80)));
      await agent.kill();
      for (const family of FAMILIES) {
        const { web, pod } = clusterOf(family, pods(0)[0]);
        const saved = await iptablesRules(lab.node, variant, family, 'nat');
        // kube-proxy serves default/web. It flushes and deletes all other chains with its prefixes,
        // in the transaction that writes its rules (syncProxyRules).
        const own = ['KUBE-SVC-LOLE4ISW44XBNF3G', 'KUBE-SEP-WEB'];
        const known = saved.match(/(?<=^:)KUBE-(SVC|SVL|EXT|FW|SEP)-\S+/gm) ?? [];
        const stale = known.filter((name) => !own.includes(name));
        assert.ok(stale.length > 10);
        const to = family === 4 ? `${pod}:8080` : `[${pod}]:8080`;
        const input = [
          '*nat',
          ':KUBE-SERVICES - [0:0]',
          ':KUBE-NODEPORTS - [0:0]',
          ...[...own, ...stale].map((name) => `:${name} - [0:0]`),
          `-A ${own[0]} -j ${own[1]}`,
          `-A ${own[1]} -p tcp -m tcp -j DNAT --to-destination ${to}`,
          `-A KUBE-SERVICES -d ${web} -p tcp -m tcp --dport 80 -j ${own[0]}`,
          '-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS',
          ...stale.map((name) => `-X ${name}`),
          'COMMIT',
          '',
        ].join('\n');
        const tool = iptablesTool(variant, family, 'restore');
        await lab.node.exec(tool, ['--noflush'], { input });
        assert.equal(answered(await lab.client.tcp(web, 80)).host, 'pod-1');
      }
      for (const connection of held) {
        assert.equal(await connection.exchange('still'), 'still');
        await connection.close();
      }
    });

    it('refuses all-ports Services while the feature gate is off', async () => {
      await agent.apply(services(pods(0)));
      await agent.stop();
      await agent.start([...flags, '--feature-gates=AllPorts=false']);
      assert.equal((await lab.client.tcp(VIP, 4000, SHORT)).outcome, 'timeout');
      answered(await lab.client.tcp(LISTED_VIPS[0] ?? '', 80));
      await agent.stop();
      await agent.start(flags);
      answered(await lab.client.tcp(VIP, 4000));
    });

    it('serves no external IP while the feature gate AllowServiceExternalIPs is off, and says why', async () => {
      const external = '203.0.113.8';
      const [clusterIP = ''] = LISTED_VIPS;
      const ports = [{ name: 'http', port: 80 }];
      const spec = { clusterIPs: [clusterIP], externalIPs: [external], ports };
      await agent.apply([
        serviceManifest('ext', { spec }),
        sliceManifest('ext', 4, pods(0), { ports: [{ name: 'http', port: 8080 }] }),
      ]);
      const clients = [lab.client, lab.node, ...pods(1)];
      for (const host of clients) answered(await host.tcp(external, 80));
      await agent.stop();
      const directory = mkdtempSync(join(tmpdir(), 'portwide-gate-'));
      try {
        const socket = `--status-socket=${join(directory, 'agent.sock')}`;
        await agent.start([...flags, socket, '--feature-gates=AllowServiceExternalIPs=false']);
        for (const host of clients)
          assert.notEqual((await host.tcp(external, 80, SHORT)).outcome, 'answered');
        for (const host of clients) answered(await host.tcp(clusterIP, 80));
        const output = async (...args: string[]) =>
          (await lab.node.exec(PORTWIDE, [...args, socket], { reject: false })).stdout;
        const reason = /spec\.externalIPs: not served.* AllowServiceExternalIPs is off/;
        assert.match(await output('describe', 'service', 'default/ext'), reason);
        assert.match(await output('trace', 'external', external, '--port=80'), reason);
      } finally {
        rmSync(directory, { recursive: true });
      }
    });

    it('keeps its rules when a manifest is broken, reports it, and applies the repaired one', async () => {
      await agent.apply(services(pods(0)));
      writeFileSync(`${agent.directory}/objects.json`, '{"kind": "List", ');
      await waitFor('the agent reports it', () =>
        agent.log.some(({ level, file }) => level >= 40 && String(file).includes('objects.json')),
      );
      answered(await lab.client.tcp(VIP, 4000));
      await agent.apply(services([]));
      refused(await lab.client.tcp(VIP, 4000));
    });
  });
}
