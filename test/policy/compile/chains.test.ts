import assert from 'node:assert/strict';
import type { IpFamily } from '../../../api/objects.ts';
import { readComment } from '../../../netlink/nftables/comment.ts';
import { nftRuleText } from '../../../nft/rule.ts';
import { kernelChains } from '../../../policy/compile/chains.ts';
import type { PolicySetChain } from '../../../policy/compile/change.ts';
import { nftChainRules } from '../../../policy/compile/policy-table.ts';
import { chainRule, DENY_REST, peers, policySetChain, ports } from '../fixtures.ts';

/** Rules by chain. */
function compiled(chain: PolicySetChain, family: IpFamily = 'IPv4'): Record<string, string[]> {
  return Object.fromEntries(
    kernelChains(chain, family).map(({ name, lines }) => [
      name,
      [...lines].map(({ rule }) => nftRuleText(rule)),
    ]),
  );
}

describe('chains: the chains of a policy set', () => {
  it('look egress peers up by destination, ingress peers by source', () => {
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

  it('have a rule for each of the sets that peers and ports may be in', () => {
    const all = chainRule({
      peers: peers(1, 'peers', 'networks', 'learned'),
      ports: ports(2, 'ports', 'named-ports'),
    });
    const [texts] = Object.values(compiled(policySetChain('egress', 1, [all])));
    assert.deepEqual(
      texts?.map((text) => [...text.matchAll(/@(\S+)/g)].map(([, set]) => set)),
      ['peers', 'networks', 'learned'].flatMap((set) => [
        [set, 'ports'],
        [set, 'named-ports'],
      ]),
    );
  });

  it('have no rule for what matches nothing', () => {
    const nobody = chainRule({ peers: { number: 1, sets: [] }, outcome: 'deny-admin' });
    const nothing = chainRule({ ports: { number: 1, sets: [] } });
    assert.deepEqual(compiled(policySetChain('egress', 4, [nothing], [nobody])), {
      'egress-4': [],
    });
  });

  it('go where each outcome leads', () => {
    const outcomes = ['deny-admin', 'deny-network-policy', 'deny-baseline', 'allow'] as const;
    const rules = outcomes.map((outcome) => chainRule({ outcome }));
    assert.deepEqual(compiled(policySetChain('ingress', 2, rules)), {
      'ingress-2': [
        'goto deny-admin-ingress',
        'goto deny-network-policy-ingress',
        'goto deny-baseline-ingress',
        'return',
      ],
    });
  });

  it('are one where nothing passes on, the Admin tier first', () => {
    const admin = [chainRule({ peers: peers(1) })];
    assert.deepEqual(compiled(policySetChain('egress', 5, [DENY_REST], admin)), {
      'egress-5': ['1 . ip daddr @peers return', 'goto deny-network-policy-egress'],
    });
  });

  it('of a policy set are two where a rule passes; a packet that no rule of the first matches goes on to the second', () => {
    const admin = [
      chainRule({ peers: peers(1), outcome: 'pass' }),
      chainRule({ peers: peers(2), outcome: 'deny-admin' }),
    ];
    assert.deepEqual(compiled(policySetChain('egress', 5, [DENY_REST], admin)), {
      'egress-5': [
        '1 . ip daddr @peers goto egress-5-rest',
        '2 . ip daddr @peers goto deny-admin-egress',
        'goto egress-5-rest',
      ],
      'egress-5-rest': ['goto deny-network-policy-egress'],
    });
  });

  it('allow what passes on to nothing', () => {
    const admin = [chainRule({ outcome: 'pass' }), chainRule({ outcome: 'deny-admin' })];
    assert.deepEqual(compiled(policySetChain('egress', 5, [], admin)), {
      'egress-5': ['return', 'goto deny-admin-egress'],
    });
  });

  describe('drop what has ports that cannot be read', () => {
    const deny = chainRule({ ports: ports(1), outcome: 'deny-baseline' });

    it('where ports deny, once', () => {
      assert.deepEqual(
        compiled(policySetChain('egress', 1, [chainRule({ peers: peers(2) }), deny, deny])),
        {
          'egress-1': [
            '2 . ip daddr @peers return',
            'jump unreadable-deny-baseline-egress',
            '1 . meta l4proto . th dport @ports goto deny-baseline-egress',
            '1 . meta l4proto . th dport @ports goto deny-baseline-egress',
          ],
        },
      );
    });

    it('where ports pass on, in each chain', () => {
      const pass = chainRule({ ports: ports(1), outcome: 'pass' });
      assert.deepEqual(compiled(policySetChain('ingress', 1, [deny], [pass])), {
        'ingress-1': [
          'jump unreadable-deny-admin-ingress',
          '1 . meta l4proto . th dport @ports goto ingress-1-rest',
          'goto ingress-1-rest',
        ],
        'ingress-1-rest': [
          'jump unreadable-deny-baseline-ingress',
          '1 . meta l4proto . th dport @ports goto deny-baseline-ingress',
        ],
      });
    });

    it('not where they only allow: the packet goes on to what denies it', () => {
      const allow = chainRule({ ports: ports(1) });
      assert.deepEqual(compiled(policySetChain('ingress', 1, [allow, DENY_REST])), {
        'ingress-1': [
          '1 . meta l4proto . th dport @ports return',
          'goto deny-network-policy-ingress',
        ],
      });
    });
  });

  it('carry comments that nft can show', () => {
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
