import assert from 'node:assert/strict';
import packet from 'dns-packet';
import { DEFERRAL_LIMITS } from '../../../policy/fqdn/deferred-verdicts.ts';
import { PacketHandler } from '../../../policy/fqdn/packet-handler.ts';
import { type Flow, framed, reversed, tcpPacket, udpPacket } from './packets.ts';

const FLOW: Flow = { from: '10.244.1.11', fromPort: 40_000, to: '10.244.2.11', toPort: 53 };
const BACK = reversed(FLOW);

function message(type: 'query' | 'response', id: number, name = 'a.example.com'): Buffer {
  const answers = [{ type: 'A', name, ttl: 60, data: '192.0.2.1' } as const];
  return packet.encode({
    type,
    id,
    questions: [{ type: 'A', name }],
    answers: type === 'response' ? answers : [],
  });
}

describe('packet-handler: verdicts on queued packets', () => {
  let handler: PacketHandler;
  let accepted: number[];
  let last = 0;

  beforeEach(() => {
    accepted = [];
    last = 0;
    handler = new PacketHandler((id) => accepted.push(id));
    handler.configure(['*.example.com'], ['10.96.0.10']);
  });
  /** @returns the id of the packet. */
  const handle = (bytes: Buffer, ifindex: number, now = 0) => {
    last += 1;
    handler.handle({ id: last, ifindex, bytes }, now);
    return last;
  };
  const ask = (id: number, name?: string) => handle(udpPacket(FLOW, message('query', id, name)), 7);
  const answer = (id: number, name?: string, now?: number) =>
    handle(udpPacket(BACK, message('response', id, name)), 2, now);

  it('accepts all packets at once except answers with observations', () => {
    const passing = [
      ask(1),
      ask(2, 'other.test'),
      answer(2, 'other.test'),
      answer(3),
      handle(Buffer.from('x'), 1),
    ];
    assert.deepEqual(accepted, passing);
    assert.equal(handler.takeBatch(), undefined);
    const held = answer(1);
    assert.deepEqual([accepted, handler.deferred.waiting], [passing, 1]);
    const addresses = [{ address: '192.0.2.1', ttl: 60 }];
    assert.deepEqual(handler.takeBatch(), {
      first: 1,
      batch: [[{ name: 'a.example.com', addresses }]],
    });
    assert.equal(handler.takeBatch(), undefined);
    handler.deferred.release(1, 1);
    assert.deepEqual(accepted, [...passing, held]);
    assert.deepEqual(handler.counts(), {
      queries: 2,
      answers: 2,
      unasked: 1,
      unreadable: 1,
      givenUp: 0,
      overdue: 0,
    });
  });

  it('numbers batches of observations', () => {
    for (const id of [1, 2, 3]) ask(id);
    answer(1);
    assert.equal(handler.takeBatch()?.first, 1);
    answer(2);
    answer(3);
    const { first, batch } = handler.takeBatch() ?? {};
    assert.deepEqual([first, batch?.length], [2, 2]);
    accepted = [];
    handler.deferred.release(2, 3);
    assert.deepEqual(accepted, [5, 6]);
  });

  it('accepts answers after the timeout', () => {
    ask(1);
    const held = answer(1, undefined, 100);
    assert.equal(handler.deferred.deadline, 100 + DEFERRAL_LIMITS.timeout);
    handler.deferred.check(99 + DEFERRAL_LIMITS.timeout);
    assert.ok(!accepted.includes(held));
    handler.deferred.check(100 + DEFERRAL_LIMITS.timeout);
    assert.ok(accepted.includes(held));
    ask(2);
    assert.ok(accepted.includes(answer(2)));
    handler.deferred.release(1, 1);
    ask(3);
    assert.ok(!accepted.includes(answer(3)));
    handler.deferred.releaseAll();
    assert.equal(accepted.length, last);
    assert.equal(handler.counts().overdue, 3);
  });

  it('accepts deferred packets when the last pattern is removed, and defers again for a new one', () => {
    ask(1);
    const held = answer(1);
    handler.configure([], []);
    assert.ok(accepted.includes(held));
    ask(2);
    assert.ok(accepted.includes(answer(2)));
    handler.configure(['*.example.com'], ['10.96.0.10']);
    ask(3);
    assert.ok(!accepted.includes(answer(3)));
    assert.equal(handler.counts().overdue, 0);
  });

  it('defers later segments and retransmissions of a stream with the first segment', () => {
    handle(tcpPacket(FLOW, 99, Buffer.alloc(0), { syn: true }), 7);
    handle(tcpPacket(BACK, 499, Buffer.alloc(0), { syn: true }), 2);
    const query = framed(message('query', 1));
    handle(tcpPacket(FLOW, 100, query), 7);
    const bytes = framed(message('response', 1));
    const half = bytes.length >> 1;
    const begin = handle(tcpPacket(BACK, 500, bytes.subarray(0, half)), 2);
    assert.equal(accepted.at(-1), begin);
    const passed = accepted.length;
    const end = handle(tcpPacket(BACK, 500 + half, bytes.subarray(half)), 2);
    const again = handle(tcpPacket(BACK, 500 + half, bytes.subarray(half)), 2);
    const more = handle(tcpPacket(BACK, 500 + bytes.length, framed(Buffer.alloc(20))), 2);
    const acknowledgement = handle(tcpPacket(BACK, 500 + bytes.length, Buffer.alloc(0)), 2);
    const other = handle(tcpPacket(FLOW, 100 + query.length, query), 7);
    assert.deepEqual(accepted.slice(passed), [acknowledgement, other]);
    handler.deferred.release(1, 1);
    assert.deepEqual(accepted.slice(passed + 2), [end, again, more]);
    const late = handle(tcpPacket(BACK, 500 + half, bytes.subarray(half)), 2);
    assert.equal(accepted.at(-1), late);
  });

  it('accepts a packet whose inspection fails', () => {
    const broken = { id: 1, ifindex: 1, bytes: undefined as unknown as Buffer };
    assert.throws(() => handler.handle(broken, 0), TypeError);
    assert.deepEqual(accepted, [1]);
  });
});
