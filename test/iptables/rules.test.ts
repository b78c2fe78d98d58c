import assert from 'node:assert/strict';
import fc from 'fast-check';
import { isOwnChain, serviceChains } from '../../iptables/chains.ts';
import { cleanupInput } from '../../iptables/cleanup.ts';
import { restoreInput } from '../../iptables/restore.ts';
import { oneIn, ruleText } from '../../iptables/rule.ts';
import { Ruleset, TABLES } from '../../iptables/ruleset.ts';
import { chooseVariant } from '../../iptables/variant.ts';
import { route } from '../fixtures.ts';
import { options } from './options.ts';

const NOTHING = { chains: new Map<string, string>(), foreign: new Set<string>() };

function rulesFor(routes: Parameters<Ruleset['update']>[0], fields = {}): string[] {
  const ruleset = new Ruleset(options(fields));
  ruleset.update(routes, []);
  return TABLES.flatMap((table) => restoreInput(ruleset.difference(table, NOTHING)).split('\n'));
}

const countRules = (lines: readonly string[]) =>
  lines.filter((line) => line.startsWith('-A ')).length;

describe('names of chains', () => {
  it("are kube-proxy's", () => {
    // As every cluster shows them for the API server's own Service.
    assert.equal(
      serviceChains('default/kubernetes:https', 'TCP').cluster,
      'KUBE-SVC-NPX46M4PTMTKRN6Y',
    );
    assert.equal(
      serviceChains('kube-system/kube-dns:dns', 'UDP').cluster,
      'KUBE-SVC-TCOU7JCQXEZGVUNU',
    );
    assert.equal(
      serviceChains('kube-system/kube-dns:dns-tcp', 'TCP').external,
      'KUBE-EXT-ERIFXISQEP7F7OF4',
    );
  });

  for (const [name, own] of [
    ['KUBE-SERVICES', true],
    ['KUBE-SVC-VIP-5A', true],
    ['KUBE-SVC-NP-T938', true],
    ['KUBE-SEP-AAAAAAAAAAAAAAAA', true],
    ['KUBE-PROXY-CANARY', true],
    ['KUBE-FIREWALL', false],
    ['KUBE-IPTABLES-HINT', false],
    ['KUBE-KUBELET-CANARY', false],
    ['KUBE-ROUTER-INPUT', false],
    ['PREROUTING', false],
    ['cali-KUBE-SERVICES', false],
  ] as const) {
    it(`${name} is ${own ? 'ours' : "somebody else's"}`, () => assert.equal(isOwnChain(name), own));
  }
});

describe('the text of a rule', () => {
  it('rounds probabilities as the kernel does', () => {
    const text = [1, 2, 3, 7, 2048].map((n) => oneIn(n).split(' ').at(-1));
    assert.deepEqual(text, [
      '1.00000000000',
      '0.50000000000',
      '0.33333333349',
      '0.14285714272',
      '0.00048828125',
    ]);
  });

  it('no comment leaves its quotes or its line', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 400 }), (comment) => {
        const text = ruleText('X', { comment, target: 'RETURN' });
        assert.match(
          text,
          /^-A X -m comment --comment "[\x20\x21\x23-\x5b\x5d-\x7e]{0,240}" -j RETURN$/,
        );
      }),
      { seed: 11 },
    );
  });

  it('every mark bit gives a mark, the last one too', () => {
    const marks = [0, 14, 31].map((masqueradeBit) =>
      rulesFor([], { masqueradeBit }).find((line) => line.startsWith('-A KUBE-MARK-MASQ')),
    );
    assert.deepEqual(marks, [
      '-A KUBE-MARK-MASQ -j MARK --set-xmark 0x1/0x1',
      '-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000',
      '-A KUBE-MARK-MASQ -j MARK --set-xmark 0x80000000/0x80000000',
    ]);
  });
});

