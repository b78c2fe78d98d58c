import assert from 'node:assert/strict';
import { InvalidObject } from '../../api/errors.ts';
import type { Policy } from '../../api/policy-objects.ts';
import { readNetworkPolicy } from '../../api/read-network-policy.ts';

const policy = (spec: unknown): Policy =>
  readNetworkPolicy({ metadata: { name: 'web', namespace: 'shop', uid: 'u1' }, spec });
/** Reads a policy with this ingress rule and returns the rule. */
const ingress = (rule: object) => {
  const { ingress: rules = [], faults } = policy({ ingress: [rule] });
  assert.equal(rules.length, 1);
  return { ...rules[0], faults };
};
const peersOf = (peers: unknown) => {
  const { peers: read, faults } = ingress({ from: peers });
  assert.deepEqual(faults, []);
  return read;
};
const portsOf = (ports: unknown) => {
  const { ports: read, faults } = ingress({ ports });
  assert.deepEqual(faults, []);
  return read;
};
const rule = (direction: string, index = 0) => ({
  path: `spec.${direction}[${index}]`,
  name: '',
  action: 'Allow',
  peers: undefined,
  ports: undefined,
});
const ALLOWS_NOTHING = { ...rule('ingress'), peers: [], ports: [] };
const app = (value: string) => [{ key: 'app', operator: 'In', values: [value] }];
const selects = (value: string) => ({ matchLabels: { app: value } });

