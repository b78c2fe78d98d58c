/** Life cycle of an agent in IPVS mode: restarts, foreign state, draining, and external changes. */
import assert from 'node:assert/strict';
import { answered, refused } from '../../e2e/scenarios/scenario.ts';
import { type Lab, waitFor } from '../../lab/lab.ts';
import { allPorts, IPVS_FLAGS, IpvsLab, listed, ranges, vips } from '../ipvs-lab.ts';

const VIP = vips(10)[0];
const WEB = vips(11)[0];

describe('life cycle of an agent in IPVS mode', () => {
  let ipvs: IpvsLab;
  let lab: Lab;

  before(async () => {
    ipvs = await IpvsLab.create();
    lab = ipvs.lab;
    await ipvs.agent.start(IPVS_FLAGS);
  });
  after(async () => ipvs?.destroy());

  it('keeps marks and connections and writes nothing at a restart', async () => {
    const { agent } = ipvs;
    await agent.apply([
      ...allPorts('all', 10, ipvs.pods(0, 1, 2)),
      ...listed('web', 11, ipvs.pods(0, 1)),
      ...ranges('some', 12, ipvs.pods(0, 1), '8000-8100,9000/UDP'),
      ...allPorts('none', 13, []),
    ]);
    const held = await ipvs.hold([VIP, 5060], [WEB, 80]);
    const [marks, before] = [await ipvs.marks(), await ipvs.snapshot()];
    assert.equal(marks.length, 6);
    for (const end of [() => agent.stop(), () => agent.kill()]) {
      await end();
      answered(await lab.client.tcp(VIP, 4000));
      await agent.start();
      const written = agent.logged('synced').map((line) => [line.family, line.written]);
      assert.deepEqual(written.slice(0, 2).sort(), [
        ['IPv4', 0],
        ['IPv6', 0],
      ]);
      assert.deepEqual(await ipvs.marks(), marks);
      assert.deepEqual(await ipvs.snapshot(), before);
      for (const connection of held) assert.equal(await connection.exchange('on'), 'on');
    }
    for (const connection of held) await connection.close();
  });

  describe('kill -9 at any moment during churn', () => {
    const sets = [[0, 1], [0, 1, 2], [0, 2], [0]];
    const objects = (change: number) => {
      const pods = ipvs.pods(...(sets[change % sets.length] ?? []));
      return [
        ...allPorts('all', 10, pods),
        ...listed('web', 11, pods),
        ...(pods.length === 2 ? ranges('some', 12, pods, '8000-8100') : []),
        ...(pods.length === 1 ? allPorts('other', 14, pods) : []),
      ];
    };

    it('loses no connection when the agent is killed during churn', async () => {
      const { agent } = ipvs;
      await agent.apply(objects(3));
      const [held] = await ipvs.hold([VIP, 5060]);
      let port = 1000;
      const prober = ipvs.keepProbing(
        () => [VIP, port++],
        () => [WEB, 80],
      );
      // The number of probes answered meanwhile determines when the agent is killed.
      const waitForProbes = async (more: number) => {
        const goal = prober.count + more;
        await waitFor('clients continued', () => prober.count >= goal, 30_000);
      };
      for (let round = 0; round < 3; round++) {
        for (let change = 0; change < 3; change++) {
          agent.write('objects', objects(round + change));
          await waitForProbes(2 + ((round * 7 + change * 5) % 23));
        }
        await agent.kill();
        if (round % 2 === 0) agent.write('objects', objects(round + 1));
        await agent.start();
      }
      assert.deepEqual(await prober.stop(), []);
      assert.equal(await held?.exchange('alive'), 'alive');
      await held?.close();
    });

    it('leaves no stale state when the agent is killed during churn', async () => {
      const { agent } = ipvs;
      for (let round = 0; round < 2; round++) {
        await agent.apply(objects(round));
        agent.write('objects', objects(round + 1));
        await agent.kill();
        agent.write('objects', objects(round + 2));
        await agent.start();
      }
      const survived = await ipvs.snapshot();
      await agent.kill();
      await ipvs.cleanup();
      await agent.start();
      assert.deepEqual(survived, await ipvs.snapshot());
    });
  });

  it('removes its own stale state at the start, and keeps foreign services and their marks', async () => {
    const { agent } = ipvs;
    const fields = [...allPorts('all', 10, ipvs.pods(0)), ...allPorts('gone', 13, ipvs.pods(1))];
    await agent.apply(fields);
    const [own, gone] = [
      await ipvs.markOf('default/all cluster'),
      await ipvs.markOf('default/gone cluster'),
    ];
    await agent.kill();
    await ipvs.cleanup();

    // Before the first start: a foreign service with the mark that the Service would get.
    const foreign = [
      '-A -f 77 -s rr',
      `-A -f ${own} -s lc`,
      `-a -f ${own} -r ${ipvs.pods(2)[0]?.ipv4}:0 -m -w 1`,
      '-A -t 10.99.0.1:80 -s rr',
    ];
    await lab.node.exec('ipvsadm', ['-R'], { input: `${foreign.join('\n')}\n` });
    const stays = (await ipvs.services()).filter((line) => !line.includes('KUBE'));
    // The same form as Calico's.
    await lab.node.exec('iptables-legacy', ['-w', '-N', 'cali-INPUT']);
    await agent.start([...IPVS_FLAGS, '--ipvs-exclude-cidrs=10.99.0.0/24']);
    try {
      const warnings = ipvs.agent.log.filter(
        ({ level, msg }) => level === 40 && /Calico/.test(msg),
      );
      assert.deepEqual(
        warnings.map(({ family }) => family),
        ['IPv4'],
      );
      const left = async () => {
        const now = await ipvs.services();
        assert.deepEqual(
          stays.filter((line) => !now.includes(line)),
          [],
        );
        return now;
      };
      const now = await left();
      const mark = await ipvs.markOf('default/all cluster');
      assert.notEqual(mark, own);
      assert.ok(now.includes(`-A -f ${mark} -s rr`));
      assert.equal(answered(await lab.client.tcp(VIP, 5060)).host, 'pod-1');

      assert.ok(now.includes(`-A -f ${gone} -s rr`));
      await agent.kill();
      agent.write('objects', allPorts('all', 10, ipvs.pods(0)));
      await agent.start();
      assert.equal(
        (await left()).find((line) => line.includes(`-f ${gone} `)),
        undefined,
      );
      assert.deepEqual(
        (await ipvs.marks()).filter((line) => line.includes('gone')),
        [],
      );
      // A mark once detected as foreign remains so after a restart.
      assert.equal(await ipvs.markOf('default/all cluster'), mark);
      assert.equal(answered(await lab.client.tcp(VIP, 5060)).host, 'pod-1');
    } finally {
      await agent.kill();
      await ipvs.cleanup();
      await lab.node.exec('iptables-legacy', ['-w', '-X', 'cali-INPUT']);
      // Foreign services also remain after a cleanup.
      await lab.node.exec('ipvsadm', ['-C']);
      await agent.start(IPVS_FLAGS);
    }
  });

  it('keeps connections to an endpoint that is no longer ready, and sends new ones elsewhere', async () => {
    const { agent } = ipvs;
    const [first, ...others] = ipvs.pods(0, 1, 2);
    assert.ok(first !== undefined);
    const objects = (pods: Parameters<typeof allPorts>[2]) => [
      ...allPorts('all', 10, pods),
      ...listed('web', 11, pods),
    ];
    await agent.apply(objects([first]));
    const held = await ipvs.hold(
      ...vips(10).map((vip) => [vip, 5060] as const),
      ...vips(11).map((vip) => [vip, 80] as const),
    );
    const unready = { conditions: { ready: false, serving: false, terminating: true } };
    await agent.apply(objects([[first, unready], ...others]));
    for (const [vip, port] of [
      ...vips(10).map((each) => [each, 5060] as const),
      ...vips(11).map((each) => [each, 80] as const),
    ]) {
      const { answered: by } = await lab.client.burst(vip, port, 20);
      assert.deepEqual(by, { 'pod-2': 10, 'pod-3': 10 }, vip);
    }
    const drains = (await ipvs.services()).filter((line) => line.endsWith(' -w 0'));
    assert.equal(drains.length, 4, drains.join('\n'));
    for (const connection of held) assert.equal(await connection.exchange('on'), 'on');

    // The same without polling, and across a restart, after which it must not get new connections.
    await agent.kill();
    await agent.start();
    assert.deepEqual(
      (await ipvs.services()).filter((line) => line.endsWith(' -w 0')),
      drains,
    );
    for (const connection of held) assert.equal(await connection.exchange('on'), 'on');
    // Ready again, the endpoint gets new connections.
    await agent.apply(objects([first]));
    const { answered: by } = await lab.client.burst(WEB, 80, 10);
    assert.deepEqual(by, { 'pod-1': 10 });
    for (const connection of held) {
      assert.equal(await connection.exchange('bye'), 'bye');
      await connection.close();
    }
  });

  it('rejects new connections of a deleted Service, and unbinds its VIP', async () => {
    const { agent } = ipvs;
    await agent.apply([...allPorts('all', 10, ipvs.pods(0)), ...listed('web', 11, ipvs.pods(0))]);
    const held = await ipvs.hold([VIP, 5060], [WEB, 80]);
    await agent.apply([]);
    for (const [vip, port] of [
      [VIP, 5060],
      [WEB, 80],
    ] as const) {
      const { outcome } = await lab.client.tcp(vip, port, { timeoutMs: 400 });
      assert.notEqual(outcome, 'answered');
    }
    const { stdout } = await lab.node.exec('ip', ['address', 'show', 'dev', 'kube-ipvs0']);
    for (const vip of [VIP, WEB]) assert.ok(!stdout.includes(` ${vip}/`));
    for (const connection of held) await connection.close();
  });

  it('changes the scheduler in place: connections stay open, new ones are distributed', async () => {
    const { agent } = ipvs;
    await agent.apply([
      ...allPorts('all', 10, ipvs.pods(0, 1, 2)),
      ...listed('web', 11, ipvs.pods(0, 1, 2)),
    ]);
    const held = await ipvs.hold([VIP, 5060], [WEB, 80]);
    await agent.stop();
    await agent.start([...IPVS_FLAGS, '--ipvs-scheduler=mh']);
    try {
      const made = (await ipvs.services()).filter((line) => line.startsWith('-A'));
      for (const line of made) assert.match(line, / -s mh -b mh-fallback,mh-port$/);
      for (const connection of held) assert.equal(await connection.exchange('on'), 'on');
      for (const vip of vips(10)) {
        const { answered: by } = await lab.client.burst(vip, 5060, 200);
        for (const pod of ['pod-1', 'pod-2', 'pod-3']) {
          // A third each; fewer than 30 of 200 once in some 10^9 runs.
          assert.ok((by[pod] ?? 0) >= 30, JSON.stringify(by));
        }
      }
      await agent.stop();
      await assert.rejects(agent.start([...IPVS_FLAGS, '--ipvs-scheduler=nosuch']), /ip_vs_nosuch/);
      for (const connection of held) assert.equal(await connection.exchange('still'), 'still');
    } finally {
      await agent.stop();
      await agent.start(IPVS_FLAGS);
      for (const connection of held) await connection.close();
    }
  });

  it('changes port ranges: answers inside, rejects outside, keeps connections in both ranges', async () => {
    const { agent } = ipvs;
    const put = (ports: string) => agent.apply(ranges('some', 12, ipvs.pods(0, 1), ports));
    await put('8000-8100');
    const held = await ipvs.hold(...vips(12).map((vip) => [vip, 8060] as const));
    for (const [ports, inside, outside] of [
      ['8000-8100', [8000, 8050, 8100], [7999, 8101, 8150]],
      ['8050-8200', [8050, 8060, 8150, 8200], [8000, 8049, 8201]],
      ['8000-8010', [8000, 8010], [7999, 8011, 8060, 8200]],
    ] as const) {
      await put(ports);
      for (const vip of vips(12)) {
        for (const port of inside) {
          assert.equal(answered(await lab.client.tcp(vip, port)).localPort, port);
          assert.equal(answered(await lab.client.udp(vip, port)).localPort, port);
        }
        for (const port of outside) {
          refused(await lab.client.tcp(vip, port));
          refused(await lab.client.udp(vip, port));
        }
      }
      if (ports === '8000-8010') break;
      for (const connection of held) assert.equal(await connection.exchange('on'), 'on');
    }
    for (const connection of held) await connection.close();
  });

  it('keeps connections when session affinity changes', async () => {
    const { agent } = ipvs;
    const put = (spec: object) =>
      agent.apply([
        ...allPorts('all', 10, ipvs.pods(0, 1, 2), spec),
        ...listed('web', 11, ipvs.pods(0, 1, 2), spec),
      ]);
    await put({});
    const held = await ipvs.hold([VIP, 5060], [WEB, 80]);
    await put({ sessionAffinity: 'ClientIP' });
    for (const [vip, port] of [
      [VIP, 5060],
      [WEB, 80],
    ] as const) {
      const { answered: by } = await lab.client.burst(vip, port, 20);
      assert.deepEqual(Object.values(by), [20]);
    }
    await put({});
    for (const connection of held) {
      assert.equal(await connection.exchange('on'), 'on');
      await connection.close();
    }
    // The kernel does not keep a client's endpoint once the service is not persistent.
    for (const [vip, port] of [
      [VIP, 5060],
      [WEB, 80],
    ] as const) {
      const { answered: by } = await lab.client.burst(vip, port, 30);
      assert.deepEqual(by, { 'pod-1': 10, 'pod-2': 10, 'pod-3': 10 });
    }
  });

  it('restores IPVS services, addresses and rules that another program removes', async () => {
    const { agent } = ipvs;
    await agent.stop();
    await agent.start([...IPVS_FLAGS, '--ipvs-sync-period=1s']);
    try {
      await agent.apply([
        ...allPorts('all', 10, ipvs.pods(0)),
        ...listed('web', 11, ipvs.pods(0)),
        ...ranges('some', 12, ipvs.pods(0), '8000-8100'),
      ]);
      const before = await ipvs.snapshot();
      for (const [command, ...args] of [
        ['ipvsadm', '-C'],
        ['ipset', 'flush', 'KUBE-ALL-PORTS'],
        ['ip', 'link', 'del', 'kube-ipvs0'],
        ['iptables-legacy', '-w', '-t', 'mangle', '-F'],
        ['ip6tables-legacy', '-w', '-F', 'INPUT'],
      ] as const) {
        const syncs = agent.logged('synced').length;
        await lab.node.exec(command, args);
        // Before the first resync, which costs as much CPU as a sync.
        await waitFor(`the agent wrote after ${command} ${args.join(' ')}`, () =>
          agent.logged('synced').some(({ written }, index) => index >= syncs && written !== 0),
        );
        let now: string[] = [];
        await waitFor(
          `all is back after ${command} ${args.join(' ')}`,
          async () => {
            now = await ipvs.snapshot();
            return JSON.stringify(now) === JSON.stringify(before);
          },
          20_000,
        ).catch(() => assert.deepEqual(now, before, `${command} ${args.join(' ')}`));
        assert.equal(answered(await lab.client.tcp(VIP, 4000)).host, 'pod-1');
        assert.equal(answered(await lab.client.tcp(WEB, 80)).host, 'pod-1');
        refused(await lab.client.tcp(WEB, 81));
      }
    } finally {
      await agent.stop();
      await agent.start(IPVS_FLAGS);
    }
  });
});
