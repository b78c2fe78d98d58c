import assert from 'node:assert/strict';
import type { IpFamily } from '../../../api/objects.ts';
import { addressBytes } from '../../../netlink/core/address.ts';
import { u32 } from '../../../netlink/core/host-order.ts';
import { encodeComment } from '../../../netlink/nftables/comment.ts';
import { encodeRule, lookup, verdict } from '../../../netlink/nftables/rule.ts';
import {
  NFT_SET_FLAGS,
  type NftElement,
  type NftElementChange,
  type NftOperation,
  type NftVerdict,
} from '../../../netlink/nftables/tables.ts';
import { type Namespace, type NetnsHelper, sharedNetns } from '../namespace.ts';

const EEXIST = 17;
const EINVAL = 22;
const ENOENT = 2;

const families: Record<IpFamily, { nft: string; vip: string; pod: string }> = {
  IPv4: { nft: 'ip', vip: '10.96.0.1', pod: '10.128.0.1' },
  IPv6: { nft: 'ip6', vip: 'fd00:96::1', pod: 'fd00:128::1' },
};
const { vip, pod } = families.IPv4;

/** A table with the kinds of maps that a service proxy uses. */
function serviceTable(family: IpFamily): string {
  const { nft } = families[family];
  const service = `${nft} daddr . meta l4proto . th dport`;
  return `table ${nft} pw {
    map services { typeof ${service} : verdict; }
    map endpoints { typeof ${service} . numgen random mod 65536 : ${nft} daddr . th dport; }
    map ranges { typeof ${service} : verdict; flags interval; }
    set numbers { type mark; }
    map ordered { typeof @nh,0,64 : ${nft} daddr; flags interval; }
    chain pick-2 {
      dnat ${nft} to ${service} . numgen random mod 2 map @endpoints;
    }
    chain output {
      type nat hook output priority -100; policy accept;
      ${service} vmap @services;
    }
  }`;
}

const TCP = 6;
const port = (number: number) => Buffer.from([number >> 8, number & 255, 0, 0]);
const serviceKey = (address: string, number: number) =>
  Buffer.concat([addressBytes(address), Buffer.from([TCP, 0, 0, 0]), port(number)]);
const endpointKey = (address: string, number: number, index: number) =>
  Buffer.concat([serviceKey(address, number), u32(index)]);
const endpoint = (address: string, number: number) =>
  Buffer.concat([addressBytes(address), port(number)]);
const range = (first: number, last: number, data: NftVerdict): NftElement => ({
  key: serviceKey(vip, first),
  keyEnd: serviceKey(vip, last),
  data,
});
const service = (number: number, data: NftVerdict = { kind: 'accept' }): NftElement => ({
  key: serviceKey(vip, number),
  data,
});
const add = (set: string, ...elements: NftElement[]): NftElementChange => ({
  action: 'add',
  set,
  elements,
});
const remove = (set: string, ...elements: NftElement[]): NftElementChange => ({
  action: 'delete',
  set,
  elements,
});

