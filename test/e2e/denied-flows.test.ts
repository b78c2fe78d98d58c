/** `portwide flows` names the policy that denied a packet. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { FlowEvent, FlowLine } from '../../status/api/traffic.ts';
import { createLab, type Lab, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { validator } from '../status/validator.ts';
import { MODES } from '../uml/kernels.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import type { Manifest } from './manifests.ts';
import { adminPolicy, networkPolicy, policyPods } from './policy-manifests.ts';

const NAMESPACE = { namespaces: { matchLabels: { 'kubernetes.io/metadata.name': 'default' } } };
const POD = (name: string) => ({
  pods: { podSelector: { matchLabels: { pod: name } }, namespaceSelector: NAMESPACE.namespaces },
});

for (const mode of MODES.filter((each) => each !== 'iptables')) {
  describe(`flows with network policy, mode ${mode}`, () => {
    let lab: Lab;
    let agent: Agent;
    let directory: string;
    let flows: ReturnType<Lab['node']['spawn']>;
    let text = '';
    const validate = validator();

    const isolated = (name: string, pod: string, type: 'Ingress' | 'Egress'): Manifest =>
      networkPolicy(name, { podSelector: { matchLabels: { pod } }, policyTypes: [type] });
    const policies = (): Manifest[] => [
      ...policyPods(lab),
      isolated('first', 'pod-1', 'Ingress'),
      networkPolicy('second', {
        podSelector: { matchLabels: { pod: 'pod-1' } },
        policyTypes: ['Ingress'],
        ingress: [{ ports: [{ port: 8080 }] }],
      }),
      isolated('no-egress', 'pod-3', 'Egress'),
      adminPolicy('AdminNetworkPolicy', 'guard', {
        priority: 5,
        subject: POD('pod-1'),
        ingress: [
          {
            name: 'no-telnet',
            action: 'Deny',
            from: [POD('pod-2')],
            ports: [{ portNumber: { protocol: 'TCP', port: 23 } }],
          },
        ],
      }),
      adminPolicy('BaselineAdminNetworkPolicy', 'default', {
        subject: POD('pod-2'),
        ingress: [{ action: 'Deny', from: [POD('pod-1')] }],
      }),
    ];

    before(async () => {
      directory = mkdtempSync(join(tmpdir(), 'portwide-denied-'));
      const socket = `--status-socket=${join(directory, 'agent.sock')}`;
      lab = await createLab({ pods: 3, remotePods: 0 });
      await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
      agent = new Agent(lab);
      agent.write('policies', policies());
      await agent.start([
        ...AGENT_FLAGS,
        ...[`--proxy-mode=${mode}`, '--network-policy', '--policy-log-group=7', socket],
      ]);
      await waitFor('policies are in force', async () => {
        const outcome = await lab.pods[1]?.tcp(lab.pods[0]?.ipv4 ?? '', 23, { timeoutMs: 100 });
        return outcome?.outcome === 'timeout';
      });
      flows = lab.node.spawn(PORTWIDE, ['flows', '--event=denied', '-o', 'json', socket]);
      flows.catch(() => {});
      flows.stdout?.on('data', (chunk) => {
        text += String(chunk);
      });
      await waitFor('the stream starts', () => text.includes('"started"'));
    });
    after(async () => {
      flows?.kill('SIGKILL');
      await agent?.destroy();
      await lab?.destroy();
      rmSync(directory, { recursive: true, force: true });
    });

    const events = () =>
      text
        .split('\n')
        .slice(0, -1)
        .map((line) => {
          const parsed = JSON.parse(line) as FlowLine;
          validate('FlowLine', parsed);
          return parsed;
        })
        .filter((line): line is FlowEvent => line.event === 'denied');

    for (const family of [4, 6] as const) {
      const address = (index: number) => lab.pods[index]?.addresses[family][0] ?? '';
      for (const [title, from, to, port, named, reason] of [
        [
          'a default deny: the policies that isolate the pod',
          1,
          0,
          80,
          ['NetworkPolicy default/first', 'NetworkPolicy default/second'],
          'network policy (tier NetworkPolicy, ingress): the pod is isolated by NetworkPolicy default/first, NetworkPolicy default/second, and none of their rules allows it',
        ],
        [
          'a rule of an AdminNetworkPolicy',
          1,
          0,
          23,
          ['AdminNetworkPolicy guard'],
          'network policy (tier Admin, ingress): AdminNetworkPolicy guard spec.ingress[0] (no-telnet) denies it',
        ],
        [
          'a rule of the BaselineAdminNetworkPolicy',
          0,
          1,
          80,
          ['BaselineAdminNetworkPolicy default'],
          'network policy (tier Baseline, ingress): BaselineAdminNetworkPolicy default spec.ingress[0] denies it',
        ],
        [
          'a default deny of egress',
          2,
          1,
          80,
          ['NetworkPolicy default/no-egress'],
          'network policy (tier NetworkPolicy, egress): the pod is isolated by NetworkPolicy default/no-egress, and none of its rules allows it',
        ],
      ] as const) {
        it(`IPv${family}: ${title}`, async () => {
          const outcome = await lab.pods[from]?.tcp(address(to), port, { timeoutMs: 200 });
          assert.equal(outcome?.outcome, 'timeout');
          const denied = await waitFor('the denied packet is reported', () =>
            events().find(
              ({ flow }) =>
                flow.source === address(from) &&
                flow.destination === address(to) &&
                flow.destinationPort === port,
            ),
          );
          assert.deepEqual([denied.reason, denied.policies], [reason, named]);
        });
      }

      it(`IPv${family}: a packet without ports`, async () => {
        assert.equal(await lab.pods[1]?.ping(address(0), 300), false);
        const denied = await waitFor('the denied packet is reported', () =>
          events().find(
            ({ flow }) =>
              flow.protocol === (family === 4 ? 'ICMP' : 'ICMPv6') &&
              flow.destination === address(0),
          ),
        );
        assert.deepEqual(denied.policies, [
          'NetworkPolicy default/first',
          'NetworkPolicy default/second',
        ]);
      });
    }

    it('names the policies of now, after one was deleted', async () => {
      agent.write(
        'policies',
        policies().filter((each) => !JSON.stringify(each).includes('"first"')),
      );
      const port = 81;
      const denied = await waitFor('the event names one policy', async () => {
        await lab.pods[1]?.tcp(lab.pods[0]?.ipv4 ?? '', port, { timeoutMs: 100 });
        return events().find(
          ({ flow, policies }) => flow.destinationPort === port && policies.length === 1,
        );
      });
      assert.deepEqual(denied.policies, ['NetworkPolicy default/second']);
    });
  });
}
