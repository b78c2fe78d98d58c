import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { Protocol } from '../../api/objects.ts';
import { iptablesRuleset } from '../../iptables/backend.ts';
import { iptablesStaticRules } from '../../iptables/base-rules.ts';
import { isOwnChain, serviceChains } from '../../iptables/chains.ts';
import { restoreInput } from '../../iptables/restore.ts';
import { ruleText, statisticMatch } from '../../iptables/rule.ts';
import { type Ruleset, TABLES } from '../../iptables/ruleset.ts';
import { variantWithMoreRules } from '../../iptables/variant.ts';
import { writtenRuleCount } from '../../iptables/writer.ts';
import { route } from '../fixtures.ts';
import { options } from './options.ts';

const NOTHING = { chains: new Map<string, string>(), foreign: new Set<string>() };

function rulesFor(routes: Parameters<Ruleset['update']>[0], fields = {}): string[] {
  const ruleset = iptablesRuleset(options(fields));
  ruleset.update(routes, []);
  return TABLES.flatMap((table) => restoreInput(ruleset.diff(table, NOTHING)).split('\n'));
}

const countRules = (lines: readonly string[]) =>
  lines.filter((line) => line.startsWith('-A ')).length;

describe('rules: chain names', () => {
  it("generates kube-proxy's names", () => {
    // As in every cluster, for the API server's own Service.
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
    it(`${own ? 'owns' : 'does not own'} ${name}`, () => assert.equal(isOwnChain(name), own));
  }
});

describe('rules: chains of Services', () => {
  it('gives each Service its own chains, whatever its name', () => {
    const keys = [
      serviceChains('default/web', 'TCP'),
      serviceChains('default/web', 'UDP'),
      serviceChains('default/web', undefined),
      serviceChains('default/webtcp', undefined),
      serviceChains('default/web:http', 'TCP'),
      serviceChains('default/web:httptcp', 'UDP'),
    ];
    const names = keys.flatMap((chains) => [
      chains.cluster,
      chains.endpoint('10.0.0.1', undefined),
    ]);
    assert.equal(new Set(names).size, names.length);
  });
});

describe('rules: the text of a rule', () => {
  it('rounds probabilities as the kernel does', () => {
    const text = [1, 2, 3, 7, 2048].map((n) => statisticMatch(n).split(' ').at(-1));
    assert.deepEqual(text, [
      '1.00000000000',
      '0.50000000000',
      '0.33333333349',
      '0.14285714272',
      '0.00048828125',
    ]);
  });

  it('keeps comments within their quotes and line', () => {
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

  it('renders the masquerade mark for every bit, including bit 31', () => {
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

describe('rules: a Route', () => {
  const ten = Array.from({ length: 10 }, (_, index) => `10.244.0.${index + 1}`);

  it('renders as many rules for all ports as for one port, within two', () => {
    const none = countRules(rulesFor([]));
    const one = countRules(rulesFor([route({}, ten)])) - none;
    const all = countRules(rulesFor([route({ match: { kind: 'all' } }, ten)])) - none;
    assert.ok(Math.abs(all - one) <= 2, `${all} rules for all ports, ${one} for one port`);
  });

  it('matches only the VIP and translates without a port, for all ports', () => {
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

  it('matches up to 15 ports of a protocol with one rule, and a range counts as two', () => {
    const ports = (protocol: Protocol, width: number, count: number) =>
      Array.from({ length: count }, (_, index) => ({
        protocol,
        from: 1000 + 100 * index,
        to: 999 + 100 * index + width,
      }));
    const ranges = [...ports('TCP', 10, 8), ...ports('UDP', 1, 15), ...ports('SCTP', 1, 1)];
    const lines = rulesFor([route({ match: { kind: 'ranges', ranges } }, ['10.244.0.1'])]);
    assert.deepEqual(
      lines.flatMap(
        (line) => /-p \S+ .*-m (?:multiport|tcp|sctp) --dports? \S+(?= -j KUBE)/.exec(line) ?? [],
      ),
      [
        `-p tcp -m comment --comment "default/web cluster IP" -m multiport --dports 1000:1009,1100:1109,1200:1209,1300:1309,1400:1409,1500:1509,1600:1609`,
        '-p tcp -m comment --comment "default/web cluster IP" -m tcp --dport 1700:1709',
        '-p udp -m comment --comment "default/web cluster IP" -m multiport --dports 1000,1100,1200,1300,1400,1500,1600,1700,1800,1900,2000,2100,2200,2300,2400',
        '-p sctp -m comment --comment "default/web cluster IP" -m sctp --dport 1000',
      ],
    );
  });

  it('writes only the rules of a VIP with many ranges when that VIP changes', () => {
    const ruleset = iptablesRuleset(options());
    const ranged = (index: number, first: number) =>
      route(
        {
          id: `default/media-${index}/IPv4`,
          name: `default/media-${index}`,
          clusterIP: `10.96.${index}.10`,
          match: {
            kind: 'ranges',
            ranges: Array.from({ length: 1024 }, (_, position) => {
              const port = first + 2 * position;
              return { protocol: 'UDP' as const, from: port, to: port };
            }),
          },
        },
        ['10.244.0.1'],
      );
    const written = () => {
      const changes = ruleset.pendingChanges();
      for (const change of changes) ruleset.markWritten(change);
      return changes.reduce((sum, change) => sum + writtenRuleCount(change), 0);
    };
    ruleset.update(
      Array.from({ length: 8 }, (_, index) => ranged(index, 20_000)),
      [],
    );
    assert.ok(written() > 8 * 2 * 69);
    ruleset.update([ranged(3, 20_001)], []);
    const changed = written();
    assert.ok(changed < 2 * 80, `${changed} rules for one of eight VIPs in a leaf`);
    ruleset.update([], ['default/media-3/IPv4']);
    const removed = written();
    assert.ok(removed < 30, `${removed} rules written after a VIP was removed`);
    const chains = TABLES.flatMap(
      (table) => ruleset.pendingChanges().find((each) => each.table === table)?.remove ?? [],
    );
    assert.deepEqual(chains, []);
  });

  it('recognises pods by interface when the local detector is a bridge or a name prefix', () => {
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

describe('rules: static rules', () => {
  const saved = (foreign: readonly string[]) => ({
    chains: new Map<string, string>(),
    foreign: new Set(foreign),
  });
  const filterLines = (foreign: readonly string[]) =>
    restoreInput(iptablesRuleset(options()).diff('filter', saved(foreign))).split('\n');

  it('masquerades marked packets, and clears the mark', () => {
    assert.deepEqual(
      rulesFor([]).filter((line) => line.startsWith('-A KUBE-POSTROUTING')),
      [
        '-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN',
        '-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0',
        '-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully',
      ],
    );
  });

  it('accepts marked and established packets in FORWARD', () => {
    assert.deepEqual(
      rulesFor([]).filter((line) => /^-(A|I) (KUBE-FORWARD|FORWARD .*KUBE-FORWARD)/.test(line)),
      [
        '-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP',
        '-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT',
        '-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
        '-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD',
      ],
    );
    const liberal = rulesFor([], { dropInvalid: false });
    assert.equal(
      liberal.some((line) => line.includes('INVALID')),
      false,
    );
  });

  it('inserts all jumps of a chain again in order when one is missing', () => {
    const all = iptablesRuleset(options())
      .shared()
      .filter(({ table }) => table === 'filter');
    const lines = all.map(({ rule }) => rule);
    const chains = [':INPUT', ':FORWARD', ':OUTPUT', ':KUBE-FIREWALL'];
    assert.equal(
      filterLines([...chains, ...lines]).some((line) => /^-[ID] /.test(line)),
      false,
    );
    const without = lines.filter((line) => !/^-A OUTPUT .*KUBE-PROXY-FIREWALL/.test(line));
    assert.deepEqual(
      filterLines([...chains, ...without])
        .filter((line) => /^-[ID] /.test(line))
        .map((line) => line.replace(/ -m.*-j/, '')),
      [
        '-D OUTPUT KUBE-SERVICES',
        '-D OUTPUT -j KUBE-FIREWALL',
        '-I OUTPUT -j KUBE-FIREWALL',
        '-I OUTPUT KUBE-SERVICES',
        '-I OUTPUT KUBE-PROXY-FIREWALL',
      ],
    );
  });

  it("adds to the kubelet's KUBE-FIREWALL, and never flushes it", () => {
    const kubelet = [':KUBE-FIREWALL', '-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP'];
    const lines = filterLines(kubelet);
    assert.equal(
      lines.some((line) => line.startsWith(':KUBE-FIREWALL')),
      false,
    );
    assert.equal(lines.filter((line) => line.startsWith('-A KUBE-FIREWALL ! -s 127')).length, 1);
    assert.equal(filterLines([]).includes(':KUBE-FIREWALL - [0:0]'), true);
  });

  it('allows the VIP as source when the node is in the source ranges', () => {
    const firewalled = route({ loadBalancerIPs: ['203.0.113.1'], sourceRanges: ['192.0.2.0/24'] }, [
      '10.244.0.1',
    ]);
    const sources = (nodeAddresses: readonly string[]) => {
      const ruleset = iptablesRuleset(options());
      ruleset.update([firewalled], []);
      // Node addresses arrive after Services.
      ruleset.setOptions(
        options({ nodeAddresses }),
        iptablesStaticRules(options({ nodeAddresses })),
      );
      return restoreInput(ruleset.diff('nat', NOTHING))
        .split('\n')
        .flatMap((line) => /^-A KUBE-FW-\S+ -s (\S+)/.exec(line)?.[1] ?? []);
    };
    assert.deepEqual(sources(['192.0.2.1']), ['192.0.2.0/24', '203.0.113.1/32']);
    assert.deepEqual(sources(['198.51.100.1']), ['192.0.2.0/24']);
  });
});

describe('rules: input of iptables-restore', () => {
  it('renders input of any size', () => {
    const ruleset = iptablesRuleset(options());
    const many = Array.from({ length: 3000 }, (_, index) =>
      route(
        {
          id: `${index}`,
          name: `default/s${index}`,
          clusterIP: `10.96.${index >> 8}.${index & 255}`,
        },
        Array.from({ length: 40 }, (_, last) => `10.244.0.${last + 1}`),
      ),
    );
    ruleset.update(many, []);
    const change = ruleset.diff('nat', NOTHING);
    assert.ok(change.write.size > 120_000);
    for (const size of [Infinity, 500]) {
      assert.ok(restoreInput(change, size).split('COMMIT').length > (size === 500 ? 200 : 1));
    }
  });

  it('removes many chains in several transactions, and flushes all of them first', () => {
    const remove = Array.from({ length: 7 }, (_, index) => `KUBE-SEP-${index}`);
    const change = { table: 'nat' as const, write: new Map(), remove, shared: [] };
    const lines = restoreInput(change, 3).split('\n');
    assert.equal(lines.filter((line) => line === 'COMMIT').length, 6);
    assert.ok(lines.lastIndexOf(':KUBE-SEP-6 - [0:0]') < lines.indexOf('-X KUBE-SEP-0'));
  });

  it('keeps a change pending that arrives during a write', () => {
    const ruleset = iptablesRuleset(options());
    ruleset.update([route({}, ['10.244.0.1'])], []);
    const writing = ruleset.pendingChanges();
    ruleset.update([route({}, ['10.244.0.2'])], []);
    for (const change of writing) ruleset.markWritten(change);
    const left = ruleset.pendingChanges().find(({ table }) => table === 'nat');
    assert.deepEqual([left?.write.size, left?.remove.length], [2, 1]);
  });
});

describe('rules: iptables variant of a node without a kubelet', () => {
  for (const [title, nat, expected] of [
    ['the one with more rules', { nft: '-A X', legacy: '-A X\n-A Y' }, 'legacy'],
    ['nft if both have as many', { nft: '-A X', legacy: '-A X' }, 'nft'],
    ['nft on an empty node', { nft: undefined, legacy: undefined }, 'nft'],
  ] as const) {
    it(`chooses ${title}`, () => assert.equal(variantWithMoreRules(nat), expected));
  }
});
