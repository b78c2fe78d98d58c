import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { NftVerdict } from '../../netlink/nftables/tables.ts';
import { declarationText } from '../../nft/declaration.ts';
import { elementDataText, elementKeyText, hasSameData } from '../../nft/element.ts';
import { cidrBounds, hostCidr, portField, portKey } from '../../nft/keys.ts';
import { elementFromKeyText, elementId, type MapElement } from '../../nftables/element.ts';
import { overlappingElements } from '../../nftables/intervals.ts';
import { endpointData, endpointElements } from '../../nftables/keys.ts';
import {
  affinityMapDeclaration,
  allPortsAffinityMap,
  isDispatchMap,
  isReferenceCounted,
  MAP_NAMES,
  mapDeclaration,
  mapSpec,
} from '../../nftables/maps.ts';
import { rangeElement } from './elements.ts';

const hex = (...buffers: readonly Buffer[]) => buffers.map((bytes) => bytes.toString('hex'));

describe('element: keys in nf_tables', () => {
  it('pads each field to a multiple of four bytes', () => {
    assert.equal(portKey('TCP', 80).toString('hex'), '0600000000500000');
    assert.equal(portKey('UDP', 65_535).toString('hex'), '11000000ffff0000');
    assert.equal(portKey('SCTP', 0).toString('hex'), '8400000000000000');
    assert.equal(portField(30_080).toString('hex'), '75800000');
    const endpoint = { address: '10.244.0.1', port: 8080, isLocal: true };
    const numbered = endpointElements(portKey('TCP', 80), 2 ** 21, [endpoint, endpoint]);
    assert.deepEqual(
      numbered.map(({ key, data }) => [key.toString('hex'), data.toString('hex')]),
      ['00002000', '01002000'].map((index) => [`0600000000500000${index}`, '0af400011f900000']),
    );
    assert.deepEqual(
      hex(
        endpointData({ address: '10.244.0.1', port: 8080 }),
        endpointData({ address: '10.244.0.1', port: undefined }),
        endpointData({ address: 'fd00::1', port: 80 }),
      ),
      ['0af400011f900000', '0af40001', 'fd00000000000000000000000000000100500000'],
    );
  });

  it('encodes a CIDR as its first and last address', () => {
    assert.deepEqual(hex(...cidrBounds('10.1.2.0/23')), ['0a010200', '0a0103ff']);
    assert.deepEqual(hex(...cidrBounds('10.1.2.3/32')), ['0a010203', '0a010203']);
    assert.deepEqual(hex(...cidrBounds('fd00::/8')), [
      `fd${'00'.repeat(15)}`,
      `fd${'ff'.repeat(15)}`,
    ]);
    assert.deepEqual(['10.0.0.1', 'fd00::1'].map(hostCidr), ['10.0.0.1/32', 'fd00::1/128']);
  });
});

describe('element: identity and text', () => {
  const one: MapElement = {
    map: 'hairpin-connections',
    key: Buffer.from('0af400010af40001', 'hex'),
  };

  it('gives elements different ids by map, key and end of the range', () => {
    const wide = rangeElement('allowed-ranges', '203.0.113.1', { from: 1, to: 2 }, '10.0.0.0/8');
    const narrow = rangeElement('allowed-ranges', '203.0.113.1', { from: 1, to: 2 }, '10.0.0.0/16');
    const keys = [one, { ...one, map: 'cluster-ips' as const }, wide, narrow].map(elementId);
    assert.equal(new Set(keys).size, 4);
    assert.equal(elementKeyText({ ...one, keyEnd: Buffer.from(one.key) }), elementKeyText(one));
  });

  it('restores key and end from text for any bytes', () => {
    const elements: MapElement[] = [
      one,
      { map: 'service-ips', key: Buffer.from('2d2d2d2d', 'hex') },
      rangeElement('tracked-owners-1', '45.45.45.45', { from: 45, to: 11_565 }),
      rangeElement('tracked-owners-1', '45.45.45.45', { from: 11_565, to: 11_565 }),
      rangeElement('allowed-ranges', '10.0.0.45', { from: 1, to: 2 }, '45.0.0.0/8'),
      { map: 'udp-owners-1', key: Buffer.from('3e3e3e3e3e3e3e3e', 'hex'), bound: 'start' },
      { map: 'udp-owners-1', key: Buffer.from('3c3c3c3c3c3c3c3c', 'hex'), bound: 'end' },
    ];
    for (const element of elements) {
      const again = elementFromKeyText(element.map, elementKeyText(element), 'IPv4');
      assert.equal(again.key.toString('hex'), element.key.toString('hex'));
      assert.equal(again.bound, element.bound);
      const ends = [again.keyEnd, mapSpec(element.map).isInterval ? element.keyEnd : undefined];
      assert.deepEqual(ends[0]?.toString('hex'), ends[1]?.toString('hex'));
    }
    const six = rangeElement('allowed-ranges', 'fd00::1', { from: 1, to: 2 }, '2001:db8::/32');
    const again = elementFromKeyText('allowed-ranges', elementKeyText(six), 'IPv6');
    assert.deepEqual(again, six);
  });

  it('compares verdicts and data', () => {
    const to = (data: Buffer | NftVerdict) => ({ ...one, data });
    assert.equal(elementDataText(one), '');
    assert.equal(elementDataText(to({ kind: 'goto', chain: 'pick' })), 'goto pick');
    assert.equal(elementDataText(to({ kind: 'drop' })), 'drop');
    assert.ok(hasSameData(to(Buffer.from('ab')), to(Buffer.from('ab'))));
    assert.ok(!hasSameData(to(Buffer.from('ab')), to(Buffer.from('ac'))));
    assert.ok(!hasSameData(to({ kind: 'goto', chain: 'a' }), to({ kind: 'goto', chain: 'b' })));
    assert.ok(!hasSameData(to({ kind: 'goto', chain: 'a' }), to({ kind: 'jump', chain: 'a' })));
  });
});

