import assert from 'node:assert/strict';
import fc from 'fast-check';
import { checkDrops, checkMasquerade } from '../../preflight/foreign-rules.ts';
import { iptablesChains } from '../../preflight/iptables-rules.ts';
import type { BaseChain } from '../../preflight/packet-walk.ts';
import { testAddresses } from '../../preflight/test-addresses.ts';
import { NODE, objectsWith, serviceWith, sliceOf } from './facts.ts';

const NO_TARGETS = { targets: [], targetCount: 0, vips: [] };
const ADDRESSES = [
  { pod: '10.244.1.5', endpoint: '10.244.2.7', node: '192.168.77.10', ...NO_TARGETS },
];

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
  linesOf(checkDrops({ value: chains }, ADDRESSES, [10_256, 30_500, 30_501]));

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

  it('a rule whose effect is not known is a warning that names it', () => {
    const rule = { matches: [{ kind: 'unknown' }], verdict: { kind: 'drop' } } as const;
    const rules = [{ ...rule, unknown: 'queue to 3' }];
    assert.deepEqual(drops(base('forward', { chains: new Map([['FORWARD', rules]]) }, '')), [
      'warn table ip firewall, base chain FORWARD (priority 0, policy accept) may drop connections from pods to endpoints (it depends on what is not evaluated: queue to 3)',
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
    const open = (ports: string) =>
      drops(base('input', { policy: 'drop' }, `-A X -p tcp -m tcp --dport ${ports} -j ACCEPT`));
    assert.match(
      open('10256')[0] ?? '',
      /^warn .*base chain INPUT.* drops health checks of load balancers \(port 30500\)/,
    );
    assert.match(open('10256:30500')[0] ?? '', /drops health checks .*\(port 30501\)/);
    assert.match(open('10256:30501')[0] ?? '', /^ok /);
  });

  it('counts only chains at the hooks that were evaluated', () => {
    const chains = [base('forward', {}, ''), base('input', {}, ''), base('postrouting', {}, '')];
    const output: BaseChain = { ...base('forward', {}, ''), chain: 'OUTPUT', hook: 'output' };
    const value = [...chains, output, output];
    assert.deepEqual(linesOf(checkDrops({ value }, ADDRESSES, [10_256])), [
      'ok none of 2 base chains of other programs at hooks prerouting, forward and input drops health checks or traffic to endpoints (tested with port 20104)',
    ]);
    assert.deepEqual(linesOf(checkDrops({ value }, ADDRESSES, [])), [
      'ok none of 1 base chains of other programs at hooks prerouting and forward drops traffic to endpoints (tested with port 20104)',
    ]);
  });

  it('a drop of one port of one endpoint is a warning', () => {
    const target = { address: '10.244.1.11', port: 8080, protocol: 'TCP' } as const;
    const others = Array.from({ length: 2 }, (_, index) => ({ ...target, port: index + 1 }));
    const value = (rule: string) => [base('forward', {}, rule)];
    const check = (rule: string) => {
      const [addresses] = ADDRESSES;
      assert.ok(addresses);
      const given = { ...addresses, targets: [...others, target], targetCount: 120 };
      return linesOf(checkDrops({ value: value(rule) }, [given], []));
    };
    const place = 'table ip firewall, base chain FORWARD (priority 0, policy accept)';
    assert.deepEqual(check('-A X -d 10.244.1.11/32 -p tcp -m tcp --dport 8080 -j DROP'), [
      `warn ${place} drops connections from pods to 10.244.1.11:8080/TCP`,
    ]);
    assert.deepEqual(check('-A X ! -s 10.244.0.0/16 -p tcp -m tcp --dport 8080 -j DROP'), [
      `warn ${place} drops connections from outside to 10.244.1.11:8080/TCP`,
    ]);
    assert.deepEqual(check('-A X -p udp -m udp --dport 8080 -j DROP'), [
      'ok none of 1 base chains of other programs at hooks prerouting and forward drops traffic to endpoints (tested with 3 of 120 ports of endpoints)',
    ]);
  });

  it('a drop at prerouting sees VIPs before translation, and endpoints always', () => {
    const check = (rule: string, priority: number) => {
      const [addresses] = ADDRESSES;
      assert.ok(addresses);
      const vips = [{ address: '10.96.0.10', port: 80, protocol: 'TCP' } as const];
      const chain: BaseChain = { ...base('forward', {}, rule), hook: 'prerouting', priority };
      const results = checkDrops({ value: [chain] }, [{ ...addresses, vips }], []);
      return linesOf(results).map((line) => line.replace(/ (table|base chains) .* drops/, ''));
    };
    const vip = '-A X -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j DROP';
    assert.deepEqual(check(vip, -300), ['warn connections from pods to 10.96.0.10:80/TCP']);
    assert.match(check(vip, -50)[0] ?? '', /^ok/);
    for (const priority of [-300, -50]) {
      assert.deepEqual(check('-A X -s 10.244.0.0/16 -j DROP', priority), [
        'fail connections from pods to endpoints',
      ]);
    }
  });

  it('chains of interfaces and bridges are named as not evaluated', () => {
    const chain: BaseChain = { ...base('forward', {}, '-A X -j DROP'), hook: 'other' };
    const lines = linesOf(checkDrops({ value: [chain] }, ADDRESSES, []));
    assert.match(lines[0] ?? '', /^ok none of 0 base chains/);
    assert.deepEqual(lines.slice(1), [
      'warn not seen: rules of interfaces and bridges are not evaluated: base chain FORWARD of table ip firewall',
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
      ...{ pod: '10.244.1.9', endpoint: '10.244.3.3', node: '192.168.77.10', ...NO_TARGETS },
    });
  });

  it('have ports of endpoints and cluster IPs, a sample of many', () => {
    const [slice, again] = [sliceOf(['10.244.1.9', 'node'], ['192.168.77.11', 'b']), sliceOf()];
    const ports = Array.from({ length: 120 }, (_, index) => ({
      name: `${index}`,
      protocol: 'UDP' as const,
      port: 1000 + index,
    }));
    const web = serviceWith({
      ports: [{ name: '', protocol: 'TCP', port: 80, nodePort: 0 }],
    });
    const found = first(
      'node',
      OPTIONS,
      objectsWith({ services: [web], slices: [{ ...slice, ports }, { ...slice, ports }, again] })
        .value,
    );
    assert.equal(found?.targetCount, 120);
    assert.equal(found?.targets.length, 50);
    assert.deepEqual(found?.targets[0], { address: '10.244.1.9', port: 1000, protocol: 'UDP' });
    assert.ok(found?.targets.some(({ port }) => port > 1110));
    assert.deepEqual(found?.vips, [{ address: '10.96.0.10', port: 80, protocol: 'TCP' }]);
  });

  it('come from the CIDRs if there are no endpoints', () => {
    assert.deepEqual(first('node', OPTIONS, objectsWith({}).value), {
      ...{ pod: '10.244.1.2', endpoint: '10.244.0.2', node: '192.168.77.10', ...NO_TARGETS },
    });
    assert.deepEqual(testAddresses('node', OPTIONS, objectsWith({ node: undefined }).value)[1], {
      ...{
        pod: 'fd00:10:244::2',
        endpoint: 'fd00:10:244:ffff:ffff:ffff:ffff:fffd',
        node: undefined,
        ...NO_TARGETS,
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
