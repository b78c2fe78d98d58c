import assert from 'node:assert/strict';
import fc from 'fast-check';
import { addressBytes } from '../../netlink/core/address.ts';
import { u32 } from '../../netlink/core/host-order.ts';
import { encodeNumber } from '../../netlink/core/network-order.ts';
import { decodeRule } from '../../netlink/nftables/decode-rule.ts';
import {
  bitwise,
  CT_KEY,
  cmp,
  ct,
  dnat,
  encodeRule,
  fibWayBack,
  immediate,
  limit,
  lookup,
  lookupData,
  lookupVerdict,
  META_KEY,
  masq,
  meta,
  type NftExpression,
  PAYLOAD_BASE,
  payload,
  reject,
  setMark,
  verdict,
} from '../../netlink/nftables/rule.ts';
import type { SetContent } from '../../netlink/nftables/statement.ts';
import type { NftBaseChain } from '../../netlink/nftables/types.ts';
import { iptablesChains } from '../../preflight/iptables-rules.ts';
import { nftChains, nftWalkRules } from '../../preflight/nft-rules.ts';
import { type BaseChain, type TestPacket, walk } from '../../preflight/packet-walk.ts';
import { anyRule, expression, text } from '../netlink/nftables/expression.ts';
import { checkProperty } from '../netlink/property.ts';
import { endingsOf, POD, POD6 } from './endings.ts';

