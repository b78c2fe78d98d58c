import assert from 'node:assert/strict';
import fc from 'fast-check';
import { AF_INET } from '../../../netlink/core/address.ts';
import type { NetlinkMessage, NetlinkRequest } from '../../../netlink/core/message.ts';
import { readMessages } from '../../../netlink/core/message.ts';
import { newChainRequest, readChain, readExistingChain } from '../../../netlink/nftables/chain.ts';
import { encodeComment } from '../../../netlink/nftables/comment.ts';
import { newCounterRequest, readCounter } from '../../../netlink/nftables/counter.ts';
import { visitElements } from '../../../netlink/nftables/element.ts';
import {
  flowtableDevicesRequests,
  newFlowtableRequest,
  readFlowtable,
} from '../../../netlink/nftables/flowtable.ts';
import { intervalsOf, type NftRawElement } from '../../../netlink/nftables/interval.ts';
import {
  newRuleRequest,
  newTableRequest,
  readRule,
  readSet,
  readTable,
} from '../../../netlink/nftables/message.ts';
import {
  cmp,
  encodeRule,
  lookup,
  meta,
  type NftExpression,
  payload,
  verdict,
} from '../../../netlink/nftables/rule.ts';
import { readRule as readListedRule } from '../../../netlink/nftables/rule-list.ts';
import { encodedRuleText } from '../../../netlink/nftables/rule-text.ts';
import { newSetRequest } from '../../../netlink/nftables/set.ts';
import { TransactionWriter } from '../../../netlink/nftables/transaction.ts';
import type { NftElement } from '../../../netlink/nftables/types.ts';
import { checkProperty } from '../property.ts';

const TABLE = { family: AF_INET, name: 'pw' };
const name = fc
  .string({ unit: 'grapheme', minLength: 1, maxLength: 60 })
  .filter((text) => !text.includes('\0') && Buffer.byteLength(text) < 256);
const u32 = fc.nat(0xffffffff);
const register = fc.nat(15);
const bytes = fc
  .uint8Array({ minLength: 1, maxLength: 64 })
  .map((array): Buffer => Buffer.from(array));

/** A request as the kernel would return it: it lists objects with the attributes that create them. */
function asMessage({ type, payload: content }: NetlinkRequest): NetlinkMessage {
  return { type, flags: 0, sequence: 1, portId: 0, payload: content };
}

