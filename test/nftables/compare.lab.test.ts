import assert from 'node:assert/strict';
import { IP_FAMILIES } from '../../api/objects.ts';
import { nftFamily } from '../../nft/rule.ts';
import type { ComparedObject } from '../../proxier/compared-object.ts';
import type { Route } from '../../services/route.ts';
import { route } from '../fixtures.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../netlink/namespace.ts';
import { numberRange } from './elements.ts';
import { allChains } from './options.ts';

const AGENT = 'compare';
const VIP = '10.96.0.10';
const WEB = route({ sourceRanges: ['192.0.2.0/24'], loadBalancerIPs: ['203.0.113.1'] }, [
  '10.244.0.1',
  '10.244.0.2',
]);
const OTHER = route(
  {
    id: 'other',
    serviceKey: 'default/other',
    name: 'default/other',
    clusterIP: '10.96.0.11',
    match: { kind: 'ranges', ranges: [{ protocol: 'TCP', from: 1000, to: 2000 }] },
    affinitySeconds: 60,
  },
  ['10.244.0.3'],
);

/** Its pods own ports, one on another node. */
const MEDIA = route(
  {
    id: 'media/owned',
    serviceKey: 'default/media',
    name: 'default/media',
    clusterIP: '10.96.0.20',
    match: {
      kind: 'ranges',
      ranges: [
        { protocol: 'TCP', from: 30000, to: 30999 },
        { protocol: 'UDP', from: 20000, to: 20999 },
      ],
    },
    owned: {
      ranges: [
        { protocol: 'UDP', from: 20000, to: 20999 },
        { protocol: 'TCP', from: 30000, to: 30999 },
      ],
      portsPerPod: 100,
      owners: [
        { ordinal: 0, address: '10.244.0.10', serves: true, node: 'this' },
        { ordinal: 1, address: '10.244.1.10', serves: true, node: 'other' },
      ],
      udpVip: '10.96.0.20',
      priority: 'x',
      taken: new Map(),
    },
  },
  ['10.244.0.10', '10.244.1.10'],
);

/** The same with slices that one exact lookup finds. */
const EXACT_MEDIA: Route = {
  ...MEDIA,
  match: { kind: 'ranges', ranges: [{ protocol: 'UDP', from: 20480, to: 21503 }] },
  ...(MEDIA.owned && {
    owned: {
      ...MEDIA.owned,
      ranges: [{ protocol: 'UDP', from: 20480, to: 21503 }],
      portsPerPod: 128,
    },
  }),
};

type Difference = readonly [
  state: string,
  type: string,
  container: string,
  desired: string | null,
  actual: string | null,
  service: string | null,
];

const asTuple = ({
  state,
  type,
  in: where,
  desired,
  actual,
  service,
}: ComparedObject): Difference => [state, type, where, desired, actual, service];

