/** Takeover by IPVS mode from other proxies, and its alternative way to serve all ports. */
import assert from 'node:assert/strict';
import { AGENT_FLAGS, IPTABLES_FLAGS } from '../../e2e/agent.ts';
import { ALL_PORTS, type Manifest } from '../../e2e/manifests.ts';
import { answered, refused } from '../../e2e/scenarios/scenario.ts';
import { type HeldConnection, type Lab, waitFor } from '../../lab/lab.ts';
import { allPorts, FAMILIES, IPVS_FLAGS, IpvsLab, listed, service, vips } from '../ipvs-lab.ts';
import { STOCK_KERNEL } from '../kernels.ts';

const [VIP, VIP6] = vips(10);
const [WEB, WEB6] = vips(11);
const GONE = vips(99)[0];
const LB = '203.0.113.50';
const NODE_PORT = 30_080;

/** Portwide's other modes that the kernel supports. */
const OTHER_MODES = {
  iptables: [...IPTABLES_FLAGS, '--iptables-variant=legacy'],
  ...(STOCK_KERNEL === undefined ? {} : { nftables: [...AGENT_FLAGS, '--proxy-mode=nftables'] }),
};

/** kube-proxy 1.34's `ipset restore` input. */
function kubeProxySets(pod: string): string {
  const hash = 'family inet hashsize 1024 maxelem 65536';
  const created = [
    ['KUBE-LOOP-BACK', `hash:ip,port,ip ${hash}`],
    ['KUBE-LOAD-BALANCER-SOURCE-IP', `hash:ip,port,ip ${hash}`],
    ['KUBE-LOAD-BALANCER-SOURCE-CIDR', `hash:ip,port,net ${hash}`],
    ...[
      'KUBE-CLUSTER-IP',
      'KUBE-EXTERNAL-IP',
      'KUBE-EXTERNAL-IP-LOCAL',
      'KUBE-LOAD-BALANCER',
      'KUBE-LOAD-BALANCER-FW',
      'KUBE-LOAD-BALANCER-LOCAL',
      'KUBE-NODE-PORT-SCTP-HASH',
      'KUBE-NODE-PORT-LOCAL-SCTP-HASH',
    ].map((name) => [name, `hash:ip,port ${hash}`]),
    ...[
      'KUBE-NODE-PORT-TCP',
      'KUBE-NODE-PORT-LOCAL-TCP',
      'KUBE-NODE-PORT-UDP',
      'KUBE-NODE-PORT-LOCAL-UDP',
      'KUBE-HEALTH-CHECK-NODE-PORT',
    ].map((name) => [name, 'bitmap:port range 0-65535']),
    ['KUBE-IPVS-IPS', `hash:ip ${hash}`],
  ].map(([name, how]) => `create ${name} ${how}`);
  return [
    ...created,
    `add KUBE-LOOP-BACK ${pod},tcp:8080,${pod}`,
    ...[WEB, GONE].map((vip) => `add KUBE-CLUSTER-IP ${vip},tcp:80`),
    `add KUBE-LOAD-BALANCER ${LB},tcp:80`,
    ...[WEB, GONE, LB].map((ip) => `add KUBE-IPVS-IPS ${ip}`),
    `add KUBE-NODE-PORT-TCP ${NODE_PORT}`,
    '',
  ].join('\n');
}

