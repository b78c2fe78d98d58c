/**
 * Follows the first packet of a connection through rendered rules, every way it may go, as the
 * kernel would: nat PREROUTING or OUTPUT, the chains of filter, nat POSTROUTING. Knows the matches
 * and targets that our rules use and throws at any other, so that a new one is not passed over.
 */
import type { Table } from '../../iptables/chains.ts';
import { fateText, network, type Packet } from './fate.ts';

/** One way a packet may go, and what `-m recent` learns on it. */
export interface Journey {
  readonly fate: string;
  readonly remembered: ReadonlySet<string>;
}

type Chains = ReadonlyMap<string, readonly Rule[]>;

/** Rules as values, and the addresses that the node holds. */
export interface Tables {
  readonly nat: Chains;
  readonly filter: Chains;
  readonly local: ReadonlySet<string>;
}

/** A packet on its way; `destination` and `port` are those it has been translated to. */
interface State extends Packet {
  readonly mark: number;
  readonly translated: boolean;
  readonly masqueraded: boolean;
  readonly accepted: boolean;
  readonly markLeft: boolean;
  readonly remembered: ReadonlySet<string>;
  readonly local: ReadonlySet<string>;
}

type Answer = boolean | 'either';
type Match = (state: State) => Answer;

/** What a rule makes of a packet that it matches; with neither, the next rule has it. */
interface Step {
  readonly state: State;
  readonly verdict?: string;
  readonly jump?: string;
}

type Outcome = Required<Omit<Step, 'jump'>>;

interface Rule {
  readonly matches: Match;
  readonly target: (state: State) => Step;
}

/** Reads the lines of two tables, `:CHAIN` and `-A CHAIN …`. */
export function parseTables(
  linesOf: (table: Table) => readonly string[],
  local: ReadonlySet<string>,
): Tables {
  return { nat: parseChains(linesOf('nat')), filter: parseChains(linesOf('filter')), local };
}

/** The fates that a packet may meet, as `fateText` words them. */
export function trace(tables: Tables, packet: Packet): Set<string> {
  return new Set(journeys(tables, packet).map(({ fate }) => fate));
}

/** Every way that a packet may go. */
export function journeys({ nat, filter, local }: Tables, packet: Packet): Journey[] {
  const flags = { translated: false, masqueraded: false, accepted: false, markLeft: false };
  const start = { ...packet, ...flags, mark: 0, remembered: new Set<string>(), local };
  const isOwn = packet.inInterface === undefined;
  return [...walk(nat, isOwn ? 'OUTPUT' : 'PREROUTING', start)].flatMap(({ verdict, state }) => {
    if (verdict === 'DROP') throw new Error('table nat cannot drop');
    const arrives = local.has(state.destination);
    const first = isOwn ? ['OUTPUT', 'POSTROUTING'] : arrives ? [] : ['FORWARD', 'POSTROUTING'];
    return finish({ nat, filter, local }, arrives ? [...first, 'INPUT'] : first, state);
  });
}

function finish(tables: Tables, way: readonly string[], state: State): Journey[] {
  const [chain, ...further] = way;
  if (chain === undefined) {
    const { destination: address, port, remembered } = state;
    const translated = state.translated ? { address, port } : undefined;
    return [{ fate: fateText({ ...state, translated }), remembered }];
  }
  const chains = chain === 'POSTROUTING' ? tables.nat : tables.filter;
  return [...walk(chains, chain, state)].flatMap(({ verdict, state: after }) => {
    const passes = verdict === 'RETURN' || verdict === 'ACCEPT';
    if (!passes) return [{ fate: verdict, remembered: after.remembered }];
    const isLast = chain === 'INPUT' || chain === 'FORWARD';
    const accepted = after.accepted || (isLast && verdict === 'ACCEPT');
    const markLeft = after.markLeft || (chain === 'POSTROUTING' && after.mark !== 0);
    return finish(tables, further, { ...after, accepted, markLeft });
  });
}

/** Every way through a chain from one of its rules on. */
function* walk(chains: Chains, chain: string, state: State, from = 0): Generator<Outcome> {
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
    const back = { verdict: 'RETURN', state: after };
    for (const outcome of jump === undefined ? [back] : walk(chains, jump, after)) {
      if (outcome.verdict === 'RETURN') yield* walk(chains, chain, outcome.state, index + 1);
      else yield outcome;
    }
    return;
  }
  yield { verdict: 'RETURN', state };
}

