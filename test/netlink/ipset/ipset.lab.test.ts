import assert from 'node:assert/strict';
import type { IpFamily, Protocol } from '../../../api/objects.ts';
import type {
  IpsetChange,
  IpsetEntry,
  IpsetHeader,
  IpsetSpec,
  IpsetType,
} from '../../../netlink/ipset/ipset.ts';
import { entryText, savedEntries } from '../ipset-save.ts';
import { type Namespace, type NetnsHelper, sharedNetns } from '../namespace.ts';

const spec: IpsetSpec = {
  name: 'pw',
  type: 'hash:ip',
  family: 'IPv4',
  skbinfo: true,
  maxElements: 100_000,
};
const addresses: Record<IpFamily, { ip: string; other: string; net: string; host: string }> = {
  IPv4: { ip: '10.0.0.1', other: '10.1.255.9', net: '10.2.0.0/15', host: '192.0.2.1/32' },
  IPv6: { ip: 'fd00::1', other: 'fd00:1::', net: '2001:db8::/33', host: '2001:db8::1/128' },
};
const protocols: readonly Protocol[] = ['TCP', 'UDP', 'SCTP'];

/** The two other types are tested in test/uml/, because not every kernel has them. */
const types: readonly { type: IpsetType; entries: (family: IpFamily) => IpsetEntry[] }[] = [
  {
    type: 'hash:ip',
    entries: (family) => {
      const { ip, other } = addresses[family];
      return [{ ip }, { ip: other }];
    },
  },
  {
    type: 'hash:ip,port',
    entries: (family) =>
      protocols.flatMap((protocol) =>
        [0, 1, 65535].map((port) => ({ ip: addresses[family].ip, protocol, port })),
      ),
  },
  {
    type: 'hash:ip,port,ip',
    entries: (family) => {
      const { ip, other } = addresses[family];
      return protocols.map((protocol) => ({ ip, protocol, port: 80, ip2: other }));
    },
  },
  {
    type: 'hash:ip,port,net',
    entries: (family) => {
      const { ip, net, host } = addresses[family];
      return protocols.flatMap((protocol) =>
        [net, host].map((ip2) => ({ ip, protocol, port: 80, ip2 })),
      );
    },
  },
  { type: 'bitmap:port', entries: () => [{ port: 0 }, { port: 80 }, { port: 65535 }] },
];

