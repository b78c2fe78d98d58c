import assert from 'node:assert/strict';
import fc from 'fast-check';
import { ALL_PORT_FEATURES, portScheme } from '../../api/all-ports.ts';
import { PROTOCOLS, type Protocol, type Service } from '../../api/objects.ts';
import { parseOwnedPorts, sliceCount, sliceOf } from '../../api/owned-ports.ts';
import { rangesOverlap, rangeText, withoutRanges } from '../../api/ports.ts';
import { service } from '../fixtures.ts';

const range = (protocol: Protocol, from: number, to = from) => ({ protocol, from, to });
const messages = (ownedPorts: string, portsPerPod: string | undefined) => {
  const parsed = parseOwnedPorts(ownedPorts, portsPerPod);
  assert.ok(!('ranges' in parsed));
  return parsed.map(({ annotation, message }) => `${annotation.split('/')[1]}: ${message}`);
};

describe('owned ports: annotations', () => {
  for (const [ownedPorts, portsPerPod, ranges, size] of [
    ['20000-29999/UDP', '100', [range('UDP', 20000, 29999)], 100],
    [' 5060/UDP , 20-39/TCP ', ' 1 ', [range('UDP', 5060), range('TCP', 20, 39)], 1],
    ['30-39/SCTP,10-19/SCTP', '5', [range('SCTP', 30, 39), range('SCTP', 10, 19)], 5],
    ['1-65535/UDP', '65535', [range('UDP', 1, 65535)], 65535],
    ['20-29/UDP', '3', [range('UDP', 20, 29)], 3],
  ] as const) {
    it(`reads ${ownedPorts} by ${portsPerPod}`, () => {
      assert.deepEqual(parseOwnedPorts(ownedPorts, portsPerPod), { ranges, portsPerPod: size });
    });
  }

  for (const [ownedPorts, portsPerPod, ...expected] of [
    ['20000-29999/UDP', undefined, /^ports-per-pod: is required with portwide.dev\/owned-ports$/],
    ['20-29/UDP', '0', /^ports-per-pod: "0" is not a number of ports, 1 to 65535$/],
    ['20-29/UDP', '65536', /not a number/],
    ['20-29/UDP', '-5', /not a number/],
    ['20-29/UDP', '1e1', /not a number/],
    ['20-29/UDP', '', /not a number/],
    ['20-29', '5', /^owned-ports: "20-29" has no protocol; write for example 20-29\/UDP$/],
    ['', '5', /^owned-ports: "" is not a port or range/],
    ['all', '5', /not a port or range/],
    ['20-29/UDP,', '5', /not a port or range/],
    ['29-20/UDP', '5', /ends before it begins/],
    ['0-29/UDP', '5', /1 to 65535/],
    ['20-29/udp', '5', /TCP, UDP or SCTP/],
    ['20-29/UDP,25-40/UDP', '5', /^owned-ports: 25-40\/UDP overlaps another range$/],
    ['20-29/UDP', '11', /20-29\/UDP has fewer ports than a pod gets \(.*: 11\)$/],
    ['1-65535/UDP,1/TCP', '1', /^owned-ports: 65536 slices, but at most 65535 are possible$/],
    ['x', 'y', /^ports-per-pod: "y"/, /^owned-ports: "x"/],
    [`${'1/UDP,'.repeat(2000)}1/UDP`, '1', /more than 1024 ranges/],
  ] as const) {
    it(`refuses ${JSON.stringify(ownedPorts).slice(0, 40)} by ${portsPerPod}`, () => {
      const found = messages(ownedPorts, portsPerPod);
      assert.equal(found.length, expected.length, found.join('\n'));
      for (const [at, pattern] of expected.entries()) assert.match(found[at] ?? '', pattern);
    });
  }

  it('cuts each range from its first port into slices of equal size', () => {
    const ports = fc.tuple(fc.integer({ min: 1, max: 65535 }), fc.nat(2000));
    fc.assert(
      fc.property(ports, fc.integer({ min: 1, max: 300 }), ([from, length], size) => {
        const whole = range('UDP', from, Math.min(from + length, 65535));
        const count = sliceCount(whole, size);
        const slices = Array.from({ length: count }, (_, ordinal) => sliceOf(whole, size, ordinal));
        for (const [ordinal, slice] of slices.entries()) {
          const start = from + ordinal * size;
          assert.deepEqual(slice, range('UDP', start, start + size - 1));
          assert.ok(start + size - 1 <= whole.to);
        }
        assert.equal(sliceOf(whole, size, count), undefined);
        assert.ok(whole.to - whole.from + 1 - count * size < size);
      }),
    );
  });
});

