/** Connections in IPVS mode when their Service is refused, deleted or created again. */
import assert from 'node:assert/strict';
import { ALL_PORTS, type Manifest } from '../../e2e/manifests.ts';
import { answered } from '../../e2e/scenarios/scenario.ts';
import { type HeldConnection, type Lab, waitFor } from '../../lab/lab.ts';
import { allPorts, IPVS_FLAGS, IpvsLab, listed, service, vips } from '../ipvs-lab.ts';

const PORT = 5060;
/** A port on which the node itself listens, on all present and future addresses. */
const NODE_PORT = 22;

interface Case {
  readonly title: string;
  /**
   * Last part of the cluster IPs and load balancer VIPs. Each case has its own, because a client
   * port can serve only one VIP of a pod.
   */
  readonly number: number;
  /** The Service after the change. */
  readonly changed: (name: string, number: number) => Manifest[];
}

describe('connections in IPVS mode', () => {
  let ipvs: IpvsLab;
  let lab: Lab;

  before(async () => {
    ipvs = await IpvsLab.create();
    lab = ipvs.lab;
    await lab.node.serve({ protocol: 'TCP', ports: [NODE_PORT] });
    await ipvs.agent.start(IPVS_FLAGS);
  });
  after(async () => ipvs?.destroy());

  describe('of a Service that becomes refused', () => {
    const ingress = (number: number) => [
      { ip: `203.0.113.${number}` },
      { ip: `2001:db8:113::${number.toString(16)}` },
    ];
    const vipsOf = ({ number }: Case) => [...vips(number), ...ingress(number).map(({ ip }) => ip)];
    const served = ({ title, number }: Case) =>
      service(title, number, ipvs.pods(0), {
        annotations: ALL_PORTS,
        ingress: ingress(number),
        spec: { type: 'LoadBalancer' },
      });
    const cases: readonly Case[] = [
      {
        // An API server removes the status together with the type.
        title: 'node-port',
        number: 20,
        changed: (name, number) =>
          service(name, number, ipvs.pods(0), {
            annotations: ALL_PORTS,
            spec: { type: 'NodePort' },
          }),
      },
      {
        title: 'annotation',
        number: 21,
        changed: (name, number) =>
          service(name, number, ipvs.pods(0), {
            annotations: { 'portwide.dev/ports': 'nonsense' },
            ingress: ingress(number),
            spec: { type: 'LoadBalancer' },
          }),
      },
      {
        title: 'external-ips',
        number: 22,
        changed: (name, number) =>
          service(name, number, ipvs.pods(0), {
            annotations: ALL_PORTS,
            ingress: ingress(number),
            spec: { type: 'LoadBalancer', externalIPs: ['198.51.100.77'] },
          }),
      },
    ];
    let held: HeldConnection[];

    const serve = () => ipvs.agent.apply(cases.flatMap(served));
    const refuse = (which = cases, others: readonly Manifest[] = []) =>
      ipvs.agent.apply([
        ...which.flatMap(({ title, number, changed }) => changed(title, number)),
        ...others,
      ]);
    const live = async (when: string) => {
      for (const [index, connection] of held.entries()) {
        const vip = cases.flatMap(vipsOf)[index];
        const answer = await connection.exchange('on').catch(String);
        assert.equal(answer, 'on', `${vip} ${when}`);
      }
    };
    /** Neither a pod nor the node accepts a new connection. */
    const refusesNew = async (vip: string) => {
      for (const port of [PORT, NODE_PORT]) {
        const { outcome } = await lab.client.tcp(vip, port, { timeoutMs: 400 });
        assert.notEqual(outcome, 'answered', `${vip} port ${port}`);
      }
    };

    before(async () => {
      await serve();
      held = await ipvs.hold(...cases.flatMap(vipsOf).map((vip) => [vip, PORT] as const));
    });
    after(async () => {
      for (const connection of held) await connection.close();
    });

    it('keeps connections of a refused Service open, and rejects new connections', async () => {
      await live('at first');
      await refuse();
      await live('when the Service is refused');
      for (const vip of cases.flatMap(vipsOf)) await refusesNew(vip);
    });

    it('keeps connections of a refused Service open when the agent restarts', async () => {
      await refuse();
      await ipvs.agent.kill();
      await ipvs.agent.start();
      await live('after a restart');
      for (const vip of cases.flatMap(vipsOf)) await refusesNew(vip);
    });

    it('keeps connections open when a refused Service is served again', async () => {
      await refuse();
      await live('while the Service is refused');
      await serve();
      await live('when the Service is served again');
      for (const vip of cases.flatMap(vipsOf)) answered(await lab.client.tcp(vip, PORT));
    });

    it('keeps connections open when a refused Service is served again without its load balancer VIPs', async () => {
      await serve();
      await refuse();
      await live('while the Service is refused');
      await ipvs.agent.apply(
        cases.flatMap(({ title, number }) => allPorts(title, number, ipvs.pods(0))),
      );
      await live('when only the cluster IPs are served');
      for (const { number } of cases) {
        for (const vip of vips(number)) answered(await lab.client.tcp(vip, PORT));
        for (const { ip } of ingress(number)) await refusesNew(ip);
      }
      // Refused once more, before the VIPs are idle.
      await refuse();
      await live('when the Service is refused again');
      await serve();
      await live('when all VIPs are served again');
    });

    it('keeps connections open when a Service loses its load balancer VIPs without being refused', async () => {
      await serve();
      await live('while all VIPs are served');
      await ipvs.agent.apply(
        cases.flatMap(({ title, number }) => allPorts(title, number, ipvs.pods(0))),
      );
      await live('when only the cluster IPs are served');
      for (const { number } of cases) for (const { ip } of ingress(number)) await refusesNew(ip);
      await serve();
      await live('when all VIPs are served again');
    });

    it('keeps connections open when the annotation of a refused Service is removed', async () => {
      await serve();
      await ipvs.agent.apply(
        cases.flatMap(({ title, number }) =>
          service(title, number, ipvs.pods(0), {
            ingress: ingress(number),
            spec: { type: 'LoadBalancer' },
          }),
        ),
      );
      await live('when only its placeholder is served');
      for (const vip of cases.flatMap(vipsOf)) await refusesNew(vip);
      await serve();
      await live('when all ports are served again');
    });

    it('gives the VIP of a refused Service to another Service at once, and unbinds the VIP when that Service is deleted', async () => {
      const [first, ...others] = cases;
      assert.ok(first !== undefined);
      await refuse();
      await refuse(
        others,
        service(
          'other',
          first.number,
          ipvs.pods(1),
          { ingress: ingress(first.number), spec: { type: 'LoadBalancer', ports: [{ port: 80 }] } },
          [{ name: '', port: 8080 }],
        ),
      );
      for (const vip of vipsOf(first)) {
        assert.equal(answered(await lab.client.tcp(vip, 80)).host, 'pod-2');
        await refusesNew(vip);
      }
      await live('when another Service has a VIP');
      await ipvs.agent.apply([]);
      assert.deepEqual(
        (await ipvs.addresses()).filter(
          (address) => !/^10\.96\.200\.|^fd00:10:96::c8/.test(address),
        ),
        [],
      );
    });

    it('unbinds a former load balancer VIP of a served Service once its connections have ended', async () => {
      const [ended, open] = cases.map(({ number }) => ingress(number)[0]?.ip ?? '');
      assert.ok(ended !== undefined && open !== undefined);
      await serve();
      const [first, second] = await ipvs.hold([ended, PORT], [open, PORT]);
      await refuse();
      await ipvs.agent.apply(
        cases.flatMap(({ title, number }) => allPorts(title, number, ipvs.pods(0))),
      );
      await first?.close();
      await waitFor(
        'the VIP is unbound',
        async () => {
          // Closed connections stay in conntrack for two minutes.
          const forget = `conntrack -D -d ${ended} || true`;
          await lab.node.exec('sh', ['-c', forget]);
          return !(await ipvs.addresses()).includes(`${ended}/32`);
        },
        90_000,
      );
      assert.ok((await ipvs.addresses()).includes(`${open}/32`));
      assert.equal(await second?.exchange('on'), 'on');
      await second?.close();
    });
  });

  describe("to a Service with the node's own port", () => {
    const sourceTo = async (address: string) =>
      answered(await lab.node.tcp(address, 8080)).remoteAddress;
    const targets = () =>
      [...ipvs.pods(0), ...lab.remotePods].flatMap(({ ipv4, ipv6 }) => [ipv4, ipv6]);

    it('uses no VIP as source address for connections of the node, so they stay open when a Service is deleted', async () => {
      await ipvs.agent.apply([
        ...allPorts('all', 30, ipvs.pods(1)),
        ...listed('web', 31, ipvs.pods(1)),
      ]);
      const nodes = [lab.node.ipv4, lab.node.ipv6];
      for (const target of targets()) assert.ok(nodes.includes(await sourceTo(target)), target);
      const held = await Promise.all(targets().map((target) => lab.node.hold(target, 8080)));
      await ipvs.agent.apply([]);
      for (const connection of held) {
        assert.equal(await connection.exchange('on'), 'on');
        await connection.close();
      }
    });

    it('uses no VIP as source address that an older agent or kube-proxy bound', async () => {
      const objects = [...allPorts('all', 32, ipvs.pods(1)), ...listed('web', 33, ipvs.pods(1))];
      await ipvs.agent.apply(objects);
      await ipvs.agent.stop();
      const pod = ipvs.pods(0)[0]?.ipv6 ?? '';
      for (const number of [32, 33]) {
        const address = `${vips(number)[1]}/128`;
        await lab.node.exec('ip', ['addr', 'del', address, 'dev', 'kube-ipvs0']);
        await lab.node.exec('ip', ['addr', 'add', address, 'dev', 'kube-ipvs0', 'nodad']);
      }
      assert.match(await sourceTo(pod), /^fd00:10:96::/);
      await ipvs.agent.start();
      assert.equal(await sourceTo(pod), lab.node.ipv6);
    });
  });
});
