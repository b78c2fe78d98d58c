/**
 * Parses rendered rules, and follows a packet on every possible path through their chains. Supports
 * the matches and targets that Portwide's rules use. Throws on any other match or target, so that
 * none is ignored.
 */
import { network, type Packet } from '../traffic/expected-outcome.ts';

export type Chains = ReadonlyMap<string, readonly ParsedRule[]>;

/** A packet between two rules; `destination` and `port` are after translation. */
export interface PacketState extends Packet {
  readonly mark: number;
  /** Mark of its connection. */
  readonly connectionMark: number;
  readonly translated: boolean;
  readonly masqueraded: boolean;
  readonly accepted: boolean;
  readonly markLeft: boolean;
  readonly addedEntries: ReadonlySet<string>;
  readonly local: ReadonlySet<string>;
  readonly sets: Sets | undefined;
}

/** Lookups of rules in ipsets. */
export interface Sets {
  /**
   * @param flags `dst,dst,src`: the side of the packet with which each part of an entry is
   * compared.
   */
  has(set: string, flags: string, packet: PacketState): boolean;
  /** The mark of the matching entry; undefined if none matches. */
  markOf(set: string, flags: string, packet: PacketState): number | undefined;
}

/** A packet before the first rule. */
export function newState(packet: Packet, local: ReadonlySet<string>, sets?: Sets): PacketState {
  const flags = { translated: false, masqueraded: false, accepted: false, markLeft: false };
  const addedEntries = new Set<string>();
  return {
    ...packet,
    ...flags,
    mark: 0,
    connectionMark: 0,
    addedEntries,
    local,
    sets,
  };
}

type MatchResult = boolean | 'either';
type PacketMatch = (state: PacketState) => MatchResult;

/**
 * What a rule does with a matching packet. With neither a verdict nor a jump, the next rule
 * follows.
 */
interface RuleResult {
  readonly state: PacketState;
  readonly verdict?: string;
  readonly jump?: string;
}

export interface ChainResult {
  readonly state: PacketState;
  readonly verdict: string;
}

interface ParsedRule {
  readonly matches: PacketMatch;
  readonly target: (state: PacketState) => RuleResult;
  /** Jumps with `-g`: the target chain does not return to this one. */
  readonly goto: boolean;
}

/** All paths through a chain, starting at one of its rules. The verdict at its end is RETURN. */
export function* walk(
  chains: Chains,
  chain: string,
  state: PacketState,
  from = 0,
): Generator<ChainResult> {
  const rules = chains.get(chain);
  if (rules === undefined) throw new Error(`no such chain: ${chain}`);
  for (let index = from; index < rules.length; index++) {
    const answer = rules[index]?.matches(state) ?? false;
    if (answer === false) continue;
    if (answer === 'either') yield* walk(chains, chain, state, index + 1);
    const { verdict, jump, state: after } = rules[index]?.target(state) ?? { state };
    if (verdict !== undefined) {
      yield { verdict, state: after };
      return;
    }
    if (jump !== undefined && rules[index]?.goto === true) {
      yield* walk(chains, jump, after);
      return;
    }
    const back = { verdict: 'RETURN', state: after };
    for (const outcome of jump === undefined ? [back] : walk(chains, jump, after)) {
      if (outcome.verdict === 'RETURN') yield* walk(chains, chain, outcome.state, index + 1);
      else yield outcome;
    }
    return;
  }
  yield { verdict: 'RETURN', state };
}

export function parseChains(lines: readonly string[]): Chains {
  const chains = new Map<string, ParsedRule[]>();
  for (const line of lines) {
    const [, declared, chain = '', rule = ''] = /^(?::(\S+)|-A (\S+) (.*))/.exec(line) ?? [];
    if (declared !== undefined) chains.set(declared, []);
    else chains.get(chain)?.push(parseRule(rule));
  }
  return chains;
}

function parseRule(line: string): ParsedRule {
  const matches: PacketMatch[] = [];
  let addEntry: ((state: PacketState) => string) | undefined;
  let rest = line;
  const take = (pattern: RegExp) => {
    const found = pattern.exec(rest);
    if (found !== null) rest = rest.slice(found[0].length);
    return found;
  };
  while (!/^-[jg] /.test(rest)) {
    if (take(IGNORED_MATCHES) !== null) continue;
    const set = take(SET);
    if (set !== null) {
      const [, not, name = '', flags = ''] = set;
      matches.push((state) => setsOf(state).has(name, flags, state) === (not === undefined));
      continue;
    }
    const connectionMark = take(CONNMARK);
    if (connectionMark !== null) {
      const [, not, value = ''] = connectionMark;
      const match = hasMark(value, 'connectionMark');
      matches.push((state) => match(state) === (not === undefined));
      continue;
    }
    const recent = take(RECENT);
    if (recent !== null) {
      const [, action, list, side] = recent;
      const entry = (state: PacketState) =>
        `${list} ${state[side === 'd' ? 'destination' : 'source']}`;
      if (action === 'set') addEntry = entry;
      else matches.push((state) => state.affinityEntries?.has(entry(state)) ?? 'either');
      continue;
    }
    const [, not, option = '', value = ''] = take(/^(! )?(-\S+) (\S+) /) ?? [];
    const match = OPTIONS[option]?.(value);
    if (match === undefined) throw new Error(`cannot match ${option || rest}: ${line}`);
    matches.push(not === undefined ? match : (state) => negate(match(state)));
  }
  const target = parseTarget(rest.slice('-j '.length));
  const add = addEntry;
  return {
    goto: rest.startsWith('-g '),
    matches: (state) => all(matches, state),
    target:
      add === undefined
        ? target
        : (state) =>
            target({
              ...state,
              addedEntries: new Set([...state.addedEntries, add(state)]),
            }),
  };
}