describe('preflight: iptables rules', () => {
  /** The chain FORWARD with these rules, in a table with chain USER. */
  const forward = (rules: string, policy = 'ACCEPT') => {
    const lines = ['*filter', ':INPUT ACCEPT [0:0]', `:FORWARD ${policy} [0:0]`, ':USER - [0:0]'];
    lines.push(':KUBE-FORWARD - [0:0]', ':KUBE-FIREWALL - [0:0]', rules, 'COMMIT');
    return iptablesChains('filter', lines.join('\n'), 'ip filter').find(
      ({ chain }) => chain === 'FORWARD',
    );
  };

  for (const [rules, expected] of [
    ['', 'accept by policy'],
    ['-A FORWARD -j DROP', 'drop'],
    ['-A FORWARD -j REJECT --reject-with icmp-port-unreachable', 'drop'],
    ['-A FORWARD -s 10.244.0.0/16 -j ACCEPT\n-A FORWARD -j DROP', 'accept'],
    ['-A FORWARD ! -s 10.244.0.0/16 -j DROP', 'accept by policy'],
    ['-A FORWARD ! -d 10.244.1.0/24 -j DROP', 'drop'],
    ['-A FORWARD -d 10.244.2.7/32 -p tcp -m tcp --dport 8080 -j DROP', 'drop'],
    ['-A FORWARD -p tcp -m tcp --dport 80 -j DROP', 'accept by policy'],
    ['-A FORWARD -p tcp -m multiport --dports 80,8000:9000 -j DROP', 'drop'],
    ['-A FORWARD -p udp -j DROP', 'accept by policy'],
    ['-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -j DROP', 'drop'],
    ['-A FORWARD -m conntrack --ctstate INVALID -j DROP', 'accept by policy'],
    ['-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT\n-A FORWARD -j DROP', 'accept'],
    ['-A FORWARD -m mark --mark 0x8000/0x8000 -j DROP', 'accept by policy'],
    ['-A FORWARD -m mark ! --mark 0x2000/0x2000 -j DROP', 'drop'],
    ['-A FORWARD -i lo -j DROP', 'accept by policy'],
    ['-A FORWARD -i eth1 -j DROP', 'drop, accept by policy'],
    ['-A FORWARD -i docker0 -j DROP', 'accept by policy'],
    ['-A FORWARD ! -i docker0 -p tcp -j DROP', 'drop'],
    [
      '-A FORWARD -j MARK --set-xmark 0x1/0x1\n-A FORWARD -m mark --mark 0x1/0x1 -j DROP',
      'drop, accept by policy',
    ],
    ['-A FORWARD -m set --match-set blocked src -j DROP', 'drop, accept by policy'],
    ['-A FORWARD -m comment --comment "a -j DROP of \\"all\\"" -j USER', 'accept by policy'],
    ['-A FORWARD -j USER\n-A USER -j DROP', 'drop'],
    ['-A FORWARD -j USER\n-A USER -j RETURN\n-A USER -j DROP', 'accept by policy'],
    ['-A FORWARD -g USER\n-A FORWARD -j DROP', 'accept by policy'],
    ['-A FORWARD -j LOG --log-prefix "x "\n-A FORWARD -j DROP', 'drop'],
    // Rules of kube-proxy and Portwide, which the agent replaces.
    ['-A FORWARD -j KUBE-FORWARD\n-A KUBE-FORWARD -j DROP', 'accept by policy'],
    // A chain of the kubelet.
    [
      '-A FORWARD -j KUBE-FIREWALL\n-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP',
      'accept by policy',
    ],
    // A loop cannot exist in the kernel.
    ['-A FORWARD -j MISSING', 'accept by policy'],
  ] as const) {
    it(`${JSON.stringify(rules)}: ${expected}`, () => {
      assert.equal(endingsOf(forward(rules)), expected);
    });
  }

  it('a policy drop ends what no rule accepts', () => {
    assert.equal(endingsOf(forward('', 'DROP')), 'drop by policy');
    assert.equal(
      endingsOf(forward('-A FORWARD -i cni0 -j ACCEPT', 'DROP')),
      'accept, drop by policy',
    );
  });

  it('masquerade by CNIs: only with a match on the destination it spares endpoints', () => {
    const endings = (...rules: readonly string[]) => {
      const saved = ['*nat', ':POSTROUTING ACCEPT [0:0]', ':FLANNEL-POSTRTG - [0:0]', ...rules];
      return endingsOf(iptablesChains('nat', saved.join('\n'), 'ip nat')[0]);
    };
    const flannel = [
      '-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG',
      '-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN',
      '-A FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN',
      '-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully',
    ];
    assert.equal(endings(...flannel), 'accept by policy');
    assert.equal(endings(...flannel.toSpliced(2, 1)), 'masquerade');
    assert.equal(
      endings('-A POSTROUTING -s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE'),
      'accept by policy',
    );
    assert.equal(
      endings('-A POSTROUTING -s 10.244.1.0/24 -j SNAT --to-source 192.0.2.1'),
      'masquerade',
    );
    assert.equal(
      endings('-A POSTROUTING -s 10.244.1.0/24 -o eth0 -j MASQUERADE'),
      'masquerade, accept by policy',
    );
  });

  it('reads tables raw, mangle and security, with their hooks', () => {
    const chainsOf = (table: 'raw' | 'mangle' | 'security', rule: string) =>
      iptablesChains(
        table,
        `:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n${rule}`,
        `ip ${table}`,
      );
    const [raw, ...rest] = chainsOf('raw', '-A PREROUTING -j DROP');
    assert.deepEqual([raw?.hook, raw?.priority, rest], ['prerouting', -300, []]);
    assert.equal(endingsOf(raw), 'drop');
    assert.deepEqual(
      chainsOf('mangle', '').map(({ hook, priority }) => `${hook} ${priority}`),
      ['prerouting -150', 'input -150'],
    );
    assert.deepEqual(
      chainsOf('security', '').map(({ hook, priority }) => `${hook} ${priority}`),
      ['input 50'],
    );
    const filter = (options: string) =>
      endingsOf(chainsOf('raw', `-A PREROUTING -m rpfilter ${options} -j DROP`)[0]);
    assert.equal(filter('--validmark --invert'), 'accept by policy');
    assert.equal(filter('--validmark'), 'drop');
  });

  it('reads IPv6', () => {
    const saved = ':FORWARD ACCEPT [0:0]\n-A FORWARD -d fd00:2::/64 -j DROP';
    assert.equal(endingsOf(iptablesChains('filter', saved, 'ip6 filter')[0], POD6), 'drop');
  });
});

