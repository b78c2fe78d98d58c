import assert from 'node:assert/strict';
import { IP_FAMILIES } from '../../api/objects.ts';
import { isOwnChain } from '../../iptables/chains.ts';
import type { RuleOptions } from '../../ipvs/rules.ts';
import { kernelName, SET_NAMES, setSpec } from '../../ipvs/sets.ts';
import type { LocalDetector } from '../../traffic/options.ts';
import { parseChains } from '../iptables/chain-walk.ts';
import { ruleOptions, rulesOf } from './simulated-node.ts';

const DETECTORS: readonly (readonly [string, LocalDetector | undefined])[] = [
  ['none', undefined],
  ['a CIDR', { kind: 'cidr', cidr: '10.244.0.0/16' }],
  ['an interface', { kind: 'interface', name: 'cali+' }],
];

const linesOf = (fields: RuleOptions) => Object.values(rulesOf(fields)).flat();

/** All combinations of the options. */
function* everyOption(): Iterable<RuleOptions> {
  for (const family of IP_FAMILIES) {
    for (const [, detector] of DETECTORS) {
      for (const masqueradeAll of [false, true]) {
        for (const masqueradeBit of [0, 14, 31]) {
          const isOther = detector?.kind === 'cidr' && family === 'IPv6';
          const localDetector: LocalDetector | undefined = isOther
            ? { kind: 'cidr', cidr: 'fd00:10:244::/48' }
            : detector;
          const randomFully = masqueradeBit !== 0;
          const own = { family, masqueradeAll, masqueradeBit, randomFully };
          yield { ...ruleOptions(own), localDetector };
        }
      }
    }
  }
}

describe('rules: iptables rules of the ipvs mode', () => {
  it('renders well-formed rules with every option', () => {
    for (const fields of everyOption()) {
      for (const lines of Object.values(rulesOf(fields))) {
        // Throws on unknown matches and targets.
        parseChains(lines);
        for (const line of lines) {
          assert.doesNotMatch(line, /undefined|NaN|null|\[object|0x-|--mark -/, line);
        }
      }
    }
  });

  it('accepts forwarded packets with the masquerade mark of the iptables mode', () => {
    for (const masqueradeBit of [0, 14, 31]) {
      const lines = linesOf(ruleOptions({ masqueradeBit }));
      const bit = `0x${(2 ** masqueradeBit).toString(16)}`;
      const accepted = lines.filter(
        (line) =>
          line.startsWith('-A KUBE-FORWARD ') && line.includes(` -m mark --mark ${bit}/${bit} `),
      );
      assert.equal(accepted.length, 1);
      assert.match(accepted[0] ?? '', / -j ACCEPT$/);
    }
  });

  it('jumps to existing chains only, with names that cleanup removes', () => {
    for (const fields of everyOption()) {
      for (const lines of Object.values(rulesOf(fields))) {
        const declared = lines.flatMap((line) => /^:(\S+)/.exec(line)?.[1] ?? []);
        for (const line of lines) {
          const target = / -[jg] (KUBE-\S+)/.exec(line)?.[1];
          assert.ok(target === undefined || declared.includes(target), line);
        }
        for (const name of declared.filter((each) => each.startsWith('KUBE-'))) {
          assert.ok(isOwnChain(name) && name.length <= 28, name);
        }
      }
    }
  });

  it('matches existing sets only, with one packet field for each entry field', () => {
    for (const fields of everyOption()) {
      const specs = new Map(
        SET_NAMES.map((set) => [kernelName(set, fields.family), setSpec(set, fields.family)]),
      );
      for (const line of linesOf(fields)) {
        const found = /(?:--match-set|--map-set) (\S+) (\S+)/.exec(line);
        if (found === null) continue;
        const [, name = '', flags = ''] = found;
        const spec = specs.get(name);
        assert.ok(spec !== undefined, line);
        const parts = spec.type.slice(spec.type.indexOf(':') + 1).split(',');
        assert.equal(flags.split(',').length, parts.length, line);
        if (line.includes('--map-mark')) assert.ok(spec.skbinfo, line);
      }
    }
  });

  it('uses sets of its own family, with names that the kernel accepts', () => {
    const names = IP_FAMILIES.flatMap((family) => SET_NAMES.map((set) => kernelName(set, family)));
    assert.equal(new Set(names).size, names.length);
    for (const name of names) assert.ok(name.length <= 31, name);
    for (const line of linesOf(ruleOptions({ family: 'IPv6' }))) {
      assert.doesNotMatch(line, /-set KUBE-(?!6-)/, line);
    }
  });

  it('uses every set', () => {
    const text = linesOf(ruleOptions()).join('\n');
    const unused = SET_NAMES.filter((set) => !text.includes(`-set ${set} `));
    assert.deepEqual(unused, []);
  });

  it('prints masquerade bit 31 as an unsigned number', () => {
    const lines = linesOf(ruleOptions({ masqueradeBit: 31 }));
    assert.ok(lines.includes('-A KUBE-MARK-MASQ -j CONNMARK --set-xmark 0x80000000/0x80000000'));
  });

  it('sets packet marks from ipsets only', () => {
    for (const fields of everyOption()) {
      for (const line of linesOf(fields)) assert.doesNotMatch(line, /-j MARK /, line);
    }
  });
});