describe('element: overlapping ranges', () => {
  const ports = (from: number, to: number, vip = '203.0.113.1') =>
    rangeElement('tracked-owners-1', vip, { from, to });
  const found = (old: readonly MapElement[], fresh: readonly MapElement[]) =>
    overlappingElements(old, fresh, 'IPv4').map((element) => old.indexOf(element));

  it('finds ranges that share a port of a VIP', () => {
    const old = [ports(1, 9), ports(10, 19), ports(20, 29), ports(15, 15, '203.0.113.2')];
    assert.deepEqual(found(old, [ports(15, 20)]), [1, 2]);
    assert.deepEqual(found(old, [ports(10, 19)]), [1]);
    assert.deepEqual(found(old, [ports(12, 13)]), [1]);
    assert.deepEqual(found(old, [ports(1, 29)]), [0, 1, 2]);
    assert.deepEqual(found(old, [ports(30, 40)]), []);
    assert.deepEqual(found(old, []), []);
  });

  it('finds overlapping ranges only if they overlap in every field of one map', () => {
    const allowed = (from: number, to: number, cidr: string) =>
      rangeElement('allowed-ranges', '203.0.113.1', { from, to }, cidr);
    const old = [allowed(1, 9, '10.0.0.0/8'), allowed(1, 9, '11.0.0.0/8'), ports(1, 9)];
    assert.deepEqual(found(old, [allowed(9, 20, '10.1.0.0/16')]), [0]);
    assert.deepEqual(found(old, [allowed(10, 20, '10.1.0.0/16')]), []);
    assert.deepEqual(found(old, [allowed(1, 1, '0.0.0.0/1')]), [0, 1]);
  });

  it('finds what only another program writes wherever it could be in the way', () => {
    const range = (first: string, last: string, bound?: 'start'): MapElement => ({
      map: 'udp-owners-1',
      key: Buffer.from(first, 'hex'),
      ...(bound === undefined ? { keyEnd: Buffer.from(last, 'hex') } : { bound }),
    });
    const fresh = [range('0a6000014e200000', '0a6000014e830000')];
    const half = range('0900000000010000', '', 'start');
    const wide = range('0900000000010000', '0b00000000010000');
    const before = range('0a60000100010000', '0a60000100090000');
    assert.deepEqual(found([half, wide, before], fresh), [0, 1]);
    assert.deepEqual(found([half], [ports(1, 9)]), []);
    // From TCP to UDP, around a range of TCP.
    const protocols = (first: string, last: string): MapElement => ({
      map: 'tracked-owners-1',
      key: Buffer.from(`0a600001${first}`, 'hex'),
      keyEnd: Buffer.from(`0a600001${last}`, 'hex'),
    });
    const around = protocols('06000000012c0000', '11000000000a0000');
    assert.deepEqual(found([around], [protocols('0600000001900000', '0600000001f30000')]), [0]);
  });

  it('finds the same overlaps as a comparison of all pairs', () => {
    const cidr = fc.constantFrom('10.0.0.0/8', '10.1.0.0/16', '11.0.0.0/8', '0.0.0.0/1');
    const element = fc
      .record({
        vip: fc.constantFrom('203.0.113.1', '203.0.113.2'),
        from: fc.integer({ min: 1, max: 40 }),
        length: fc.nat(12),
        cidr: fc.option(cidr),
      })
      .map(({ vip, from, length, cidr: source }) => {
        const range = { from, to: from + length };
        return source === null
          ? rangeElement('tracked-owners-1', vip, range)
          : rangeElement('allowed-ranges', vip, range, source);
      });
    const elements = fc.array(element, { maxLength: 12 });
    fc.assert(
      fc.property(elements, elements, (old, fresh) => {
        const pairs = old.filter((one) => fresh.some((other) => found([one], [other]).length > 0));
        assert.deepEqual(overlappingElements(old, fresh, 'IPv4'), pairs);
      }),
      { seed: 7, numRuns: 500 },
    );
  });

  it('compares few of many ranges of one VIP', () => {
    let compared = 0;
    const counted = (from: number): MapElement => {
      const element = ports(from, from + 4);
      const { key } = element;
      const subarray = (...bounds: Parameters<Buffer['subarray']>) => {
        compared += 1;
        return Buffer.prototype.subarray.apply(key, bounds);
      };
      return { ...element, key: Object.assign(Buffer.from(key), { subarray }) };
    };
    const [many, between] = [0, 5].map((offset) =>
      Array.from({ length: 300 }, (_, index) => counted(index * 10 + offset)),
    );
    assert.ok(many !== undefined && between !== undefined);
    assert.equal(overlappingElements(many, many.toReversed(), 'IPv4').length, 300);
    assert.equal(overlappingElements(many, between, 'IPv4').length, 0);
    // One comparison takes the first bytes of three fields of two keys.
    assert.ok(compared <= 300 * 2 * 6, `${compared}`);
  });

  it('finds no overlap in maps without ranges', () => {
    const element: MapElement = { map: 'cluster-ips', key: Buffer.from('0a600001', 'hex') };
    assert.deepEqual(found([element], [element]), []);
  });
});

