import assert from 'node:assert/strict';
import { answered } from '../../e2e/scenarios/scenario.ts';
import { createLab, type Host, type Lab } from '../../lab/lab.ts';
import { iptablesTool } from '../../lab/rules.ts';

const PLAIN = { 4: '10.96.0.1', 6: 'fd00:10:96::1' } as const;
const MARKED = { 4: '10.96.0.2', 6: 'fd00:10:96::2' } as const;
const PORT = 80;
const MARK = '7';

describe('lab in user-mode-linux', () => {
  let lab: Lab;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 1, podRules: 'legacy' });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
  });
  after(async () => lab?.destroy());

  const address = (host: Host, family: 4 | 6) => (family === 4 ? host.ipv4 : host.ipv6);
  /** With a port, in ipvsadm's form. */
  const at = (text: string, port: number) =>
    text.includes(':') ? `[${text}]:${port}` : `${text}:${port}`;

  for (const family of [4, 6] as const) {
    for (const method of ['tcp', 'udp', 'sctpProbe'] as const) {
      it(`IPv${family}: pods answer on every port, ${method}`, async () => {
        for (const pod of [...lab.pods, ...lab.remotePods]) {
          for (const port of [1, 5060, 65535]) {
            const reply = answered(await lab.client[method](address(pod, family), port));
            assert.deepEqual([reply.host, reply.localPort], [pod.name, port]);
          }
        }
      });
    }

    it(`IPv${family}: pods answer on two ports for one source port`, async () => {
      const pod = address(lab.pods[0] as Host, family);
      const options = { localPort: 25_681 };
      const held = await lab.client.hold(pod, 8080, options);
      assert.equal(answered(await lab.client.tcp(pod, 5060, options)).localPort, 5060);
      assert.equal(await held.exchange('still'), 'still');
      await held.close();
    });
  }

  describe('IPVS', () => {
    before(async () => {
      const { node } = lab;
      await node.exec('sysctl', ['-q', 'net.ipv4.vs.conntrack=1']);
      await node.exec('ip', ['link', 'add', 'kube-ipvs0', 'type', 'dummy']);
      for (const family of [4, 6] as const) {
        const [plain, marked] = [PLAIN[family], MARKED[family]];
        for (const vip of [plain, marked]) {
          await node.exec('ip', ['address', 'add', vip, 'dev', 'kube-ipvs0']);
        }
        const services = [
          { service: ['-t', at(plain, PORT)], version: [], port: 8080 },
          // Port 0: the destination port stays unchanged.
          { service: ['-f', MARK], version: family === 4 ? [] : ['-6'], port: 0 },
        ];
        for (const { service, version, port } of services) {
          await node.exec('ipvsadm', ['-A', ...service, ...version, '-s', 'rr']);
          for (const pod of lab.pods) {
            const target = ['-r', at(address(pod, family), port), '-m'];
            await node.exec('ipvsadm', ['-a', ...service, ...version, ...target]);
          }
        }
        const rule = ['PREROUTING', '-d', marked, '-j', 'MARK', '--set-mark', MARK];
        await node.exec(iptablesTool('legacy', family), ['-t', 'mangle', '-A', ...rule]);
      }
    });

    for (const family of [4, 6] as const) {
      it(`IPv${family}: a port of a VIP reaches the target port of each pod`, async () => {
        const { answered: by } = await lab.client.burst(PLAIN[family], PORT, 20);
        assert.deepEqual(by, { 'pod-1': 10, 'pod-2': 10 });
        const reply = answered(await lab.client.tcp(PLAIN[family], PORT));
        assert.equal(reply.localPort, 8080);
        assert.equal(reply.remoteAddress, address(lab.client, family));
      });

      it(`IPv${family}: every port of a VIP reaches a pod by a firewall mark`, async () => {
        for (const port of [1, 5060, 65535]) {
          for (const method of ['tcp', 'udp', 'sctpProbe'] as const) {
            const reply = answered(await lab.client[method](MARKED[family], port));
            assert.match(reply.host, /^pod-/);
            assert.equal(reply.localPort, port);
          }
        }
      });
    }
  });
});
