import assert from 'node:assert/strict';
import { iptablesChains } from '../../preflight/iptables-rules.ts';
import { nftBaseChains, nftChains } from '../../preflight/nft-rules.ts';
import { type BaseChain, type TestPacket, walk } from '../../preflight/packet-walk.ts';

const POD: TestPacket = { source: '10.244.1.5', destination: '10.244.2.7', port: 8080 };
const POD6: TestPacket = { source: 'fd00:1::5', destination: 'fd00:2::7', port: 8080 };

/** `drop`, `accept?masquerade` (either), `accept by policy`. */
function endingsOf(base: BaseChain | undefined, packet = POD): string {
  assert.ok(base);
  return walk(base, packet)
    .map(({ verdict, by }) => (by === 'policy' ? `${verdict} by policy` : verdict))
    .join(', ');
}

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

describe('preflight: nft rules', () => {
  const CHAIN = {
    ...{ family: 'inet', table: 't', name: 'forward', handle: 1 },
    ...{ type: 'filter', hook: 'forward', prio: 0, policy: 'accept' },
  };
  const listing = (exprs: readonly (readonly object[])[], chain: object = CHAIN) =>
    JSON.stringify({
      nftables: [
        { metainfo: { version: '1.0.6' } },
        { table: { family: 'inet', name: 't' } },
        { chain },
        { chain: { family: 'inet', table: 't', name: 'user' } },
        ...exprs.map((expr) => ({ rule: { family: 'inet', table: 't', chain: 'forward', expr } })),
        { rule: { family: 'inet', table: 't', chain: 'user', expr: [{ drop: null }] } },
      ],
    });
  const payload = (protocol: string, field: string, right: unknown, op = '==') => ({
    match: { op, left: { payload: { protocol, field } }, right },
  });
  const ct = (right: unknown) => ({ match: { op: 'in', left: { ct: { key: 'state' } }, right } });
  const fib = (right: unknown) => ({
    match: { op: '==', left: { fib: { result: 'oif', flags: ['saddr', 'iif'] } }, right },
  });
  const meta = (key: string, right: unknown) => ({
    match: { op: '==', left: { meta: { key } }, right },
  });
  const prefix = (addr: string, len: number) => ({ prefix: { addr, len } });
  const DROP = { drop: null };

  for (const [title, exprs, expected, expected6 = expected] of [
    ['drop', [[DROP]], 'drop'],
    ['reject with counter', [[{ counter: { packets: 1 } }, { reject: {} }]], 'drop'],
    ['jump', [[{ jump: { target: 'user' } }]], 'drop'],
    [
      'ip daddr prefix',
      [[payload('ip', 'daddr', prefix('10.244.0.0', 16)), DROP]],
      'drop',
      'accept by policy',
    ],
    [
      'ip saddr != prefix',
      [[payload('ip', 'saddr', prefix('10.244.0.0', 16), '!='), DROP]],
      'accept by policy',
    ],
    [
      'ip saddr set',
      [[payload('ip', 'saddr', { set: ['10.0.0.1', prefix('10.244.1.0', 24)] }), DROP]],
      'drop',
      'accept by policy',
    ],
    [
      'ip saddr @named',
      [[payload('ip', 'saddr', '@blocked'), DROP]],
      'drop, accept by policy',
      'accept by policy',
    ],
    ['ip6 daddr', [[payload('ip6', 'daddr', 'fd00:2::7'), DROP]], 'accept by policy', 'drop'],
    ['tcp dport', [[payload('tcp', 'dport', 8080), DROP]], 'drop'],
    [
      'tcp dport set and range',
      [[payload('tcp', 'dport', { set: [22, { range: [8000, 9000] }] }), DROP]],
      'drop',
    ],
    ['udp dport', [[payload('udp', 'dport', 8080), DROP]], 'accept by policy'],
    ['meta l4proto udp', [[meta('l4proto', 'udp'), DROP]], 'accept by policy'],
    ['meta nfproto ipv6', [[meta('nfproto', 'ipv6'), DROP]], 'accept by policy', 'drop'],
    ['iifname lo', [[meta('iifname', 'lo'), DROP]], 'accept by policy'],
    ['iifname eth0', [[meta('iifname', 'eth0'), DROP]], 'drop, accept by policy'],
    ['ct established', [[ct(['established', 'related']), { accept: null }], [DROP]], 'drop'],
    [
      'ct state vmap',
      [
        [
          {
            vmap: {
              key: { ct: { key: 'state' } },
              data: {
                set: [
                  ['established', { accept: null }],
                  ['new', DROP],
                ],
              },
            },
          },
        ],
      ],
      'drop',
    ],
    ['limit', [[{ limit: { rate: 1 } }, DROP]], 'drop, accept by policy'],
    ['xt extension', [[{ xt: null }, DROP]], 'drop, accept by policy'],
    ['mangle only', [[{ mangle: {} }]], 'accept by policy'],
    ['mangle, then drop', [[{ mangle: {} }, DROP]], 'drop'],
    ['meta mark', [[meta('mark', 1), DROP]], 'accept by policy'],
    [
      'meta mark after a rule that sets it',
      [[{ mangle: {} }], [meta('mark', 1), DROP]],
      'drop, accept by policy',
    ],
    ['fib saddr . iif oif missing', [[fib(false), DROP]], 'accept by policy'],
    ['fib saddr . iif oif eth0', [[fib('eth0'), DROP]], 'drop, accept by policy'],
    ['iifname docker0', [[meta('iifname', 'docker0'), DROP]], 'accept by policy'],
  ] as readonly [string, readonly (readonly object[])[], string, string?][]) {
    it(`${title}: ${expected}`, () => {
      const [base] = nftChains(listing(exprs));
      assert.equal(endingsOf(base), expected);
      assert.equal(endingsOf(base, POD6), expected6, 'IPv6');
    });
  }

  it('matches protocol and translation of the packet', () => {
    const nft = (...rules: readonly (readonly object[])[]) => nftChains(listing(rules))[0];
    const udp: TestPacket = { ...POD, protocol: 'UDP' };
    const toUdp = nft([payload('udp', 'dport', 8080), DROP]);
    assert.equal(endingsOf(toUdp, udp), 'drop');
    assert.equal(endingsOf(toUdp, POD), 'accept by policy');
    const toOther = nft([payload('udp', 'dport', 53, '!='), DROP]);
    assert.equal(endingsOf(toOther, udp), 'drop');
    assert.equal(endingsOf(toOther, POD), 'accept by policy');
    const toAny = nft([payload('th', 'dport', 8080), DROP]);
    assert.equal(endingsOf(toAny, { ...POD, protocol: 'SCTP' }), 'drop');
    const translated = nft([
      { match: { op: 'in', left: { ct: { key: 'status' } }, right: 'dnat' } },
      DROP,
    ]);
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
    const chain = { ...CHAIN, prio: -10, policy: 'drop' };
    assert.deepEqual(
      nftChains(listing([], chain)).map(({ table, chain: name, hook, priority, policy }) => ({
        table,
        name,
        hook,
        priority,
        policy,
      })),
      [{ table: 'inet t', name: 'forward', hook: 'forward', priority: -10, policy: 'drop' }],
    );
    for (const other of [
      { ...CHAIN, type: 'nat', hook: 'prerouting' },
      { ...CHAIN, type: 'nat', hook: 'input' },
      // Without rules.
      { ...CHAIN, hook: 'ingress' },
      { ...CHAIN, family: 'bridge' },
    ]) {
      assert.deepEqual(nftChains(listing([], other)), []);
    }
    assert.equal(nftBaseChains(listing([])).length, 1);
  });

  it('reads chains of interfaces and bridges as not evaluated', () => {
    for (const changes of [
      { hook: 'ingress' },
      { family: 'netdev', hook: 'ingress' },
      { family: 'bridge' },
    ]) {
      const found = nftChains(listing([[DROP]], { ...CHAIN, ...changes }));
      assert.deepEqual(
        found.map(({ hook }) => hook),
        ['other'],
      );
    }
    const hooks = ['prerouting', 'postrouting'];
    for (const hook of hooks) {
      assert.equal(nftChains(listing([[DROP]], { ...CHAIN, hook }))[0]?.hook, hook);
    }
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
