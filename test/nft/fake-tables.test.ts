import assert from 'node:assert/strict';
import type { NftDeclaration } from '../../netlink/nftables/declaration.ts';
import { baseAt } from '../../netlink/nftables/hooks.ts';
import type { NftOperation } from '../../netlink/nftables/types.ts';
import { setFields } from '../../nft/declaration.ts';
import { FakeTables } from '../../nft/fake-tables.ts';
import { countPacket, nftRuleBytes, type RuleParts, rulePartsFor } from '../../nft/rule.ts';

const { source: address, port: portField } = setFields('IPv4');
const DECLARATIONS: readonly NftDeclaration[] = [
  { kind: 'set', name: 'services', key: [address], data: 'verdict' },
  { kind: 'set', name: 'ports', key: [portField], isInterval: true },
  {
    kind: 'set',
    name: 'clients',
    key: [address],
    data: [address],
    isDynamic: true,
    hasTimeouts: true,
  },
  { kind: 'counter', name: 'dropped', packets: 7n, bytes: 700n },
  { kind: 'chain', name: 'forward', base: baseAt('filter', 'forward', 0) },
  { kind: 'chain', name: 'regular' },
];

const declare = (...declarations: readonly NftDeclaration[]): NftOperation => ({
  action: 'declare',
  declarations,
});
const fill = (...rules: RuleParts[]): NftOperation => ({
  action: 'fill',
  chain: { name: 'forward', rules: rules.map((rule) => ({ expressions: nftRuleBytes(rule) })) },
});
const add = (set: string, key: number, data?: string, keyEnd?: number): NftOperation => ({
  action: 'add',
  set,
  elements: [
    {
      key: Buffer.from([0, 0, 0, key]),
      ...(data === undefined ? {} : { data: { kind: 'goto', chain: data } }),
      ...(keyEnd === undefined ? {} : { keyEnd: Buffer.from([0, 0, 0, keyEnd]) }),
    },
  ],
});

describe('fake-tables: a table of nf_tables in memory', () => {
  const { source, inSet, verdictMap, updateMap } = rulePartsFor('IPv4');
  const known: RuleParts = [
    verdictMap([source], 'services'),
    updateMap('clients', [source], [source], 60),
    countPacket('dropped'),
  ];
  let fake: FakeTables;

  beforeEach(async () => {
    fake = new FakeTables();
    await fake.tables.transact([declare(...DECLARATIONS)]);
  });

  it('returns no table before the declaration, then the declared sets and chains', async () => {
    const { tables } = fake;
    assert.deepEqual(await tables.chains(), ['forward', 'regular']);
    assert.deepEqual(
      (await tables.sets())?.map(({ name }) => name),
      ['services', 'ports', 'clients'],
    );
    assert.deepEqual(await tables.counters(), [{ name: 'dropped', packets: 7n, bytes: 7n }]);
    await tables.delete();
    for (const gone of [await tables.chains(), await tables.sets(), await tables.counters()]) {
      assert.equal(gone, undefined);
    }
  });

  it('logs each transaction', async () => {
    const { tables } = fake;
    fake.log = [];
    await tables.transact([fill(known), add('services', 1, 'forward')]);
    await tables.transact([{ action: 'add', set: 'services', elements: [] }]);
    await tables.transact([{ action: 'remove', chains: ['forward'] }]);
    assert.deepEqual(fake.log, ['rules of forward, add services 1', 'remove forward']);
    assert.equal(fake.sets.get('services')?.size, 1);
  });

  it('keeps the content of declared objects, or replaces the table', async () => {
    const { tables } = fake;
    await tables.transact([fill(known), add('services', 1, 'forward')]);
    fake.log = [];
    await tables.transact([declare(...DECLARATIONS)]);
    assert.equal(fake.sets.get('services')?.size, 1);
    await tables.transact([{ action: 'declare', replacesTable: true, declarations: [] }]);
    assert.equal(await tables.chains(), undefined);
    assert.deepEqual(fake.log, ['declare', 'replace table']);
  });

  for (const [what, steps, error] of [
    ['a rule that looks up a missing set', [fill([inSet([source], 'nothing')])], /nothing/],
    ['a rule that updates a missing map', [fill([updateMap('no', [source], [source], 1)])], /no,/],
    ['a rule with a missing counter', [fill(known, [countPacket('other')])], /other/],
    ['elements of a missing set', [add('nothing', 1)], /add elements in set nothing: ENOENT/],
    [
      'elements that go to a missing chain',
      [add('services', 1, 'gone')],
      /add element .* in set services: ENOENT/,
    ],
    [
      'other data for an existing key',
      [fill(), add('services', 1, 'forward'), add('services', 1)],
      /EEXIST/,
    ],
    [
      'overlapping ranges',
      [add('ports', 1, undefined, 5), add('ports', 3, undefined, 9)],
      /EEXIST/,
    ],
    [
      'another key of an existing set',
      [declare({ kind: 'set', name: 'ports', key: [address], isInterval: true })],
      /set ports: EEXIST/,
    ],
    [
      'another priority of an existing chain',
      [declare({ kind: 'chain', name: 'forward', base: baseAt('filter', 'forward', 1) })],
      /chain forward: EEXIST/,
    ],
    [
      'a hook for an existing chain without one',
      [declare({ kind: 'chain', name: 'regular', base: baseAt('filter', 'forward', 1) })],
      /chain regular: EEXIST/,
    ],
    [
      'deletion of a missing element',
      [{ action: 'delete', set: 'ports', elements: [{ key: Buffer.alloc(4) }] }],
      /delete element .* in set ports: ENOENT/,
    ],
  ] satisfies [string, NftOperation[], RegExp][]) {
    it(`refuses ${what}`, async () => {
      await assert.rejects(fake.tables.transact(steps), error);
      assert.equal(fake.sets.get('ports')?.size, 0);
    });
  }
});