/** kube-proxy's iptables-restore input, and the jumps that it creates. */
const KUBE_PROXY_RULES = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN
-A KUBE-POSTROUTING -m comment --comment "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose" -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-SERVICES -m comment --comment "Kubernetes service lb portal" -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-NODE-PORT -p tcp -m comment --comment "Kubernetes nodeport TCP port for masquerade purpose" -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES ! -s 10.244.0.0/16 -m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j ACCEPT
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT
-A FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER
-A KUBE-PROXY-FIREWALL -m comment --comment "Kubernetes service load balancer ip + port for load balancer with sourceRange" -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-NODE-PORT -m comment --comment "Kubernetes health check node port" -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT
-A KUBE-IPVS-FILTER -m set --match-set KUBE-LOAD-BALANCER dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT
COMMIT
`;

describe('takeover by IPVS mode', () => {
  let ipvs: IpvsLab;
  let lab: Lab;

  before(async () => {
    ipvs = await IpvsLab.create();
    lab = ipvs.lab;
  });
  after(async () => ipvs?.destroy());
  afterEach(async () => {
    await ipvs.agent.kill();
    await ipvs.cleanup();
  });

  /** Asserts the same state as on a node without a previous proxy. */
  const isAsIfFresh = async () => {
    const snapshot = await ipvs.snapshot();
    await ipvs.agent.kill();
    await ipvs.cleanup();
    await ipvs.agent.start();
    // Protects route_localnet, which the iptables mode sets and no other mode restores.
    const own = snapshot.filter((line) => !line.includes('KUBE-FIREWALL'));
    assert.deepEqual(own, await ipvs.snapshot());
  };

  /**
   * Starts an agent while clients connect: all are answered, and existing connections stay open.
   */
  const takesOver = async (
    targets: readonly (readonly [vip: string, port: number])[],
    held: readonly HeldConnection[],
    objects: readonly Manifest[],
  ) => {
    ipvs.agent.write('objects', objects);
    const prober = ipvs.keepProbing(...targets.map((target) => () => target));
    await ipvs.agent.start(IPVS_FLAGS);
    await ipvs.agent.apply(objects);
    assert.deepEqual(await prober.stop(), []);
    for (const connection of held) {
      assert.equal(await connection.exchange('still'), 'still');
      await connection.close();
    }
  };

  it("takes over from kube-proxy's IPVS mode without loss, and removes stale state", async () => {
    const { node } = lab;
    const [pod] = ipvs.pods(0);
    assert.ok(pod !== undefined);
    await node.exec('sysctl', ['-q', 'net.ipv4.vs.conntrack=1']);
    await node.exec('ip', ['link', 'add', 'kube-ipvs0', 'type', 'dummy']);
    for (const vip of [WEB, GONE, LB]) {
      await node.exec('ip', ['addr', 'add', `${vip}/32`, 'dev', 'kube-ipvs0']);
    }
    const servers = [`${WEB}:80`, `${GONE}:80`, `${LB}:80`, `${node.ipv4}:${NODE_PORT}`];
    const table = servers.flatMap((server) => [
      `-A -t ${server} -s rr`,
      `-a -t ${server} -r ${pod.ipv4}:8080 -m -w 1`,
    ]);
    await node.exec('ipvsadm', ['-R'], { input: `${table.join('\n')}\n` });
    await node.exec('ipset', ['restore'], { input: kubeProxySets(pod.ipv4) });
    await node.exec('iptables-legacy-restore', ['--noflush'], { input: KUBE_PROXY_RULES });

    const targets = [
      [WEB, 80],
      [LB, 80],
      [node.ipv4, NODE_PORT],
    ] as const;
    const held = await ipvs.hold(...targets);
    const objects: Manifest[] = service(
      'web',
      11,
      [pod],
      {
        ingress: [{ ip: LB }],
        spec: {
          type: 'LoadBalancer',
          clusterIPs: [WEB],
          ports: [{ port: 80, nodePort: NODE_PORT }],
        },
      },
      [{ name: '', port: 8080 }],
    );
    await takesOver(targets, held, objects);
    assert.deepEqual(
      (await ipvs.services()).filter((line) => line.includes(GONE)),
      [],
    );
    assert.equal((await ipvs.addresses()).includes(`${GONE}/32`), false);
    const { stdout: bound } = await node.exec('ip', ['-4', '-o', 'addr', 'show', 'kube-ipvs0']);
    assert.match(bound, /scope host/);
    assert.doesNotMatch(bound, /scope global|\/31/, 'VIPs are not source addresses');
    const { stdout } = await node.exec('iptables-legacy-save');
    assert.doesNotMatch(stdout, /kube-proxy firewall rules|-m mark ! --mark 0x4000|-j MARK /);
    const jumps = stdout.match(/^-A (PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING) .*$/gm) ?? [];
    assert.deepEqual(jumps, [...new Set(jumps)]);
    await isAsIfFresh();
  });

  for (const [mode, flags] of Object.entries(OTHER_MODES)) {
    it(`takes over from mode ${mode} without loss, and removes its rules`, async () => {
      const objects = [...allPorts('all', 10, ipvs.pods(0)), ...listed('web', 11, ipvs.pods(0))];
      await ipvs.agent.start(flags);
      await ipvs.agent.apply(objects);
      const targets = [
        [VIP, 5060],
        [VIP6, 5060],
        [WEB, 80],
        [WEB6, 80],
      ] as const;
      const held = await ipvs.hold(...targets);
      await ipvs.agent.stop();
      await takesOver(targets, held, objects);
      for (const save of ['iptables-legacy-save', 'ip6tables-legacy-save']) {
        const { stdout } = await lab.node.exec(save);
        assert.doesNotMatch(stdout, /KUBE-(SVC|SEP)-/);
      }
      if (mode === 'nftables') {
        const tables = async () => (await lab.node.exec('nft', ['list', 'tables'])).stdout;
        await waitFor('its tables are removed', async () => !/ portwide$/m.test(await tables()));
      }
      await isAsIfFresh();
    });

    it(`returns to mode ${mode} without loss, and removes IPVS state after its connections end`, async () => {
      const { node } = lab;
      const objects = [...allPorts('all', 10, ipvs.pods(0)), ...listed('web', 11, ipvs.pods(0))];
      await ipvs.agent.start(IPVS_FLAGS);
      await ipvs.agent.apply(objects);
      const [held] = await ipvs.hold([WEB, 80]);
      await ipvs.agent.stop();
      const foreign = ['-A -t 10.99.0.1:80 -s rr', '-a -t 10.99.0.1:80 -r 10.99.1.1:80 -m -w 1'];
      await node.exec('ipvsadm', ['-R'], { input: `${foreign.join('\n')}\n` });
      // Two clients, whose connections alternate between the families.
      const targets = [
        [VIP, VIP6, 5060],
        [WEB, WEB6, 80],
      ] as const;
      const prober = ipvs.keepProbing(
        ...targets.map(([vip, vip6, port]) => {
          let last: string = vip6;
          return () => {
            last = last === vip ? vip6 : vip;
            return [last, port] as const;
          };
        }),
      );
      await ipvs.agent.start([...flags, '--ipvs-exclude-cidrs=10.99.0.0/24']);
      await waitFor('services accept no new connections', async () =>
        (await ipvs.services()).every((line) => foreign.includes(line) || !/ -w [1-9]/.test(line)),
      );
      const answeredBefore = prober.count;
      await waitFor('clients continue', () => prober.count >= answeredBefore + 2 * targets.length);
      assert.deepEqual(await prober.stop(), []);
      assert.equal(await held?.exchange('still'), 'still');
      await held?.close();
      const isGone = async () => {
        const links = await node.exec('ip', ['link', 'show', 'kube-ipvs0'], { reject: false });
        const { stdout: sets } = await node.exec('ipset', ['list', '-n']);
        return (
          links.exitCode !== 0 && sets === '' && (await ipvs.services()).length <= foreign.length
        );
      };
      await waitFor('IPVS state is removed within a minute', isGone, 60_000);
      assert.deepEqual(await ipvs.services(), foreign);
      const logged = ipvs.agent.log
        .filter(({ msg, what }) => msg.includes('leftover state') && what === 'ipvs')
        .map(({ msg }) => msg);
      assert.deepEqual(logged, [
        'keeping leftover state until its connections end',
        'removed leftover state',
      ]);
      await ipvs.agent.stop();
      await ipvs.cleanup();
    });
  }

  it('serves all ports by rules with --ipvs-all-ports=iptables, and listed ports by IPVS', async () => {
    const { client } = lab;
    await ipvs.agent.start([...IPVS_FLAGS, '--ipvs-all-ports=iptables']);
    const shared = FAMILIES.map((family) => ({
      ip: family === 4 ? LB : '2001:db8:113::50',
    }));
    const objects = (pods: Parameters<typeof allPorts>[2]) => [
      ...service('all', 10, pods, {
        annotations: ALL_PORTS,
        ingress: shared,
        spec: { type: 'LoadBalancer' },
      }),
      ...service(
        'web',
        11,
        ipvs.pods(1),
        { ingress: shared, spec: { type: 'LoadBalancer', ports: [{ port: 80 }] } },
        [{ name: '', port: 8080 }],
      ),
    ];
    await ipvs.agent.apply(objects(ipvs.pods(0)));
    for (const vip of [VIP, VIP6, ...shared.map(({ ip }) => ip)]) {
      for (const port of [22, 5060, 8080, 65_535]) {
        for (const outcome of [await client.tcp(vip, port), await client.udp(vip, port)]) {
          const reply = answered(outcome);
          assert.deepEqual([reply.host, reply.localPort], ['pod-1', port]);
        }
      }
    }
    for (const { ip } of shared) {
      for (const host of [client, lab.node, ...ipvs.pods(2)]) {
        const reply = answered(await host.tcp(ip, 80));
        assert.deepEqual([reply.host, reply.localPort], ['pod-2', 8080]);
      }
    }
    assert.deepEqual(
      (await ipvs.services()).filter((line) => line.startsWith('-A -f')),
      [],
    );
    await ipvs.agent.apply(objects([]));
    for (const vip of [VIP, VIP6, ...shared.map(({ ip }) => ip)]) {
      refused(await client.tcp(vip, 22));
      refused(await client.udp(vip, 22));
    }
    for (const { ip } of shared) answered(await client.tcp(ip, 80));
  });
});
