/** Generates clusters with port ranges and source ranges that overlap, enclose and touch each other. */
import fc from 'fast-check';
import type { EndpointSlice } from '../../api/objects.ts';
import { type ClusterChange, arbitraryChange as plainChange } from '../iptables/generated.ts';

const CIDRS = [
  ...['10.0.0.0/8', '10.1.0.0/16', '10.1.2.0/24', '10.1.3.0/24', '10.1.2.3/32', '192.0.2.0/24'],
  ...['192.0.2.0/25', '192.0.2.128/25', '203.0.113.1/32', '198.51.100.0/31', '128.0.0.0/1'],
  ...['2001:db8::/32', '2001:db8:113::/48', '2001:db8:113::1/128', 'fd00::/8', 'fc00::/7'],
];

const range = fc
  .tuple(fc.integer({ min: 75, max: 95 }), fc.nat(10), fc.constantFrom('', '/TCP', '/UDP'))
  .map(([from, more, protocol]) => `${from}-${from + more}${protocol}`);
const ranges = fc.array(range, { minLength: 1, maxLength: 3 }).map((list) => list.join());

const ownedRange = fc
  .tuple(fc.integer({ min: 75, max: 90 }), fc.nat(12), fc.constantFrom('/TCP', '/UDP', '/UDP'))
  .map(([from, more, protocol]) => `${from}-${from + more}${protocol}`);
const owned = fc.record({
  ownedPortsAnnotation: fc
    .array(ownedRange, { minLength: 1, maxLength: 2 })
    .map((all) => all.join()),
  portsPerPodAnnotation: fc.constantFrom('1', '2', '5'),
});

const hostile = fc.record({
  owned: fc.option(owned, { nil: undefined }),
  ordinals: fc.infiniteStream(fc.option(fc.nat(3), { nil: undefined })),
  ranges: fc.option(ranges, { nil: undefined }),
  cidrs: fc.option(fc.subarray(CIDRS, { minLength: 1, maxLength: 5 }), { nil: undefined }),
});

function withOrdinals(slice: EndpointSlice, ordinals: Iterator<number | undefined>): EndpointSlice {
  const endpoints = slice.endpoints.map((endpoint) => {
    const ordinal: number | undefined = ordinals.next().value;
    return ordinal === undefined ? endpoint : { ...endpoint, ordinal };
  });
  return { ...slice, endpoints };
}

/** Like the changes for the iptables mode, with more overlapping ranges, which the kernel may refuse. */
export const change: fc.Arbitrary<ClusterChange> = fc
  .tuple(plainChange, hostile)
  .map(([step, { ranges: portsAnnotation, cidrs, owned: ownership, ordinals }]) => {
    if (!('upsert' in step)) return step;
    const { upsert } = step;
    if (upsert.kind === 'EndpointSlice') return { upsert: withOrdinals(upsert, ordinals) };
    if (upsert.kind !== 'Service') return step;
    // Few Services are hashed, because slots take time. Drawing a number for it would change all other clusters.
    const hash = cidrs?.length === 3 ? 'consistent-hash' : 'consistent-hash-client-port';
    const isHashed = ownership === undefined && (cidrs?.length ?? 0) >= 3;
    const isWide = upsert.portsAnnotation?.includes('-') === true;
    return {
      upsert: {
        ...upsert,
        ...(isWide && portsAnnotation !== undefined ? { portsAnnotation } : {}),
        ...(ownership === undefined ? {} : { ...ownership, externalIPs: [] }),
        ...(cidrs === undefined ? {} : { loadBalancerSourceRanges: cidrs }),
        ...(isHashed ? { loadBalancingAnnotation: hash } : {}),
      },
    };
  });
