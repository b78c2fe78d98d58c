import assert from 'node:assert/strict';
import { encodeAttributes } from '../../../netlink/core/attribute.ts';
import { MalformedMessage } from '../../../netlink/core/error.ts';
import type { NetlinkMessage } from '../../../netlink/core/message.ts';
import { nulTerminated } from '../../../netlink/core/text.ts';
import { readRule } from '../../../netlink/nftables/rule-list.ts';
import { readTrace } from '../../../netlink/nftables/trace.ts';
import { type TraceFilter, traceTableRequests } from '../../../netlink/nftables/trace-table.ts';
import { expression } from './expression.ts';

/** NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_TRACE, NFT_MSG_NEWRULE. */
const TRACE = 0xa11;
const NEWRULE = 0xa06;

const message = (payload: Buffer, type = TRACE): NetlinkMessage => ({
  type,
  flags: 0,
  sequence: 0,
  portId: 0,
  payload,
});

/** Recorded on Linux 6.18. */
const SELECTED =
  '0200000008000f00000000020800040000000003080006008ff756511200020073656c6563742d6f757470757400000013000100706f7274776964652d747261636500000c00030000000000000000090c00050008000100ffffffff08000c000000000106000d0003040000180008004500001d42ba40004011e2b30a0101010a6000010d00090093bf00350009157d78000000';
const CHAIN_END =
  '0200000008000f00000000020800040000000003080006008ff756511200020073656c6563742d6f757470757400000013000100706f7274776964652d747261636500000c00050008000100ffffffff';
const REJECTED =
  '0200000008000f00000000020800040000000003080006008ff756510b0002004f555450555400000b00010066696c74657200000c00030000000000000000020c000500080001000000000008000c000000000106000d0003040000180008004500001d42ba40004011e2b30a0101010a6000010d00090093bf00350009157d78000000';
const JUMP =
  '0a00000008000f000000000a08000400000000030800060028114375080002006f7574000a00010067756172640000000c00030000000000000000031800050008000100fffffffd090002006e6578740000000008000c000000000106000d00030400002c000800600d521c00091140fd000001000000000000000000000001fd0000960000000000000000000000010d000900831c00350009fab478000000';
const POLICY =
  '0a00000008000f000000000a08000400000000010800060028114375080002006f7574000a00010067756172640000000800100000000000';

const trace = (hex: string) => readTrace(message(Buffer.from(hex, 'hex')));

describe('trace: the kernel reports the path of a packet', () => {
  it('a rule of an IPv4 chain, with the headers of the packet', () => {
    assert.deepEqual(trace(SELECTED), {
      id: 0x8ff75651,
      family: 2,
      table: 'portwide-trace',
      chain: 'select-output',
      type: 'rule',
      handle: 9,
      verdict: { kind: 'continue' },
      policy: undefined,
      inInterface: undefined,
      outInterface: 1,
      mark: 0,
      headers: {
        source: '10.1.1.1',
        destination: '10.96.0.1',
        protocol: 17,
        sourcePort: 0x93bf,
        destinationPort: 53,
      },
    });
    assert.deepEqual(trace(REJECTED)?.verdict, { kind: 'drop' });
  });

  it('the end of a chain, a jump with IPv6 headers, a policy', () => {
    const { handle, headers, verdict } = trace(CHAIN_END) ?? {};
    assert.deepEqual([handle, headers, verdict], [undefined, undefined, { kind: 'continue' }]);
    assert.deepEqual(trace(JUMP)?.verdict, { kind: 'jump', chain: 'next' });
    assert.deepEqual(trace(JUMP)?.headers, {
      source: 'fd00:1::1',
      destination: 'fd00:96::1',
      protocol: 17,
      sourcePort: 0x831c,
      destinationPort: 53,
    });
    const { type, policy } = trace(POLICY) ?? {};
    assert.deepEqual([type, policy], ['policy', { kind: 'drop' }]);
  });

  it('other messages are ignored; a cut message is malformed, never misread', () => {
    const bytes = Buffer.from(SELECTED, 'hex');
    assert.equal(readTrace(message(bytes, NEWRULE)), undefined);
    for (let length = 4; length < bytes.length; length++) {
      try {
        assert.equal(readTrace(message(bytes.subarray(0, length)))?.type, 'rule');
      } catch (error) {
        assert.ok(error instanceof MalformedMessage, String(error));
      }
    }
  });

  it('refuses to select all packets to a destination', () => {
    const filter: TraceFilter = {
      family: 'IPv4',
      destination: '10.96.0.1',
      source: undefined,
      protocol: 'TCP',
      port: undefined,
      hooks: 'both',
    };
    assert.throws(() => traceTableRequests(filter, 1000, 20, false), RangeError);
    traceTableRequests({ ...filter, source: '10.0.0.1' }, 1000, 20, false);
  });
});

describe('rule-list: the rules of a chain', () => {
  const comment = Buffer.alloc(256);
  comment.write('guard');

  it('handle, comment and operations of a rule of iptables-nft', () => {
    const attributes = [
      { type: 1, value: nulTerminated('filter') },
      { type: 2, value: nulTerminated('OUTPUT') },
      { type: 3, value: Buffer.from([0, 0, 0, 1, 0, 0, 0, 2]) },
      {
        type: 4,
        value: [
          expression('meta', []),
          expression('match', [
            { type: 1, value: nulTerminated('comment') },
            { type: 3, value: comment },
          ]),
          expression('counter', []),
          expression('target', [{ type: 1, value: nulTerminated('REJECT') }]),
        ],
      },
    ];
    const payload = encodeAttributes(attributes, Buffer.from([2, 0, 0, 0]));
    const { expressions: _, ...rule } = readRule(message(payload, NEWRULE)) ?? {};
    assert.deepEqual(rule, {
      chain: 'OUTPUT',
      handle: 2 ** 32 + 2,
      comment: 'guard',
      operations: ['meta', 'counter', 'REJECT'],
    });
  });
});
