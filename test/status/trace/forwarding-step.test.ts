import assert from 'node:assert/strict';
import type { ComputedTrace } from '../../../status/api/trace.ts';
import { withForwarding } from '../../../status/trace/forwarding-step.ts';

const NODE = '192.0.2.7';
const CONTEXT = {
  disabledBy: 'net.ipv4.ip_forward',
  nodeAddresses: [NODE],
  forwardsWithIpvs: false,
};

const path = (
  addresses: readonly string[],
  fields: Partial<ComputedTrace> = {},
): ComputedTrace => ({
  family: 'IPv4',
  source: '10.244.1.5',
  destination: '10.96.0.10',
  steps: [
    { step: 'result', title: 'Result', decision: 'it passes', object: 'Service a/b', detail: [] },
  ],
  verdict: 'translated',
  unserved: false,
  endpoints: addresses.map((address) => ({
    ...{ address, port: 8080, local: true, masqueraded: false, policy: null, foreignRules: null },
  })),
  speaksAs: [],
  uncertain: [],
  ...fields,
});

describe('trace: forwarding', () => {
  it('drops packets from pods and other hosts if it is disabled', () => {
    const dropped = [
      path(['10.244.1.11', '10.244.1.12']),
      path(['10.244.1.11'], { source: null }),
      path([], { verdict: 'untouched' }),
    ];
    for (const each of dropped) {
      const { steps, verdict } = withForwarding(each, CONTEXT);
      assert.equal(verdict, 'dropped');
      assert.deepEqual(
        steps.map(({ decision, object }) => [decision, object]),
        [
          ['this node does not forward packets (net.ipv4.ip_forward=0): it drops the packet', null],
          ['the packet is dropped: this node does not forward packets', null],
        ],
      );
    }
  });

  it('drops packets to some endpoints: others have an address of the node', () => {
    const { steps, verdict } = withForwarding(path(['10.244.1.11', NODE]), CONTEXT);
    assert.equal(verdict, 'translated');
    assert.deepEqual(
      steps.map(({ decision }) => decision),
      [
        'this node does not forward packets (net.ipv4.ip_forward=0): it drops packets to 10.244.1.11',
        'it passes, so some connections fail',
      ],
    );
  });

  it('does not matter to packets of the node, to the node, of IPVS, and to dropped packets', () => {
    const pod = ['10.244.1.11'];
    for (const [each, context] of [
      [path(pod), { ...CONTEXT, disabledBy: undefined }],
      [path(pod), { ...CONTEXT, forwardsWithIpvs: true }],
      [path(pod, { source: NODE }), CONTEXT],
      [path(pod, { source: '127.0.0.1' }), CONTEXT],
      [path([NODE]), CONTEXT],
      [path([], { verdict: 'untouched', destination: NODE }), CONTEXT],
      [path([], { verdict: 'dropped' }), CONTEXT],
    ] as const)
      assert.equal(withForwarding(each, context), each);
  });
});
