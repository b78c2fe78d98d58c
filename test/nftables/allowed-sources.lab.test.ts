import assert from 'node:assert/strict';
import type { Route, RouteMatch } from '../../services/route.ts';
import { route } from '../fixtures.ts';
import { PATIENCE } from '../lab/lab.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../netlink/namespace.ts';

/** A concatenated interval set takes about 50 times as long for so many elements as a map of endpoints. */
const COUNT = 6000;
const MOST = 10;

describe('allowed sources: kernel time of loadBalancerSourceRanges', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;
  beforeEach(async () => {
    namespace = await createNamespace();
    helper = namespace.helper();
    await helper.call('modeStart', 'agent', { family: 'IPv4' });
    await helper.call('modeApply', 'agent', true);
  });
  afterEach(() => namespace[Symbol.asyncDispose]());

  const addresses = (count: number) =>
    Array.from({ length: count }, (_, index) => `10.${100 + (index >> 8)}.${index & 255}.1`);
  const loadBalancer = (match: RouteMatch, sources: number) =>
    route(
      {
        match,
        clusterIP: undefined,
        loadBalancerIPs: ['203.0.113.1'],
        sourceRanges: addresses(sources).map((address) => `${address}/32`),
      },
      ['10.244.0.1'],
    );
  /** Microseconds of kernel time. */
  const apply = async (...upserts: Route[]) => {
    const before = await helper.call('modeKernelTime');
    await helper.call('modeUpdate', 'agent', upserts, []);
    await helper.call('modeApply', 'agent', false);
    return (await helper.call('modeKernelTime')) - before;
  };

  for (const [what, match] of [
    ['a listed port', { kind: 'port', protocol: 'TCP', port: 80 }],
    ['all ports', { kind: 'all' }],
  ] as const satisfies [string, RouteMatch][]) {
    it(`sources of ${what} cost the kernel about what as many endpoints cost`, async function () {
      this.timeout(60_000 * PATIENCE);
      // Declares the set and the chain.
      await apply(loadBalancer(match, 1));
      const endpoints = await apply(route({ id: 'other', match }, addresses(COUNT)));
      const sources = await apply(loadBalancer(match, COUNT));
      assert.ok(
        sources < MOST * endpoints,
        `${sources} µs for sources, ${endpoints} for endpoints`,
      );
    });
  }
});