function parseChains(lines: readonly string[]): Chains {
  const chains = new Map<string, Rule[]>();
  for (const line of lines) {
    const [, declared, chain = '', rule = ''] = /^(?::(\S+)|-A (\S+) (.*))/.exec(line) ?? [];
    if (declared !== undefined) chains.set(declared, []);
    else chains.get(chain)?.push(parseRule(rule));
  }
  return chains;
}

function parseRule(line: string): Rule {
  const matches: Match[] = [];
  let learn: ((state: State) => string) | undefined;
  let rest = line;
  const take = (pattern: RegExp) => {
    const found = pattern.exec(rest);
    if (found !== null) rest = rest.slice(found[0].length);
    return found;
  };
  while (!rest.startsWith('-j ')) {
    if (take(PASSED_OVER) !== null) continue;
    const recent = take(RECENT);
    if (recent !== null) {
      const [, action, list, side] = recent;
      const entry = (state: State) => `${list} ${state[side === 'd' ? 'destination' : 'source']}`;
      if (action === 'set') learn = entry;
      else matches.push((state) => state.memory?.has(entry(state)) ?? 'either');
      continue;
    }
    const [, not, option = '', value = ''] = take(/^(! )?(-\S+) (\S+) /) ?? [];
    const match = OPTIONS[option]?.(value);
    if (match === undefined) throw new Error(`cannot match ${option || rest}: ${line}`);
    matches.push(not === undefined ? match : (state) => opposite(match(state)));
  }
  const target = parseTarget(rest.slice('-j '.length));
  return {
    matches: (state) => all(matches, state),
    target: (state) => {
      const learned = learn === undefined ? [] : [learn(state)];
      return target({ ...state, remembered: new Set([...state.remembered, ...learned]) });
    },
  };
}

function all(matches: readonly Match[], state: State): Answer {
  let answer: Answer = true;
  for (const match of matches) {
    const each = match(state);
    if (each === false) return false;
    if (each === 'either') answer = each;
  }
  return answer;
}

function opposite(answer: Answer): Answer {
  return answer === 'either' ? answer : !answer;
}

/** Comments, and the names of modules whose options follow. */
const PASSED_OVER =
  /^-m (comment --comment "[^"]*"|statistic --mode random|conntrack|addrtype|mark|tcp|udp|sctp) /;

const RECENT =
  /^-m recent --(set|rcheck)(?: --seconds \d+ --reap)? --name (\S+) --mask (?:255(?:\.255){3}|ffff(?::ffff){7}) --r(s|d)(?:ource|est) /;

const OPTIONS: Readonly<Record<string, (value: string) => Match | undefined>> = {
  '-s': (value) => inNetwork(value, 'source'),
  '-d': (value) => inNetwork(value, 'destination'),
  '-i': (value) => {
    const isPrefix = value.endsWith('+');
    return ({ inInterface = '' }) =>
      isPrefix ? inInterface.startsWith(value.slice(0, -1)) : inInterface === value;
  },
  '-p': (value) => (state) => state.protocol === value,
  '--dport': (value) => {
    const [from = 0, to = from] = value.split(':').map(Number);
    return (state) => from <= state.port && state.port <= to;
  },
  '--src-type': (value) => isLocal(value, 'source'),
  '--dst-type': (value) => isLocal(value, 'destination'),
  // The first packet of a connection is NEW, whatever else.
  '--ctstate': (value) => {
    const states = value.split(',');
    return (state) => states.includes('NEW') || (state.translated && states.includes('DNAT'));
  },
  '--mark': (value) => {
    const [mark = 0, mask = 0xffffffff] = value.split('/').map(Number);
    return (state) => (state.mark & mask) >>> 0 === mark;
  },
  '--probability': (value) => () => Number(value) === 1 || 'either',
};

function inNetwork(value: string, side: 'source' | 'destination'): Match {
  const has = network(value);
  return (state) => has(state[side]);
}

function isLocal(type: string, side: 'source' | 'destination'): Match | undefined {
  return type === 'LOCAL' ? (state) => state.local.has(state[side]) : undefined;
}

// Bare IPv6 ends in hex digits that look like a port: only brackets set one apart.
const TO_V4 = /^DNAT --to-destination ([\d.]+)(?::(\d+))?$/;
const TO_V6 = /^DNAT --to-destination ([\da-f:]+)$/;
const TO_V6_PORT = /^DNAT --to-destination \[([\da-f:]+)\]:(\d+)$/;

function parseTarget(text: string): Rule['target'] {
  const [, xor, mask] = /^MARK --set-xmark (\S+)\/(\S+)$/.exec(text) ?? [];
  if (xor !== undefined) {
    return (state) => ({
      state: { ...state, mark: ((state.mark & ~Number(mask)) ^ Number(xor)) >>> 0 },
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
