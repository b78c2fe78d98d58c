import assert from 'node:assert/strict';
import packet, { type Answer } from 'dns-packet';
import fc from 'fast-check';
import { addressBytes } from '../../../netlink/core/address.ts';
import { Inspector } from '../../../policy/fqdn/inspector.ts';
import { checkProperty } from '../../netlink/property.ts';
import { type Flow, framed, reversed, tcpPacket, udpPacket } from './packets.ts';

const FLOW: Flow = { from: '10.244.1.11', fromPort: 40_000, to: '10.244.2.11', toPort: 53 };
const POD_LINK = 7;
const UPLINK = 2;
const NAME = 'www.example.com';
const ADDRESS = '192.0.2.1';

function query(name = NAME, id = 1): Buffer {
  return packet.encode({ type: 'query', id, questions: [{ type: 'A', name }] });
}

function answer(name = NAME, id = 1, answers?: Answer[]): Buffer {
  return packet.encode({
    type: 'response',
    id,
    questions: [{ type: 'A', name }],
    answers: answers ?? [{ type: 'A', name, ttl: 60, data: ADDRESS }],
  });
}

const OBSERVED = [{ name: NAME, addresses: [{ address: ADDRESS, ttl: 60 }] }];

describe('inspector: inspection of DNS packets', () => {
  let inspector: Inspector<string>;
  const sent = (bytes: Buffer) => inspector.inspect(bytes, POD_LINK, 0).observations;
  const observe = (bytes: Buffer) => inspector.inspect(bytes, UPLINK, 0).observations;

  beforeEach(() => {
    inspector = new Inspector();
    inspector.setPatterns(['*.example.com', 'exact.test']);
    inspector.setResolvers(new Set([addressBytes('10.96.0.10').toString('latin1')]));
  });

  it('observes answers to queries for names that match a pattern', () => {
    assert.deepEqual(sent(udpPacket(FLOW, query())), []);
    assert.deepEqual(observe(udpPacket(reversed(FLOW), answer())), OBSERVED);
    sent(udpPacket(FLOW, query('www.other.test', 2)));
    assert.deepEqual(observe(udpPacket(reversed(FLOW), answer('www.other.test', 2))), []);
    assert.deepEqual(inspector.counts, { queries: 2, answers: 2, unasked: 0, unreadable: 0 });
  });

  it('ignores the case of names (0x20 encoding)', () => {
    sent(udpPacket(FLOW, query('wWw.EXAmple.com')));
    assert.deepEqual(observe(udpPacket(reversed(FLOW), answer('WwW.exAMPLE.COM'))), OBSERVED);
  });

  it('ignores answers without a matching query', () => {
    assert.deepEqual(observe(udpPacket(reversed(FLOW), answer())), []);
    sent(udpPacket(FLOW, query()));
    assert.deepEqual(observe(udpPacket(reversed(FLOW), answer(NAME, 2))), []);
    assert.deepEqual(observe(udpPacket(reversed(FLOW), answer('a.example.com'))), []);
    const others: Partial<Flow>[] = [{ to: '10.9.9.9' }, { toPort: 54 }, { fromPort: 1 }];
    for (const other of others) {
      assert.deepEqual(observe(udpPacket(reversed({ ...FLOW, ...other }), answer())), []);
    }
    // Spoofed by the client with the resolver's address.
    assert.deepEqual(sent(udpPacket(reversed(FLOW), answer())), []);
    assert.deepEqual(observe(tcpPacket(reversed(FLOW), 1, framed(answer()))), []);
    assert.equal(inspector.counts.unasked, 7);
    assert.deepEqual(observe(udpPacket(reversed(FLOW), answer())), OBSERVED);
  });

  it('ignores answers without addresses', () => {
    sent(udpPacket(FLOW, query()));
    assert.deepEqual(observe(udpPacket(reversed(FLOW), answer(NAME, 1, []))), []);
    assert.equal(inspector.counts.answers, 1);
  });

  it('matches the answer of an endpoint to a query for an IPVS VIP', () => {
    sent(udpPacket({ ...FLOW, to: '10.96.0.10' }, query()));
    assert.deepEqual(observe(udpPacket(reversed(FLOW), answer())), OBSERVED);
  });

  it('observes answers in TCP segments, and returns the stream', () => {
    const back = reversed(FLOW);
    sent(tcpPacket(FLOW, 999, Buffer.alloc(0), { syn: true }));
    observe(tcpPacket(back, 4999, Buffer.alloc(0), { syn: true }));
    const queries = Buffer.concat([framed(query()), framed(query('a.example.com', 2))]);
    sent(tcpPacket(FLOW, 1000, queries));
    const bytes = Buffer.concat([framed(answer()), framed(answer('a.example.com', 2))]);
    const first = inspector.inspect(tcpPacket(back, 5000, bytes.subarray(0, 30)), UPLINK, 0);
    assert.deepEqual(first.observations, []);
    const second = inspector.inspect(tcpPacket(back, 5030, bytes.subarray(30)), UPLINK, 0);
    assert.deepEqual(
      second.observations.map(({ name }) => name),
      [NAME, 'a.example.com'],
    );
    assert.ok(second.stream);
    assert.equal(second.stream, first.stream);
    // An acknowledgement has no data.
    const empty = tcpPacket(back, 5030 + bytes.length, Buffer.alloc(0));
    assert.equal(inspector.inspect(empty, UPLINK, 0).stream, undefined);
    assert.equal(inspector.counts.unreadable, 0);
  });

  it('counts malformed packets and messages', () => {
    sent(Buffer.from('nonsense'));
    sent(udpPacket(FLOW, Buffer.from('nonsense')));
    assert.equal(inspector.counts.unreadable, 2);
  });

  it('uses the current patterns', () => {
    sent(udpPacket(FLOW, query('exact.test')));
    inspector.setPatterns([]);
    assert.deepEqual(observe(udpPacket(reversed(FLOW), answer('exact.test'))), []);
  });

  it('never throws for random bytes', () => {
    const data = fc.oneof(
      fc.uint8Array({ maxLength: 200 }).map((bytes) => Buffer.from(bytes)),
      fc.constantFrom(query(), answer(), framed(query()), framed(answer())),
    );
    const step = fc.tuple(
      data,
      fc.boolean(),
      fc.boolean(),
      fc.nat({ max: 300 }),
      fc.record({ syn: fc.boolean(), rst: fc.constant(false) }),
      fc.uint8Array({ maxLength: 3 }),
    );
    checkProperty(
      fc.property(fc.array(step, { maxLength: 20 }), (steps) => {
        for (const [bytes, isBack, isTcp, sequence, flags, damage] of steps) {
          const flow = isBack ? reversed(FLOW) : FLOW;
          const made = isTcp ? tcpPacket(flow, sequence, bytes, flags) : udpPacket(flow, bytes);
          for (const [index, byte] of damage.entries())
            made[(byte * 7 + index) % made.length] = byte;
          inspector.inspect(made, isBack ? UPLINK : POD_LINK, 0);
        }
      }),
    );
  });
});