describe('element: maps and sets', () => {
  it('declares maps in nft syntax', () => {
    const mapText = (...map: Parameters<typeof mapDeclaration>) =>
      declarationText(mapDeclaration(...map));
    const affinityText = (...map: Parameters<typeof affinityMapDeclaration>) =>
      declarationText(affinityMapDeclaration(...map));
    assert.equal(
      mapText('endpoints', 'IPv4'),
      'map endpoints { typeof ip daddr . meta l4proto . th dport . numgen random mod 65536 : ip daddr . th dport; }',
    );
    assert.equal(
      mapText('allowed-ranges', 'IPv6'),
      'set allowed-ranges { typeof ip6 daddr . meta l4proto . th dport . ip6 daddr; flags interval; }',
    );
    assert.equal(mapText('cluster-ips', 'IPv4'), 'set cluster-ips { typeof ip daddr; }');
    assert.equal(
      mapText('udp-owner-vips-7', 'IPv6'),
      'map udp-owner-vips-7 { typeof ip6 daddr . th dport : ip6 daddr; flags interval; }',
    );
    assert.equal(
      mapText('owned-sources', 'IPv4'),
      'map owned-sources { typeof ip daddr : verdict; size 256; }',
    );
    assert.match(
      affinityText('affinity', 'IPv4'),
      /^map affinity \{ typeof ip daddr \. ip daddr \. meta l4proto \. th dport : ip daddr \. th dport; flags dynamic,timeout; size \d+; timeout 3h; \}$/,
    );
    assert.match(
      affinityText(allPortsAffinityMap(2), 'IPv6'),
      /^map affinity-ips-2 \{ typeof ip6 daddr \. ip6 daddr : ip6 daddr; /,
    );
  });

  it('lists lookup maps before dispatch maps', () => {
    for (const name of MAP_NAMES) {
      if (mapSpec(name).data === 'verdict') assert.ok(isDispatchMap(name), name);
    }
    const [first] = MAP_NAMES.map((name, index) => (isDispatchMap(name) ? index : Infinity)).sort(
      (a, b) => a - b,
    );
    assert.ok(MAP_NAMES.slice(first).every(isDispatchMap));
    for (const name of ['health-check-node-ports', 'service-range-ips', 'cluster-ips'] as const)
      assert.ok(isDispatchMap(name));
    for (const name of ['endpoints', 'hairpin-connections', 'node-port-ips'] as const)
      assert.ok(!isDispatchMap(name));
    assert.deepEqual(MAP_NAMES.filter(isReferenceCounted).sort(), [
      'cluster-ips',
      'hairpin-connections',
      'health-check-node-ports',
      'service-range-ips',
    ]);
  });
});