describe('compare: mode nftables with the kernel', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;
  before(async () => {
    namespace = await createNamespace();
    helper = namespace.helper();
  });
  after(() => namespace[Symbol.asyncDispose]());
  afterEach(() => namespace.run('nft', 'flush', 'ruleset'));

  async function applied(routes: readonly Route[]): Promise<void> {
    await helper.call('modeStart', AGENT, { family: 'IPv4', nodePortSelection: ['all'] });
    await helper.call('modeUpdate', AGENT, routes, [], {
      addresses: ['192.0.2.7'],
      primary: ['192.0.2.7'],
    });
    await helper.call('modeApply', AGENT, true);
  }

  for (const family of IP_FAMILIES) {
    for (const localDetector of [
      { kind: 'cidr', cidr: family === 'IPv4' ? '10.244.0.0/15' : 'fd00:10:244::/47' },
      { kind: 'interface', name: 'cali+' },
    ] as const) {
      it(`finds no difference in any rule that it writes (${family}, ${localDetector.kind})`, async () => {
        const options = { family, localDetector, resetsTcp: true, rejectsOnLocalhost: true };
        const chains = allChains(options, true);
        await helper.call('modeRules', options, true);
        const { objects, compared } = await helper.call('modeCompareRules', options, true);
        assert.deepEqual(objects, []);
        const rules = chains.reduce((sum, chain) => sum + chain.rules.length, 0);
        assert.equal(compared, chains.length + rules);
        await namespace.run('nft', 'delete', 'table', nftFamily(family), 'portwide');
      });
    }
  }

  const ok = (objects: readonly ComparedObject[]) => objects.filter(({ state }) => state === 'ok');

  const cases: readonly (readonly [
    title: string,
    script: string,
    Difference[],
    inService: number,
  ])[] = [
    [
      'a deleted element',
      `delete element ip portwide endpoints { ${VIP} . tcp . 80 . 1 }`,
      [
        [
          'missing',
          'element',
          'endpoints',
          `${VIP} . tcp . 80 . 1 : 10.244.0.2 . 8080`,
          null,
          'default/web',
        ],
      ],
      1,
    ],
    [
      'an element with another value',
      `delete element ip portwide service-ports { ${VIP} . tcp . 80 }
       add element ip portwide service-ports { ${VIP} . tcp . 80 : drop }`,
      [
        [
          'changed',
          'element',
          'service-ports',
          `${VIP} . tcp . 80 : goto internal-port-2`,
          `${VIP} . tcp . 80 : drop`,
          'default/web',
        ],
      ],
      1,
    ],
    [
      'an unknown element with a VIP and port of the Service',
      `add element ip portwide no-endpoint-ports { ${VIP} . tcp . 80 : drop }`,
      [
        [
          'unexpected',
          'element',
          'no-endpoint-ports',
          null,
          `${VIP} . tcp . 80 : drop`,
          'default/web',
        ],
      ],
      1,
    ],
    [
      'an unknown allowed source',
      // The same as a number: 203.0.113.1 . tcp . 80 . 198.51.100.0-198.51.100.255
      'add element ip portwide allowed-port-sources { 0xcb0071010600000000500000c6336400-0xcb0071010600000000500000c63364ff }',
      [
        [
          'unexpected',
          'element',
          'allowed-port-sources',
          null,
          '203.0.113.1 . tcp . 80 . 198.51.100.0-198.51.100.255',
          'default/web',
        ],
      ],
      1,
    ],
    [
      'an unknown element of no Service',
      'add element ip portwide cluster-ips { 10.96.9.9 }',
      [['unexpected', 'element', 'cluster-ips', null, '10.96.9.9', null]],
      0,
    ],
    [
      'a rule inserted into a dispatch chain',
      'insert rule ip portwide internal-port-2 tcp dport 81 drop',
      [
        [
          'unexpected',
          'rule',
          'internal-port-2',
          null,
          '[ meta to=8 key=16 ] [ cmp from=8 op=0 value=0x06 ] [ payload to=8 base=2 offset=2 length=2 ] ' +
            '[ cmp from=8 op=0 value=0x0051 ] [ immediate to=0 value=drop ]',
          null,
        ],
      ],
      1,
    ],
    [
      'a flushed base chain',
      'flush chain ip portwide nat-output',
      [['missing', 'rule', 'nat-output', 'jump services', null, null]],
      0,
    ],
    [
      'a base chain with another policy',
      'chain ip portwide filter-input { policy drop; }',
      [
        [
          'changed',
          'chain',
          'ip portwide',
          'chain filter-input { type filter hook input priority 0; policy accept; }',
          'chain filter-input { type filter hook input priority 0; policy drop; }',
          null,
        ],
      ],
      0,
    ],
    [
      'a dormant table',
      'add table ip portwide { flags dormant; }',
      [
        [
          'changed',
          'table',
          'nf_tables',
          'table ip portwide',
          'table ip portwide { flags dormant; }',
          null,
        ],
      ],
      0,
    ],
    [
      'unknown objects',
      `add chain ip portwide foreign
       add rule ip portwide foreign counter accept
       add set ip portwide foreign-set { type mark; }
       add counter ip portwide foreign-counter`,
      [
        ['unexpected', 'map or set', 'ip portwide', null, 'foreign-set', null],
        ['unexpected', 'counter', 'ip portwide', null, 'foreign-counter', null],
        ['unexpected', 'chain', 'ip portwide', null, 'chain foreign', null],
        [
          'unexpected',
          'rule',
          'foreign',
          null,
          '[ counter ] [ immediate to=0 value=accept ]',
          null,
        ],
      ],
      0,
    ],
  ];
  for (const [title, script, expected, inService] of cases) {
    it(`finds ${title}`, async () => {
      await applied([WEB, OTHER]);
      const clean = await helper.call('modeCompare', AGENT);
      assert.deepEqual(clean.objects, []);
      await helper.call('hold', script, 'nft', '-f', '-');
      const damaged = await helper.call('modeState', 'IPv4');
      const all = await helper.call('modeCompare', AGENT);
      assert.deepEqual(all.objects.map(asTuple), expected);
      const { objects } = await helper.call('modeCompare', AGENT, 'default/web');
      const differing = objects.filter(({ state }) => state !== 'ok').map(asTuple);
      assert.deepEqual(differing, inService === 0 ? [] : expected);
      assert.deepEqual(await helper.call('modeState', 'IPv4'), damaged, 'it changes nothing');
      const other = await helper.call('modeCompare', AGENT, 'default/other');
      assert.equal(ok(other.objects).length, other.compared, 'another Service is not affected');
      await helper.call('modeStop', AGENT);
    });
  }

  const slice0 = '10.96.0.20 . 20000-20099 : 10.244.0.10';
  const key0 = numberRange('10.96.0.20', 20_000, 20_099);
  const ownedCases: readonly (readonly [title: string, script: string, Difference[]])[] = [
    [
      'a deleted slice',
      `delete element ip portwide udp-owners-20 { ${key0} }`,
      [['missing', 'element', 'udp-owners-20', slice0, null, 'default/media']],
    ],
    [
      'a slice that leads to another pod',
      `delete element ip portwide udp-owners-20 { ${key0} }
       add element ip portwide udp-owners-20 { ${key0} : 10.244.0.99 }`,
      [
        [
          'changed',
          'element',
          'udp-owners-20',
          slice0,
          '10.96.0.20 . 20000-20099 : 10.244.0.99',
          'default/media',
        ],
      ],
    ],
    [
      'an unknown slice',
      `add element ip portwide udp-owners-20 { ${numberRange('10.96.0.20', 20_900, 20_999)} : 10.244.0.99 }`,
      [
        [
          'unexpected',
          'element',
          'udp-owners-20',
          null,
          '10.96.0.20 . 20900-20999 : 10.244.0.99',
          'default/media',
        ],
      ],
    ],
    [
      'unknown ports from which an owner speaks',
      `add element ip portwide udp-owner-vips-10 { ${numberRange('10.244.1.10', 40_000, 40_099)} : 10.96.0.20 }`,
      [
        [
          'unexpected',
          'element',
          'udp-owner-vips-10',
          null,
          '10.244.1.10 . 40000-40099 : 10.96.0.20',
          'default/media',
        ],
      ],
    ],
    [
      'a flushed chain',
      'flush chain ip portwide owned-speakers-10',
      [
        [
          'missing',
          'rule',
          'owned-speakers-10',
          'meta l4proto udp ip saddr set ip saddr . th sport map @udp-owner-vips-10',
          null,
          null,
        ],
      ],
    ],
  ];
  const exactCases: typeof ownedCases = [
    [
      'a slice of one lookup that leads to another pod',
      `delete element ip portwide udp-owners-of-128 { 10.96.0.20 . 20480 }
       add element ip portwide udp-owners-of-128 { 10.96.0.20 . 20480 : 10.244.0.99 }`,
      [
        [
          'changed',
          'element',
          'udp-owners-of-128',
          '10.96.0.20 . 20480 : 10.244.0.10',
          '10.96.0.20 . 20480 : 10.244.0.99',
          'default/media',
        ],
      ],
    ],
    [
      'an unknown slice of one lookup',
      'add element ip portwide udp-owners-of-128 { 10.96.0.20 . 20736 : 10.244.0.99 }',
      [
        [
          'unexpected',
          'element',
          'udp-owners-of-128',
          null,
          '10.96.0.20 . 20736 : 10.244.0.99',
          'default/media',
        ],
      ],
    ],
    [
      'a deleted slice of one lookup, from which an owner speaks,',
      'delete element ip portwide udp-owner-vips-of-128 { 10.244.1.10 . 20608 }',
      [
        [
          'missing',
          'element',
          'udp-owner-vips-of-128',
          '10.244.1.10 . 20608 : 10.96.0.20',
          null,
          'default/media',
        ],
      ],
    ],
  ];
  for (const [media, title, script, expected] of [
    ...ownedCases.map((each) => [MEDIA, ...each] as const),
    ...exactCases.map((each) => [EXACT_MEDIA, ...each] as const),
  ]) {
    it(`finds ${title} of owned ports`, async () => {
      await applied([WEB, media]);
      assert.deepEqual((await helper.call('modeCompare', AGENT)).objects, []);
      await helper.call('hold', script, 'nft', '-f', '-');
      const all = await helper.call('modeCompare', AGENT);
      assert.deepEqual(all.objects.map(asTuple), expected);
      const { objects } = await helper.call('modeCompare', AGENT, 'default/media');
      assert.deepEqual(objects.filter(({ state }) => state !== 'ok').map(asTuple), expected);
      const other = await helper.call('modeCompare', AGENT, 'default/web');
      assert.equal(ok(other.objects).length, other.compared, 'another Service is not affected');
      await helper.call('modeStop', AGENT);
    });
  }

  it('lists all objects of one Service, and the rules of its chains', async () => {
    await applied([OTHER]);
    const { objects, compared } = await helper.call('modeCompare', AGENT, 'default/other');
    assert.equal(compared, objects.length);
    for (const { state, desired, actual } of objects) {
      assert.equal(state, 'ok');
      assert.equal(actual, desired);
    }
    assert.deepEqual(
      objects.map(({ type, in: where, desired }) => `${type} ${where} ${desired}`).slice(0, 11),
      [
        'element endpoint-ips 10.96.0.11 . 2097152 : 10.244.0.3',
        'element hairpin-connections 10.244.0.3 . 10.244.0.3',
        'element affinity-update-range-vips 10.96.0.11 : goto affinity-ranges-11-1',
        'element affinity-update-range-services 10.96.0.11 . 1 : goto update-affinity-ips-1-60',
        'element no-endpoint-range-vips 10.96.0.11 : goto no-endpoint-ranges-11-1',
        'element no-endpoint-range-services 10.96.0.11 . 1 : goto reject-packet',
        'element service-range-ips 10.96.0.11',
        'element range-vips 10.96.0.11 : goto ranges-11-1',
        'element range-services 10.96.0.11 . 1 : goto internal-ip-1-slot1-affinity',
        'element vip-ranges-11 10.96.0.11 . 1 . tcp . 1000-2000',
        'chain ip portwide chain internal-ip-1-slot1-affinity',
      ],
    );
    await helper.call('modeStop', AGENT);
  });

  it('reports all objects as missing when another program has deleted the table', async () => {
    await applied([WEB]);
    const { compared } = await helper.call('modeCompare', AGENT);
    await namespace.run('nft', 'flush', 'ruleset');
    const { objects, compared: after } = await helper.call('modeCompare', AGENT);
    assert.equal(after, compared);
    assert.equal(objects.length, compared);
    assert.ok(objects.every(({ state }) => state === 'missing'));
    await helper.call('modeStop', AGENT);
  });

  it('compares with the applied state while a change waits for its sync', async () => {
    await applied([WEB]);
    await helper.call('modeUpdate', AGENT, [OTHER], [WEB.id]);
    assert.deepEqual((await helper.call('modeCompare', AGENT)).objects, []);
    await helper.call('modeApply', AGENT, false);
    assert.deepEqual((await helper.call('modeCompare', AGENT)).objects, []);
    assert.equal((await helper.call('modeCompare', AGENT, 'default/web')).compared, 0);
    await helper.call('modeStop', AGENT);
  });
});
