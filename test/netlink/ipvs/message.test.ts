import assert from 'node:assert/strict';
import fc from 'fast-check';
import { canonicalAddress } from '../../../api/addresses.ts';
import { IP_FAMILIES, type IpFamily, PROTOCOLS } from '../../../api/objects.ts';
import { addressFormatter } from '../../../netlink/core/address.ts';
import { readAttributes } from '../../../netlink/core/attribute.ts';
import { MalformedMessage } from '../../../netlink/core/error.ts';
import { readU16, u16, u32 } from '../../../netlink/core/host-order.ts';
import { genetlinkPayload } from '../../../netlink/ipvs/genetlink.ts';
import type {
  IpvsDestinationState,
  IpvsService,
  IpvsServiceConfig,
  IpvsServiceKey,
} from '../../../netlink/ipvs/ipvs.ts';
import {
  changePayload,
  destinationsPayload,
  readDestination,
  readService,
  servicesPayload,
  setTimeoutsPayload,
} from '../../../netlink/ipvs/message.ts';
import { checkProperty } from '../property.ts';

/** linux/ip_vs.h */
const IPVS_CMD_ATTR_SERVICE = 1;
const IPVS_CMD_ATTR_DEST = 2;
const IPVS_SVC_ATTR_PROTOCOL = 2;
const IPVS_SVC_ATTR_PORT = 4;
const IPVS_SVC_ATTR_FLAGS = 7;
const IPVS_DEST_ATTR_FWD_METHOD = 3;
const IPVS_DEST_ATTR_ADDR_FAMILY = 11;

const mark: IpvsServiceKey = { family: 'IPv4', kind: 'mark', mark: 0x4007 };
const v4: IpvsServiceKey = {
  family: 'IPv4',
  kind: 'address',
  protocol: 'TCP',
  address: '10.96.0.10',
  port: 53,
};
const v6: IpvsServiceKey = {
  family: 'IPv6',
  kind: 'address',
  protocol: 'UDP',
  address: 'fd00::10',
  port: 443,
};
const rr: IpvsServiceConfig = { scheduler: 'rr', schedulerFlags: 0, persistenceSeconds: 0 };
const sticky: IpvsServiceConfig = { scheduler: 'mh', schedulerFlags: 8, persistenceSeconds: 10800 };

const port = fc.nat(0xffff);
const number = fc.nat(0xffffffff);
const addresses = {
  IPv4: fc.ipV4(),
  // Without IPv4-mapped addresses, which are not canonical.
  IPv6: fc
    .ipV6()
    .map(canonicalAddress)
    .filter((text) => text !== undefined),
};
const families = fc.constantFrom(...IP_FAMILIES);

const keys: fc.Arbitrary<IpvsServiceKey> = families.chain((family) =>
  fc.oneof(
    record({
      family: fc.constant(family),
      kind: fc.constant('address' as const),
      protocol: fc.constantFrom(...PROTOCOLS),
      address: addresses[family],
      port,
    }),
    record({
      family: fc.constant(family),
      kind: fc.constant('mark' as const),
      mark: fc.integer({ min: 1, max: 0xffffffff }),
    }),
  ),
);
const services: fc.Arbitrary<IpvsService> = record({
  key: keys,
  scheduler: fc.stringMatching(/^[a-z]{1,15}$/),
  schedulerFlags: fc.constantFrom(0, 8, 16, 32, 24, 56),
  persistenceSeconds: fc.nat(86400),
});
const destinations = families.chain((family) =>
  record({
    family: fc.constant(family),
    state: record({
      address: addresses[family],
      port,
      weight: fc.nat(0x7fffffff),
      masquerade: fc.constant(true),
      activeConnections: number,
      inactiveConnections: number,
      persistentConnections: number,
    }),
  }),
);

