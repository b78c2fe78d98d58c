import assert from 'node:assert/strict';
import { type ConfigWarningOptions, configWarnings } from '../../agent/config-warnings.ts';

/** Options that cause no warning. */
const GOOD: ConfigWarningOptions['options'] = {
  detectLocalMode: 'ClusterCIDR',
  clusterCidr: ['10.244.0.0/16'],
  bindAddress: '0.0.0.0',
  ipvsExcludeCidrs: [],
};
const node = (addresses: readonly string[], podCIDRs: readonly string[] = []) => ({
  kind: 'Node' as const,
  key: 'a',
  name: 'a',
  labels: {},
  zone: undefined,
  podCIDRs,
  addresses,
  deleting: false,
  taints: [],
});
const V6 = node(['2001:db8::1', '192.0.2.1']);
const NODE_PORTS = '--nodeport-addresses (nodePortAddresses)';
const ALL_ADDRESSES = 'NodePort Services accept connections on all local addresses';
const NOT_MASQUERADED = {
  message: 'connections to cluster IPs are not masqueraded',
  setting: '--cluster-cidr (clusterCIDR)',
  effect: 'clients outside the cluster cannot use cluster IPs',
};

describe('config-warnings: configWarnings', () => {
  for (const [title, nodePorts, options, own, expected] of [
    ['nothing with NodePorts on primary', ['primary'], {}, undefined, []],
    ['nothing with NodePorts on all', ['all'], {}, undefined, []],
    [
      'nothing with NodePorts on localhost and a CIDR',
      ['localhost', '192.0.2.0/24'],
      {},
      undefined,
      [],
    ],
    ['nothing with NodePorts on CIDRs', ['192.0.2.0/24'], {}, undefined, []],
    [
      'NodePorts on all addresses by default',
      [],
      {},
      undefined,
      [
        {
          message: ALL_ADDRESSES,
          setting: NODE_PORTS,
          reason: 'unset',
          hint: 'consider --nodeport-addresses=primary',
        },
      ],
    ],
    [
      'no NodePort CIDR of the primary family',
      ['192.0.2.0/24'],
      { clusterCidr: ['fd00::/48'] },
      V6,
      [{ message: ALL_ADDRESSES, setting: NODE_PORTS, family: 'IPv6', reason: 'no IPv6 CIDR' }],
    ],
    [
      'no NodePort CIDR of one family with dual-stack cluster CIDRs',
      ['192.0.2.0/24'],
      { clusterCidr: ['10.244.0.0/16', 'fd00::/48'] },
      undefined,
      [{ message: ALL_ADDRESSES, setting: NODE_PORTS, family: 'IPv6', reason: 'no IPv6 CIDR' }],
    ],
    [
      'no NodePort CIDR of one family with dual-stack pod CIDRs',
      ['192.0.2.0/24'],
      {},
      node(['192.0.2.1'], ['10.244.0.0/24', 'fd00::/64']),
      [{ message: ALL_ADDRESSES, setting: NODE_PORTS, family: 'IPv6', reason: 'no IPv6 CIDR' }],
    ],
    [
      'no cluster CIDR',
      ['primary'],
      { clusterCidr: [] },
      undefined,
      [
        {
          ...NOT_MASQUERADED,
          reason: 'unset, so local pods cannot be detected',
        },
      ],
    ],
    [
      'no cluster CIDR of the primary family',
      ['primary'],
      {},
      V6,
      [{ ...NOT_MASQUERADED, family: 'IPv6', reason: 'no CIDR of the primary IP family' }],
    ],
    [
      'nothing when --bind-address has the family of the cluster CIDR',
      ['primary'],
      { bindAddress: '192.0.2.1' },
      V6,
      [],
    ],
    [
      'nothing without a cluster CIDR in another mode of local pod detection',
      ['primary'],
      { clusterCidr: [], detectLocalMode: 'BridgeInterface' },
      undefined,
      [],
    ],
  ] as const) {
    it(`warns about ${title}`, () => {
      const warnings = configWarnings({ options: { ...GOOD, ...options }, nodePorts, node: own });
      assert.deepEqual(warnings, expected);
    });
  }
});
