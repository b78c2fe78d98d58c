import assert from 'node:assert/strict';
import type { NftOperation } from '../../netlink/nftables/types.ts';
import { FakeTables } from '../../nft/fake-tables.ts';
import { countPacket, nftRuleBytes, type RuleParts, rulePartsFor } from '../../nft/rule.ts';

const SCRIPT = `table ip portwide {
  map services { typeof ip daddr : verdict; }
  set ports { typeof th dport; flags interval; }
  map clients { typeof ip saddr : ip daddr; flags dynamic,timeout; }
  counter dropped { packets 7 bytes 700; }
  chain forward { type filter hook forward priority 0; policy accept; }
}
`;

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
    await fake.nft.run(SCRIPT);
  });

  it('returns no table before the declaration, then the declared sets and chains', async () => {
    const { tables } = fake;
    assert.deepEqual(await tables.chains(), ['forward']);
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
