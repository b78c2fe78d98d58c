import assert from 'node:assert/strict';
import fc from 'fast-check';
import { addressBytes } from '../../../netlink/core/address.ts';
import { u32 } from '../../../netlink/core/host-order.ts';
import { encodeNumber } from '../../../netlink/core/network-order.ts';
import { decodeRule } from '../../../netlink/nftables/decode-rule.ts';
import {
  cmp,
  counterReference,
  dnat,
  encodeRule,
  flowOffload,
  immediate,
  jenkinsHash,
  log,
  lookupData,
  lookupVerdict,
  META_KEY,
  masq,
  meta,
  type NftExpression,
  notrack,
  numgenRandom,
  PAYLOAD_BASE,
  payload,
  queueTarget,
  rejectTcpReset,
  setMark,
  verdict,
} from '../../../netlink/nftables/rule.ts';
import type { SetContent } from '../../../netlink/nftables/statement.ts';
import { ruleText } from '../../../netlink/nftables/statement-text.ts';
import { checkProperty } from '../property.ts';
import { anyRule, expression, text } from './expression.ts';

const R = 0;
const port = (number: number) => encodeNumber(number, 2);
const one = (bytes: Buffer) => ({ first: bytes, last: bytes });
const many = Array.from({ length: 12 }, (_, index) => ({ keys: one(port(index)) }));
const SETS: readonly SetContent[] = [
  {
    name: '__map0',
    keyLength: 2,
    dataType: 7,
    elements: [{ keys: one(port(80)), data: addressBytes('10.0.0.1') }],
  },
  { name: '__set1', keyLength: 2, elements: many },
  {
    name: '__map2',
    keyLength: 2,
    elements: [
      { keys: one(port(80)), data: { kind: 'jump', chain: 'web' } },
      { keys: undefined, data: { kind: 'drop' } },
    ],
  },
];
const dport = [
  meta(R, META_KEY.protocol),
  cmp(R, Buffer.from([6])),
  payload(R, PAYLOAD_BASE.transport, 2, 2),
];

function wordsOf(expressions: readonly NftExpression[], family = 2): string {
  const sets = new Map(SETS.map((set) => [set.name, set]));
  return ruleText(decodeRule(encodeRule(expressions), { family, sets, links: new Map() }));
}

describe('statement-text: the words of a rule', () => {
  for (const [words, expressions] of [
    ['tcp dport 80 drop', [...dport, cmp(R, port(80)), verdict({ kind: 'drop' })]],
    ['tcp dport vmap { 80 : jump web, * : drop }', [...dport, lookupVerdict('__map2', R)]],
    ['tcp dport vmap @ports', [...dport, lookupVerdict('ports', R)]],
    [
      'dnat to tcp dport map { … : 10.0.0.1 }',
      [...dport, lookupData('__map0', R, R), dnat('IPv4', R, undefined)],
    ],
    [
      'dnat to 10.0.0.1:80',
      [immediate(R, addressBytes('10.0.0.1')), immediate(1, port(80)), dnat('IPv4', R, 1)],
    ],
    ['masquerade fully-random', [masq()]],
    ['reject with tcp reset', [...dport.slice(0, 2), rejectTcpReset()]],
    ['meta mark set 0x00004000', [immediate(R, u32(0x4000)), setMark(R)]],
    ['meta mark set numgen', [numgenRandom(R, 10, 0), setMark(R)]],
    ['notrack', [notrack()]],
    ['flow add @fast', [flowOffload('fast')]],
    ['counter name "packets"', [counterReference('packets')]],
    ['log prefix "say \\"no\\"" group 7', [log(7, 'say "no"')]],
    ['xt target "NFQUEUE"', [queueTarget(3)]],
    ['drop', [expression('match', [text(1, 'comment')]), verdict({ kind: 'drop' })]],
    ['xt match "recent"', [expression('match', [text(1, 'recent')])]],
    [
      'queue flags bypass to 1-3',
      [
        expression('queue', [
          { type: 1, value: port(1) },
          { type: 2, value: port(3) },
          { type: 3, value: port(1) },
        ]),
      ],
    ],
    ['teleport', [expression('teleport', [])]],
    ['hash 0x00000001', [jenkinsHash(R, 4, R, 2, 1, 0), cmp(R, encodeNumber(1, 4))]],
    ['value 0x01', [cmp(5, Buffer.from([1]))]],
  ] as const) {
    it(words, () => {
      assert.equal(wordsOf(expressions), words);
    });
  }

  it('names the reject of each family', () => {
    const unreachable = (type: number, code: number) =>
      expression('reject', [
        { type: 1, value: encodeNumber(type, 4) },
        { type: 2, value: Buffer.from([code]) },
      ]);
    assert.equal(wordsOf([unreachable(0, 3)], 2), 'reject');
    assert.equal(wordsOf([unreachable(0, 13)], 2), 'reject with icmp admin-prohibited');
    assert.equal(wordsOf([unreachable(0, 1)], 10), 'reject with icmpv6 admin-prohibited');
    assert.equal(wordsOf([unreachable(2, 1)], 1), 'reject');
  });

  it('shows the first elements of a set', () => {
    const lookup = expression('lookup', [
      text(1, '__set1'),
      { type: 2, value: encodeNumber(8, 4) },
    ]);
    assert.match(wordsOf([...dport, lookup]), /^tcp dport \{ 0, 1, .*, 9, … \(12 elements\) \}$/);
  });

  it('words any expressions, of any bytes', () => {
    checkProperty(
      fc.property(anyRule, fc.constantFrom(1, 2, 10), (rule, family) => {
        assert.equal(typeof wordsOf(rule, family), 'string');
      }),
    );
  });
});
