import assert from 'node:assert/strict';
import fc from 'fast-check';
import { checkDrops, checkMasquerade } from '../../preflight/foreign-rules.ts';
import { iptablesChains } from '../../preflight/iptables-rules.ts';
import type { BaseChain } from '../../preflight/packet-walk.ts';
import { testAddresses } from '../../preflight/test-addresses.ts';
import { NODE, objectsWith, sliceOf } from './facts.ts';

const ADDRESSES = [{ pod: '10.244.1.5', endpoint: '10.244.2.7', node: '192.168.77.10' }];

function base(hook: BaseChain['hook'], changes: Partial<BaseChain>, rules: string): BaseChain {
  const [table, chain] =
    hook === 'postrouting'
      ? (['nat', 'POSTROUTING'] as const)
      : (['filter', hook.toUpperCase()] as const);
  const saved = `:${chain} ACCEPT [0:0]\n${rules.replace(/^-A X/gm, `-A ${chain}`)}`;
  const [found] = iptablesChains(table, saved, 'ip firewall');
  assert.ok(found);
  return { ...found, ...changes };
}
const linesOf = (results: readonly { status: string; seen: string }[]) =>
  results.map(({ status, seen }) => `${status} ${seen}`);
const drops = (...chains: readonly BaseChain[]) =>
  linesOf(checkDrops({ value: chains }, ADDRESSES, 10_256));

describe('preflight: rules of other programs', () => {
  it('a policy drop at forward fails, and names table, chain, priority and policy', () => {
    assert.deepEqual(drops(base('forward', { policy: 'drop', priority: -10 }, '')), [
      'fail table ip firewall, base chain FORWARD (priority -10, policy drop) by its policy drops connections from pods to endpoints',
    ]);
  });

  it('a drop that depends on an interface is a warning', () => {
    assert.deepEqual(drops(base('forward', {}, '-A X -i eth1 -j DROP')), [
      'warn table ip firewall, base chain FORWARD (priority 0, policy accept) may drop connections from pods to endpoints (it depends on sets or interfaces)',
    ]);
  });

  it('a drop of clients outside of the cluster is a warning', () => {
    assert.deepEqual(
      drops(base('forward', { policy: 'drop' }, '-A X -s 10.244.0.0/16 -j ACCEPT')),
      [
        'warn table ip firewall, base chain FORWARD (priority 0, policy drop) by its policy drops connections from outside to endpoints',
      ],
    );
  });

  it('a drop of health checks at input is a warning', () => {
    const [line] = drops(
      base('input', { policy: 'drop' }, '-A X -p tcp -m tcp --dport 22 -j ACCEPT'),
    );
    assert.match(
      line ?? '',
      /^warn .*base chain INPUT.* drops health checks of load balancers \(port 10256\)/,
    );
    const open = base('input', { policy: 'drop' }, '-A X -p tcp -m tcp --dport 10256 -j ACCEPT');
    assert.match(drops(open)[0] ?? '', /^ok /);
  });

  it('counts only chains at the hooks that were evaluated', () => {
    const chains = [base('forward', {}, ''), base('input', {}, ''), base('postrouting', {}, '')];
    const output: BaseChain = { ...base('forward', {}, ''), chain: 'OUTPUT', hook: 'output' };
    const value = [...chains, output, output];
    assert.deepEqual(linesOf(checkDrops({ value }, ADDRESSES, 10_256)), [
      'ok none of 2 base chains of other programs at hooks forward and input drops traffic to endpoints or health checks',
    ]);
    assert.deepEqual(linesOf(checkDrops({ value }, ADDRESSES, undefined)), [
      'ok none of 1 base chains of other programs at hook forward drops traffic to endpoints',
    ]);
  });

  it('tables of the other family do not matter', () => {
    assert.match(
      drops(base('forward', { policy: 'drop', table: 'ip6 firewall' }, ''))[0] ?? '',
      /^ok none of 1 base chains/,
    );
    assert.match(
      drops(base('forward', { policy: 'drop', table: 'inet firewall' }, ''))[0] ?? '',
      /^fail/,
    );
  });

  it('masquerade of endpoints is a warning, and a fault with network policy', () => {
    const chain = base('postrouting', {}, '-A X -s 10.244.1.0/24 -j MASQUERADE');
    const check = (policy: boolean) =>
      linesOf(checkMasquerade({ value: [chain] }, ADDRESSES, policy));
    assert.deepEqual(check(false), [
      'warn table ip firewall, base chain POSTROUTING (priority 100, policy accept) masquerades connections from pods to endpoints',
    ]);
    assert.match(check(true)[0] ?? '', /^fail/);
  });

  it('what network policy of Calico may drop is not reported, what it certainly drops is', () => {
    const chains = (match: string) =>
      base('forward', {}, `:cali-fw - [0:0]\n-A X ${match} -j cali-fw\n-A cali-fw -j DROP`);
    assert.match(drops(chains('-i cali123'))[0] ?? '', /^ok /);
    assert.match(drops(chains('-s 10.244.0.0/16'))[0] ?? '', /^fail .*, chain cali-fw drops/);
  });

  it('a ruleset that is too large is not seen', () => {
    const rules = '-A X -s 192.0.2.1/32 -j DROP\n'.repeat(100_001);
    assert.match(drops(base('forward', {}, rules))[0] ?? '', /^warn not seen: too many rules/);
  });
});

describe('preflight: test addresses', () => {
  const OPTIONS = { clusterCidr: ['10.244.0.0/16', 'fd00:10:244::/48'] };
  const first = (...args: Parameters<typeof testAddresses>) => testAddresses(...args)[0];

  it('are a pod here and an endpoint elsewhere, never on the host network', () => {
    const slices = [sliceOf(['192.168.77.11', 'b'], ['10.244.1.9', 'node'], ['10.244.3.3', 'b'])];
    assert.deepEqual(first('node', OPTIONS, objectsWith({ slices }).value), {
      ...{ pod: '10.244.1.9', endpoint: '10.244.3.3', node: '192.168.77.10' },
    });
  });

  it('come from the CIDRs if there are no endpoints', () => {
    assert.deepEqual(first('node', OPTIONS, objectsWith({}).value), {
      ...{ pod: '10.244.1.2', endpoint: '10.244.0.2', node: '192.168.77.10' },
    });
    assert.deepEqual(testAddresses('node', OPTIONS, objectsWith({ node: undefined }).value)[1], {
      ...{
        pod: 'fd00:10:244::2',
        endpoint: 'fd00:10:244:ffff:ffff:ffff:ffff:fffd',
        node: undefined,
      },
    });
    assert.equal(
      first('node', { clusterCidr: [] }, objectsWith({ node: undefined }).value)?.pod,
      undefined,
    );
  });

  it('are in the CIDR, whatever its length', () => {
    fc.assert(
      fc.property(fc.integer({ min: 8, max: 29 }), (length) => {
        const node = { ...NODE, podCIDRs: [`10.0.0.0/${length}`] };
        const found = first('node', { clusterCidr: [] }, objectsWith({ node }).value);
        const last = (found?.endpoint ?? '')
          .split('.')
          .map(Number)
          .reduce((sum, byte) => sum * 256 + byte, 0);
        assert.equal(found?.pod, '10.0.0.2');
        assert.equal(last, 10 * 2 ** 24 + 2 ** (32 - length) - 3);
      }),
    );
  });
});
