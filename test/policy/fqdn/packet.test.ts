import assert from 'node:assert/strict';
import fc from 'fast-check';
import { readPacket } from '../../../policy/fqdn/packet.ts';
import { checkProperty } from '../../netlink/property.ts';
import { endpoint, type Flow, ipPacket, tcpPacket, udpPacket } from './packets.ts';

const FLOWS: readonly Flow[] = [
  { from: '10.0.0.1', fromPort: 40_000, to: '10.96.0.10', toPort: 53 },
  { from: 'fd00::1', fromPort: 40_000, to: 'fd00:96::a', toPort: 53 },
];
const DATA = Buffer.from('some data');

for (const flow of FLOWS) {
  describe(`packet: packets from ${flow.from}`, () => {
    const source = endpoint(flow.from, flow.fromPort);
    const destination = endpoint(flow.to, flow.toPort);
    const datagram = { protocol: 'UDP', source, destination, data: DATA };

    it('with UDP are parsed', () => {
      assert.deepEqual(readPacket(udpPacket(flow, DATA)), datagram);
    });

    it('with TCP are parsed', () => {
      const segment = { protocol: 'TCP', source, destination, data: DATA };
      assert.deepEqual(readPacket(tcpPacket(flow, 0xfffffff0, DATA)), {
        ...segment,
        sequence: 0xfffffff0,
        syn: false,
        rst: false,
      });
      assert.deepEqual(readPacket(tcpPacket(flow, 7, DATA, { syn: true, rst: true })), {
        ...segment,
        sequence: 7,
        syn: true,
        rst: true,
      });
    });

    it('with trailing padding are parsed', () => {
      // Padding of a short Ethernet frame.
      const padded = Buffer.concat([udpPacket(flow, DATA), Buffer.alloc(20)]);
      assert.deepEqual(readPacket(padded), datagram);
    });

    it('of other protocols are ignored', () => {
      assert.equal(readPacket(ipPacket(flow, 132, DATA)), undefined);
    });

    it('that are truncated are ignored', () => {
      for (const packet of [udpPacket(flow, DATA), tcpPacket(flow, 7, DATA)]) {
        for (let length = 0; length < packet.length; length++) {
          assert.equal(readPacket(packet.subarray(0, length)), undefined, String(length));
        }
      }
    });

    it('with inconsistent lengths are ignored', () => {
      const transport = flow.from.includes(':') ? 40 : 20;
      for (const length of [7, 8 + DATA.length + 1]) {
        const packet = udpPacket(flow, DATA);
        packet.writeUInt16BE(length, transport + 4);
        assert.equal(readPacket(packet), undefined);
      }
      for (const words of [4, 15]) {
        const packet = tcpPacket(flow, 7, DATA);
        packet.writeUInt8(words << 4, transport + 12);
        assert.equal(readPacket(packet), undefined);
      }
    });

    it('with random bytes never throw', () => {
      checkProperty(
        fc.property(fc.uint8Array({ maxLength: 120 }), fc.boolean(), (bytes, isTcp) => {
          const packet = isTcp ? tcpPacket(flow, 1, DATA) : udpPacket(flow, DATA);
          const mixed = Buffer.from(packet);
          for (const [index, byte] of bytes.entries()) {
            if (byte < 64) mixed[(index * 7 + byte) % mixed.length] = byte;
          }
          readPacket(mixed);
          readPacket(Buffer.from(bytes));
        }),
      );
    });
  });
}

describe('packet: IPv4 packets', () => {
  const [flow] = FLOWS as [Flow];

  it('with options are parsed', () => {
    const packet = udpPacket(flow, DATA);
    const longer = Buffer.concat([packet.subarray(0, 20), Buffer.alloc(8), packet.subarray(20)]);
    longer.writeUInt8(0x47, 0);
    longer.writeUInt16BE(longer.length, 2);
    assert.deepEqual(readPacket(longer), readPacket(packet));
    longer.writeUInt8(0x44, 0);
    assert.equal(readPacket(longer), undefined);
  });

  it('that are fragments are ignored; the DF flag is not a fragment', () => {
    for (const [field, isWhole] of [
      [0x4000, true],
      [0x2000, false],
      [0x0001, false],
    ] as const) {
      const packet = udpPacket(flow, DATA);
      packet.writeUInt16BE(field, 6);
      assert.equal(readPacket(packet) !== undefined, isWhole);
    }
  });
});

describe('packet: IPv6 packets', () => {
  const flow = FLOWS[1] as Flow;
  const udp = udpPacket(flow, DATA).subarray(40);
  const options = (next: number, words: number) => {
    return Buffer.from([next, words, ...Array<number>(6 + 8 * words).fill(0)]);
  };

  it('with extension headers are parsed', () => {
    const packet = ipPacket(flow, 0, Buffer.concat([options(60, 0), options(17, 2), udp]));
    assert.deepEqual(readPacket(packet), readPacket(udpPacket(flow, DATA)));
  });

  it('that end within extension headers are ignored', () => {
    assert.equal(readPacket(ipPacket(flow, 0, options(17, 0))), undefined);
    assert.equal(readPacket(ipPacket(flow, 0, options(0, 0))), undefined);
    assert.equal(readPacket(ipPacket(flow, 0, options(17, 3).subarray(0, 16))), undefined);
  });

  it('that are fragments are ignored', () => {
    assert.equal(readPacket(ipPacket(flow, 44, Buffer.concat([options(17, 0), udp]))), undefined);
  });
});

it('packet: packets of an unknown IP version are ignored', () => {
  assert.equal(readPacket(Buffer.alloc(0)), undefined);
  assert.equal(readPacket(Buffer.alloc(60, 0x55)), undefined);
});