describe('rules of a Route', () => {
  const ten = Array.from({ length: 10 }, (_, index) => `10.244.0.${index + 1}`);

  it('all ports with 10 endpoints cost as many as one port with 10, give or take two', () => {
    const none = countRules(rulesFor([]));
    const one = countRules(rulesFor([route({}, ten)])) - none;
    const all = countRules(rulesFor([route({ match: { kind: 'all' } }, ten)])) - none;
    assert.ok(Math.abs(all - one) <= 2, `${all} rules for all ports, ${one} for one port`);
  });

  it('all ports: matches the VIP alone, translates without a port', () => {
    const lines = rulesFor([route({ match: { kind: 'all' } }, ['10.244.0.1'])]).filter((line) =>
      /10\.96\.0\.10\/32|DNAT --to/.test(line),
    );
    assert.deepEqual(
      lines.map((line) => line.replace(/-A \S+ /, '').replace(/KUBE-S\S+/, 'KUBE-S…')),
      [
        '-j DNAT --to-destination 10.244.0.1',
        '! -s 10.244.0.0/16 -d 10.96.0.10/32 -m comment --comment "default/web cluster IP" -j KUBE-MARK-MASQ',
        '-d 10.96.0.10/32 -m comment --comment "default/web cluster IP" -j KUBE-S…',
        '-d 10.96.0.10/32 -m comment --comment "default/web cluster IP" -j REJECT --reject-with icmp-port-unreachable',
      ],
    );
  });

  it('a bridge or a prefix tells pods by the interface', () => {
    const masquerade = (name: string) =>
      rulesFor([route({}, ten)], { localDetector: { kind: 'interface', name } }).find(
        (line) => line.includes('-j KUBE-MARK-MASQ') && line.includes('10.96.0.10'),
      );
    assert.match(masquerade('cali+') ?? '', /-d 10\.96\.0\.10\/32 ! -i cali\+ -m comment/);
    assert.equal(
      rulesFor([route({}, ten)], { localDetector: undefined }).some(
        (line) => line.includes('KUBE-MARK-MASQ') && line.includes('10.96.0.10'),
      ),
      false,
    );
  });
});

describe('which iptables the node uses', () => {
  const hint = ':KUBE-IPTABLES-HINT - [0:0]\n';
  for (const [title, mangle, all, expected] of [
    [
      "the kubelet's mark decides",
      { nft: hint, legacy: '' },
      { nft: '', legacy: '-A X\n-A Y' },
      'nft',
    ],
    ['in the legacy tables too', { nft: '', legacy: hint }, { nft: '-A X', legacy: '' }, 'legacy'],
    [
      'else the greater number of rules',
      { nft: '', legacy: '' },
      { nft: '-A X', legacy: '-A X\n-A Y' },
      'legacy',
    ],
    [
      'nft on an empty node',
      { nft: undefined, legacy: undefined },
      { nft: undefined, legacy: undefined },
      'nft',
    ],
  ] as const) {
    it(title, () => assert.equal(chooseVariant(mangle, all), expected));
  }
});

describe('cleaning up a table', () => {
  const saved = [
    '*nat',
    ':PREROUTING ACCEPT [0:0]',
    ':KUBE-SERVICES - [0:0]',
    ':KUBE-LOAD-BALANCER - [0:0]',
    ':KUBE-FIREWALL - [0:0]',
    ':OTHER - [0:0]',
    '-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
    '-A PREROUTING -j OTHER',
    '-A PREROUTING -j KUBE-FIREWALL',
    '-A KUBE-SERVICES -j KUBE-LOAD-BALANCER',
    'COMMIT',
  ].join('\n');

  it("removes kube-proxy's chains of every mode and the jumps to them", () => {
    assert.deepEqual(cleanupInput('nat', saved, true)?.split('\n'), [
      '*nat',
      ':KUBE-SERVICES - [0:0]',
      ':KUBE-LOAD-BALANCER - [0:0]',
      '-D PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
      '-X KUBE-SERVICES',
      '-X KUBE-LOAD-BALANCER',
      'COMMIT',
      '',
    ]);
    assert.match(cleanupInput('nat', saved, false) ?? '', /-D PREROUTING -j KUBE-FIREWALL/);
    assert.equal(cleanupInput('nat', '*nat\n:OTHER - [0:0]\nCOMMIT', false), undefined);
  });
});
