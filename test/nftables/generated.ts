/** Generates clusters with port ranges and source ranges that overlap, enclose and touch each other. */
import fc from 'fast-check';
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

const hostile = fc.record({
  ranges: fc.option(ranges, { nil: undefined }),
  cidrs: fc.option(fc.subarray(CIDRS, { minLength: 1, maxLength: 5 }), { nil: undefined }),
});

/** Like the changes for the iptables mode, with more overlapping ranges, which the kernel may refuse. */
export const change: fc.Arbitrary<ClusterChange> = fc
  .tuple(plainChange, hostile)
  .map(([step, { ranges: portsAnnotation, cidrs }]) => {
    if (!('upsert' in step) || step.upsert.kind !== 'Service') return step;
    const { upsert } = step;
    const isWide = upsert.portsAnnotation?.includes('-') === true;
    return {
      upsert: {
        ...upsert,
        ...(isWide && portsAnnotation !== undefined ? { portsAnnotation } : {}),
        ...(cidrs === undefined ? {} : { loadBalancerSourceRanges: cidrs }),
      },
    };
  });
