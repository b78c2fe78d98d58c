/** Reads the output of `iptables-save` as rules of a packet walk. */
import { canonicalAddress, canonicalCidr } from '../api/addresses.ts';
import { FORWARD, isOwnChain } from '../iptables/chains.ts';
import { PRIORITY } from '../netlink/nftables/hooks.ts';
import type { BaseChain, Match, Rule, Verdict } from './packet-walk.ts';

/** Built-in chains that matter to Services, by table. */
const HOOKS = {
  raw: [
    ['PREROUTING', 'prerouting'],
    ['OUTPUT', 'output'],
  ],
  mangle: [
    ['PREROUTING', 'prerouting'],
    ['INPUT', 'input'],
    ['FORWARD', 'forward'],
    ['OUTPUT', 'output'],
    ['POSTROUTING', 'postrouting'],
  ],
  security: [
    ['INPUT', 'input'],
    ['FORWARD', 'forward'],
    ['OUTPUT', 'output'],
  ],
  filter: [
    ['INPUT', 'input'],
    ['FORWARD', 'forward'],
    ['OUTPUT', 'output'],
  ],
  nat: [['POSTROUTING', 'postrouting']],
} as const;
/** Of table nat only chain POSTROUTING is read. */
const PRIORITIES = { ...PRIORITY, nat: PRIORITY.srcnat } as const;

type ForeignTable = keyof typeof HOOKS;
/** Tables in which rules of other programs may drop or masquerade packets. */
export const FOREIGN_TABLES = Object.keys(HOOKS) as readonly ForeignTable[];

/**
 * The base chains of a table. Chains of kube-proxy and Portwide are left out: the agent replaces them.
 * @param saved output of `iptables-save -t TABLE`.
 * @param label of the table, such as `ip filter (iptables-nft)`.
 */
export function iptablesChains(table: ForeignTable, saved: string, label: string): BaseChain[] {
  const chains = new Map<string, Rule[]>();
  const policies = new Map<string, string>();
  for (const line of saved.split('\n')) {
    const [, name = '', policy = ''] = /^:(\S+) (\S+)/.exec(line) ?? [];
    if (name !== '' && !isOwnChain(name)) {
      chains.set(name, []);
      policies.set(name, policy);
    }
    const chain = /^-A (\S+)/.exec(line)?.[1] ?? '';
    chains.get(chain)?.push(ruleOf(line));
  }
  return HOOKS[table].flatMap(([chain, hook]) => {
    if (!chains.has(chain)) return [];
    const policy = policies.get(chain) === 'DROP' ? 'drop' : 'accept';
    return [{ table: label, chain, hook, priority: PRIORITIES[table], policy, chains }];
  });
}

/** Targets with a verdict. REJECT drops, too; targets such as LOG continue. */
const TARGETS: Readonly<Record<string, Verdict>> = {
  ACCEPT: { kind: 'accept' },
  DROP: { kind: 'drop' },
  REJECT: { kind: 'drop' },
  RETURN: { kind: 'return' },
  MASQUERADE: { kind: 'masquerade' },
  SNAT: { kind: 'masquerade' },
  NETMAP: { kind: 'masquerade' },
  MARK: { kind: 'mark' },
  CONNMARK: { kind: 'mark' },
};
const EXTENSIONS = /^(LOG|NFLOG|ULOG|CT|NOTRACK|TRACE|TCPMSS|SET|DSCP|TOS|CLASSIFY|NFQUEUE|AUDIT)$/;

function ruleOf(line: string): Rule {
  const words = line.match(/"(?:\\.|[^"\\])*"|\S+/g)?.slice(2) ?? [];
  const matches: Match[] = [];
  let negated = false;
  let module = '';
  for (let index = 0; index < words.length; index++) {
    const word = words[index] ?? '';
    const value = words[index + 1] ?? '';
    if (word === '!') {
      negated = true;
      continue;
    }
    if (word === '-j' || word === '-g') {
      // Chain KUBE-FORWARD accepts packets that Portwide masquerades.
      if (value === FORWARD)
        return { matches: [...matches, { kind: 'masqueraded' }], verdict: { kind: 'accept' } };
      // The options of the target follow.
      const isReject = value === 'REJECT';
      return { matches, verdict: verdictOf(word, value), name: ruleName(line), isReject };
    }
    if (word === '-m') module = value;
    if (word === '-m' || word === '--comment' || word === '--protocol') index += 1;
    else if (module === 'rpfilter') {
      // Without --invert the match is on packets whose reply takes the same way.
      if (word === '--invert') matches.push({ kind: 'reversePath', negated: false });
    } else if (word.startsWith('-')) {
      matches.push(matchOf(word, value, negated));
      while (words[index + 1] !== undefined && !/^(-|!$)/.test(words[index + 1] ?? '')) index += 1;
    }
    negated = false;
  }
  return { matches, verdict: { kind: 'continue' } };
}

/** @param line `-A CHAIN` and the rule. */
function ruleName(line: string): string {
  return `rule ${line.replace(/^-A \S+ /, '')}`;
}

function verdictOf(option: '-j' | '-g', target: string): Verdict {
  const builtIn = TARGETS[target];
  if (builtIn !== undefined) return builtIn;
  if (EXTENSIONS.test(target) || isOwnChain(target)) return { kind: 'continue' };
  return { kind: option === '-g' ? 'goto' : 'jump', chain: target };
}

function matchOf(option: string, value: string, negated: boolean): Match {
  switch (option) {
    case '-s':
    case '-d': {
      const cidrs = value.split(',').flatMap((each) => cidrOf(each) ?? []);
      return { kind: option === '-s' ? 'source' : 'destination', cidrs, negated };
    }
    case '-i':
    case '-o':
      return { kind: 'interface', name: value, negated };
    case '-p':
      return { kind: 'protocol', names: [value], negated };
    case '--dport':
    case '--dports':
      return { kind: 'port', ranges: value.split(',').map(portRange), negated };
    case '--ctstate':
    case '--state':
      return { kind: 'state', states: value.split(','), negated };
    case '--mark': {
      const [mark, mask = 0xffffffff] = value.split('/').map(Number);
      return { kind: 'mark', value: mark ?? 0, mask, negated };
    }
    default:
      return { kind: 'unknown' };
  }
}

function cidrOf(text: string): string | undefined {
  const address = canonicalAddress(text);
  if (address !== undefined) return `${address}/${address.includes(':') ? 128 : 32}`;
  return canonicalCidr(text);
}

function portRange(text: string): readonly [number, number] {
  const [from = 0, to = from] = text.split(':').map(Number);
  return [from, to];
}