describe('round-trip: what the encoder of nf_tables writes, the decoder reads', () => {
  it('tables', () => {
    checkProperty(
      fc.property(fc.nat(255), name, (family, table) => {
        const read = readTable(asMessage(newTableRequest({ family, name: table })));
        assert.deepEqual(read, { family, name: table });
      }),
    );
  });

  it('chains', () => {
    const base = fc.record(
      {
        type: fc.constantFrom('filter', 'nat', 'route'),
        hook: u32,
        priority: fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 }),
        policy: fc.nat(1),
      },
      { noNullPrototype: true },
    );
    checkProperty(
      fc.property(name, fc.option(base, { nil: undefined }), (chain, at) => {
        const message = asMessage(newChainRequest(TABLE, chain, at));
        assert.deepEqual(readExistingChain(message, 'pw'), { name: chain, base: at });
        assert.equal(readChain(message, 'other'), undefined);
      }),
    );
  });

  it('sets', () => {
    const type = fc.record({ datatype: u32, length: fc.nat(64) });
    checkProperty(
      fc.property(name, u32, type, fc.option(u32, { nil: undefined }), (set, flags, key, size) => {
        const message = asMessage(newSetRequest(TABLE, { name: set, flags, key, size }));
        assert.deepEqual(readSet(message), { name: set, flags });
      }),
    );
  });

  it('counters', () => {
    const count = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n });
    checkProperty(
      fc.property(name, count, count, (counter, packets, octets) => {
        const message = asMessage(newCounterRequest(TABLE, counter, packets, octets));
        assert.deepEqual(readCounter(message, 'pw'), { name: counter, packets, bytes: octets });
      }),
    );
  });

  it('flowtables and their interfaces', () => {
    const devices = fc.array(
      fc.string({ minLength: 1, maxLength: 15 }).filter((text) => !text.includes('\0')),
      { maxLength: 250 },
    );
    checkProperty(
      fc.property(name, fc.integer({ min: -1000, max: 1000 }), devices, (flowtable, at, all) => {
        const created = asMessage(newFlowtableRequest(TABLE, flowtable, at));
        assert.deepEqual(readFlowtable(created, 'pw'), { name: flowtable, devices: [] });
        const requests = flowtableDevicesRequests('NEW', TABLE, flowtable, all);
        const read = requests.map((each) => readFlowtable(asMessage(each), 'pw'));
        assert.deepEqual(
          read.flatMap((each) => each?.devices ?? []),
          all,
        );
      }),
    );
  });

  it('rules with comments', () => {
    /** An expression with its text. */
    const texted = (each: NftExpression, text: string): readonly [NftExpression, string] => [
      each,
      `[ ${text} ]`,
    ];
    const expression = fc.oneof(
      fc
        .tuple(register, fc.constantFrom(1 as const, 2 as const), u32, u32)
        .map(([to, base, offset, length]) =>
          texted(
            payload(to, base, offset, length),
            `payload to=${to + 8} base=${base} offset=${offset} length=${length}`,
          ),
        ),
      fc
        .tuple(register, u32)
        .map(([to, key]) => texted(meta(to, key), `meta to=${to + 8} key=${key}`)),
      fc
        .tuple(register, bytes, fc.boolean())
        .map(([from, value, not]) =>
          texted(
            cmp(from, value, not),
            `cmp from=${from + 8} op=${not ? 1 : 0} value=0x${value.toString('hex')}`,
          ),
        ),
      fc
        .tuple(name, register, fc.boolean())
        .map(([set, key, not]) =>
          texted(lookup(set, key, not), `lookup set=${set} key=${key + 8}${not ? ' flags=1' : ''}`),
        ),
      name.map((chain) =>
        texted(verdict({ kind: 'goto', chain }), `immediate to=0 value=goto(${chain})`),
      ),
    );
    const comment = fc.option(fc.string({ maxLength: 100 }), { nil: undefined });
    checkProperty(
      fc.property(name, fc.array(expression, { maxLength: 8 }), comment, (chain, list, text) => {
        const expressions = encodeRule(list.map(([each]) => each));
        const userdata = text === undefined ? undefined : encodeComment(text);
        const message = asMessage(newRuleRequest(TABLE, chain, { expressions, userdata }));
        assert.deepEqual(readRule(message, 'pw'), { chain, expressions });
        assert.equal(encodedRuleText(expressions), list.map(([, each]) => each).join(' '));
        // Only the kernel assigns handles, so the list of rules needs one.
        const handle = Buffer.from('0c0003000000000000000007', 'hex');
        const listed = { ...message, payload: Buffer.concat([message.payload, handle]) };
        assert.equal(readListedRule(listed)?.comment, text?.split('\0')[0]);
      }),
    );
  });

  it('elements with user data', () => {
    const userdata = fc
      .uint8Array({ minLength: 1, maxLength: 254 })
      .map((each) => Buffer.from(each));
    checkProperty(
      fc.property(fc.array(fc.tuple(bytes, bytes, userdata)), (list) => {
        const elements = list.map(([key, data, more]) => ({ key, data, userdata: more }));
        assert.deepEqual(written(elements, false), elements);
      }),
    );
  });

  it('intervals of ordered sets', () => {
    const borders = fc.uniqueArray(fc.nat(0xfffffffe), { minLength: 2, maxLength: 40 });
    checkProperty(
      fc.property(borders, (numbers) => {
        const sorted = numbers.toSorted((a, b) => a - b);
        const key = (at: number) => {
          const number = Buffer.alloc(4);
          number.writeUInt32BE(sorted[at] ?? 0);
          return number;
        };
        const elements: NftElement[] = [];
        for (let at = 0; at + 1 < sorted.length; at += 2)
          elements.push({ key: key(at), keyEnd: key(at + 1) });
        const raw = written(elements, true);
        assert.equal(raw.length, 2 * elements.length);
        assert.deepEqual([...intervalsOf(raw)], elements);
      }),
    );
  });

  /** Elements as the decoder reads the transaction that adds them. */
  function written(elements: readonly NftElement[], isOrdered: boolean): NftRawElement[] {
    const writer = new TransactionWriter(AF_INET, 'pw');
    for (const element of elements) writer.write('add', 's', element, isOrdered);
    const found: NftRawElement[] = [];
    for (const message of readMessages(writer.finish().bytes).slice(1, -1))
      visitElements(message, (element) => found.push(element));
    return found;
  }
});
