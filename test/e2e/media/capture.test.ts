import assert from 'node:assert/strict';
import { readCapture } from './capture.ts';

const CLIENT = ['192.168.77.100', 'fd00:77::100'];
const UDP = 17;
const ICMP = 1;

/** A packet with its record header, as tcpdump writes it. */
function record(packet: readonly number[]): Buffer {
  const frame = Buffer.concat([Buffer.alloc(14), Buffer.from(packet)]);
  const header = Buffer.alloc(16);
  header.writeUInt32LE(frame.length, 8);
  return Buffer.concat([header, frame]);
}

const ports = (from: number, to: number) => [from >> 8, from & 0xff, to >> 8, to & 0xff];

function ipv4(source: number[], destination: number[], protocol: number, payload: number[]) {
  return record([
    ...[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0],
    ...[...source, ...destination, ...payload],
  ]);
}

function capture(...records: Buffer[]): Buffer {
  const header = Buffer.alloc(24);
  header.writeUInt32LE(0xa1b2c3d4, 0);
  return Buffer.concat([header, ...records]);
}

describe('readCapture: who spoke with the client', () => {
  const client = [192, 168, 77, 100];
  const vip = [203, 0, 113, 40];
  const pod = [10, 244, 1, 11];

  it('counts packets by address and port of the far end', () => {
    const wire = readCapture(
      capture(
        ipv4(client, vip, UDP, ports(40000, 20000)),
        ipv4(vip, client, UDP, ports(20000, 40000)),
        ipv4(vip, client, UDP, ports(20000, 40001)),
        ipv4(pod, client, UDP, ports(20000, 40000)),
        ipv4(pod, client, ICMP, ports(0x0303, 0)),
      ),
      CLIENT,
    );
    assert.deepEqual([...wire.sent], [['203.0.113.40 20000', 1]]);
    assert.deepEqual(
      [...wire.received],
      [
        ['203.0.113.40 20000', 2],
        ['10.244.1.11 20000', 1],
      ],
    );
    assert.deepEqual([...wire.others], [['1 10.244.1.11', 1]]);
  });

  it('reads IPv6', () => {
    const address = (...last: number[]) => [
      ...[0x20, 1, 0x0d, 0xb8],
      ...Array(10).fill(0),
      ...last,
    ];
    const wire = readCapture(
      capture(
        record([
          ...[0x60, 0, 0, 0, 0, 8, UDP, 64],
          ...[...address(0, 0x40), ...address(1, 0), ...ports(3478, 40000)],
        ]),
      ),
      ['2001:db8::100'],
    );
    assert.deepEqual([...wire.received], [['2001:db8::40 3478', 1]]);
  });

  it('does not look into fragments', () => {
    const fragment = ipv4(vip, client, UDP, ports(20000, 40000));
    fragment[16 + 14 + 6] = 0x20;
    const wire = readCapture(capture(fragment), CLIENT);
    assert.deepEqual([...wire.received, ...wire.others], [['17 203.0.113.40', 1]]);
  });

  it('ignores a packet that tcpdump still writes', () => {
    const whole = ipv4(vip, client, UDP, ports(20000, 40000));
    for (const bytes of [1, 16, 40]) {
      const wire = readCapture(capture(whole, whole.subarray(0, bytes)), CLIENT);
      assert.deepEqual([...wire.received, ...wire.others], [['203.0.113.40 20000', 1]]);
    }
  });

  it('refuses another file', () => {
    assert.throws(() => readCapture(Buffer.from('not a capture of packets'), CLIENT), RangeError);
  });
});