describe('message: IPVS services', () => {
  it('decodes encoded values unchanged', () => {
    checkProperty(
      fc.property(services, (service) => {
        assert.deepEqual(readService(written(service), addressFormatter()), service);
      }),
    );
  });

  it('encodes the layout that the kernel expects', () => {
    golden(
      changePayload({ op: 'add-service', key: v4, config: sticky }),
      '01010000',
      '54000180',
      '0600010002000000', // family
      '0600020006000000', // protocol
      '140003000a60000a000000000000000000000000', // address
      '0600040000350000', // port, in network order
      '070006006d680000', // scheduler
      '0c00070009000000ffffffff', // flags and their mask
      '08000800302a0000', // persistence timeout
      '08000900ffffffff', // persistence netmask
    );
    golden(
      changePayload({ op: 'edit-service', key: v6, config: rr }),
      '02010000',
      '54000180',
      '060001000a000000',
      '0600020011000000',
      '14000300fd000000000000000000000000000010',
      '0600040001bb0000',
      '0700060072720000',
      '0c00070000000000ffffffff',
      '0800080000000000',
      '0800090080000000', // persistence prefix length
    );
    golden(
      changePayload({ op: 'add-service', key: mark, config: rr }),
      '01010000',
      '38000180',
      '0600010002000000',
      '0800050007400000', // mark
      '0700060072720000',
      '0c00070000000000ffffffff',
      '0800080000000000',
      '08000900ffffffff',
    );
  });

  it('deletes and requests a service by its key only', () => {
    const key = [
      '30000180',
      '060001000a000000',
      '0600020011000000',
      '14000300fd000000000000000000000000000010',
      '0600040001bb0000',
    ];
    golden(changePayload({ op: 'delete-service', key: v6 }), '03010000', ...key);
    golden(destinationsPayload(v6), '08010000', ...key);
    golden(servicesPayload(), '04010000');
  });

  it('decodes a service of another program', () => {
    const flags = Buffer.concat([u32(0x80000007), u32(0xffffffff)]);
    const payload = rewritten(written({ key: v4, ...rr }), IPVS_CMD_ATTR_SERVICE, [
      { type: IPVS_SVC_ATTR_FLAGS, value: flags },
      { type: 8, value: u32(300) },
      { type: 11, value: Buffer.from('sip\0') }, // persistence engine
      { type: 99, value: Buffer.alloc(3) },
    ]);
    assert.deepEqual(readService(payload, addressFormatter()), {
      key: v4,
      scheduler: 'rr',
      schedulerFlags: 0x80000004,
      persistenceSeconds: 300,
    });
  });

  it('ignores a service of a protocol that Services cannot have', () => {
    const esp = [{ type: IPVS_SVC_ATTR_PROTOCOL, value: u16(50) }];
    const payload = rewritten(written({ key: v4, ...rr }), IPVS_CMD_ATTR_SERVICE, esp);
    assert.equal(readService(payload, addressFormatter()), undefined);
  });

  it('never sends flags that are internal to the kernel', () => {
    const config = { ...rr, schedulerFlags: 0xb };
    const payload = changePayload({ op: 'add-service', key: v4, config });
    const flags = nested(payload, IPVS_CMD_ATTR_SERVICE).get(IPVS_SVC_ATTR_FLAGS);
    assert.deepEqual(flags, Buffer.concat([u32(8), u32(0xffffffff)]));
  });

  it('throws for mark 0, an address of the other family and a number out of range', () => {
    for (const key of [
      { ...mark, mark: 0 },
      { ...mark, mark: 2 ** 32 },
      { ...v4, family: 'IPv6' as const },
      { ...v6, family: 'IPv4' as const },
      { ...v4, port: 65536 },
    ]) {
      assert.throws(() => changePayload({ op: 'delete-service', key }), RangeError);
    }
  });

  it('throws only MalformedMessage for invalid bytes', () => {
    const payloads = services.map(written);
    checkProperty(
      fc.property(damaged(payloads), (payload) => {
        orMalformed(() => readService(payload, addressFormatter()));
      }),
    );
  });

  it('throws MalformedMessage without a mandatory attribute', () => {
    const read = (...attributes: Buffer[]) =>
      readService(Buffer.concat(attributes), addressFormatter());
    assert.throws(() => read(Buffer.alloc(3)), MalformedMessage);
    assert.throws(() => read(changePayload({ op: 'delete-service', key: mark })), {
      name: 'MalformedMessage',
      message: 'IPVS attribute 7 is missing',
    });
    const short = [{ type: IPVS_SVC_ATTR_PORT, value: Buffer.alloc(1) }];
    const payload = rewritten(written({ key: v4, ...rr }), IPVS_CMD_ATTR_SERVICE, short);
    assert.throws(() => read(payload), {
      name: 'MalformedMessage',
      message: 'IPVS attribute 4 has 1 bytes; must have 2',
    });
  });
});

