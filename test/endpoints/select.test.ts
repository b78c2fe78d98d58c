import assert from 'node:assert/strict';
import type { SliceEndpoint } from '../../api/objects.ts';
import {
  candidatesForAllPorts,
  candidatesForPort,
  type EndpointPolicy,
  selectEndpoints,
} from '../../endpoints/select.ts';
import { endpoint, slice } from '../fixtures.ts';

const NODE = { name: 'node-a', zone: 'zone-1' };
const BOTH: EndpointPolicy = { usesCluster: true, usesLocal: true };
const OTHER = { nodeName: 'node-b' };
const DRAINING = { ready: false, serving: true, terminating: true };
const DEAD = { ready: false, serving: false, terminating: true };

function select(endpoints: readonly SliceEndpoint[], policy: Partial<EndpointPolicy> = {}) {
  const candidates = candidatesForPort([slice(endpoints)], 'IPv4', '', 'TCP');
  const selected = selectEndpoints(candidates, { ...BOTH, ...policy }, NODE);
  const addresses = (list: readonly { address: string }[]) => list.map(({ address }) => address);
  return {
    cluster: addresses(selected.cluster),
    local: addresses(selected.local),
    serving: addresses(selected.serving),
    notServing: addresses(selected.notServing),
    anywhere: selected.anywhere,
  };
}

describe('select: candidates of a port', () => {
  const two = [
    slice([endpoint('10.0.0.1')], {
      name: 's1',
      ports: [{ name: 'http', protocol: 'TCP', port: 1 }],
    }),
    slice([endpoint('10.0.0.2')], {
      name: 's2',
      ports: [
        { name: 'http', protocol: 'TCP', port: 2 },
        { name: 'http', protocol: 'UDP', port: 3 },
        { name: 'other', protocol: 'TCP', port: 4 },
        { name: 'null', protocol: 'TCP', port: undefined },
      ],
    }),
    slice([endpoint('fd00::1')], {
      name: 's3',
      family: 'IPv6',
      ports: [{ name: 'http', protocol: 'TCP', port: 5 }],
    }),
  ];
  for (const [title, name, protocol, expected] of [
    [
      'name and protocol, across slices with different ports',
      'http',
      'TCP',
      ['10.0.0.1 1', '10.0.0.2 2'],
    ],
    ['the same name with another protocol', 'http', 'UDP', ['10.0.0.2 3']],
    ['no slice port without a number', 'null', 'TCP', []],
    ['no port of another name', 'https', 'TCP', []],
  ] as const) {
    it(`matches ${title}`, () => {
      const found = candidatesForPort(two, 'IPv4', name, protocol);
      assert.deepEqual(
        found.map(({ address, port }) => `${address} ${port}`),
        expected,
      );
    });
  }

  for (const [title, ports] of [
    ['no ports', []],
    ['a null port', [{ name: '', protocol: 'TCP', port: undefined }]],
    ['the placeholder', [{ name: 'placeholder', protocol: 'TCP', port: 1 }]],
  ] as const) {
    it(`uses a slice with ${title} for all ports, without a port number`, () => {
      const found = candidatesForAllPorts([slice([endpoint('10.0.0.1')], { ports })], 'IPv4');
      assert.deepEqual(
        found.map(({ address, port }) => [address, port]),
        [['10.0.0.1', undefined]],
      );
    });
  }

  it('keeps the best of two endpoints with one address: ready, then draining, then not serving', () => {
    const states = [
      slice([endpoint('10.0.0.1', { ...DEAD, ...OTHER })], { name: 'dead' }),
      slice([endpoint('10.0.0.1', DRAINING)], { name: 'draining' }),
      slice([endpoint('10.0.0.1', OTHER)], { name: 'ready' }),
    ];
    for (const order of [states, states.toReversed()]) {
      const found = candidatesForPort(order, 'IPv4', '', 'TCP');
      assert.deepEqual(
        found.map(({ ready, nodeName }) => [ready, nodeName]),
        [[true, 'node-b']],
      );
    }
  });
});

