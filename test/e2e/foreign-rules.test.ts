/** Computed traces name rules of other programs, and packets meet these rules. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createLab, type Host, type Lab, type Protocol, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { ALL_PORTS, serviceManifest, sliceManifest } from './manifests.ts';
import { summary, TraceApi } from './trace-api.ts';

const VIP = '10.96.0.60';
/** Of a Service with two endpoints. */
const PAIR_VIP = '10.96.0.61';
const PORT = 5353;
/** Milliseconds for a second of the agent, and for a slow machine. */
const KEPT_AT_MOST = 15_000;
const NONE = /base chains at [a-z, ]+ drops or masquerades the packet/;

for (const mode of ['nftables', 'iptables'] as const) {
  describe(`rules of other programs in a computed trace, mode ${mode}`, () => {
    let lab: Lab;
    let agent: Agent;
    let directory: string;
    let client: Host;

    before(async () => {
      directory = mkdtempSync(join(tmpdir(), 'portwide-foreign-'));
      lab = await createLab({ pods: 2 });
      ({ client } = lab);
      for (const pod of lab.pods) await pod.serveEveryPort();
      agent = new Agent(lab, { syncs: 2 });
      await agent.start([...AGENT_FLAGS, `--proxy-mode=${mode}`, `--status-socket=${socket()}`]);
      await agent.apply([
        serviceManifest('media', { annotations: ALL_PORTS, spec: { clusterIPs: [VIP] } }),
        sliceManifest('media', 4, lab.pods.slice(0, 1)),
        serviceManifest('pair', { annotations: ALL_PORTS, spec: { clusterIPs: [PAIR_VIP] } }),
        sliceManifest('pair', 4, lab.pods),
      ]);
    });
    after(async () => {
      await agent?.destroy();
      await lab?.destroy();
      rmSync(directory, { recursive: true, force: true });
    });

    const socket = () => join(directory, 'agent.sock');
    const trace = async (protocol: Protocol, port = PORT, from = client.ipv4) => {
      const args = [from, VIP, `--port=${port}`, `--proto=${protocol.toLowerCase()}`];
      const flags = ['trace', ...args, `--status-socket=${socket()}`];
      return (await lab.node.exec(PORTWIDE, flags, { reject: false })).stdout;
    };
    /** The agent keeps rules of other programs for a second. */
    const says = (protocol: Protocol, text: RegExp, from = client.ipv4) =>
      waitFor(
        `the trace says ${text}`,
        async () => text.test(await trace(protocol, PORT, from)),
        KEPT_AT_MOST,
      );
    const outcome = async (protocol: Protocol, from: Host = client) => {
      const options = { timeoutMs: 400 };
      const sent =
        protocol === 'UDP'
          ? await from.udp(VIP, PORT, options)
          : await from.tcp(VIP, PORT, options);
      return sent.outcome;
    };
    const nft = (...args: string[]) => lab.node.exec('nft', args);

    it('iptables: among the rules of Portwide', async () => {
      const rule = ['FORWARD', '-p', 'tcp', '--dport', `${PORT}`, '-j', 'REJECT'];
      await lab.node.exec('iptables-nft', ['-I', ...rule]);
      assert.deepEqual([await outcome('UDP'), await outcome('TCP')], ['answered', 'refused']);
      await says(
        'TCP',
        /base chain FORWARD .*, rule -p tcp -m tcp --dport 5353 -j REJECT .* rejects the packet/,
      );
      assert.match(await trace('UDP'), NONE);
      await lab.node.exec('iptables-nft', ['-D', ...rule]);
      await says('TCP', NONE);
    });

    it('iptables: among the rules of Portwide, for packets from the node', async () => {
      const rule = ['OUTPUT', '-p', 'tcp', '--dport', `${PORT}`, '-j', 'DROP'];
      await lab.node.exec('iptables-nft', ['-I', ...rule]);
      assert.deepEqual(
        [await outcome('TCP', lab.node), await outcome('UDP', lab.node), await outcome('TCP')],
        ['timeout', 'answered', 'answered'],
      );
      await says(
        'TCP',
        /ip filter \(iptables-nft\), base chain OUTPUT .* drops the packet/,
        'node',
      );
      assert.match(await trace('UDP', PORT, 'node'), NONE);
      assert.match(await trace('TCP'), NONE);
      await lab.node.exec('iptables-nft', ['-D', ...rule]);
      await says('TCP', NONE, 'node');
    });

    it('iptables: policy DROP of chain FORWARD, and the kernel does what is computed', async () => {
      await lab.node.exec('iptables-nft', ['-P', 'FORWARD', 'DROP']);
      try {
        const isOpen = (await outcome('TCP')) === 'answered';
        await says('TCP', isOpen ? NONE : /base chain FORWARD .* by its policy drops the packet/);
        const live = await new TraceApi(socket()).live({
          ...{ from: client.ipv4, to: VIP, port: PORT, seconds: 1 },
        });
        await outcome('TCP');
        const { paths, differences } = await summary(live);
        assert.deepEqual([paths[0]?.result, differences], [isOpen ? 'pod' : 'dropped', []]);
        // Portwide accepts packets to Services in mode iptables.
        assert.equal(isOpen, mode === 'iptables');
      } finally {
        await lab.node.exec('iptables-nft', ['-P', 'FORWARD', 'ACCEPT']);
      }
      await says('TCP', NONE);
    });

    it('without IP forwarding, the computed path and the kernel drop the packet', async () => {
      const set = (value: string) =>
        lab.node.exec('sysctl', ['-w', `net.ipv4.ip_forward=${value}`]);
      const flags = (from: string, ...more: string[]) => {
        const args = [from, VIP, `--port=${PORT}`, `--status-socket=${socket()}`, ...more];
        return lab.node.exec(PORTWIDE, ['trace', ...args], { reject: false });
      };
      await set('0');
      try {
        const { stdout, exitCode } = await flags(client.ipv4);
        assert.match(
          stdout,
          /Forwarding: this node does not forward packets \(net.ipv4.ip_forward=0/,
        );
        assert.equal(exitCode, 1);
        assert.equal((await flags('node')).exitCode, 0);
        const query = { from: client.ipv4, to: VIP, port: PORT, seconds: 1 };
        const live = await new TraceApi(socket()).live(query);
        assert.equal(await outcome('TCP'), 'timeout');
        const { paths, differences } = await summary(live);
        assert.deepEqual([paths[0]?.result, differences], ['lost', []]);
      } finally {
        await set('1');
      }
    });

    // The agent evaluates rules of nft in the same way in each mode.
    if (mode === 'iptables') return;

    it('nft: only the protocol of the rule is dropped', async () => {
      await says('UDP', NONE);
      const chain = '{ type filter hook forward priority 5; }';
      await nft(`table ip firewall { chain guard ${chain}; }`);
      await nft(`add rule ip firewall guard udp dport ${PORT} ct status dnat drop`);
      assert.deepEqual([await outcome('UDP'), await outcome('TCP')], ['timeout', 'answered']);
      await says('UDP', /table ip firewall, base chain guard .* drops the packet/);
      assert.match(await trace('TCP'), NONE);
      assert.match(await trace('UDP', PORT + 1), NONE);
      await nft('delete', 'table', 'ip', 'firewall');
      await says('UDP', NONE);
      assert.equal(await outcome('UDP'), 'answered');
    });

    it('nft: for packets from the node, before and after translation', async () => {
      const pod = lab.pods[0]?.ipv4 ?? '';
      for (const [priority, address] of [
        [0, pod],
        [-300, VIP],
      ] as const) {
        const chain = `{ type filter hook output priority ${priority}; }`;
        await nft(`table ip firewall { chain guard ${chain}; }`);
        await nft(`add rule ip firewall guard ip daddr ${address} udp dport ${PORT} drop`);
        assert.deepEqual(
          [await outcome('UDP', lab.node), await outcome('UDP')],
          ['timeout', 'answered'],
        );
        await says('UDP', /table ip firewall, base chain guard .* drops the packet/, 'node');
        assert.match(await trace('UDP'), NONE);
        await nft('delete', 'table', 'ip', 'firewall');
        await says('UDP', NONE, 'node');
        assert.equal(await outcome('UDP', lab.node), 'answered');
      }
    });

    it('nft: to one of two endpoints, and the exit status says so', async () => {
      const tracePair = async () => {
        const args = [client.ipv4, PAIR_VIP, `--port=${PORT}`, `--status-socket=${socket()}`];
        return await lab.node.exec(PORTWIDE, ['trace', ...args], { reject: false });
      };
      await says('TCP', NONE);
      assert.equal((await tracePair()).exitCode, 0);
      await nft('table ip firewall { chain guard { type filter hook forward priority 0; }; }');
      const pod = lab.pods[1]?.ipv4 ?? '';
      await nft(`add rule ip firewall guard tcp dport ${PORT} ip daddr ${pod} drop`);
      const seen = new Set<string>();
      await waitFor('connections to either endpoint', async () => {
        seen.add((await client.tcp(PAIR_VIP, PORT, { timeoutMs: 200 })).outcome);
        return seen.size === 2;
      });
      assert.deepEqual([...seen].sort(), ['answered', 'timeout']);
      await waitFor('the trace says that some connections fail', async () => {
        const { stdout, exitCode } = await tracePair();
        const text =
          'one of 2 endpoints; rules of other programs drop packets to 1 of 2 endpoints, so some connections fail';
        return stdout.includes(text) && exitCode === 1;
      });
      await nft('delete', 'table', 'ip', 'firewall');
      await says('TCP', NONE);
    });

    it('nft: of interfaces and bridges are named as not evaluated', async () => {
      await nft(
        'table netdev edge { chain in { type filter hook ingress device lo priority 0; ip daddr 192.0.2.99 drop; }; }',
      );
      await says(
        'TCP',
        /uncertain: rules of interfaces and bridges are not evaluated: base chain in of table netdev edge/,
      );
      await nft('delete', 'table', 'netdev', 'edge');
      await says('TCP', NONE);
    });

    it('nft: at hook prerouting, before and after translation', async () => {
      const pod = lab.pods[0]?.ipv4 ?? '';
      for (const [priority, address] of [
        [0, pod],
        [-300, VIP],
      ] as const) {
        const chain = `{ type filter hook prerouting priority ${priority}; }`;
        await nft(`table ip firewall { chain guard ${chain}; }`);
        await nft(`add rule ip firewall guard ip daddr ${address} udp dport ${PORT} drop`);
        assert.deepEqual([await outcome('UDP'), await outcome('TCP')], ['timeout', 'answered']);
        await says('UDP', /table ip firewall, base chain guard .* drops the packet/);
        assert.match(await trace('TCP'), NONE);
        await nft('delete', 'table', 'ip', 'firewall');
        await says('UDP', NONE);
      }
    });

    it('that are too many to evaluate in the agent make the result uncertain', async () => {
      const rules = Array.from({ length: 3000 }, (_, index) => `tcp dport ${index + 1} accept`);
      const chain = ['type filter hook forward priority 5;', ...rules].join('\n');
      await lab.node.exec('nft', ['-f', '-'], {
        input: `table inet firewall {\nchain guard {\n${chain}\n}\n}`,
      });
      await says(
        'TCP',
        /uncertain: rules of other programs were not read: table inet firewall has too many rules; trace with --live, or run portwide check/,
      );
      await nft('delete', 'table', 'inet', 'firewall');
      await says('TCP', NONE);
    });
  });
}
