import assert from 'node:assert/strict';
import type { IpFamily } from '../../../api/objects.ts';
import { baseChainText } from '../../../nft/declaration.ts';
import { nftRuleText } from '../../../nft/rule.ts';
import { staticChains } from '../../../policy/compile/policy-table.ts';

describe('policy-table: static chains of the policy table', () => {
  const chains = (family: IpFamily, logGroup?: number) =>
    new Map(
      staticChains({ family, logGroup }).map(({ name, base, rules }) => [
        name,
        {
          hook: base && baseChainText(base),
          rules: [...rules].map(({ rule }) => nftRuleText(rule)),
        },
      ]),
    );

  it('has base chains that evaluate the first packet of a connection after DNAT', () => {
    const bothDirections = [
      'ip saddr . ip daddr @hairpin-pods accept',
      'ip saddr vmap @egress-pods',
      'ip daddr vmap @ingress-pods',
    ];
    const established = 'ct state established,related accept';
    const untracked = 'ct state untracked meta l4proto udp';
    const hooks = [...chains('IPv4')].filter(
      ([name, { hook }]) => hook !== undefined && !name.startsWith('dns-'),
    );
    assert.deepEqual(Object.fromEntries(hooks), {
      forward: {
        hook: 'type filter hook forward priority 10; policy accept;',
        rules: [established, `${untracked} goto untracked`, ...bothDirections],
      },
      input: {
        hook: 'type filter hook input priority 110; policy accept;',
        rules: [established, `${untracked} goto untracked`, 'ip saddr vmap @egress-pods'],
      },
      output: {
        hook: 'type filter hook output priority 10; policy accept;',
        rules: [
          established,
          `${untracked} fib saddr type local goto remember-answers`,
          `${untracked} goto untracked`,
          'fib saddr type local accept',
          ...bothDirections,
        ],
      },
    });
  });

  it('allows untracked packets that answer allowed ones', () => {
    const timeout = 'timeout 120s';
    assert.deepEqual(chains('IPv4').get('untracked')?.rules, [
      `ip saddr . ip daddr . th sport . th dport @udp-answers update @udp-answers { ip saddr . ip daddr . th sport . th dport ${timeout} } accept`,
      `ip saddr @owned-vips ip daddr . th sport . th dport @vip-answers update @vip-answers { ip daddr . th sport . th dport ${timeout} } accept`,
      'ip saddr . ip daddr @hairpin-pods accept',
      'ip saddr vmap @egress-pods',
      'ip daddr vmap @ingress-pods',
      'goto remember-answers',
    ]);
    const answer = `update @udp-answers { ip daddr . ip saddr . th dport . th sport ${timeout} }`;
    assert.deepEqual(chains('IPv4').get('remember-answers')?.rules, [
      `ip saddr @selected-pods ${answer} update @vip-answers { ip saddr . th dport . th sport ${timeout} } accept`,
      `ip daddr @selected-pods ${answer} accept`,
    ]);
  });

  it('queues DNS packets of pods, after DNAT, and answers only from the interface of the way back', () => {
    const tracked = 'ct original proto-dst 53 ct original ip daddr @dns-resolvers';
    const query =
      'th dport 53 ip daddr @dns-resolvers ip saddr != @dns-bypass fib saddr type != local goto dns-queue';
    const answer =
      'th sport 53 ip saddr @dns-resolvers ip daddr != @dns-bypass fib daddr type != local';
    const both = (rule: (protocol: string) => string) => ['udp', 'tcp'].map(rule);
    const dns = [...chains('IPv4')].filter(([name]) => name.startsWith('dns-'));
    assert.deepEqual(Object.fromEntries(dns), {
      'dns-prerouting': {
        hook: 'type filter hook prerouting priority -90; policy accept;',
        rules: [
          'ct state untracked goto dns-untracked',
          ...both((protocol) => `meta l4proto ${protocol} ${tracked} goto dns-tracked`),
        ],
      },
      'dns-output': {
        hook: 'type filter hook output priority -90; policy accept;',
        rules: [
          ...both(
            (protocol) => `meta l4proto ${protocol} ct state untracked ${answer} goto dns-queue`,
          ),
          ...both(
            (protocol) =>
              `meta l4proto ${protocol} ${tracked} ct direction reply ip daddr != @dns-bypass fib daddr type != local goto dns-queue`,
          ),
        ],
      },
      'dns-tracked': {
        hook: undefined,
        rules: [
          'ct direction original ip saddr != @dns-bypass fib saddr type != local goto dns-queue',
          'ct direction reply ip daddr != @dns-bypass fib daddr type != local goto dns-answers',
        ],
      },
      'dns-untracked': {
        hook: undefined,
        rules: [
          ...both((protocol) => `meta l4proto ${protocol} ${query}`),
          ...both((protocol) => `meta l4proto ${protocol} ${answer} goto dns-answers`),
        ],
      },
      'dns-answers': {
        hook: undefined,
        rules: [
          'fib saddr . mark . iif oif != 0 goto dns-queue',
          'counter name "forged-dns-answers"',
        ],
      },
      'dns-queue': { hook: undefined, rules: ['queue flags bypass to 2610'] },
    });
  });

  it('accepts neighbour discovery', () => {
    const discovery = 'meta l4proto ipv6-icmp ip6 hoplimit 255 icmpv6 type 133-137 accept';
    for (const name of ['forward', 'input']) {
      assert.equal(chains('IPv6').get(name)?.rules[1], discovery);
    }
  });

  it('counts denied packets and logs them to the NFLOG group when set', () => {
    const name = 'deny-network-policy-egress';
    assert.deepEqual(chains('IPv4').get(name)?.rules, [`counter name "${name}" drop`]);
    assert.deepEqual(chains('IPv4', 5).get(name)?.rules, [
      `counter name "${name}" log prefix "portwide deny network-policy egress " group 5 drop`,
    ]);
  });
});
