import assert from 'node:assert/strict';
import { InvalidObject } from '../../api/errors.ts';
import type { Policy } from '../../api/policy-objects.ts';
import { readNetworkPolicy } from '../../api/read-network-policy.ts';

const policy = (spec: unknown): Policy =>
  readNetworkPolicy({ metadata: { name: 'web', namespace: 'shop', uid: 'u1' }, spec });
/** The one ingress rule of a policy. */
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
const NOBODY = { ...rule('ingress'), peers: [], ports: [] };
const app = (value: string) => [{ key: 'app', operator: 'In', values: [value] }];
const selects = (value: string) => ({ matchLabels: { app: value } });

describe('read-network-policy: reading a NetworkPolicy', () => {
  it('reads everything', () => {
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
      ['empty, it matches all pods of the namespace', { podSelector: {} }],
      ['missing, it is empty', {}],
      ['without a spec, too', undefined],
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
      it(`cannot be ${JSON.stringify(spec)}: nobody knows whom it isolates`, () => {
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
      ['missing: ingress, whatever there is', {}, 0, undefined],
      ['missing: ingress also without an ingress section', { egress: [{}] }, 0, 1],
      ['missing: no egress without egress rules', { ingress: [{}], egress: [] }, 1, undefined],
      ['missing: both where there are rules', { ingress: [{}], egress: [{}, {}] }, 1, 2],
      ['empty as missing', { policyTypes: [], egress: [{}] }, 0, 1],
      ['null as missing', { policyTypes: null, ingress: null, egress: null }, 0, undefined],
      ['Egress only', { policyTypes: ['Egress'] }, undefined, 0],
      [
        'Egress only, whatever the ingress',
        { policyTypes: ['Egress'], ingress: [{}] },
        undefined,
        0,
      ],
      [
        'Ingress only, whatever the egress',
        { policyTypes: ['Ingress'], egress: [{}] },
        0,
        undefined,
      ],
      ['both', { policyTypes: ['Egress', 'Ingress'] }, 0, 0],
      ['one twice', { policyTypes: ['Ingress', 'Ingress'] }, 0, undefined],
      ['an empty list isolates', { policyTypes: ['Ingress'], ingress: [] }, 0, undefined],
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

    it('does not look at rules of a direction that it is not about', () => {
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
      [{ podselector: {} }, 'spec.podselector', /not known/],
      [{ order: 1 }, 'spec.order', /not known/],
    ] as const) {
      it(`isolates both ways and allows nothing with ${JSON.stringify(spec)}`, () => {
        const read = policy({ ingress: [{}], ...spec });
        assert.equal(read.faults.length, 1);
        assert.equal(read.faults[0]?.field, field);
        assert.match(read.faults[0]?.reason ?? '', reason);
        assert.deepEqual(read.ingress, [NOBODY]);
        assert.deepEqual(read.egress, []);
      });
    }

    for (const [spec, field] of [
      [{ ingress: {} }, 'spec.ingress'],
      [{ policyTypes: ['Egress'], egress: 'all' }, 'spec.egress'],
      [{ egress: { to: [] } }, 'spec.egress'],
    ] as const) {
      it(`allows nothing by ${JSON.stringify(spec)}`, () => {
        const read = policy(spec);
        assert.deepEqual(read.faults, [{ field, reason: 'must be a list' }]);
        assert.deepEqual(field === 'spec.ingress' ? read.ingress : read.egress, []);
      });
    }
  });

  describe('rules', () => {
    it('an empty one allows everything', () => {
      const { faults, ...read } = ingress({});
      assert.deepEqual(read, rule('ingress'));
      assert.deepEqual(faults, []);
    });

    for (const list of [null, []]) {
      it(`ports and peers ${JSON.stringify(list)} restrict nothing`, () => {
        assert.equal(portsOf(list), undefined);
        assert.equal(peersOf(list), undefined);
      });
    }

    it('have as many as they like', () => {
      const many = Array.from({ length: 300 }, () => ({ ports: [{ port: 80 }] }));
      assert.equal(policy({ ingress: many }).ingress?.length, 300);
      assert.deepEqual(policy({ ingress: many }).faults, []);
    });

    for (const [given, field, reason] of [
      [7, '', /object, not 7/],
      [null, '', /object, not null/],
      [[], '', /object, not a list/],
      [{ to: [] }, '.to', /not known/],
      [{ action: 'Allow' }, '.action', /not known/],
      [{ from: {} }, '.from', /list/],
      [{ ports: { port: 80 } }, '.ports', /list/],
    ] as const) {
      it(`${JSON.stringify(given)} allows nothing, and leaves others as they are`, () => {
        const read = policy({ ingress: [given, {}] });
        assert.deepEqual(read.ingress, [NOBODY, rule('ingress', 1)]);
        assert.equal(read.faults.length, 1);
        assert.equal(read.faults[0]?.field, `spec.ingress[0]${field}`);
        assert.match(read.faults[0]?.reason ?? '', reason);
      });
    }

    it('each part that is wrong is told', () => {
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
      ['pods of the own namespace', { podSelector: selects('a') }, pods('shop', app('a'))],
      ['all pods of the own namespace', { podSelector: {} }, pods('shop', [])],
      ['all pods of namespaces', { namespaceSelector: selects('a') }, pods(app('a'), [])],
      ['all pods of all namespaces', { namespaceSelector: {} }, pods([], [])],
      [
        'pods of namespaces: both have to hold',
        { namespaceSelector: selects('a'), podSelector: selects('b') },
        pods(app('a'), app('b')),
      ],
      [
        'a network',
        { ipBlock: { cidr: '2001:DB8::/32' } },
        [{ kind: 'network', cidr: '2001:db8::/32', except: [] }],
      ],
      [
        'a network, as API servers that are not strict take it: with host bits',
        { ipBlock: { cidr: '10.1.2.3/8', except: ['10.1.2.3/16', '10.1.0.0/16'] } },
        [{ kind: 'network', cidr: '10.0.0.0/8', except: ['10.1.0.0/16'] }],
      ],
      [
        'a network but for parts',
        { ipBlock: { cidr: '0.0.0.0/0', except: ['10.0.0.0/8', '192.0.2.1/32'] } },
        [{ kind: 'network', cidr: '0.0.0.0/0', except: ['10.0.0.0/8', '192.0.2.1/32'] }],
      ],
      ['null is missing', { podSelector: {}, ipBlock: null }, pods('shop', [])],
    ] as const) {
      it(what, () => assert.deepEqual(peersOf([peer]), expected));
    }

    it('each in the list counts', () => {
      assert.equal(peersOf([{ podSelector: {} }, { namespaceSelector: {} }])?.length, 2);
    });

    const ipBlock = (block: object) => ({ ipBlock: { cidr: '10.0.0.0/8', ...block } });
    for (const [peer, field, reason] of [
      [{}, '', /must have podSelector, namespaceSelector or ipBlock/],
      [null, '', /must have podSelector/],
      [7, '', /object/],
      [{ domainNames: ['a.b'] }, '.domainNames', /not known/],
      [{ podSelector: {}, serviceAccount: 'a' }, '.serviceAccount', /not known/],
      [{ ...ipBlock({}), podSelector: {} }, '', /ipBlock beside a selector/],
      [{ ...ipBlock({}), namespaceSelector: {} }, '', /ipBlock beside a selector/],
      [{ podSelector: selects('a b') }, '.podSelector.matchLabels.app', /value of a label/],
      [{ namespaceSelector: [] }, '.namespaceSelector', /object/],
      [{ ipBlock: {} }, '.ipBlock.cidr', /required/],
      [{ ipBlock: '10.0.0.0/8' }, '.ipBlock', /object/],
      [ipBlock({ cidr: '' }), '.ipBlock.cidr', /CIDR/],
      [ipBlock({ cidr: '10.0.0.1' }), '.ipBlock.cidr', /CIDR/],
      [ipBlock({ cidr: '::ffff:10.0.0.0/104' }), '.ipBlock.cidr', /CIDR/],
      [ipBlock({ cidr: '010.0.0.0/8' }), '.ipBlock.cidr', /CIDR/],
      [ipBlock({ exept: [] }), '.ipBlock.exept', /not known/],
      [ipBlock({ except: '10.1.0.0/16' }), '.ipBlock.except', /list/],
      [ipBlock({ except: ['10.1.0.0'] }), '.ipBlock.except[0]', /CIDR/],
      [ipBlock({ except: ['11.0.0.0/16'] }), '.ipBlock.except[0]', /within 10.0.0.0\/8/],
      [ipBlock({ except: ['10.0.0.0/8'] }), '.ipBlock.except[0]', /and smaller/],
      [ipBlock({ except: ['0.0.0.0/0'] }), '.ipBlock.except[0]', /within/],
      [ipBlock({ except: ['10.1.0.0/16', '::/96'] }), '.ipBlock.except[1]', /within/],
      [ipBlock({ except: ['::ffff:10.1.0.0/112'] }), '.ipBlock.except[0]', /CIDR/],
    ] as const) {
      it(`${JSON.stringify(peer)} fails, and with it the rule`, () => {
        const { faults, ...read } = ingress({ from: [{ podSelector: {} }, peer] });
        assert.deepEqual(read, NOBODY);
        assert.equal(faults.length, 1);
        assert.equal(faults[0]?.field, `spec.ingress[0].from[1]${field}`);
        assert.match(faults[0]?.reason ?? '', reason);
      });
    }
  });

  describe('ports', () => {
    for (const [what, port, expected] of [
      ['TCP unless it says otherwise', { port: 80 }, { protocol: 'TCP', first: 80, last: 80 }],
      ['UDP', { port: 53, protocol: 'UDP' }, { protocol: 'UDP', first: 53, last: 53 }],
      ['SCTP', { port: 7, protocol: 'SCTP' }, { protocol: 'SCTP', first: 7, last: 7 }],
      [
        'no port: all of the protocol',
        { protocol: 'UDP' },
        { protocol: 'UDP', first: 1, last: 65535 },
      ],
      ['nothing: all of TCP', {}, { protocol: 'TCP', first: 1, last: 65535 }],
      ['a name, and the protocol', { port: 'a-1' }, { protocol: 'TCP', name: 'a-1' }],
      ['a name of 15', { port: 'abcdefghijklmno' }, { protocol: 'TCP', name: 'abcdefghijklmno' }],
      ['a range', { port: 1, endPort: 65535 }, { protocol: 'TCP', first: 1, last: 65535 }],
      ['a range of one', { port: 80, endPort: 80 }, { protocol: 'TCP', first: 80, last: 80 }],
      ['null is missing', { port: 80, endPort: null }, { protocol: 'TCP', first: 80, last: 80 }],
    ] as const) {
      it(what, () => assert.deepEqual(portsOf([port]), [expected]));
    }

    for (const [what, port, field, reason] of [
      ['KEP-2079: endPort without port', { endPort: 80 }, '.endPort', /without a port/],
      [
        'KEP-2079: endPort, protocol, no port',
        { endPort: 80, protocol: 'UDP' },
        '.endPort',
        /without/,
      ],
      [
        'KEP-2079: endPort, named port',
        { port: 'http', endPort: 80 },
        '.endPort',
        /beside a named/,
      ],
      [
        'KEP-2079: endPort below port',
        { port: 81, endPort: 80 },
        '.endPort',
        /not be below port 81/,
      ],
      ['endPort 0', { port: 80, endPort: 0 }, '.endPort', /1 to 65535/],
      ['endPort 65536', { port: 80, endPort: 65536 }, '.endPort', /1 to 65535/],
      ['endPort as text', { port: 80, endPort: '90' }, '.endPort', /1 to 65535/],
      ['port 0', { port: 0 }, '.port', /1 to 65535/],
      ['port 65536', { port: 65536 }, '.port', /1 to 65535/],
      ['half a port', { port: 1.5 }, '.port', /1 to 65535/],
      ['a number as text', { port: '80' }, '.port', /with a letter/],
      ['a name that is none', { port: 'a_b' }, '.port', /name of a port/],
      ['a name in capitals', { port: 'Http' }, '.port', /name of a port/],
      ['a name that ends badly', { port: 'a-' }, '.port', /name of a port/],
      ['a name with two hyphens', { port: 'a--b' }, '.port', /name of a port/],
      ['a name of 16', { port: 'abcdefghijklmnop' }, '.port', /name of a port/],
      ['no name', { port: '' }, '.port', /name of a port/],
      ['a protocol that is none', { protocol: 'ICMP' }, '.protocol', /TCP, UDP, SCTP/],
      ['a protocol in lower case', { protocol: 'tcp' }, '.protocol', /TCP, UDP, SCTP/],
      ['no protocol', { protocol: '' }, '.protocol', /TCP, UDP, SCTP/],
      ['something unknown', { port: 80, icmpType: 8 }, '.icmpType', /not known/],
      ['a number alone', 80, '', /object/],
      ['null', null, '', /object/],
    ] as const) {
      it(`${what} fails, and with it the rule`, () => {
        const { faults, ...read } = ingress({ ports: [{ port: 443 }, port] });
        assert.deepEqual(read, NOBODY);
        assert.equal(faults.length, 1);
        assert.equal(faults[0]?.field, `spec.ingress[0].ports[1]${field}`);
        assert.match(faults[0]?.reason ?? '', reason);
      });
    }

    it('may be named beside a network: pods may be in it', () => {
      const peers = [{ ipBlock: { cidr: '10.0.0.0/8' } }];
      const { egress, faults } = policy({ egress: [{ to: peers, ports: [{ port: 'http' }] }] });
      assert.deepEqual(faults, []);
      assert.deepEqual(egress?.[0]?.ports, [{ protocol: 'TCP', name: 'http' }]);
    });
  });
});