/** Registers, and attributes that the agent itself does not use. */
const R = 0;
const NFPROTO = 15;
const nfproto = (family: number) => [meta(R, NFPROTO), cmp(R, Buffer.from([family]))];
const isIpv4 = nfproto(2);
const isIpv6 = nfproto(10);
const l4proto = (protocol: number, not = false) => [
  meta(R, META_KEY.protocol),
  cmp(R, Buffer.from([protocol]), not),
];
const port = (number: number) => encodeNumber(number, 2);
const dport = payload(R, PAYLOAD_BASE.transport, 2, 2);
const source = payload(R, PAYLOAD_BASE.network, 12, 4);
const destination = payload(R, PAYLOAD_BASE.network, 16, 4);
const destination6 = payload(R, PAYLOAD_BASE.network, 24, 16);
const name = (text: string) => Buffer.concat([Buffer.from(text), Buffer.alloc(16)], 16);
const stateIs = (bits: number) => [
  ct(R, CT_KEY.state),
  bitwise(R, u32(bits), u32(0)),
  cmp(R, u32(0), true),
];
const statusIs = (bits: number) => [
  ct(R, CT_KEY.status),
  bitwise(R, u32(bits), u32(0)),
  cmp(R, u32(0), true),
];
const wayBack = (index: number) => [fibWayBack(R), cmp(R, u32(index))];
const DROP = verdict({ kind: 'drop' });
/** Bytes and packets of a counter. */
const COUNTS = [1, 2].map((type) => ({ type, value: Buffer.alloc(8) }));
const ACCEPT = verdict({ kind: 'accept' });

const key = (first: Buffer, last = first) => ({ keys: { first, last } });
const SETS: readonly SetContent[] = [
  { name: 'blocked', keyLength: 4 },
  {
    name: '__set0',
    keyLength: 4,
    elements: [
      key(addressBytes('10.0.0.1')),
      key(addressBytes('10.244.1.0'), addressBytes('10.244.1.255')),
    ],
  },
  { name: '__set1', keyLength: 2, elements: [key(port(22)), key(port(8000), port(9000))] },
  {
    name: '__map0',
    keyLength: 4,
    elements: [
      { ...key(u32(2)), data: { kind: 'accept' } },
      { ...key(u32(8)), data: { kind: 'drop' } },
    ],
  },
  {
    name: '__map1',
    keyLength: 2,
    elements: [
      { ...key(port(22)), data: { kind: 'accept' } },
      { keys: undefined, data: { kind: 'drop' } },
    ],
  },
];

const TABLE = { family: 1, name: 't' };
const CONTEXT = {
  family: TABLE.family,
  sets: new Map(SETS.map((set) => [set.name, set])),
  links: new Map([[3, 'docker0']]),
};
const FORWARD: NftBaseChain = { type: 'filter', hook: 2, priority: 0, policy: 1 };

type Rules = readonly (readonly NftExpression[])[];

/** The base chains of a table whose chain `forward` has these rules, and that has chain `user`. */
function listing(rules: Rules, base = FORWARD, family = TABLE.family): BaseChain[] {
  const rule = (chain: string, expressions: readonly NftExpression[]) =>
    nftWalkRules(
      { chain, handle: 1, comment: undefined },
      decodeRule(encodeRule(expressions), { ...CONTEXT, family }),
    );
  return nftChains(
    { ...TABLE, family },
    {
      chains: [
        { name: 'forward', base },
        { name: 'user', base: undefined },
      ],
      rules: [...rules.map((each) => rule('forward', each)), rule('user', [DROP])],
    },
  );
}

