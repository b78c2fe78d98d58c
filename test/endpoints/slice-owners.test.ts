import assert from 'node:assert/strict';
import fc from 'fast-check';
import { candidatesForAllPorts } from '../../endpoints/select.ts';
import { type AddressHolder, holderAmong, sliceOwners } from '../../endpoints/slice-owners.ts';
import { endpoint, slice } from '../fixtures.ts';

const NODE = 'node-a';
const owners = (
  endpoints: Parameters<typeof slice>[0],
  slices = 10,
  holders: Readonly<Record<string, AddressHolder>> = {},
) =>
  sliceOwners(
    candidatesForAllPorts([slice(endpoints)], 'IPv4'),
    slices,
    NODE,
    (address) => holders[address] ?? 'pod',
  );

describe('slice owners', () => {
  it('are the endpoints with the ordinals', () => {
    const { owners: found, others } = owners([
      endpoint('10.0.0.9', { ordinal: 0 }),
      endpoint('10.0.0.1', { ordinal: 3, nodeName: 'node-b' }),
    ]);
    assert.deepEqual(found, [
      { ordinal: 0, address: '10.0.0.9', serves: true, node: 'this' },
      { ordinal: 3, address: '10.0.0.1', serves: true, node: 'other' },
    ]);
    assert.deepEqual(others, []);
  });

  it('serve while they are ready, or terminate and serve', () => {
    const of = (ready: boolean, serving: boolean, terminating: boolean) =>
      owners([endpoint('10.0.0.1', { ordinal: 0, ready, serving, terminating })]).owners[0]?.serves;
    assert.deepEqual(
      [
        of(true, true, false),
        of(false, true, true),
        of(false, false, true),
        of(false, false, false),
      ],
      [true, true, false, false],
    );
  });

  for (const [title, fields, reason] of [
    ['no ordinal', {}, 'has no ordinal in its name'],
    ['an ordinal past the last slice', { ordinal: 10 }, 'has an ordinal past the last slice'],
    ['an ordinal far too large', { ordinal: 1e30 }, 'has an ordinal past the last slice'],
  ] as const) {
    it(`are not endpoints with ${title}`, () => {
      const { owners: found, others } = owners([endpoint('10.0.0.1', fields)]);
      assert.deepEqual(found, []);
      assert.deepEqual(
        others.map((other) => other.reason),
        [reason],
      );
    });
  }

  for (const [holder, reason] of [
    ['none', 'has no pod in its namespace'],
    ['host network', 'is on the host network'],
    ['unknown', 'is in a namespace whose pods cannot be listed'],
  ] as const) {
    it(`are not endpoints whose address has holder: ${holder}`, () => {
      const pods = [
        endpoint('192.168.77.11', { ordinal: 0, nodeName: 'node-b' }),
        endpoint('10.0.0.1', { ordinal: 0, ready: false }),
      ];
      const { owners: found, others } = owners(pods, 10, { '192.168.77.11': holder });
      assert.deepEqual(
        found.map(({ address }) => address),
        ['10.0.0.1'],
      );
      assert.deepEqual(others, [{ address: '192.168.77.11', ordinal: 0, reason }]);
    });
  }

  it('are pods that hold an address alone, or besides pods on the host network', () => {
    const [own, host] = [{ hostNetwork: false }, { hostNetwork: true }];
    assert.deepEqual(
      [[], [host], [host, own], [own, host]].map((pods) => holderAmong(pods)),
      ['none', 'host network', 'pod', 'pod'],
    );
  });

  for (const [title, loser, winner] of [
    ['a ready endpoint before one that terminates', '10.0.0.1', '10.0.0.2'],
    ['one that still serves before one that does not', '10.0.0.3', '10.0.0.4'],
    ['of two alike the lower address as a number', '10.0.0.10', '10.0.0.9'],
  ] as const) {
    it(`of one ordinal: ${title}`, () => {
      const states: Readonly<Record<string, object>> = {
        '10.0.0.1': { ready: false, terminating: true },
        '10.0.0.3': { ready: false, serving: false, terminating: true },
        '10.0.0.4': { ready: false, terminating: true },
      };
      const both = [loser, winner].map((address) =>
        endpoint(address, { ordinal: 2, ...states[address] }),
      );
      for (const endpoints of [both, both.toReversed()]) {
        const { owners: found, others } = owners(endpoints);
        assert.deepEqual(
          found.map(({ address }) => address),
          [winner],
        );
        assert.deepEqual(others, [
          { address: loser, ordinal: 2, reason: 'has the ordinal of another endpoint' },
        ]);
      }
    });
  }

  it('are the same for any order of endpoints and slices, on any node, and own only slices of their ordinal', () => {
    const anyEndpoint = fc
      .record({
        host: fc.integer({ min: 1, max: 12 }),
        ordinal: fc.option(fc.nat(6), { nil: undefined }),
        ready: fc.boolean(),
        serving: fc.boolean(),
        terminating: fc.boolean(),
        nodeName: fc.constantFrom('node-a', 'node-b', undefined),
      })
      .map(({ host, ordinal, ...fields }) =>
        endpoint(`10.0.0.${host}`, { ...fields, ...(ordinal === undefined ? {} : { ordinal }) }),
      );
    const shuffled = fc
      .array(anyEndpoint, { maxLength: 12 })
      .chain((all) =>
        fc.tuple(fc.constant(all), fc.shuffledSubarray(all, { minLength: all.length })),
      );
    fc.assert(
      fc.property(
        shuffled,
        fc.nat(12),
        fc.integer({ min: 1, max: 8 }),
        ([all, other], cut, slices) => {
          const on = (node: string, parts: readonly (typeof all)[]) => {
            const each = parts.map((part, at) => slice(part, { name: `s${at}` }));
            const candidates = candidatesForAllPorts(each, 'IPv4');
            const found = sliceOwners(candidates, slices, node, () => 'pod');
            return found.owners.map(({ node: _, ...rest }) => rest);
          };
          const expected = on('node-a', [all]);
          assert.deepEqual(on('node-b', [other.slice(cut), other.slice(0, cut)]), expected);
          for (const { ordinal, address } of expected) {
            assert.ok(ordinal < slices);
            assert.ok(all.some((each) => each.address === address && each.ordinal === ordinal));
          }
          assert.equal(new Set(expected.map(({ ordinal }) => ordinal)).size, expected.length);
        },
      ),
    );
  });
});
