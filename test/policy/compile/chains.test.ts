import assert from 'node:assert/strict';
import type { IpFamily } from '../../../api/objects.ts';
import { readComment } from '../../../netlink/nftables/comment.ts';
import { nftRuleText } from '../../../nft/rule.ts';
import { kernelChains } from '../../../policy/compile/chains.ts';
import type { PolicySetChain } from '../../../policy/compile/change.ts';
import { nftChainRules } from '../../../policy/compile/policy-table.ts';
import { chainRule, DENY_REST, peers, policySetChain, ports } from '../fixtures.ts';

/** Rules as text by chain. */
function compiled(chain: PolicySetChain, family: IpFamily = 'IPv4'): Record<string, string[]> {
  return Object.fromEntries(
    kernelChains(chain, family).map(({ name, rules }) => [
      name,
      [...rules].map(({ rule }) => nftRuleText(rule)),
    ]),
  );
}

describe('chains: the chains of a policy set', () => {
  it('match egress peers by destination and ingress peers by source', () => {
    const rules = [chainRule({ peers: peers(3), ports: ports(7, 'ports', 'named-ports') })];
    assert.deepEqual(compiled(policySetChain('egress', 1, rules)), {
      'egress-1': [
        '3 . ip daddr @peers 7 . meta l4proto . th dport @ports return',
        '3 . ip daddr @peers 7 . ip daddr . meta l4proto . th dport @named-ports return',
      ],
    });
    assert.deepEqual(compiled(policySetChain('ingress', 1, rules), 'IPv6'), {
      'ingress-1': [
        '3 . ip6 saddr @peers 7 . meta l4proto . th dport @ports return',
        '3 . ip6 saddr @peers 7 . ip6 daddr . meta l4proto . th dport @named-ports return',
      ],
    });
  });

  it('have one rule for each combination of peer set and port set', () => {
    const all = chainRule({
      peers: peers(1, 'peers', 'networks', 'fqdn-peers'),
      ports: ports(2, 'ports', 'named-ports'),
    });
    const [texts] = Object.values(compiled(policySetChain('egress', 1, [all])));
    assert.deepEqual(
      texts?.map((text) => [...text.matchAll(/@(\S+)/g)].map(([, set]) => set)),
      ['peers', 'networks', 'fqdn-peers'].flatMap((set) => [
        [set, 'ports'],
        [set, 'named-ports'],
      ]),
    );
  });

  it('have no nft rule for a policy rule that matches nothing', () => {
    const noPeer = chainRule({ peers: { id: 1, sets: [] }, verdict: 'deny-admin' });
    const noPort = chainRule({ ports: { id: 1, sets: [] } });
    assert.deepEqual(compiled(policySetChain('egress', 4, [noPort], [noPeer])), {
      'egress-4': [],
    });
  });

  it('have a target for each verdict', () => {
    const outcomes = ['deny-admin', 'deny-network-policy', 'deny-baseline', 'allow'] as const;
    const rules = outcomes.map((verdict) => chainRule({ verdict }));
    assert.deepEqual(compiled(policySetChain('ingress', 2, rules)), {
      'ingress-2': [
        'goto deny-admin-ingress',
        'goto deny-network-policy-ingress',
        'goto deny-baseline-ingress',
        'return',
      ],
    });
  });

  it('are one chain with the Admin tier first when no rule has action Pass', () => {
    const admin = [chainRule({ peers: peers(1) })];
    assert.deepEqual(compiled(policySetChain('egress', 5, [DENY_REST], admin)), {
      'egress-5': ['1 . ip daddr @peers return', 'goto deny-network-policy-egress'],
    });
  });

  it('are two chains when a rule has action Pass, and the first ends with a goto to the second', () => {
    const admin = [
      chainRule({ peers: peers(1), verdict: 'pass' }),
      chainRule({ peers: peers(2), verdict: 'deny-admin' }),
    ];
    assert.deepEqual(compiled(policySetChain('egress', 5, [DENY_REST], admin)), {
      'egress-5': [
        '1 . ip daddr @peers goto egress-5-lower-tiers',
        '2 . ip daddr @peers goto deny-admin-egress',
        'goto egress-5-lower-tiers',
      ],
      'egress-5-lower-tiers': ['goto deny-network-policy-egress'],
    });
  });

  it('allow passed packets when the lower tiers are empty', () => {
    const admin = [chainRule({ verdict: 'pass' }), chainRule({ verdict: 'deny-admin' })];
    assert.deepEqual(compiled(policySetChain('egress', 5, [], admin)), {
      'egress-5': ['return', 'goto deny-admin-egress'],
    });
  });

  describe('drop packets with unparsable ports', () => {
    const deny = chainRule({ ports: ports(1), verdict: 'deny-baseline' });

    it('once, before the first deny rule with ports', () => {
      assert.deepEqual(
        compiled(policySetChain('egress', 1, [chainRule({ peers: peers(2) }), deny, deny])),
        {
          'egress-1': [
            '2 . ip daddr @peers return',
            'jump unparsable-ports-deny-baseline-egress',
            '1 . meta l4proto . th dport @ports goto deny-baseline-egress',
            '1 . meta l4proto . th dport @ports goto deny-baseline-egress',
          ],
        },
      );
    });

    it('in each chain, before a pass rule with ports', () => {
      const pass = chainRule({ ports: ports(1), verdict: 'pass' });
      assert.deepEqual(compiled(policySetChain('ingress', 1, [deny], [pass])), {
        'ingress-1': [
          'jump unparsable-ports-deny-admin-ingress',
          '1 . meta l4proto . th dport @ports goto ingress-1-lower-tiers',
          'goto ingress-1-lower-tiers',
        ],
        'ingress-1-lower-tiers': [
          'jump unparsable-ports-deny-baseline-ingress',
          '1 . meta l4proto . th dport @ports goto deny-baseline-ingress',
        ],
      });
    });

    it('not before allow rules: the packet continues to the default deny', () => {
      const allow = chainRule({ ports: ports(1) });
      assert.deepEqual(compiled(policySetChain('ingress', 1, [allow, DENY_REST])), {
        'ingress-1': [
          '1 . meta l4proto . th dport @ports return',
          'goto deny-network-policy-ingress',
        ],
      });
    });
  });

  it('have comments that nft can print', () => {
    const chain = policySetChain('egress', 1, [
      chainRule({ comment: `say "no" \\ \n${'x'.repeat(200)}` }),
    ]);
    const [part] = kernelChains(chain, 'IPv4');
    assert.ok(part !== undefined);
    const [rule] = [...nftChainRules(part).rules];
    const comment = readComment(rule?.userdata ?? Buffer.alloc(0)) ?? '';
    assert.match(comment, /^say \?no\? \? \?x+$/);
    assert.equal(comment.length, 127);
  });
});