describe('preflight: nft rules', () => {
  for (const [title, rules, expected, expected6 = expected] of [
    ['drop', [[DROP]], 'drop'],
    ['reject with counter', [[expression('counter', COUNTS), reject('IPv4')]], 'drop'],
    ['jump', [[verdict({ kind: 'jump', chain: 'user' })]], 'drop'],
    [
      'ip daddr prefix',
      [[...isIpv4, payload(R, PAYLOAD_BASE.network, 16, 2), cmp(R, Buffer.from([10, 244])), DROP]],
      'drop',
      'accept by policy',
    ],
    [
      'ip saddr != prefix',
      [
        [
          ...isIpv4,
          source,
          bitwise(R, addressBytes('255.240.0.0'), u32(0)),
          cmp(R, addressBytes('10.240.0.0'), true),
          DROP,
        ],
      ],
      'accept by policy',
    ],
    ['ip saddr set', [[...isIpv4, source, lookup('__set0', R), DROP]], 'drop', 'accept by policy'],
    [
      'ip saddr @named',
      [[...isIpv4, source, lookup('blocked', R), DROP]],
      'drop, accept by policy',
      'accept by policy',
    ],
    [
      'ip6 daddr',
      [[...isIpv6, destination6, cmp(R, addressBytes('fd00:2::7')), DROP]],
      'accept by policy',
      'drop',
    ],
    [
      'address of an unknown family',
      [[destination, cmp(R, addressBytes('10.244.2.7')), DROP]],
      'drop, accept by policy',
    ],
    ['tcp dport', [[...l4proto(6), dport, cmp(R, port(8080)), DROP]], 'drop'],
    ['tcp dport set and range', [[...l4proto(6), dport, lookup('__set1', R), DROP]], 'drop'],
    ['udp dport', [[...l4proto(17), dport, cmp(R, port(8080)), DROP]], 'accept by policy'],
    [
      'ct original proto-dst',
      [[ct(R, CT_KEY.destinationPort, 0), cmp(R, port(80)), DROP]],
      'drop, accept by policy',
    ],
    ['meta l4proto udp', [[...l4proto(17), DROP]], 'accept by policy'],
    ['meta nfproto ipv6', [[...isIpv6, DROP]], 'accept by policy', 'drop'],
    ['iifname lo', [[meta(R, META_KEY.inputName), cmp(R, name('lo')), DROP]], 'accept by policy'],
    [
      'iifname eth0',
      [[meta(R, META_KEY.inputName), cmp(R, name('eth0')), DROP]],
      'drop, accept by policy',
    ],
    ['oif docker0', [[meta(R, 5), cmp(R, u32(3)), DROP]], 'accept by policy'],
    ['ct established', [[...stateIs(2 | 4), ACCEPT], [DROP]], 'drop'],
    ['ct state vmap', [[ct(R, CT_KEY.state), lookupVerdict('__map0', R)]], 'drop'],
    [
      'dport vmap with a verdict for all others',
      [[...l4proto(6), dport, lookupVerdict('__map1', R)]],
      'drop',
    ],
    ['vmap with a name', [[dport, lookupVerdict('ports', R)]], 'accept by policy'],
    [
      'data of a map',
      [[...isIpv4, source, lookupData('names', R, R), cmp(R, addressBytes('10.0.0.1')), DROP]],
      'drop, accept by policy',
      'accept by policy',
    ],
    ['limit', [[limit(1, 5), DROP]], 'drop, accept by policy'],
    ['xt extension', [[expression('match', [text(1, 'recent')]), DROP]], 'drop, accept by policy'],
    ['xt comment', [[expression('match', [text(1, 'comment')]), DROP]], 'drop'],
    ['xt target', [[expression('target', [text(1, 'REJECT')])]], 'drop'],
    ['xt target that passes', [[expression('target', [text(1, 'LOG')])]], 'accept by policy'],
    [
      'xt target that is not known',
      [[expression('target', [text(1, 'NFQUEUE')])]],
      'drop, accept by policy',
    ],
    [
      'queue',
      [[...l4proto(6), expression('queue', [{ type: 1, value: port(3) }])]],
      'drop, accept by policy',
    ],
    ['queue of UDP', [[...l4proto(17), expression('queue', [])]], 'accept by policy'],
    ['unknown expression', [[expression('teleport', [])]], 'drop, accept by policy'],
    [
      'accept after an unknown expression',
      [[expression('teleport', []), ACCEPT], [DROP]],
      'drop, accept, drop',
    ],
    [
      'expression without its attributes',
      [[expression('lookup', []), DROP]],
      'drop, drop, accept by policy',
    ],
    ['mangle only', [[immediate(R, u32(1)), setMark(R)]], 'accept by policy'],
    ['mangle, then drop', [[immediate(R, u32(1)), setMark(R), DROP]], 'drop'],
    ['meta mark', [[meta(R, META_KEY.mark), cmp(R, u32(1)), DROP]], 'accept by policy'],
    [
      'meta mark after a rule that sets it',
      [
        [immediate(R, u32(1)), setMark(R)],
        [meta(R, META_KEY.mark), cmp(R, u32(1)), DROP],
      ],
      'drop, accept by policy',
    ],
    ['fib saddr . mark . iif oif missing', [[...wayBack(0), DROP]], 'accept by policy'],
    ['fib saddr . mark . iif oif eth0', [[...wayBack(2), DROP]], 'drop, accept by policy'],
    [
      'iifname docker0',
      [[meta(R, META_KEY.inputName), cmp(R, name('docker0')), DROP]],
      'accept by policy',
    ],
    ['masquerade', [[masq()]], 'masquerade'],
    [
      'dnat',
      [[immediate(R, addressBytes('10.0.0.1')), dnat('IPv4', R, undefined)]],
      'accept by policy',
    ],
  ] as readonly [string, Rules, string, string?][]) {
    it(`${title}: ${expected}`, () => {
      const [base] = listing(rules);
      assert.equal(endingsOf(base), expected);
      assert.equal(endingsOf(base, POD6), expected6, 'IPv6');
    });
  }

  it('matches protocol and translation of the packet', () => {
    const nft = (...rules: Rules) => listing(rules)[0];
    const udp: TestPacket = { ...POD, protocol: 'UDP' };
    const toUdp = nft([...l4proto(17), dport, cmp(R, port(8080)), DROP]);
    assert.equal(endingsOf(toUdp, udp), 'drop');
    assert.equal(endingsOf(toUdp, POD), 'accept by policy');
    const toOther = nft([...l4proto(17), dport, cmp(R, port(53), true), DROP]);
    assert.equal(endingsOf(toOther, udp), 'drop');
    assert.equal(endingsOf(toOther, POD), 'accept by policy');
    const toAny = nft([dport, cmp(R, port(8080)), DROP]);
    assert.equal(endingsOf(toAny, { ...POD, protocol: 'SCTP' }), 'drop');
    const translated = nft([...statusIs(32), DROP]);
    assert.equal(endingsOf(translated, POD), 'drop');
    assert.equal(endingsOf(translated, { ...POD, isTranslated: false }), 'accept by policy');
  });

  it('sees that chain KUBE-FORWARD accepts packets that Portwide masquerades', () => {
    const saved = '*filter\n:FORWARD DROP [0:0]\n-A FORWARD -j KUBE-FORWARD\nCOMMIT';
    const [base] = iptablesChains('filter', saved, 'ip filter');
    assert.equal(endingsOf(base, POD), 'drop by policy');
    assert.equal(endingsOf(base, { ...POD, isMasqueraded: true }), 'accept');
  });

  it('reads hook, priority and policy, and leaves out chains that neither drop nor masquerade', () => {
    assert.deepEqual(
      listing([], { ...FORWARD, priority: -10, policy: 0 }).map(({ chains: _, ...rest }) => rest),
      [{ table: 'inet t', chain: 'forward', hook: 'forward', priority: -10, policy: 'drop' }],
    );
    assert.deepEqual(listing([], { ...FORWARD, type: 'nat', hook: 0 }), []);
    assert.deepEqual(listing([], { ...FORWARD, type: 'nat', hook: 1 }), []);
    // Without rules: hook ingress, and a bridge.
    assert.deepEqual(listing([], { ...FORWARD, hook: 5 }), []);
    assert.deepEqual(listing([], FORWARD, 7), []);
  });

  it('reads chains of interfaces and bridges as not evaluated', () => {
    for (const [hook, family] of [
      [5, 1],
      [0, 5],
      [2, 7],
    ] as const) {
      const found = listing([[DROP]], { ...FORWARD, hook }, family);
      assert.deepEqual(
        found.map((each) => each.hook),
        ['other'],
      );
    }
    assert.equal(listing([[DROP]], { ...FORWARD, hook: 0 })[0]?.hook, 'prerouting');
    assert.equal(listing([[DROP]], { ...FORWARD, hook: 4 })[0]?.hook, 'postrouting');
  });

  it('evaluates any expressions', () => {
    checkProperty(
      fc.property(anyRule, (rule) => {
        assert.match(endingsOf(listing([rule])[0]), /accept|drop|masquerade/);
      }),
    );
  });

  it('gives up on rules without end', () => {
    const chains = new Map([
      ['a', [{ matches: [], verdict: { kind: 'jump', chain: 'a' } as const }]],
    ]);
    const base = {
      table: 'ip t',
      chain: 'a',
      hook: 'forward',
      priority: 0,
      policy: 'accept',
      chains,
    } as const;
    assert.throws(() => walk(base, POD), RangeError);
  });
});
