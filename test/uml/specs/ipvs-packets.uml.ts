/** Packet paths to VIPs in IPVS mode that the shared scenarios do not cover. */
import assert from 'node:assert/strict';
import { serviceManifest, sliceManifest } from '../../e2e/manifests.ts';
import { answered, refused, SHORT } from '../../e2e/scenarios/scenario.ts';
import { type Lab, waitFor } from '../../lab/lab.ts';
import {
  allPorts,
  FAMILIES,
  IPVS_FLAGS,
  IpvsLab,
  listed,
  ranges,
  service,
  vips,
} from '../ipvs-lab.ts';

const SEND_GRE = new URL('../fixtures/send-gre.ts', import.meta.url).pathname;
const FOREIGN = '0x10000/0x10000';
const SET_FOREIGN = ['PREROUTING', '-j', 'MARK', '--set-xmark', FOREIGN];

describe('packets in IPVS mode', () => {
  let ipvs: IpvsLab;
  let lab: Lab;

  before(async () => {
    ipvs = await IpvsLab.create();
    lab = ipvs.lab;
    // Like sshd, on all present and future addresses.
    await lab.node.serve({ protocol: 'TCP', ports: [22] });
    await lab.node.serve({ protocol: 'UDP', ports: [22], address: '::' });
    await ipvs.agent.start(IPVS_FLAGS);
  });
  after(async () => ipvs?.destroy());

  const mangle = (family: 4 | 6, ...args: readonly string[]) =>
    lab.node.exec(`${family === 4 ? 'iptables' : 'ip6tables'}-legacy`, [
      ...['-w', '-t', 'mangle'],
      ...args,
    ]);

  it('distributes 300 connections of one client to one port over 3 endpoints', async () => {
    await ipvs.agent.apply(allPorts('all', 10, ipvs.pods(0, 1, 2)));
    for (const vip of vips(10)) {
      for (const protocol of ['TCP', 'UDP'] as const) {
        const { answered: by } = await lab.client.burst(vip, 5060, 300, { protocol });
        for (const pod of ['pod-1', 'pod-2', 'pod-3']) {
          const count = by[pod] ?? 0;
          assert.ok(count >= 70 && count <= 130, `${vip} ${protocol}: ${JSON.stringify(by)}`);
        }
      }
    }
  });

  it('sends all TCP and UDP ports of a client to one endpoint with ClientIP affinity, until its timeout', async () => {
    await ipvs.agent.apply(
      allPorts('sticky', 20, ipvs.pods(0, 1, 2), {
        sessionAffinity: 'ClientIP',
        sessionAffinityConfig: { clientIP: { timeoutSeconds: 660 } },
      }),
    );
    // A separate VIP: IPVS treats UDP packets from a port that was used before as the same flow.
    const ports = [22, 80, 5060, 5061, 8080, 20_000, 65_535];
    for (const vip of vips(20)) {
      const by = new Map<string, number>();
      for (const protocol of ['TCP', 'UDP'] as const) {
        const tally = await lab.client.burst(vip, ports, 42, { protocol });
        for (const [host, count] of Object.entries(tally.answered)) {
          by.set(host, (by.get(host) ?? 0) + count);
        }
      }
      assert.deepEqual([...by.values()], [84], `${vip}: ${JSON.stringify([...by])}`);
    }
    const { stdout } = await lab.node.exec('ipvsadm', ['-Ln']);
    assert.match(stdout, /^FWM +\d+ rr persistent 660$/m);
    assert.match(stdout, /^FWM +\d+ IPv6 rr persistent 660$/m);
    // Without affinity again, connections are distributed.
    await ipvs.agent.apply(allPorts('sticky', 20, ipvs.pods(0, 1, 2)));
    assert.doesNotMatch((await lab.node.exec('ipvsadm', ['-Ln'])).stdout, /persistent/);
    // IPVS's template for this client outlives the change, so other clients connect.
    for (const vip of vips(20)) answered(await lab.client.tcp(vip, 22));
  });

  it('sends port 22 of a VIP to a pod of an all-ports Service, and never to the node itself', async () => {
    await ipvs.agent.apply([
      ...allPorts('all', 10, ipvs.pods(0, 1)),
      ...listed('web', 11, ipvs.pods(0, 1)),
      ...ranges('some', 12, ipvs.pods(0, 1), '8000-8100'),
    ]);
    for (const host of [lab.client, lab.node, ...ipvs.pods(2)]) {
      for (const family of [0, 1] as const) {
        const [all, web, some] = [vips(10)[family], vips(11)[family], vips(12)[family]];
        assert.match(answered(await host.tcp(all, 22)).host, /^pod-/);
        assert.match(answered(await host.udp(all, 22)).host, /^pod-/);
        for (const vip of [web, some]) {
          refused(await host.tcp(vip, 22));
          refused(await host.udp(vip, 22));
        }
        assert.match(answered(await host.tcp(web, 80)).host, /^pod-/);
        refused(await host.udp(web, 80));
      }
    }
    for (const address of [lab.node.ipv4, lab.node.ipv6]) {
      assert.equal(answered(await lab.client.tcp(address, 22)).host, 'node');
    }
  });

  it('rejects a client with source port 20, without an answer of the node', async () => {
    await lab.node.serve({ protocol: 'TCP', ports: [80] });
    try {
      await ipvs.agent.apply([
        ...allPorts('all', 10, ipvs.pods(0)),
        ...listed('web', 11, ipvs.pods(0)),
      ]);
      for (const host of [lab.client, lab.node, ...ipvs.pods(1)]) {
        for (const [vip, port] of [
          ...vips(10).map((each) => [each, 22] as const),
          ...vips(11).map((each) => [each, 80] as const),
        ]) {
          const from20 = { localPort: 20, timeoutMs: 2000 };
          const outcome = await host.tcp(vip, port, from20);
          assert.deepEqual(outcome, { outcome: 'refused', by: 'icmp' }, `${host.name} to ${vip}`);
          answered(await host.tcp(vip, port));
        }
      }
      for (const vip of vips(10)) refused(await lab.client.udp(vip, 22, { localPort: 20 }));
    } finally {
      await lab.node.stopServing({ protocol: 'TCP', port: 80 });
    }
  });

  it('rejects IP protocols other than TCP, UDP and SCTP to a VIP', async () => {
    await ipvs.agent.apply([
      ...allPorts('all', 10, ipvs.pods(0)),
      ...listed('web', 11, ipvs.pods(0)),
    ]);
    for (const [vip, error] of [
      [vips(10)[0], '3/3'],
      [vips(10)[1], '1/4'],
      [vips(11)[0], '3/3'],
    ] as const) {
      const { stdout } = await lab.client.exec(process.execPath, [SEND_GRE, vip]);
      assert.equal(stdout, error, vip);
    }
  });

  it('answers a ping to a VIP by the node, for all-ports and ordinary Services', async () => {
    await ipvs.agent.apply([
      ...allPorts('all', 10, ipvs.pods(0)),
      ...listed('web', 11, ipvs.pods(0)),
      ...ranges('some', 12, ipvs.pods(0), '8000-8100'),
      ...allPorts('none', 13, []),
    ]);
    for (const family of [0, 1] as const) {
      // Starting a process is slow inside, and the families do not differ here.
      for (const host of family === 0 ? [lab.client, ...ipvs.pods(1), lab.node] : [lab.client]) {
        for (const [number, isAnswered] of [
          [10, true],
          [11, true],
          [12, false],
          [13, false],
        ] as const) {
          const vip = vips(number)[family];
          assert.equal(await host.ping(vip), isAnswered, `${host.name} to ${vip}`);
        }
      }
    }
  });

  it('serves two all-ports Services when another program marks every packet', async () => {
    await ipvs.agent.apply([
      ...allPorts('one', 10, ipvs.pods(0)),
      ...allPorts('two', 11, ipvs.pods(1)),
    ]);
    for (const family of FAMILIES) {
      const pod = ipvs.pods(2).map(({ ipv4, ipv6 }) => (family === 4 ? ipv4 : ipv6))[0] ?? '';
      const counting = ['FORWARD', '-d', pod, '-m', 'mark', '--mark', FOREIGN];
      await mangle(family, '-I', ...SET_FOREIGN);
      await mangle(family, '-A', ...counting);
      try {
        for (const port of [22, 8080]) {
          for (const [number, host] of [
            [10, 'pod-1'],
            [11, 'pod-2'],
          ] as const) {
            const vip = vips(number)[family === 4 ? 0 : 1];
            const { answered: by } = await lab.client.burst(vip, port, 20);
            assert.deepEqual(by, { [host]: 20 });
          }
        }
        answered(await lab.client.tcp(pod, 7070));
        const { stdout } = await mangle(family, '-L', 'FORWARD', '-nvx');
        const line = stdout.split('\n').find((one) => one.includes(pod)) ?? '';
        assert.ok(Number(/^ *(\d+)/.exec(line)?.[1]) > 0, stdout);
      } finally {
        await mangle(family, '-D', ...SET_FOREIGN);
        await mangle(family, '-D', ...counting);
      }
    }
  });

  it('does not send packets to the node when another program removes the mark', async () => {
    await ipvs.agent.apply([
      ...allPorts('all', 10, ipvs.pods(0)),
      ...ranges('some', 11, ipvs.pods(0), '20-30'),
    ]);
    for (const family of FAMILIES) {
      await mangle(family, '-A', ...SET_FOREIGN);
      try {
        for (const number of [10, 11]) {
          const vip = vips(number)[family === 4 ? 0 : 1];
          refused(await lab.client.tcp(vip, 22));
          refused(await lab.client.udp(vip, 22));
        }
      } finally {
        await mangle(family, '-D', ...SET_FOREIGN);
      }
      answered(await lab.client.tcp(vips(10)[family === 4 ? 0 : 1], 22));
    }
  });

  it('serves an address of another device without binding or removing it', async () => {
    const own = ['192.168.77.200', 'fd00:77::200'] as const;
    const change = async (action: 'add' | 'del') => {
      await lab.node.exec('ip', ['addr', action, `${own[0]}/24`, 'dev', 'eth0']);
      await lab.node.exec('ip', ['addr', action, `${own[1]}/64`, 'dev', 'eth0', 'nodad']);
    };
    const held = async () =>
      (await lab.node.exec('ip', ['-o', 'addr'])).stdout
        .split('\n')
        .filter((line) => own.some((address) => line.includes(` ${address}/`)))
        .map((line) => line.split(/\s+/)[1]);
    await change('add');
    try {
      await ipvs.agent.apply(
        service(
          'lb',
          10,
          ipvs.pods(0, 1),
          {
            ingress: own.map((ip) => ({ ip })),
            spec: { type: 'LoadBalancer', ports: [{ port: 80 }] },
          },
          [{ name: '', port: 8080 }],
        ),
      );
      assert.deepEqual(await held(), ['eth0', 'eth0']);
      assert.deepEqual(
        (await ipvs.addresses()).filter((address) => own.some((one) => address.startsWith(one))),
        [],
      );
      for (const address of own) {
        for (const host of [lab.client, lab.node, ...ipvs.pods(2)]) {
          assert.match(answered(await host.tcp(address, 80)).host, /^pod-/);
        }
        assert.equal(answered(await lab.client.tcp(address, 22)).host, 'node');
        assert.equal(await lab.client.ping(address), true);
      }
      await ipvs.agent.apply([]);
      assert.deepEqual(await held(), ['eth0', 'eth0']);
      assert.equal(answered(await lab.client.tcp(own[0], 22)).host, 'node');
    } finally {
      await change('del');
    }
  });

  it('binds a VIP when another device loses the address, and unbinds the VIP when the device gets it back', async () => {
    const vip = '203.0.113.70';
    await ipvs.agent.apply([
      serviceManifest('lb', {
        ingress: [{ ip: vip }],
        spec: { type: 'LoadBalancer', clusterIPs: [vips(10)[0]], ports: [{ port: 80 }] },
      }),
      sliceManifest('lb', 4, ipvs.pods(0), { ports: [{ name: '', port: 8080 }] }),
    ]);
    const bound = async () => (await ipvs.addresses()).includes(`${vip}/32`);
    assert.equal(await bound(), true);
    refused(await lab.client.tcp(vip, 22));
    await lab.node.exec('ip', ['addr', 'add', `${vip}/32`, 'dev', 'eth0']);
    try {
      await waitFor(
        'the address is left to the other device',
        async () => !(await bound()),
        15_000,
      );
      assert.equal(answered(await lab.client.tcp(vip, 22)).host, 'node');
      answered(await lab.client.tcp(vip, 80));
    } finally {
      await lab.node.exec('ip', ['addr', 'del', `${vip}/32`, 'dev', 'eth0']);
    }
    await waitFor('the address is bound again', bound, 15_000);
    assert.notEqual((await lab.client.tcp(vip, 22, SHORT)).outcome, 'answered');
    answered(await lab.client.tcp(vip, 80));
  });
});