describe('tables: an nf_tables table', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;

  const netns = sharedNetns(async ({ helper: { call } }) => {
    await call('closeNftWatch');
    await call('hold', 'flush ruleset', 'nft', '-f', '-');
  });
  beforeEach(async () => {
    ({ namespace, helper } = await netns());
  });

  const load = (text: string) => helper.call('hold', text, 'nft', '-f', '-');
  const change = (...changes: NftElementChange[]) => helper.call('nftChange', changes);
  const elements = async (set: string, family: IpFamily = 'IPv4') =>
    sorted(await helper.call('nftElements', set, family));
  /** The elements of a set in the output of `nft`, in its order. */
  async function printed(set: string, family: IpFamily = 'IPv4'): Promise<string[]> {
    const text = await namespace.run('nft', 'list', 'map', families[family].nft, 'pw', set);
    const list = /elements = \{([^}]*)\}/.exec(text)?.[1] ?? '';
    return list.split(',').map((element) => element.trim());
  }

  for (const family of ['IPv4', 'IPv6'] as const) {
    describe(`in ${family}`, () => {
      const { nft, vip, pod } = families[family];

      beforeEach(() => load(serviceTable(family)));

      it('adds and deletes elements as nft lists them', async () => {
        const key = serviceKey(vip, 80);
        const services: NftElement[] = [
          { key, data: { kind: 'goto', chain: 'pick-2' } },
          { key: serviceKey(vip, 81), data: { kind: 'jump', chain: 'pick-2' } },
          { key: serviceKey(vip, 82), data: { kind: 'accept' } },
          { key: serviceKey(vip, 83), data: { kind: 'drop' } },
          { key: serviceKey(vip, 84), data: { kind: 'return' } },
        ];
        const endpoints: NftElement[] = [
          { key: endpointKey(vip, 80, 0), data: endpoint(pod, 8080) },
          { key: endpointKey(vip, 80, 65535), data: endpoint(pod, 8081) },
        ];
        const ranges: NftElement[] = [
          {
            key: serviceKey(vip, 5000),
            keyEnd: serviceKey(vip, 5999),
            data: { kind: 'goto', chain: 'pick-2' },
          },
          { key: serviceKey(vip, 70), keyEnd: serviceKey(vip, 70), data: { kind: 'drop' } },
        ];
        const changes = [
          add('services', ...services),
          add('endpoints', ...endpoints),
          add('ranges', ...ranges),
        ];
        assert.equal(await helper.call('nftChange', changes, family), undefined);

        assert.deepEqual((await printed('services', family)).sort(), [
          `${vip} . tcp . 80 : goto pick-2`,
          `${vip} . tcp . 81 : jump pick-2`,
          `${vip} . tcp . 82 : accept`,
          `${vip} . tcp . 83 : drop`,
          `${vip} . tcp . 84 : return`,
        ]);
        assert.deepEqual((await printed('endpoints', family)).sort(), [
          `${vip} . tcp . 80 . 0 : ${pod} . 8080`,
          `${vip} . tcp . 80 . 65535 : ${pod} . 8081`,
        ]);
        assert.deepEqual((await printed('ranges', family)).sort(), [
          `${vip} . tcp . 5000-5999 : goto pick-2`,
          `${vip} . tcp . 70 : drop`,
        ]);
        assert.deepEqual(await elements('services', family), sorted(services));
        assert.deepEqual(await elements('endpoints', family), sorted(endpoints));
        assert.deepEqual(await elements('ranges', family), sorted(ranges));

        const text = await namespace.run('nft', 'list', 'ruleset');
        await load('flush ruleset');
        await load(text);
        assert.equal(await namespace.run('nft', 'list', 'ruleset'), text);
        assert.deepEqual(await elements('endpoints', family), sorted(endpoints));

        const all = [
          remove('services', ...services),
          remove('endpoints', ...endpoints),
          remove('ranges', ...ranges),
        ];
        assert.equal(await helper.call('nftChange', all, family), undefined);
        for (const set of ['services', 'endpoints', 'ranges']) {
          assert.deepEqual(await elements(set, family), []);
        }
      });

      it('lists chains and sets; undefined without a table', async () => {
        // Same name, other family.
        await load('table inet pw { chain other {}; set others { type mark; }; }');
        await load(`table ${nft} pw2 { chain other {}; set others { type mark; }; }`);
        assert.deepEqual(await helper.call('nftChains', family), ['pick-2', 'output']);
        const { map, interval, concatenation } = NFT_SET_FLAGS;
        assert.deepEqual((await helper.call('nftSets', family))?.map(Object.values), [
          ['services', map],
          ['endpoints', map],
          ['ranges', map | interval | concatenation],
          ['numbers', 0],
          ['ordered', map | interval],
        ]);
        const other = family === 'IPv4' ? 'IPv6' : 'IPv4';
        assert.equal(await helper.call('nftChains', other), undefined);
        assert.equal(await helper.call('nftSets', other), undefined);
      });
    });
  }

  it('lists and deletes tables of all families', async () => {
    assert.deepEqual(await helper.call('listTables'), []);
    await load('table ip a { set s { type mark; elements = { 1 }; }; }; table inet a; table ip6 b');
    assert.deepEqual(await helper.call('listTables'), [
      { family: 2, name: 'a' },
      { family: 1, name: 'a' },
      { family: 10, name: 'b' },
    ]);
    await helper.call('deleteTable', { family: 2, name: 'a' });
    await helper.call('deleteTable', { family: 2, name: 'a' });
    await helper.call('deleteTable', { family: 2, name: 'b' });
    assert.deepEqual(await helper.call('listTables'), [
      { family: 1, name: 'a' },
      { family: 10, name: 'b' },
    ]);
  });

  describe('when a transaction changes elements', () => {
    beforeEach(() => load(serviceTable('IPv4')));

    it('applies changes in order, so that an element can be replaced', async () => {
      const old = service(80);
      const drop = service(80, { kind: 'drop' });
      assert.equal(await change(add('services', old)), undefined);
      assert.equal(await change(remove('services', old), add('services', drop)), undefined);
      assert.deepEqual(await elements('services'), [drop]);
      const back = [remove('services', drop), add('services', old)];
      assert.equal(await change(...back, remove('services', old)), undefined);
      assert.deepEqual(await elements('services'), []);
      assert.equal(await change(add('services', old), remove('services', old)), undefined);
      assert.deepEqual(await elements('services'), []);
    });

    it('keeps intervals of numbers, as nft lists them', async () => {
      const part = (first: number, last: number, data?: string): NftElement => ({
        key: endpoint(vip, first),
        keyEnd: endpoint(vip, last),
        ...(data === undefined ? {} : { data: addressBytes(data) }),
      });
      const ordered = (change: NftElementChange) => ({ ...change, isOrdered: true });
      const parts = [part(100, 199, pod), part(200, 200, vip), part(65_000, 65_535, pod)];
      assert.equal(await change(ordered(add('ordered', ...parts))), undefined);
      assert.deepEqual(await elements('ordered'), sorted(parts));
      const number = (port: number) => `0xa600001${port.toString(16).padStart(4, '0')}0000`;
      assert.deepEqual(await printed('ordered'), [
        `${number(100)}-${number(199)} : ${pod}`,
        `${number(200)} : ${vip}`,
        `${number(65_000)}-${number(65_535)} : ${pod}`,
      ]);
      const replaced = [
        ordered(remove('ordered', part(100, 199))),
        ordered(add('ordered', part(100, 149, vip))),
      ];
      assert.equal(await change(...replaced), undefined);
      assert.deepEqual(await elements('ordered'), sorted([part(100, 149, vip), ...parts.slice(1)]));
      const refused = await change(
        ordered(add('ordered', part(300, 310, pod), part(140, 160, pod))),
      );
      assert.equal(refused?.errno, EEXIST);
      assert.equal(refused?.set, 'ordered');
    });

    it('reads and deletes halves of intervals of numbers', async () => {
      const ordered = (change: NftElementChange) => ({ ...change, isOrdered: true });
      const start: NftElement = {
        key: endpoint(vip, 100),
        data: addressBytes(pod),
        bound: 'start',
      };
      const whole: NftElement = {
        key: endpoint(vip, 10),
        keyEnd: endpoint(vip, 20),
        data: addressBytes(pod),
      };
      const script = (ports: string) => `add element ip pw ordered { ${ports} : ${pod} }`;
      await load(script('0x0a60000100010000-0x0a600001ffff0000'));
      const bounds = (await elements('ordered')).map(({ bound }) => bound);
      assert.deepEqual(bounds, [undefined, 'end'], 'nft adds an end at 0');
      await change(ordered(remove('ordered', ...(await elements('ordered')))));
      assert.deepEqual(await elements('ordered'), []);
      assert.equal(await change(ordered(add('ordered', whole, start))), undefined);
      assert.deepEqual(await elements('ordered'), sorted([whole, start]));
      assert.equal(await change(ordered(remove('ordered', start))), undefined);
      assert.deepEqual(await elements('ordered'), [whole]);
    });

    it('reads many intervals of numbers in several turns of the event loop', async () => {
      const many = Array.from({ length: 2000 }, (_, at): NftElement => {
        const keys = { key: endpoint(vip, 2 * at), keyEnd: endpoint(vip, 2 * at + (at % 2)) };
        return { ...keys, data: addressBytes(pod) };
      });
      await change({ ...add('ordered', ...many), isOrdered: true });
      assert.deepEqual(await elements('ordered'), sorted(many));
      assert.ok((await helper.call('nftVisitTurns', 'ordered')) > 1);
    });

    it('replaces intervals', async () => {
      const whole = range(1000, 1999, { kind: 'drop' });
      const parts = [range(1000, 1499, { kind: 'accept' }), range(1500, 2500, { kind: 'drop' })];
      assert.equal(await change(add('ranges', whole)), undefined);
      assert.equal(await change(remove('ranges', whole), add('ranges', ...parts)), undefined);
      assert.deepEqual(await elements('ranges'), sorted(parts));
      assert.equal(await change(remove('ranges', ...parts), add('ranges', whole)), undefined);
      assert.deepEqual(await elements('ranges'), [whole]);
      const accept = range(1000, 1999, { kind: 'accept' });
      assert.equal(await change(remove('ranges', whole), add('ranges', accept)), undefined);
      assert.deepEqual(await printed('ranges'), ['10.96.0.1 . tcp . 1000-1999 : accept']);
    });

    it('accepts an existing element with the same data only', async () => {
      assert.equal(await change(add('services', service(80), service(80))), undefined);
      assert.equal(await change(add('services', service(80))), undefined);
      const other = service(80, { kind: 'drop' });
      assert.equal((await change(add('services', other)))?.errno, EEXIST);
      assert.deepEqual(await elements('services'), [service(80)]);
    });

    it('applies nothing and names the element when one is refused', async () => {
      await change(add('services', service(1)), add('ranges', range(10, 20, { kind: 'drop' })));
      const bad = service(9).key;
      const data = endpoint(pod, 80);
      const wrong: readonly [NftElementChange, errno: number, element?: Buffer][] = [
        [remove('services', service(8)), ENOENT, service(8).key],
        [remove('services', { key: bad.subarray(4) }), EINVAL, bad.subarray(4)],
        [add('nope', service(9)), ENOENT],
        [remove('nope', service(9)), ENOENT],
        [add('services', { key: bad }), EINVAL, bad],
        [add('services', { key: bad, data }), EINVAL, bad],
        [add('services', service(9, { kind: 'goto', chain: 'nope' })), ENOENT, bad],
        [add('endpoints', { key: bad, data }), EINVAL, bad],
        [add('numbers', { key: u32(1), data }), EINVAL, u32(1)],
        [add('ranges', range(15, 25, { kind: 'drop' })), EEXIST, serviceKey(vip, 15)],
      ];
      for (const [refused, errno, element] of wrong) {
        const refusal = await change(
          remove('services', service(1)),
          add('services', service(2)),
          add('ranges', range(30, 40, { kind: 'drop' })),
          refused,
          add('services', service(3)),
        );
        const { set, action } = refused;
        const key = element?.toString('hex');
        const what = key === undefined ? 'elements' : `element ${key}`;
        assert.deepEqual(
          { ...refusal, message: refusal?.message.replace(/: E[A-Z]+$/, '') },
          {
            message: `${action} ${what} in set ${set}`,
            set,
            action,
            key,
            errno,
          },
        );
        assert.deepEqual(await elements('services'), [service(1)]);
        assert.deepEqual(await elements('ranges'), [range(10, 20, { kind: 'drop' })]);
      }
    });

    it('names the first refused element in any message and change', async () => {
      const many = Array.from({ length: 20_000 }, (_, index) => ({ key: u32(index) }));
      assert.equal(await change(add('numbers', ...many)), undefined);
      const missing = { key: u32(77_777) };
      for (const position of [0, 7_000, 12_345, 20_000]) {
        const deleted = many.toSpliced(position, 0, missing);
        const refusal = await change(
          remove('numbers', ...deleted.slice(0, 6_000)),
          remove('numbers', ...deleted.slice(6_000)),
          remove('numbers', { key: u32(88_888) }),
        );
        assert.equal(refusal?.key, missing.key.toString('hex'));
      }
      assert.equal((await elements('numbers')).length, 20_000);
    });

    it('throws ENOENT without a table', async () => {
      await load('delete table ip pw');
      const refusal = await change(add('services', service(80)));
      assert.equal(refusal?.message, 'add elements in set services: ENOENT');
    });

    it('sends nothing without changes', async () => {
      await load('delete table ip pw');
      assert.equal(await change(), undefined);
      assert.equal(await change(add('services')), undefined);
    });

    it('sends nothing when a name or value is invalid', async () => {
      const long = { key: Buffer.alloc(65) };
      for (const impossible of [
        add('services', long),
        add('', service(81)),
        add('a\0b', service(81)),
        add('services', service(81, { kind: 'goto', chain: 'x'.repeat(256) })),
      ]) {
        const changes = change(add('services', service(80)), impossible);
        await assert.rejects(changes, { name: 'RangeError' });
      }
      assert.deepEqual(await elements('services'), []);
    });

    it('applies concurrent transactions in the order of calls', async () => {
      const keys = Array.from({ length: 30_000 }, (_, index) => ({ key: u32(index) }));
      await helper.call('nftChangesAtOnce', [
        [add('numbers', ...keys)],
        [remove('numbers', ...keys.slice(1))],
        [add('numbers', { key: u32(5) })],
      ]);
      assert.deepEqual(await elements('numbers'), sorted([{ key: u32(0) }, { key: u32(5) }]));
    });

    it('loads 120,000 elements and yields to the event loop', async () => {
      const { turns, ...counts } = await helper.call('nftLoad', 'numbers', 120_000);
      assert.deepEqual(counts, { found: 120_000, distinct: 120_000 });
      assert(turns.encoding > 1, `${turns.encoding} turns while encoded`);
      assert(turns.dump > 20, `${turns.dump} turns while dumped`);
    });
  });

  describe('when a set is dumped', () => {
    /** Elements that need more than one datagram, in a hash table that is not resized. */
    const COUNT = 5000;
    const other = 'add table inet other ; delete table inet other';

    beforeEach(async () => {
      await load(serviceTable('IPv4'));
      await load(`add set ip pw many { type mark; size ${COUNT}; }`);
      const keys = Array.from({ length: COUNT }, (_, index) => ({ key: u32(index) }));
      assert.equal(await change(add('many', ...keys)), undefined);
    });

    it('repeats the dump once when nf_tables changes', async () => {
      for (const times of [1, 100]) {
        const { attempts, keys } = await helper.call('nftChangedDump', 'many', times, other);
        assert.equal(attempts, 2);
        assert.equal(keys.length, COUNT);
        assert.equal(new Set(keys).size, COUNT);
      }
    });

    it('does not repeat the dump of a dynamic set', async () => {
      await load(`add set ip pw learned { type mark; size ${COUNT}; flags dynamic, timeout; }`);
      const keys = Array.from({ length: COUNT }, (_, index) => ({ key: u32(index) }));
      assert.equal(await change(add('learned', ...keys)), undefined);
      const dump = await helper.call('nftChangedDump', 'learned', 1, other);
      assert.equal(dump.attempts, 1);
      assert(dump.keys.length > COUNT / 2, `${dump.keys.length} keys`);
    });

    it('is not interrupted by changes of this process', async () => {
      const changes = [add('services', service(80))];
      const dump = await helper.call('nftDumpDuringChange', 'many', changes, false);
      assert.deepEqual(dump, { found: COUNT, restarts: 0, first: 'dump' });
      assert.deepEqual(await elements('services'), [service(80)]);
    });

    it('lets changes pass while it reads beside them', async () => {
      const size = 120_000;
      await load(`add set ip pw long { type mark; size ${size}; }`);
      const all = { action: 'add', set: 'long', elements: [] as { key: Buffer }[] } as const;
      for (let index = 0; index < size; index++) all.elements.push({ key: u32(index) });
      assert.equal(await change(all), undefined);
      const changes = [add('services', service(80))];
      const dump = await helper.call('nftDumpDuringChange', 'long', changes, true);
      assert.deepEqual(dump, { found: size, restarts: 1, first: 'change' });
    });

    it('runs dumps and transactions after an earlier transaction has completed', async () => {
      const size = 100_000;
      await load(`add set ip pw more { type mark; size ${size}; }`);
      const [first, ...others] = await helper.call('nftCompletionOrder', 'more', size);
      assert.equal(first, 'change');
      assert.deepEqual(others.sort(), ['chains', 'rules', 'sets']);
    });

    it('throws ENOENT if the set or table does not exist', async () => {
      const message = 'dump of nf_tables set pw nope: ENOENT';
      await assert.rejects(helper.call('nftElements', 'nope'), { message, code: 'ENOENT' });
      await load('delete table ip pw');
      await assert.rejects(helper.call('nftElements', 'nope'), { message, code: 'ENOENT' });
    });

    it('rethrows an error of the visitor, and can be used again', async () => {
      assert.equal(await helper.call('nftThrowingVisit', 'many'), 6);
    });

    it('omits the catch-all element and unsupported verdicts', async () => {
      await load(`table ip pw {
        map verdicts { type mark : verdict; elements = { * : accept, 1 : continue, 2 : drop } }
      }`);
      assert.deepEqual(await elements('verdicts'), [
        { key: u32(1) },
        { key: u32(2), data: { kind: 'drop' } },
      ]);
    });
  });

  it('dispatches connections to endpoints by its elements', async () => {
    await load(serviceTable('IPv4'));
    const pods = ['10.128.0.1', '10.128.0.2'];
    for (const address of pods) {
      await namespace.run('ip', 'address', 'add', `${address}/32`, 'dev', 'lo');
    }
    await namespace.run('ip', 'route', 'add', '10.96.0.0/16', 'dev', 'lo');
    const refusal = await change(
      add('services', service(80, { kind: 'goto', chain: 'pick-2' })),
      add(
        'endpoints',
        ...pods.map((address, index) => ({
          key: endpointKey(vip, 80, index),
          data: endpoint(address, 8080),
        })),
      ),
    );
    assert.equal(refusal, undefined);
    const answers = await helper.call('answeringAddresses', vip, 80, 8080, 40);
    assert.deepEqual([...new Set(answers)].sort(), pods);
  });

  it('dumps and deletes elements that packets added', async () => {
    await load(`table ip pw {
      map affinity { typeof ip daddr . th dport : ip daddr; size 100; flags dynamic,timeout; timeout 1h; }
      chain output {
        type filter hook output priority 0;
        udp dport 1000-1999 update @affinity { ip daddr . th dport timeout 300s : 10.128.0.7 };
      }
    }`);
    for (const number of [1001, 1002, 1003]) {
      await namespace.run('bash', '-c', `echo > /dev/udp/127.0.0.1/${number}`);
    }
    const data = addressBytes('10.128.0.7');
    const learned = [1001, 1002, 1003].map((number) => {
      return { key: Buffer.concat([addressBytes('127.0.0.1'), port(number)]), data };
    });
    const dumped = await elements('affinity');
    assert.deepEqual(dumped.map(untimed), sorted(learned));
    for (const { timeoutMs = 0 } of dumped) assert.ok(timeoutMs > 200_000 && timeoutMs <= 300_000);
    const sets = await helper.call('nftSets', 'IPv4');
    const { map, timeout, dynamic, concatenation } = NFT_SET_FLAGS;
    assert.equal((sets?.[0]?.flags ?? 0) & ~concatenation, map | timeout | dynamic);

    const [first, ...others] = learned;
    assert(first !== undefined);
    assert.equal(await change(remove('affinity', ...others)), undefined);
    assert.deepEqual((await elements('affinity')).map(untimed), [first]);
    assert.equal((await change(remove('affinity', ...learned)))?.errno, ENOENT);
    assert.deepEqual((await elements('affinity')).map(untimed), [first]);
  });

  it('stores timeout and comment of an element', async () => {
    await load('table ip pw { set timed { type mark; flags timeout; }; }');
    const key = u32(5);
    const userdata = encodeComment('www.example.com');
    const element = { key, timeoutMs: 5_000_000_000, userdata };
    assert.equal(await change(add('timed', element)), undefined);
    const [found] = await elements('timed');
    assert.ok(found !== undefined);
    assert.deepEqual(untimed(found), { key, userdata });
    const { timeoutMs = 0 } = found;
    assert.ok(timeoutMs > 4_990_000_000 && timeoutMs <= 5_000_000_000, `${timeoutMs}`);
    const text = await namespace.run('nft', 'list', 'set', 'ip', 'pw', 'timed');
    assert.match(text, /0x00000005 timeout 57d20h53m20s expires \S+ comment "www.example.com"/);
  });

  it('changes elements, chains and rules in one transaction, or nothing', async () => {
    await load(`table ip pw {
      set a { type mark; }
      map m { type mark : verdict; }
      chain older { }
      chain old { goto older; }
      chain flushed { accept; }
    }`);
    assert.equal(await change(add('a', { key: u32(1) }, { key: u32(2) })), undefined);
    const drop = { expressions: encodeRule([verdict({ kind: 'drop' })]) };
    const jump = encodeRule([verdict({ kind: 'goto', chain: 'second' })]);
    const operations: NftOperation[] = [
      remove('a', { key: u32(1) }),
      add('a', { key: u32(3) }),
      { action: 'fill', chain: { name: 'flushed', rules: [] } },
      add('m', { key: u32(3), data: { kind: 'jump', chain: 'first' } }),
      {
        action: 'fill',
        chain: { name: 'first', rules: [{ expressions: jump, userdata: encodeComment('on') }] },
      },
      { action: 'fill', chain: { name: 'second', rules: [drop, drop] } },
      { action: 'remove', chains: ['old', 'older'] },
    ];
    const before = await namespace.run('nft', 'list', 'table', 'ip', 'pw');
    const bad = { expressions: encodeRule([lookup('nowhere', 0)]) };
    const more: NftOperation = { action: 'fill', chain: { name: 'first', rules: [drop, bad] } };
    const refusal = await helper.call('nftTransact', [...operations, more]);
    assert.deepEqual([refusal?.chain, refusal?.rule, refusal?.errno], ['first', 1, ENOENT]);
    assert.equal(refusal?.message, 'rule 1 of chain first, expression lookup: ENOENT');
    assert.equal(await namespace.run('nft', 'list', 'table', 'ip', 'pw'), before);

    assert.equal(await helper.call('nftTransact', operations), undefined);
    assert.deepEqual(await elements('a'), sorted([{ key: u32(2) }, { key: u32(3) }]));
    assert.deepEqual((await helper.call('nftChains', 'IPv4'))?.sort(), [
      'first',
      'flushed',
      'second',
    ]);
    const text = await namespace.run('nft', 'list', 'table', 'ip', 'pw');
    assert.match(text, /chain flushed \{\s*\}/);
    assert.match(text, /chain first \{\s*goto second comment "on"\s*\}/);
    assert.match(text, /chain second \{\s*drop\s*drop\s*\}/);

    const missing = await helper.call('nftTransact', [{ action: 'remove', chains: ['missing'] }]);
    assert.deepEqual(
      [missing?.chain, missing?.rule, missing?.errno],
      ['missing', undefined, ENOENT],
    );
    const nothing: NftOperation[] = [add('a'), { action: 'remove', chains: [] }];
    assert.equal(await helper.call('nftTransact', nothing), undefined);
  });

  it('deletes a table, also in the transaction of another table', async () => {
    await load(
      'table ip pw { chain c { }; }\ntable ip old { set s { type mark; }; }\ntable ip6 old { }',
    );
    const replaceTable: NftOperation[] = [
      { action: 'fill', chain: { name: 'c', rules: [] } },
      { action: 'delete-table', table: 'old' },
    ];
    assert.equal(await helper.call('nftTransact', replaceTable), undefined);
    const tables = async () => (await namespace.run('nft', 'list', 'tables')).split('\n').sort();
    assert.deepEqual(await tables(), ['table ip pw', 'table ip6 old']);
    assert.equal((await helper.call('nftTransact', replaceTable))?.errno, ENOENT);
    await helper.call('nftDelete');
    await helper.call('nftDelete');
    assert.deepEqual(await tables(), ['table ip6 old']);
  });

  it('reads named counters of a table', async () => {
    assert.equal(await helper.call('nftCounters'), undefined);
    await load(`table ip other {
      counter mine { packets 9 bytes 9; }
    }
    table ip pw {
      counter some { packets 5000000000 bytes 1; }
      counter none { }
      quota q { over 5 mbytes; }
    }`);
    assert.deepEqual(
      (await helper.call('nftCounters'))?.toSorted((a, b) => (a.name < b.name ? -1 : 1)),
      [
        { name: 'none', packets: 0n, bytes: 0n },
        { name: 'some', packets: 5_000_000_000n, bytes: 1n },
      ],
    );
  });

  describe('when watched', () => {
    beforeEach(() => load(serviceTable('IPv4')));

    async function waitForTable(table: string) {
      await helper.waitForEvent(
        `a change of ${table}`,
        (event) => event.type === 'nft' && event.change.table === table,
      );
    }
    const notifications = () =>
      helper.events.flatMap((event) => (event.type === 'nft' ? [event.change] : []));

    it('reports changes of other programs', async () => {
      await helper.call('nftWatch', 'filtered', []);
      await load('delete chain ip pw output ; add element ip pw numbers { 1 }');
      await load(
        'table inet other { counter c {}; chain a { accept; }; }; delete table inet other',
      );
      await load('delete element ip pw numbers { 1 }');
      await load('table ip last');
      await waitForTable('last');
      const ip = 2;
      const inet = 1;
      assert.deepEqual(
        notifications()
          .slice(0, 3)
          .map(({ name }) => name),
        ['output', 'output', 'numbers'],
      );
      const seen = notifications().map(({ family, table, kind, isNew }) => [
        family,
        table,
        kind,
        isNew,
      ]);
      const generation = [0, undefined, 'generation', true];
      assert.deepEqual(seen.slice(0, 4), [
        [ip, 'pw', 'rule', false],
        [ip, 'pw', 'chain', false],
        [ip, 'pw', 'element', true],
        generation,
      ]);
      assert.deepEqual(
        seen.filter(([family]) => family === inet),
        [
          [inet, 'other', 'table', true],
          [inet, 'other', 'chain', true],
          [inet, 'other', 'object', true],
          [inet, 'other', 'rule', true],
          [inet, 'other', 'rule', false],
          [inet, 'other', 'object', false],
          [inet, 'other', 'chain', false],
          [inet, 'other', 'table', false],
        ],
      );
      assert.deepEqual(seen.filter(([, table]) => table === 'pw').at(-1), [
        ip,
        'pw',
        'element',
        false,
      ]);
    });

    for (const ignored of ['filtered', 'own'] as const) {
      it(`reports no changes by ${ignored} port IDs`, async () => {
        const changes = [add('services', service(80))];
        const port = await helper.call('nftWatch', ignored, changes);
        await load('table ip last');
        await waitForTable('last');
        assert.deepEqual(
          notifications().filter(({ portId }) => portId === port),
          [],
        );
        assert.equal(notifications()[0]?.table, 'last');
      });
    }

    it('reports the port ID that caused a change', async () => {
      const changes = [add('services', service(80), service(81))];
      const port = await helper.call('nftWatch', 'none', changes);
      await load('table ip last');
      await waitForTable('last');
      const own = notifications().filter(({ portId }) => portId === port);
      assert.deepEqual(
        own.map(({ kind }) => kind),
        ['element', 'element', 'generation'],
      );
    });

    it('reports nothing after close', async () => {
      await helper.call('nftWatch', 'none', []);
      await load('table ip one');
      await waitForTable('one');
      await helper.call('closeNftWatch');
      await load('table ip two');
      await helper.call('listTables');
      assert.equal(
        notifications().some(({ table }) => table === 'two'),
        false,
      );
    });
  });
});

/** Without the remaining time, which differs in each dump. */
function untimed({ timeoutMs: _, ...rest }: NftElement): NftElement {
  return rest;
}

function sorted(elements: readonly NftElement[]): NftElement[] {
  return [...elements].sort((a, b) => Buffer.compare(a.key, b.key));
}