describe('message: IPVS destinations', () => {
  it('decodes encoded values unchanged', () => {
    checkProperty(
      fc.property(destinations, ({ family, state }) => {
        const payload = dumped(family, state);
        assert.deepEqual(readDestination(payload, family, addressFormatter()), state);
      }),
    );
  });

  it('encodes the layout that the kernel expects', () => {
    const ofMark = ['14000180', '0600010002000000', '0800050007400000'];
    golden(
      changePayload({
        op: 'add-destination',
        key: mark,
        destination: { address: '10.1.0.5', port: 0, weight: 1 },
      }),
      '05010000',
      ...ofMark,
      '48000280',
      '06000b0002000000', // family
      '140001000a010005000000000000000000000000', // address
      '0600020000000000', // port
      '0800030000000000', // masquerade
      '0800040001000000', // weight
      '0800050000000000', // no thresholds
      '0800060000000000',
    );
    golden(
      changePayload({
        op: 'edit-destination',
        key: v6,
        destination: { address: 'fd01::5', port: 8443, weight: 0 },
      }),
      '06010000',
      '30000180',
      '060001000a000000',
      '0600020011000000',
      '14000300fd000000000000000000000000000010',
      '0600040001bb0000',
      '48000280',
      '06000b000a000000',
      '14000100fd010000000000000000000000000005',
      '0600020020fb0000',
      '0800030000000000',
      '0800040000000000',
      '0800050000000000',
      '0800060000000000',
    );
    golden(
      changePayload({
        op: 'delete-destination',
        key: mark,
        destination: { address: '10.1.0.5', port: 0 },
      }),
      '07010000',
      ...ofMark,
      '28000280',
      '06000b0002000000',
      '140001000a010005000000000000000000000000',
      '0600020000000000',
    );
  });

  it('decodes a destination of another program', () => {
    const state = { address: 'fd01::5', port: 80, weight: 1, ...idle };
    const payload = rewritten(dumped('IPv6', state), IPVS_CMD_ATTR_DEST, [
      { type: IPVS_DEST_ATTR_FWD_METHOD, value: u32(2) }, // tunnel
      { type: 13, value: Buffer.alloc(1) },
    ]);
    assert.deepEqual(readDestination(payload, 'IPv4', addressFormatter()), {
      ...state,
      masquerade: false,
    });
  });

  it('assumes the family of the service if an old kernel sends none', () => {
    const state = { address: '10.1.0.5', port: 80, weight: 1, ...idle };
    const attributes = nested(dumped('IPv4', state), IPVS_CMD_ATTR_DEST);
    attributes.delete(IPVS_DEST_ATTR_ADDR_FAMILY);
    const value = [...attributes].map(([type, value]) => ({ type, value }));
    const payload = genetlinkPayload(5, [{ type: IPVS_CMD_ATTR_DEST, value }]);
    assert.deepEqual(readDestination(payload, 'IPv4', addressFormatter()), state);
  });

  it('throws when a destination has another family than its service', () => {
    const destination = { address: 'fd01::5', port: 80, weight: 1 };
    assert.throws(
      () => changePayload({ op: 'add-destination', key: mark, destination }),
      new RangeError('fd01::5 is not an IPv4 address'),
    );
  });

  it('throws only MalformedMessage for invalid bytes', () => {
    const payloads = destinations.map(({ family, state }) => dumped(family, state));
    checkProperty(
      fc.property(damaged(payloads), families, (payload, family) => {
        orMalformed(() => readDestination(payload, family, addressFormatter()));
      }),
    );
  });
});

it('message: encodes IPVS timeouts in the layout that the kernel expects', () => {
  golden(
    setTimeoutsPayload({ tcp: 900, tcpFin: 120, udp: 300 }),
    '0c010000',
    '0800040084030000',
    '0800050078000000',
    '080006002c010000',
  );
});

const idle = {
  masquerade: true,
  activeConnections: 0,
  inactiveConnections: 0,
  persistentConnections: 0,
};

/** The service as the kernel sends it in a dump: the same attributes as in an add request. */
function written({ key, ...config }: IpvsService): Buffer {
  return changePayload({ op: 'add-service', key, config });
}

/** The destination as the kernel sends it in a dump. */
function dumped(family: IpFamily, state: IpvsDestinationState): Buffer {
  const key = { family, kind: 'mark', mark: 1 } as const;
  const payload = changePayload({ op: 'add-destination', key, destination: state });
  return rewritten(payload, IPVS_CMD_ATTR_DEST, [
    { type: 7, value: u32(state.activeConnections) },
    { type: 8, value: u32(state.inactiveConnections) },
    { type: 9, value: u32(state.persistentConnections) },
  ]);
}

/** Replaces and adds attributes inside the only nested attribute of a payload. */
function rewritten(
  payload: Buffer,
  type: number,
  others: readonly { type: number; value: Buffer }[],
): Buffer {
  const attributes = nested(payload, type);
  for (const other of others) attributes.set(other.type, other.value);
  const value = [...attributes].map(([type, value]) => ({ type, value }));
  return genetlinkPayload(payload.readUInt8(0), [{ type, value }]);
}

function nested(payload: Buffer, type: number): Map<number, Buffer> {
  return readAttributes(readAttributes(payload, 4).get(type) ?? Buffer.alloc(0), 0);
}

/** The expected bytes are little-endian. Big-endian machines only run the round trips. */
function golden(payload: Buffer, ...parts: readonly string[]): void {
  if (readU16(Buffer.from([1, 0]), 0) === 1) assert.equal(payload.toString('hex'), parts.join(''));
}

/** Truncated payloads, payloads with one wrong byte, and random bytes. */
function damaged(payloads: fc.Arbitrary<Buffer>): fc.Arbitrary<Buffer> {
  const truncated = fc
    .tuple(payloads, fc.nat(), fc.nat(), fc.nat(255))
    .map(([payload, cut, at, value]) => {
      payload[at % payload.length] = value;
      return payload.subarray(0, cut % (payload.length + 1));
    });
  const random = fc.uint8Array({ maxLength: 100 }).map((array) => Buffer.from(array));
  return fc.oneof(truncated, random);
}

function record<T>(fields: { [K in keyof T]: fc.Arbitrary<T[K]> }): fc.Arbitrary<T> {
  return fc.record(fields, { noNullPrototype: true });
}

function orMalformed(read: () => unknown): void {
  try {
    read();
  } catch (error) {
    assert(error instanceof MalformedMessage, String(error));
  }
}