describe('read-network-policy: reading a NetworkPolicy', () => {
  it('reads all fields', () => {
    assert.deepEqual(
      policy({
        podSelector: selects('web'),
        policyTypes: ['Ingress', 'Egress'],
        ingress: [
          {
            from: [{ podSelector: selects('db') }, { ipBlock: { cidr: '10.0.0.0/8' } }],
            ports: [{ protocol: 'UDP', port: 53 }, { port: 'http' }],
          },
        ],
        egress: [{ to: [{ namespaceSelector: selects('ops') }], ports: [{ port: 1, endPort: 9 }] }],
      }),
      {
        kind: 'NetworkPolicy',
        key: 'shop/web',
        namespace: 'shop',
        name: 'web',
        uid: 'u1',
        tier: 'NetworkPolicy',
        priority: 0,
        subject: { namespaces: 'shop', pods: app('web') },
        ingress: [
          {
            path: 'spec.ingress[0]',
            name: '',
            action: 'Allow',
            peers: [
              { kind: 'pods', selection: { namespaces: 'shop', pods: app('db') } },
              { kind: 'network', cidr: '10.0.0.0/8', except: [] },
            ],
            ports: [
              { protocol: 'UDP', first: 53, last: 53 },
              { protocol: 'TCP', name: 'http' },
            ],
          },
        ],
        egress: [
          {
            path: 'spec.egress[0]',
            name: '',
            action: 'Allow',
            peers: [{ kind: 'pods', selection: { namespaces: app('ops'), pods: [] } }],
            ports: [{ protocol: 'TCP', first: 1, last: 9 }],
          },
        ],
        faults: [],
      },
    );
  });

  describe('podSelector', () => {
    for (const [what, spec] of [
      ['selects all pods of the namespace when empty', { podSelector: {} }],
      ['is empty when missing', {}],
      ['is empty without a spec', undefined],
    ] as const) {
      it(what, () => {
        assert.deepEqual(policy(spec).subject, { namespaces: 'shop', pods: [] });
        assert.deepEqual(policy(spec).ingress, []);
      });
    }

    for (const [spec, field] of [
      [{ podSelector: 'web' }, 'spec.podSelector'],
      [{ podSelector: { app: 'web' } }, 'spec.podSelector.app'],
      [{ podSelector: selects('a b') }, 'spec.podSelector.matchLabels.app'],
      [7, 'spec'],
      [[], 'spec'],
    ] as const) {
      it(`rejects the policy when the spec is ${JSON.stringify(spec)}`, () => {
        assert.throws(
          () => policy(spec),
          (error) => error instanceof InvalidObject && error.field === field,
        );
      });
    }
  });

  describe('policyTypes and lists of rules', () => {
    const undefinedOr = (list: readonly unknown[] | undefined) => list?.length;
    for (const [what, spec, inwards, outwards] of [
      ['missing types default to Ingress', {}, 0, undefined],
      [
        'missing types default to Ingress and Egress with egress rules only',
        { egress: [{}] },
        0,
        1,
      ],
      [
        'missing types default to Ingress when egress is empty',
        { ingress: [{}], egress: [] },
        1,
        undefined,
      ],
      [
        'missing types default to both with rules of both',
        { ingress: [{}], egress: [{}, {}] },
        1,
        2,
      ],
      ['empty types are treated as missing', { policyTypes: [], egress: [{}] }, 0, 1],
      [
        'null is treated as missing',
        { policyTypes: null, ingress: null, egress: null },
        0,
        undefined,
      ],
      ['Egress excludes ingress', { policyTypes: ['Egress'] }, undefined, 0],
      ['Egress ignores ingress rules', { policyTypes: ['Egress'], ingress: [{}] }, undefined, 0],
      ['Ingress ignores egress rules', { policyTypes: ['Ingress'], egress: [{}] }, 0, undefined],
      ['both types include both directions', { policyTypes: ['Egress', 'Ingress'] }, 0, 0],
      ['a repeated type is accepted', { policyTypes: ['Ingress', 'Ingress'] }, 0, undefined],
      ['an empty rule list isolates', { policyTypes: ['Ingress'], ingress: [] }, 0, undefined],
    ] as const) {
      it(what, () => {
        const read = policy(spec);
        assert.deepEqual(read.faults, []);
        assert.deepEqual(
          [undefinedOr(read.ingress), undefinedOr(read.egress)],
          [inwards, outwards],
        );
      });
    }

    it('ignores rules of a direction that is not in policyTypes', () => {
      assert.deepEqual(policy({ policyTypes: ['Ingress'], egress: [{ ports: 7 }] }).faults, []);
    });

    for (const [spec, field, reason] of [
      [
        { policyTypes: ['ingress'] },
        'spec.policyTypes[0]',
        /one of Ingress, Egress, not "ingress"/,
      ],
      [{ policyTypes: ['Ingress', 7] }, 'spec.policyTypes[1]', /string/],
      [{ policyTypes: ['Ingress', 'Egress', 'Ingress'] }, 'spec.policyTypes', /at most two/],
      [{ policyTypes: 'Ingress' }, 'spec.policyTypes', /list/],
      [{ podselector: {} }, 'spec.podselector', /unknown field/],
      [{ order: 1 }, 'spec.order', /unknown field/],
    ] as const) {
      it(`isolates both directions and allows nothing when the spec has ${JSON.stringify(spec)}`, () => {
        const read = policy({ ingress: [{}], ...spec });
        assert.equal(read.faults.length, 1);
        assert.equal(read.faults[0]?.field, field);
        assert.match(read.faults[0]?.reason ?? '', reason);
        assert.deepEqual(read.ingress, [ALLOWS_NOTHING]);
        assert.deepEqual(read.egress, []);
      });
    }

    for (const [spec, field] of [
      [{ ingress: {} }, 'spec.ingress'],
      [{ policyTypes: ['Egress'], egress: 'all' }, 'spec.egress'],
      [{ egress: { to: [] } }, 'spec.egress'],
    ] as const) {
      it(`allows nothing when the spec has ${JSON.stringify(spec)}`, () => {
        const read = policy(spec);
        assert.deepEqual(read.faults, [{ field, reason: 'must be a list' }]);
        assert.deepEqual(field === 'spec.ingress' ? read.ingress : read.egress, []);
      });
    }
  });

  describe('rules', () => {
    it('allow everything when empty', () => {
      const { faults, ...read } = ingress({});
      assert.deepEqual(read, rule('ingress'));
      assert.deepEqual(faults, []);
    });

    for (const list of [null, []]) {
      it(`match everything when ports and peers are ${JSON.stringify(list)}`, () => {
        assert.equal(portsOf(list), undefined);
        assert.equal(peersOf(list), undefined);
      });
    }

    it('have no limit on their number', () => {
      const many = Array.from({ length: 300 }, () => ({ ports: [{ port: 80 }] }));
      assert.equal(policy({ ingress: many }).ingress?.length, 300);
      assert.deepEqual(policy({ ingress: many }).faults, []);
    });

    for (const [given, field, reason] of [
      [7, '', /object, not 7/],
      [null, '', /object, not null/],
      [[], '', /object, not a list/],
      [{ to: [] }, '.to', /unknown field/],
      [{ action: 'Allow' }, '.action', /unknown field/],
      [{ from: {} }, '.from', /list/],
      [{ ports: { port: 80 } }, '.ports', /list/],
    ] as const) {
      it(`allow nothing when one is ${JSON.stringify(given)}, without effect on others`, () => {
        const read = policy({ ingress: [given, {}] });
        assert.deepEqual(read.ingress, [ALLOWS_NOTHING, rule('ingress', 1)]);
        assert.equal(read.faults.length, 1);
        assert.equal(read.faults[0]?.field, `spec.ingress[0]${field}`);
        assert.match(read.faults[0]?.reason ?? '', reason);
      });
    }

    it('report every faulty part', () => {
      const { faults } = ingress({ from: [{}], ports: [{ endPort: 9 }] });
      assert.deepEqual(
        faults.map(({ field }) => field),
        ['spec.ingress[0].from[0]', 'spec.ingress[0].ports[0].endPort'],
      );
    });
  });

  describe('peers', () => {
    const pods = (namespaces: unknown, selected: unknown) => [
      { kind: 'pods', selection: { namespaces, pods: selected } },
    ];
    for (const [what, peer, expected] of [
      [
        'selects pods of the policy’s namespace',
        { podSelector: selects('a') },
        pods('shop', app('a')),
      ],
      ['selects all pods of the policy’s namespace', { podSelector: {} }, pods('shop', [])],
      [
        'selects all pods of selected namespaces',
        { namespaceSelector: selects('a') },
        pods(app('a'), []),
      ],
      ['selects all pods of all namespaces', { namespaceSelector: {} }, pods([], [])],
      [
        'selects pods by namespace and pod labels',
        { namespaceSelector: selects('a'), podSelector: selects('b') },
        pods(app('a'), app('b')),
      ],
      [
        'reads a network',
        { ipBlock: { cidr: '2001:DB8::/32' } },
        [{ kind: 'network', cidr: '2001:db8::/32', except: [] }],
      ],
      [
        'clears the host bits of a network, which lenient API servers accept',
        { ipBlock: { cidr: '10.1.2.3/8', except: ['10.1.2.3/16', '10.1.0.0/16'] } },
        [{ kind: 'network', cidr: '10.0.0.0/8', except: ['10.1.0.0/16'] }],
      ],
      [
        'reads a network with exceptions',
        { ipBlock: { cidr: '0.0.0.0/0', except: ['10.0.0.0/8', '192.0.2.1/32'] } },
        [{ kind: 'network', cidr: '0.0.0.0/0', except: ['10.0.0.0/8', '192.0.2.1/32'] }],
      ],
      ['treats null as missing', { podSelector: {}, ipBlock: null }, pods('shop', [])],
    ] as const) {
      it(what, () => assert.deepEqual(peersOf([peer]), expected));
    }

    it('reads every peer of the list', () => {
      assert.equal(peersOf([{ podSelector: {} }, { namespaceSelector: {} }])?.length, 2);
    });

    const ipBlock = (block: object) => ({ ipBlock: { cidr: '10.0.0.0/8', ...block } });
    for (const [peer, field, reason] of [
      [{}, '', /must have podSelector, namespaceSelector or ipBlock/],
      [null, '', /must have podSelector/],
      [7, '', /object/],
      [{ domainNames: ['a.b'] }, '.domainNames', /unknown field/],
      [{ podSelector: {}, serviceAccount: 'a' }, '.serviceAccount', /unknown field/],
      [{ ...ipBlock({}), podSelector: {} }, '', /both ipBlock and a selector/],
      [{ ...ipBlock({}), namespaceSelector: {} }, '', /both ipBlock and a selector/],
      [{ podSelector: selects('a b') }, '.podSelector.matchLabels.app', /label value/],
      [{ namespaceSelector: [] }, '.namespaceSelector', /object/],
      [{ ipBlock: {} }, '.ipBlock.cidr', /required/],
      [{ ipBlock: '10.0.0.0/8' }, '.ipBlock', /object/],
      [ipBlock({ cidr: '' }), '.ipBlock.cidr', /CIDR/],
      [ipBlock({ cidr: '10.0.0.1' }), '.ipBlock.cidr', /CIDR/],
      [ipBlock({ cidr: '::ffff:10.0.0.0/104' }), '.ipBlock.cidr', /CIDR/],
      [ipBlock({ cidr: '010.0.0.0/8' }), '.ipBlock.cidr', /CIDR/],
      [ipBlock({ exept: [] }), '.ipBlock.exept', /unknown field/],
      [ipBlock({ except: '10.1.0.0/16' }), '.ipBlock.except', /list/],
      [ipBlock({ except: ['10.1.0.0'] }), '.ipBlock.except[0]', /CIDR/],
      [ipBlock({ except: ['11.0.0.0/16'] }), '.ipBlock.except[0]', /strict subset of 10.0.0.0\/8/],
      [ipBlock({ except: ['10.0.0.0/8'] }), '.ipBlock.except[0]', /strict subset/],
      [ipBlock({ except: ['0.0.0.0/0'] }), '.ipBlock.except[0]', /strict subset of/],
      [ipBlock({ except: ['10.1.0.0/16', '::/96'] }), '.ipBlock.except[1]', /strict subset of/],
      [ipBlock({ except: ['::ffff:10.1.0.0/112'] }), '.ipBlock.except[0]', /CIDR/],
    ] as const) {
      it(`fails the rule closed when a peer is ${JSON.stringify(peer)}`, () => {
        const { faults, ...read } = ingress({ from: [{ podSelector: {} }, peer] });
        assert.deepEqual(read, ALLOWS_NOTHING);
        assert.equal(faults.length, 1);
        assert.equal(faults[0]?.field, `spec.ingress[0].from[1]${field}`);
        assert.match(faults[0]?.reason ?? '', reason);
      });
    }
  });

  describe('ports', () => {
    for (const [what, port, expected] of [
      ['defaults to TCP', { port: 80 }, { protocol: 'TCP', first: 80, last: 80 }],
      ['reads UDP', { port: 53, protocol: 'UDP' }, { protocol: 'UDP', first: 53, last: 53 }],
      ['reads SCTP', { port: 7, protocol: 'SCTP' }, { protocol: 'SCTP', first: 7, last: 7 }],
      [
        'matches all ports of a protocol',
        { protocol: 'UDP' },
        { protocol: 'UDP', first: 1, last: 65535 },
      ],
      ['matches all TCP ports when empty', {}, { protocol: 'TCP', first: 1, last: 65535 }],
      ['reads a port name with a protocol', { port: 'a-1' }, { protocol: 'TCP', name: 'a-1' }],
      [
        'reads a port name of 15 characters',
        { port: 'abcdefghijklmno' },
        { protocol: 'TCP', name: 'abcdefghijklmno' },
      ],
      ['reads a range', { port: 1, endPort: 65535 }, { protocol: 'TCP', first: 1, last: 65535 }],
      [
        'reads a range of one port',
        { port: 80, endPort: 80 },
        { protocol: 'TCP', first: 80, last: 80 },
      ],
      [
        'treats null as missing',
        { port: 80, endPort: null },
        { protocol: 'TCP', first: 80, last: 80 },
      ],
    ] as const) {
      it(what, () => assert.deepEqual(portsOf([port]), [expected]));
    }

    for (const [what, port, field, reason] of [
      ['endPort without port (KEP-2079)', { endPort: 80 }, '.endPort', /without a port/],
      [
        'KEP-2079: endPort, protocol, no port',
        { endPort: 80, protocol: 'UDP' },
        '.endPort',
        /without/,
      ],
      ['KEP-2079: endPort, named port', { port: 'http', endPort: 80 }, '.endPort', /with a named/],
      [
        'KEP-2079: endPort below port',
        { port: 81, endPort: 80 },
        '.endPort',
        /not be less than port 81/,
      ],
      ['endPort 0', { port: 80, endPort: 0 }, '.endPort', /1 to 65535/],
      ['endPort 65536', { port: 80, endPort: 65536 }, '.endPort', /1 to 65535/],
      ['endPort as a string', { port: 80, endPort: '90' }, '.endPort', /1 to 65535/],
      ['port 0', { port: 0 }, '.port', /1 to 65535/],
      ['port 65536', { port: 65536 }, '.port', /1 to 65535/],
      ['a fractional port', { port: 1.5 }, '.port', /1 to 65535/],
      ['a port number as a string', { port: '80' }, '.port', /at least one letter/],
      ['a name with an underscore', { port: 'a_b' }, '.port', /port name/],
      ['a name with a capital', { port: 'Http' }, '.port', /port name/],
      ['a name that ends in a hyphen', { port: 'a-' }, '.port', /port name/],
      ['a name with two hyphens', { port: 'a--b' }, '.port', /port name/],
      ['a name of 16 characters', { port: 'abcdefghijklmnop' }, '.port', /port name/],
      ['an empty name', { port: '' }, '.port', /port name/],
      ['an unsupported protocol', { protocol: 'ICMP' }, '.protocol', /TCP, UDP, SCTP/],
      ['a protocol in lower case', { protocol: 'tcp' }, '.protocol', /TCP, UDP, SCTP/],
      ['an empty protocol', { protocol: '' }, '.protocol', /TCP, UDP, SCTP/],
      ['an unknown field', { port: 80, icmpType: 8 }, '.icmpType', /unknown field/],
      ['a number instead of an object', 80, '', /object/],
      ['null instead of an object', null, '', /object/],
    ] as const) {
      it(`fails the rule closed on ${what}`, () => {
        const { faults, ...read } = ingress({ ports: [{ port: 443 }, port] });
        assert.deepEqual(read, ALLOWS_NOTHING);
        assert.equal(faults.length, 1);
        assert.equal(faults[0]?.field, `spec.ingress[0].ports[1]${field}`);
        assert.match(faults[0]?.reason ?? '', reason);
      });
    }

    it('accepts a named port with a network peer, which may contain pods', () => {
      const peers = [{ ipBlock: { cidr: '10.0.0.0/8' } }];
      const { egress, faults } = policy({ egress: [{ to: peers, ports: [{ port: 'http' }] }] });
      assert.deepEqual(faults, []);
      assert.deepEqual(egress?.[0]?.ports, [{ protocol: 'TCP', name: 'http' }]);
    });
  });
});