describe('owned ports: ranges without other ranges', () => {
  const anyRange = fc
    .tuple(fc.constantFrom(...PROTOCOLS), fc.integer({ min: 1, max: 60 }), fc.nat(20))
    .map(([protocol, from, length]) => range(protocol, from, from + length));

  it('has the ports of the first list that are not in the second', () => {
    fc.assert(
      fc.property(fc.array(anyRange), fc.array(anyRange), (ranges, taken) => {
        const left = withoutRanges(ranges, taken);
        for (const protocol of PROTOCOLS) {
          for (let port = 1; port <= 90; port++) {
            const at = [range(protocol, port)];
            const expected = rangesOverlap(ranges, at) && !rangesOverlap(taken, at);
            assert.equal(rangesOverlap(left, at), expected, `${port}/${protocol}`);
          }
        }
        assert.ok(left.every(({ from, to }) => from <= to));
      }),
    );
  });
});

describe('owned ports: choosing the served ports', () => {
  const owning = (fields: Partial<Service> = {}) =>
    service({
      ownedPortsAnnotation: '20000-20099/UDP',
      portsPerPodAnnotation: '10',
      ...fields,
    });
  const refusals = (object: Service, features = ALL_PORT_FEATURES) => {
    const scheme = portScheme(object, features);
    assert.ok(scheme.kind === 'refused');
    return scheme.refusals.map(({ reason, field, message }) => `${reason} ${field}: ${message}`);
  };

  for (const [title, fields, spread] of [
    ['alone', {}, []],
    ['with all ports', { portsAnnotation: 'all' }, 'all'],
    ['with spec.allPorts', { allPorts: true, ports: [] }, 'all'],
    ['with other ranges', { portsAnnotation: '5060/UDP' }, ['5060/UDP']],
    [
      'taken out of ranges that contain them',
      { portsAnnotation: '19990-20199/UDP,20000/TCP' },
      ['20000/TCP', '19990-19999/UDP', '20100-20199/UDP'],
    ],
    ['with annotation "false"', { portsAnnotation: 'false' }, []],
  ] as const) {
    it(`${title}`, () => {
      const scheme = portScheme(owning(fields), ALL_PORT_FEATURES);
      assert.ok(scheme.kind === 'unlisted');
      assert.deepEqual(scheme.spread === 'all' ? 'all' : scheme.spread.map(rangeText), spread);
      assert.equal(scheme.owned?.portsPerPod, 10);
    });
  }

  const field = 'metadata.annotations["portwide.dev/owned-ports"]';
  for (const [title, fields, expected] of [
    ['a NodePort', { type: 'NodePort' }, /^NodePort spec\.type: /],
    ['an ExternalName', { type: 'ExternalName' }, /needs a VIP/],
    ['a headless Service', { headless: true, clusterIPs: [] }, /needs a VIP/],
    ['a Service with external IPs', { externalIPs: ['192.0.2.1'] }, /^ExternalIPs /],
    ['a bad value', { ownedPortsAnnotation: 'x' }, /^Annotation .*owned-ports"\]: "x" is not/],
    ['no ports-per-pod', { portsPerPodAnnotation: '0' }, /^Annotation .*ports-per-pod"\]: "0"/],
  ] as const) {
    it(`refuses ${title}`, () => {
      const found = refusals(owning(fields));
      assert.equal(found.length, 1, found.join('\n'));
      assert.match(found[0] ?? '', expected);
    });
  }

  it('refuses them in a mode that cannot serve them', () => {
    assert.deepEqual(refusals(owning(), { ...ALL_PORT_FEATURES, modeWithoutOwnedPorts: 'ipvs' }), [
      `OwnedPorts ${field}: mode ipvs cannot serve ports owned by pods; use mode nftables`,
    ]);
  });

  it('refuses them without the feature gate AllPorts', () => {
    const off = { ...ALL_PORT_FEATURES, allPorts: false };
    assert.deepEqual(refusals(owning(), off), [
      `FeatureGate ${field}: the feature gate AllPorts is off on this node`,
    ]);
  });
});