function all(matches: readonly PacketMatch[], state: PacketState): MatchResult {
  let answer: MatchResult = true;
  for (const match of matches) {
    const each = match(state);
    if (each === false) return false;
    if (each === 'either') answer = each;
  }
  return answer;
}

function negate(answer: MatchResult): MatchResult {
  return answer === 'either' ? answer : !answer;
}

/** Comments, and names of modules whose options follow. */
const IGNORED_MATCHES =
  /^-m (comment --comment "[^"]*"|statistic --mode random|conntrack|addrtype|mark|multiport|tcp|udp|sctp|icmp6?) /;

const RECENT =
  /^-m recent --(set|rcheck)(?: --seconds \d+ --reap)? --name (\S+) --mask (?:255(?:\.255){3}|ffff(?::ffff){7}) --r(s|d)(?:ource|est) /;

const SET = /^-m set (! )?--match-set (\S+) (\S+) /;
const CONNMARK = /^-m connmark (! )?--mark (\S+) /;

const OPTIONS: Readonly<Record<string, (value: string) => PacketMatch | undefined>> = {
  '-s': (value) => inNetwork(value, 'source'),
  '-d': (value) => inNetwork(value, 'destination'),
  '-i': (value) => {
    const isPrefix = value.endsWith('+');
    return ({ inInterface = '' }) =>
      isPrefix ? inInterface.startsWith(value.slice(0, -1)) : inInterface === value;
  },
  '-p': (value) => (state) => state.protocol === value.replace('ipv6-', ''),
  '--dport': hasPort,
  '--dports': (value) => {
    const matches = value.split(',').map(hasPort);
    return (state) => matches.some((match) => match(state));
  },
  '--sport': (value) => (state) => state.sourcePort === Number(value),
  // Traced ICMP packets are echo requests only.
  '--icmp-type': (value) => (value === '8' ? () => true : undefined),
  '--icmpv6-type': (value) => (value === '128' ? () => true : undefined),
  '--src-type': (value) => isLocal(value, 'source'),
  '--dst-type': (value) => isLocal(value, 'destination'),
  // The first packet of a connection is always NEW.
  '--ctstate': (value) => {
    const states = value.split(',');
    return (state) => states.includes('NEW') || (state.translated && states.includes('DNAT'));
  },
  '--mark': (value) => hasMark(value, 'mark'),
  '--probability': (value) => () => Number(value) === 1 || 'either',
};

function hasPort(value: string) {
  const [from = 0, to = from] = value.split(':').map(Number);
  return ({ port }: PacketState) => from <= port && port <= to;
}

function hasMark(value: string, which: 'mark' | 'connectionMark') {
  const [mark = 0, mask = 0xffffffff] = value.split('/').map(Number);
  return (state: PacketState) => (state[which] & mask) >>> 0 === mark;
}

function setsOf({ sets }: PacketState): Sets {
  if (sets === undefined) throw new Error('a rule matches a set, and the packet has no sets');
  return sets;
}

function inNetwork(value: string, side: 'source' | 'destination'): PacketMatch {
  const has = network(value);
  return (state) => has(state[side]);
}

function isLocal(type: string, side: 'source' | 'destination'): PacketMatch | undefined {
  return type === 'LOCAL' ? (state) => state.local.has(state[side]) : undefined;
}

// The last group of an IPv6 address looks like a port: only brackets separate a port.
const TO_V4 = /^DNAT --to-destination ([\d.]+)(?::(\d+))?$/;
const TO_V6 = /^DNAT --to-destination ([\da-f:]+)$/;
const TO_V6_PORT = /^DNAT --to-destination \[([\da-f:]+)\]:(\d+)$/;

function parseTarget(text: string): ParsedRule['target'] {
  const [, whose, xor, mask] = /^(CONN)?MARK --set-xmark (\S+)\/(\S+)$/.exec(text) ?? [];
  if (xor !== undefined) {
    const which = whose === undefined ? 'mark' : 'connectionMark';
    return (state) => ({
      state: { ...state, [which]: ((state[which] & ~Number(mask)) ^ Number(xor)) >>> 0 },
    });
  }
  const [, set, flags = ''] = /^SET --map-set (\S+) (\S+) --map-mark$/.exec(text) ?? [];
  if (set !== undefined) {
    return (state) => ({
      state: { ...state, mark: setsOf(state).markOf(set, flags, state) ?? state.mark },
    });
  }
  const to = TO_V4.exec(text) ?? TO_V6_PORT.exec(text) ?? TO_V6.exec(text);
  if (to !== null) {
    const [, destination = '', port] = to;
    const change = { destination, translated: true, ...(port && { port: Number(port) }) };
    return (state) => ({ state: { ...state, ...change }, verdict: 'ACCEPT' });
  }
  const isReject = /^REJECT --reject-with icmp6?-port-unreachable$/.test(text);
  if (isReject || ['ACCEPT', 'DROP', 'RETURN'].includes(text)) {
    const verdict = text.replace(' --reject-with', '');
    return (state) => ({ state, verdict });
  }
  if (/^MASQUERADE( --random-fully)?$/.test(text)) {
    return (state) => ({ state: { ...state, masqueraded: true }, verdict: 'ACCEPT' });
  }
  if (/^KUBE-\S+$/.test(text)) return (state) => ({ state, jump: text });
  throw new Error(`cannot do: ${text}`);
}