describe('select: serving endpoints', () => {
  it('selects ready endpoints, and for the local set the ones of this node', () => {
    const selected = select([
      endpoint('10.0.0.1'),
      endpoint('10.0.0.2', OTHER),
      endpoint('10.0.0.3', { ready: false }),
      endpoint('10.0.0.4', DRAINING),
    ]);
    assert.deepEqual(selected, {
      cluster: ['10.0.0.1', '10.0.0.2'],
      local: ['10.0.0.1'],
      serving: ['10.0.0.1', '10.0.0.2', '10.0.0.4'],
      notServing: ['10.0.0.3'],
      anywhere: true,
    });
  });

  it('marks endpoints that are known to be on other nodes', () => {
    const unknown = endpoint('10.0.0.3', { nodeName: undefined });
    const all = [endpoint('10.0.0.1'), endpoint('10.0.0.2', OTHER), unknown];
    const candidates = candidatesForPort([slice(all)], 'IPv4', '', 'TCP');
    const { cluster, local } = selectEndpoints(candidates, BOTH, NODE);
    const port = 8080;
    assert.deepEqual(cluster, [
      { address: '10.0.0.1', port },
      { address: '10.0.0.2', port, isRemote: true },
      { address: '10.0.0.3', port },
    ]);
    assert.deepEqual(local, [{ address: '10.0.0.1', port }]);
  });

  it('falls back to draining endpoints, separately for the cluster and the local set', () => {
    const local = [endpoint('10.0.0.1', DRAINING), endpoint('10.0.0.2', DEAD)];
    assert.deepEqual(select(local).cluster, ['10.0.0.1']);
    const both = select([...local, endpoint('10.0.0.3', OTHER)]);
    assert.deepEqual([both.cluster, both.local], [['10.0.0.3'], ['10.0.0.1']]);
  });

  it('selects nothing without endpoints', () => {
    const nothing = { cluster: [], local: [], serving: [], notServing: [], anywhere: false };
    assert.deepEqual(select([endpoint('10.0.0.1', DEAD)]), {
      ...nothing,
      notServing: ['10.0.0.1'],
    });
    assert.deepEqual(select([]), nothing);
  });

  it('reports endpoints elsewhere when policy Local has none', () => {
    const selected = select([endpoint('10.0.0.2', OTHER)], { usesCluster: false });
    assert.deepEqual([selected.cluster, selected.local, selected.anywhere], [[], [], true]);
  });
});

describe('select: topology hints', () => {
  const zone = (name: string) => ({ hintedZones: [name] });
  const near = endpoint('10.0.0.1', zone('zone-1'));
  const far = endpoint('10.0.0.2', { ...zone('zone-2'), ...OTHER });

  for (const [title, endpoints, expected] of [
    ['zone hints restrict the cluster set', [near, far], ['10.0.0.1']],
    [
      'zone hints are ignored when a ready endpoint has none',
      [near, far, endpoint('10.0.0.3')],
      ['10.0.0.1', '10.0.0.2', '10.0.0.3'],
    ],
    [
      'endpoints that are not ready need no hints',
      [near, far, endpoint('10.0.0.3', { ready: false })],
      ['10.0.0.1'],
    ],
    ['zone hints are ignored when none names this zone', [far], ['10.0.0.2']],
    [
      'node hints take precedence over zone hints',
      [
        endpoint('10.0.0.1', { ...zone('zone-1'), hintedNodes: ['node-b'] }),
        endpoint('10.0.0.2', { ...zone('zone-1'), hintedNodes: ['node-a'] }),
      ],
      ['10.0.0.2'],
    ],
    [
      'zone hints apply when node hints name other nodes only',
      [
        endpoint('10.0.0.1', { ...zone('zone-1'), hintedNodes: ['node-b'] }),
        endpoint('10.0.0.2', { ...zone('zone-2'), hintedNodes: ['node-c'] }),
      ],
      ['10.0.0.1'],
    ],
  ] as const) {
    it(title, () => assert.deepEqual(select(endpoints).cluster, expected));
  }

  it('does not restrict the local set by topology hints', () => {
    assert.deepEqual(select([near, { ...far, nodeName: 'node-a' }]).local, [
      '10.0.0.1',
      '10.0.0.2',
    ]);
  });

  it('uses all endpoints when slices have zones and no hints', () => {
    const endpoints = [
      endpoint('10.0.0.1', { zone: 'zone-1' }),
      endpoint('10.0.0.2', { zone: 'zone-1', ...OTHER }),
      endpoint('10.0.0.3', { zone: 'zone-2', ...OTHER }),
    ];
    assert.deepEqual(select(endpoints).cluster, ['10.0.0.1', '10.0.0.2', '10.0.0.3']);
  });
});
