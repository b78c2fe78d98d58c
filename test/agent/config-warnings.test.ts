import assert from 'node:assert/strict';
import { type ConfigWarningOptions, configWarnings } from '../../agent/config-warnings.ts';

/** As it should be: nothing is warned of. */
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
const CLUSTER_CIDR = '--cluster-cidr (clusterCIDR)';

describe('config-warnings: warnings of the configuration, as kube-proxy has them', () => {
  for (const [title, nodePorts, options, own, expected] of [
    ['none', ['primary'], {}, undefined, []],
    ['none, with all', ['all'], {}, undefined, []],
    ['none, with localhost and a CIDR', ['localhost', '192.0.2.0/24'], {}, undefined, []],
    ['none, with CIDRs', ['192.0.2.0/24'], {}, undefined, []],
    [
      'NodePorts on all addresses',
      [],
      {},
      undefined,
      [
        [
          NODE_PORTS,
          'is unset: NodePort Services accept connections on all local addresses; consider --nodeport-addresses=primary',
        ],
      ],
    ],
    [
      'a primary family without a CIDR for NodePorts',
      ['192.0.2.0/24'],
      { clusterCidr: ['fd00::/48'] },
      V6,
      [
        [
          NODE_PORTS,
          'has no IPv6 CIDR: NodePort Services accept connections on all local IPv6 addresses',
        ],
      ],
    ],
    [
      'two families and one CIDR for NodePorts',
      ['192.0.2.0/24'],
      { clusterCidr: ['10.244.0.0/16', 'fd00::/48'] },
      undefined,
      [
        [
          NODE_PORTS,
          'has no IPv6 CIDR: NodePort Services accept connections on all local IPv6 addresses',
        ],
      ],
    ],
    [
      'two families by pod CIDRs',
      ['192.0.2.0/24'],
      {},
      node(['192.0.2.1'], ['10.244.0.0/24', 'fd00::/64']),
      [
        [
          NODE_PORTS,
          'has no IPv6 CIDR: NodePort Services accept connections on all local IPv6 addresses',
        ],
      ],
    ],
    [
      'no cluster CIDR',
      ['primary'],
      { clusterCidr: [] },
      undefined,
      [
        [
          CLUSTER_CIDR,
          'is unset: connections from pods cannot be told from others, so none to cluster IPs are masqueraded, and clients outside the cluster cannot use cluster IPs',
        ],
      ],
    ],
    [
      'no cluster CIDR of the primary family',
      ['primary'],
      {},
      V6,
      [
        [
          CLUSTER_CIDR,
          'has no IPv6 CIDR, the primary family: IPv6 connections to cluster IPs are not masqueraded, and clients outside the cluster cannot use those',
        ],
      ],
    ],
    ['--bind-address says which is primary', ['primary'], { bindAddress: '192.0.2.1' }, V6, []],
    [
      'pods told in another way',
      ['primary'],
      { clusterCidr: [], detectLocalMode: 'BridgeInterface' },
      undefined,
      [],
    ],
  ] as const) {
    it(title, () => {
      const warnings = configWarnings({ options: { ...GOOD, ...options }, nodePorts, node: own });
      assert.deepEqual(
        warnings.map(({ setting, message }) => [setting, message]),
        expected,
      );
    });
  }
});