describe('ipset: ipsets of the kernel', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;

  const netns = sharedNetns(({ helper: { call } }) =>
    call('hold', 'flush\ndestroy\n', 'ipset', 'restore'),
  );
  beforeEach(async () => {
    ({ namespace, helper } = await netns());
  });

  const ipset = (...args: string[]) => namespace.run('ipset', ...args);
  const saved = async (set = spec.name) => savedEntries(await ipset('save', set), set);
  const listed = async (set = spec.name) => {
    const entries = await helper.call('setEntries', set);
    return entries.map(entryText).sort();
  };
  const change = (op: IpsetChange['op'], ...entries: IpsetEntry[]) =>
    helper.call(
      'changeSets',
      entries.map((entry) => ({ op, set: spec.name, entry })),
    );
  const create = (more: Partial<IpsetSpec> = {}) => helper.call('createSet', { ...spec, ...more });

  for (const { type, entries } of types) {
    for (const family of type === 'bitmap:port'
      ? (['IPv4'] as const)
      : (['IPv4', 'IPv6'] as const)) {
      for (const skbinfo of [true, false]) {
        it(`${type} of ${family}${skbinfo ? ' with marks' : ''}: reads and writes entries`, async () => {
          const expected = entries(family).map((entry, index) =>
            skbinfo ? { ...entry, skbMark: index * 0x0fff_ffff } : entry,
          );
          const texts = expected.map(entryText).sort();
          await create({ type, family, skbinfo });
          assert.deepEqual(await change('add', ...expected), []);
          assert.deepEqual(await saved(), texts);
          assert.deepEqual(sorted(await helper.call('setEntries', 'pw')), sorted(expected));

          const [first, ...others] = expected;
          assert(first !== undefined);
          assert.deepEqual(await change('delete', ...others), []);
          assert.deepEqual(await saved(), [entryText(first)]);

          const lines = ['flush pw\n', ...expected.map((entry) => `add pw ${entryText(entry)}\n`)];
          await helper.call('hold', lines.join(''), 'ipset', 'restore');
          assert.deepEqual(await listed(), texts);

          const headers = await helper.call('listSets');
          assert.deepEqual(
            headers.map(({ revision, ...header }) => header),
            [
              {
                name: 'pw',
                type,
                family: type === 'bitmap:port' ? undefined : family,
                skbinfo,
                comments: false,
                maxElements: type === 'bitmap:port' ? undefined : spec.maxElements,
                elements: expected.length,
                references: 0,
              },
            ] satisfies Omit<IpsetHeader, 'revision'>[],
          );
          const [, revision] = /^Revision: (\d+)$/m.exec(await ipset('list', '-t', 'pw')) ?? [];
          assert.equal(headers[0]?.revision, Number(revision));
        });
      }
    }
  }

  it('creates the same set as the ipset command', async () => {
    for (const { type } of types) {
      await create({ name: 'ours', type, maxElements: 4711 });
      const shape =
        type === 'bitmap:port' ? ['range', '0-65535'] : ['family', 'inet', 'maxelem', '4711'];
      // Fails if the set exists with other parameters.
      await ipset('create', 'ours', type, ...shape, 'skbinfo', '-exist');
      await ipset('create', 'theirs', type, ...shape, 'skbinfo');
      const [ours, theirs] = await helper.call('listSets');
      assert.deepEqual({ ...ours, name: 'theirs' }, theirs);
      await ipset('destroy');
    }
  });

  it('throws EEXIST for a set whose name exists', async () => {
    await create();
    const exists = { code: 'EEXIST', message: 'ipset create pw: EEXIST' };
    await assert.rejects(create(), exists);
  });

  it('adds and deletes port ranges of any length', async () => {
    await create({ type: 'hash:ip,port' });
    const range = { ip: '10.0.0.1', protocol: 'UDP', port: 20_000, portTo: 50_000 } as const;
    assert.deepEqual(await change('add', { ...range, skbMark: 7 }), []);
    const entries = await helper.call('setEntries', 'pw');
    const ports = entries.map(({ port = 0 }) => port).sort((a, b) => a - b);
    assert.deepEqual(
      ports,
      Array.from({ length: 30_001 }, (_, index) => 20_000 + index),
    );
    for (const { port, ...rest } of entries) {
      assert.deepEqual(rest, { ip: '10.0.0.1', protocol: 'UDP', skbMark: 7 });
    }
    assert.deepEqual(await change('delete', { ...range, port: 20_001 }), []);
    assert.deepEqual(await saved(), ['10.0.0.1,udp:20000 skbmark 0x7']);

    await create({ name: 'bits', type: 'bitmap:port', skbinfo: false });
    const all = { op: 'add', set: 'bits', entry: { port: 0, portTo: 65535 } } as const;
    assert.deepEqual(await helper.call('changeSets', [all]), []);
    assert.equal((await helper.call('setEntries', 'bits')).length, 65_536);
  });

  for (const type of ['hash:ip,port', 'bitmap:port'] as const) {
    it(`${type}: replaces the mark when an existing entry is added`, async () => {
      await create({ type });
      const entry =
        type === 'bitmap:port'
          ? { port: 80 }
          : ({ ip: '10.0.0.1', protocol: 'TCP', port: 80 } as const);
      const key = entryText(entry);
      assert.deepEqual(await change('add', { ...entry, skbMark: 5 }), []);
      assert.deepEqual(await change('add', { ...entry, skbMark: 0xffffffff }), []);
      assert.deepEqual(await saved(), [`${key} skbmark 0xffffffff`]);
      assert.deepEqual(await change('add', entry), []);
      assert.deepEqual(await saved(), [key]);
      assert.deepEqual(await change('delete', { ...entry, skbMark: 9 }), []);
      assert.deepEqual(await change('delete', entry), []);
      assert.deepEqual(await listed(), []);
    });
  }

  it('changes 20,000 entries in order and yields to the event loop', async () => {
    await create();
    const turns = await helper.call('turnsOfAdds', 'pw', 20_000);
    assert(turns >= 40, `${turns} turns`);
    const entries = await helper.call('setEntries', 'pw');
    assert.equal(new Set(entries.map(({ ip }) => ip)).size, 20_000);
    // The last change of an entry wins.
    const churn = Array.from({ length: 1500 }, (_, index): IpsetChange => {
      return { op: index % 2 === 0 ? 'add' : 'delete', set: 'pw', entry: { ip: '192.0.2.1' } };
    });
    assert.deepEqual(await helper.call('changeSets', churn), []);
    assert.equal((await helper.call('setEntries', 'pw')).length, 20_000);
  });

  it('returns the refused changes and applies the others', async () => {
    await create({ maxElements: 3, skbinfo: false });
    await create({ name: 'ports', type: 'hash:ip,port', skbinfo: false });
    const wrong: readonly [IpsetChange, string][] = [
      [{ op: 'add', set: 'nope', entry: { ip: '10.0.0.1' } }, 'ipset add nope: ENOENT'],
      [{ op: 'delete', set: 'nope', entry: { ip: '10.0.0.1' } }, 'ipset delete nope: ENOENT'],
      [{ op: 'add', set: 'pw', entry: { ip: 'fd00::1' } }, 'ipset add pw: IPSET_ERR_PROTOCOL'],
      [{ op: 'add', set: 'pw', entry: { port: 5 } }, 'ipset add pw: IPSET_ERR_PROTOCOL'],
      [
        { op: 'add', set: 'pw', entry: { ip: '10.0.0.1', skbMark: 1 } },
        'ipset add pw: IPSET_ERR_SKBINFO',
      ],
      [
        { op: 'add', set: 'ports', entry: { ip: '10.0.0.1', port: 5 } },
        'ipset add ports: IPSET_ERR_MISSING_PROTO',
      ],
      [
        {
          op: 'add',
          set: 'nope',
          entry: { ip: '10.0.0.1', protocol: 'TCP', port: 1, portTo: 65535 },
        },
        'ipset add nope: ENOENT',
      ],
    ];
    const right = (last: number): IpsetChange => {
      return { op: 'add', set: 'pw', entry: { ip: `10.0.0.${last}` } };
    };
    const full = right(4);
    const refused = await helper.call('changeSets', [
      right(1),
      ...wrong.map(([refusal]) => refusal),
      right(2),
      right(3),
      full,
      right(3),
      { op: 'delete', set: 'pw', entry: { ip: '10.0.0.9' } },
      { op: 'add', set: 'ports', entry: { ip: '10.0.0.1', protocol: 'TCP', port: 5 } },
    ]);
    assert.deepEqual(
      refused.map(({ change, error }) => [change, error]),
      [...wrong, [full, 'ipset add pw: IPSET_ERR_HASH_FULL']],
    );
    assert.deepEqual(await saved(), ['10.0.0.1', '10.0.0.2', '10.0.0.3']);
    assert.deepEqual(await saved('ports'), ['10.0.0.1,tcp:5']);
  });

  it('returns all of 5,000 refused changes', async () => {
    const entries = Array.from({ length: 5000 }, (_, index) => ({ ip: '10.0.0.1', port: index }));
    assert.equal((await change('add', ...entries)).length, 5000);
  });

  it('changes nothing when one entry is invalid', async () => {
    await create();
    const impossible = change('add', { ip: '10.0.0.1' }, { ip: '0.0.0.0/0' });
    await assert.rejects(impossible, {
      name: 'RangeError',
      message: 'invalid prefix length in 0.0.0.0/0',
    });
    assert.deepEqual(await saved(), []);
  });

  it('lists sets of unsupported types', async () => {
    await create({ skbinfo: false });
    await ipset('create', 'bits', 'bitmap:ip', 'range', '192.0.2.0/24', 'timeout', '60');
    await ipset('create', 'nets', 'hash:net', 'family', 'inet6', 'maxelem', '9', 'skbinfo');
    await ipset('create', 'union', 'list:set');
    await ipset('add', 'union', 'pw');
    assert.deepEqual(
      (await helper.call('listSets')).map(({ revision, ...header }) => header),
      [
        ['pw', 'hash:ip', 'IPv4', false, 100_000, 0, 1],
        ['bits', 'bitmap:ip', 'IPv4', false, undefined, 0, 0],
        ['nets', 'hash:net', 'IPv6', true, 9, 0, 0],
        ['union', 'list:set', undefined, false, undefined, 1, 0],
      ].map(([name, type, family, skbinfo, maxElements, elements, references]) => {
        return { name, type, family, skbinfo, comments: false, maxElements, elements, references };
      }),
    );
  });

  it('lists zero sets and 300 sets', async () => {
    assert.deepEqual(await helper.call('listSets'), []);
    const lines = Array.from({ length: 300 }, (_, index) => `create s${index} hash:ip\n`);
    await helper.call('hold', lines.join(''), 'ipset', 'restore');
    const names = (await helper.call('listSets')).map(({ name }) => name);
    assert.deepEqual(
      names,
      lines.map((_, index) => `s${index}`),
    );
  });

  it('reads entries that another program added', async () => {
    await create({ type: 'hash:ip,port' });
    await ipset('add', 'pw', '10.0.0.1,icmp:8/0', 'skbmark', '0x5/0xff');
    const entries = await helper.call('setEntries', 'pw');
    assert.deepEqual(entries, [{ ip: '10.0.0.1', protocol: 1, port: 0x0800 }]);
    assert.deepEqual(await change('delete', ...entries), []);
    assert.deepEqual(await saved(), []);
  });

  it('swaps and destroys sets', async () => {
    await create();
    await create({ name: 'spare' });
    await create({ name: 'ports', type: 'hash:ip,port' });
    await change('add', { ip: '10.0.0.1' });
    await helper.call('swapSets', 'pw', 'spare');
    assert.deepEqual(await saved('spare'), ['10.0.0.1']);
    await helper.call('destroySet', 'spare');

    const refusals = {
      'ipset destroy spare: ENOENT': () => helper.call('destroySet', 'spare'),
      'ipset list spare: ENOENT': () => helper.call('setEntries', 'spare'),
      'ipset swap spare pw: ENOENT': () => helper.call('swapSets', 'spare', 'pw'),
      'ipset swap pw spare: IPSET_ERR_EXIST_SETNAME2': () => helper.call('swapSets', 'pw', 'spare'),
      'ipset swap pw ports: IPSET_ERR_TYPE_MISMATCH': () => helper.call('swapSets', 'pw', 'ports'),
    };
    for (const [message, refusal] of Object.entries(refusals)) {
      await assert.rejects(refusal(), { name: 'NetlinkError', message });
    }
    await assert.rejects(helper.call('destroySet', ''), { name: 'RangeError' });
    assert.equal((await helper.call('listSets')).length, 2);
  });

  it('throws IPSET_ERR_BUSY for a set in use', async () => {
    await create();
    await ipset('create', 'union', 'list:set');
    await ipset('add', 'union', 'pw');
    await assert.rejects(helper.call('destroySet', 'pw'), { code: 'IPSET_ERR_BUSY' });
  });
});

/** The order of entries is arbitrary, so compare them sorted. */
function sorted(entries: readonly IpsetEntry[]): IpsetEntry[] {
  return [...entries].sort((a, b) => (entryText(a) < entryText(b) ? -1 : 1));
}
