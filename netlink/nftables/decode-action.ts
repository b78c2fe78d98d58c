/** Expressions that act on a packet or count it, and the extensions of iptables. */
import type { ExpressionAttributes } from './expression-attributes.ts';
import type { KnownHeaders } from './packet-field.ts';
import type { Statement, Term } from './statement.ts';
import { termText } from './statement-text.ts';
import { NFPROTO } from './types.ts';

/** The value of a register that an attribute names, as text. */
type ValueOf = (attribute: number) => string;
type TermsOf = (attribute: number, set: string) => readonly Term[];

/** What the rule has in registers, and has compared. */
interface Before {
  readonly value: ValueOf;
  readonly terms: TermsOf;
  readonly known: KnownHeaders;
  /** Whether the table has packets of both IP families: nft then names the family. */
  readonly isInet: boolean;
}

/** @returns undefined for an expression that is not known. */
export function decodeAction(
  name: string,
  of: ExpressionAttributes,
  { value, terms, known, isInet }: Before,
): Statement | undefined {
  switch (name) {
    case 'counter':
      return action(`counter packets ${of.number(2)} bytes ${of.number(1)}`);
    case 'log':
      return action(logText(of));
    case 'notrack':
    case 'last':
      return action(name);
    case 'tproxy':
      return action('tproxy');
    case 'dup':
      return action(['dup', ...(of.has(1) ? [`to ${value(1)}`] : [])].join(' '));
    case 'flow_offload':
      return action(`flow add @${of.text(1)}`);
    case 'limit':
      return { kind: 'condition', words: limitText(of) };
    case 'quota':
      return { kind: 'condition', words: `quota ${over(of, 2)}${bytesText(of.number(1))}` };
    case 'connlimit':
      return { kind: 'condition', words: `ct count ${over(of, 2)}${of.number(1)}` };
    case 'objref':
      return objectStatement(of);
    case 'dynset':
      return dynamicSet(of, terms);
    case 'queue':
      return { kind: 'unknown', words: queueText(of) };
    case 'reject':
      return { kind: 'reject', words: rejectText(of, known.network === NFPROTO.ipv6, isInet) };
    case 'masq':
      return source(natText('masquerade', of, value, [], [2, 3], 1));
    case 'redir':
      return destination(natText('redirect', of, value, [], [1, 2], 3));
    case 'nat': {
      const isSource = of.number(1) === NFT_NAT_SNAT;
      const family = isInet ? ` ${of.number(2) === NFPROTO.ipv6 ? 'ip6' : 'ip'}` : '';
      const verb = `${isSource ? 'snat' : 'dnat'}${family}`;
      return (isSource ? source : destination)(natText(verb, of, value, [3, 4], [5, 6], 7));
    }
    case 'match':
      // The text of a comment is not part of what the rule does.
      return of.text(1) === 'comment' ? action('') : condition(`xt match "${of.text(1)}"`);
    default:
      return undefined;
  }
}

const NFT_NAT_SNAT = 0;

function action(words: string): Statement {
  return { kind: 'action', words };
}

function condition(words: string): Statement {
  return { kind: 'condition', words };
}

function source(words: string): Statement {
  return { kind: 'translate', what: 'source', words };
}

function destination(words: string): Statement {
  return { kind: 'translate', what: 'destination', words };
}

/** Targets of iptables that do not decide about the packet. */
const PASSING_TARGETS: ReadonlySet<string> = new Set([
  ...[
    'AUDIT',
    'CHECKSUM',
    'CLASSIFY',
    'CONNSECMARK',
    'CT',
    'DSCP',
    'ECN',
    'HL',
    'IDLETIMER',
    'LED',
  ],
  ...[
    'LOG',
    'NFLOG',
    'NOTRACK',
    'RATEEST',
    'SECMARK',
    'SET',
    'TCPMSS',
    'TCPOPTSTRIP',
    'TEE',
    'TOS',
  ],
  ...['TPROXY', 'TRACE', 'TTL'],
]);

/** A target of iptables, by name: the kernel has it as bytes of the extension. */
export function decodeTarget(of: ExpressionAttributes): Statement {
  const name = of.text(1);
  const words = `xt target "${name}"`;
  if (name === 'REJECT') return { kind: 'reject', words };
  if (name === 'MASQUERADE' || name === 'SNAT') return source(words);
  if (name === 'DNAT' || name === 'REDIRECT' || name === 'NETMAP') return destination(words);
  if (name === 'MARK' || name === 'CONNMARK' || name === 'HMARK') return { kind: 'setMark', words };
  return { kind: PASSING_TARGETS.has(name) ? 'action' : 'unknown', words };
}

/** Whether a limit is inverted: NFT_LIMIT_F_INV, NFT_QUOTA_F_INV, NFT_CONNLIMIT_F_INV. */
function over(of: ExpressionAttributes, flags: number): string {
  return of.has(flags) && (of.number(flags) & 1) !== 0 ? 'over ' : '';
}

const BYTE_UNITS = [
  ['mbytes', 2 ** 20],
  ['kbytes', 2 ** 10],
] as const;

function bytesText(bytes: number): string {
  const unit = BYTE_UNITS.find(([, size]) => bytes > 0 && bytes % size === 0);
  return unit === undefined ? `${bytes} bytes` : `${bytes / unit[1]} ${unit[0]}`;
}

const UNITS: Readonly<Record<number, string>> = {
  ...{ 1: 'second', 60: 'minute', 3600: 'hour', 86400: 'day', 604800: 'week' },
};
const NFT_LIMIT_PKT_BYTES = 1;
/** nft does not show a burst of 5 packets. */
const DEFAULT_BURST = 5;

function limitText(of: ExpressionAttributes): string {
  const what = of.has(4) && of.number(4) === NFT_LIMIT_PKT_BYTES ? 'bytes' : 'packets';
  const seconds = of.number(2);
  const rate = `${of.number(1)}${what === 'bytes' ? ' bytes' : ''}/${UNITS[seconds] ?? `${seconds}s`}`;
  const burst = of.has(3) ? of.number(3) : 0;
  const isDefault = burst === (what === 'bytes' ? 0 : DEFAULT_BURST);
  return `limit rate ${over(of, 5)}${rate}${isDefault ? '' : ` burst ${burst} ${what}`}`;
}

/** Index: syslog level. */
const LEVELS = ['emerg', 'alert', 'crit', 'err', 'warn', 'notice', 'info', 'debug'];
const DEFAULT_LEVEL = 4;

function logText(of: ExpressionAttributes): string {
  const level = of.has(5) ? of.number(5) : DEFAULT_LEVEL;
  return [
    'log',
    ...(of.has(2) ? [`prefix ${JSON.stringify(of.text(2))}`] : []),
    ...(of.has(1) ? [`group ${of.number(1)}`] : []),
    ...(level === DEFAULT_LEVEL ? [] : [`level ${LEVELS[level] ?? level}`]),
  ].join(' ');
}

function queueText(of: ExpressionAttributes): string {
  if (!of.has(1)) return 'queue';
  const [first, count] = [of.number(1), of.has(2) ? of.number(2) : 1];
  const last = count > 1 ? `-${first + count - 1}` : '';
  const NFT_QUEUE_FLAG_BYPASS = 1;
  const bypass = of.has(3) && (of.number(3) & NFT_QUEUE_FLAG_BYPASS) !== 0 ? ' flags bypass' : '';
  return `queue${bypass} to ${first}${last}`;
}

const NFT_REJECT_TCP_RST = 1;
const NFT_REJECT_ICMPX_UNREACH = 2;
const ICMP_CODES: Readonly<Record<number, string>> = {
  ...{ 0: 'net-unreachable', 1: 'host-unreachable', 2: 'prot-unreachable', 3: 'port-unreachable' },
  ...{ 9: 'net-prohibited', 10: 'host-prohibited', 13: 'admin-prohibited' },
};
const ICMPV6_CODES: Readonly<Record<number, string>> = {
  ...{ 0: 'no-route', 1: 'admin-prohibited', 3: 'addr-unreachable', 4: 'port-unreachable' },
  ...{ 5: 'policy-fail', 6: 'reject-route' },
};
const ICMPX_CODES: Readonly<Record<number, string>> = {
  ...{ 0: 'no-route', 1: 'port-unreachable', 2: 'host-unreachable', 3: 'admin-prohibited' },
};

function rejectText(of: ExpressionAttributes, isIpv6: boolean, isInet: boolean): string {
  const type = of.number(1);
  if (type === NFT_REJECT_TCP_RST) return 'reject with tcp reset';
  const code = of.has(2) ? of.number(2) : 0;
  const isAny = type === NFT_REJECT_ICMPX_UNREACH;
  const [protocol, codes] = isAny
    ? (['icmpx', ICMPX_CODES] as const)
    : isIpv6
      ? (['icmpv6', ICMPV6_CODES] as const)
      : (['icmp', ICMP_CODES] as const);
  const name = codes[code] ?? String(code);
  // The default for packets that the table has.
  const isDefault = name === 'port-unreachable' && isAny === isInet;
  return isDefault ? 'reject' : `reject with ${protocol} ${name}`;
}

/** NF_NAT_RANGE_ bits of linux/netfilter/nf_nat.h. */
const NAT_FLAGS = [
  [4, 'random'],
  [8, 'persistent'],
  [16, 'fully-random'],
] as const;

/** @param address,port attributes of the first and the last one. */
function natText(
  verb: string,
  of: ExpressionAttributes,
  value: ValueOf,
  address: readonly number[],
  port: readonly number[],
  flagsAttribute: number,
): string {
  const rangeOf = (attributes: readonly number[]) => [
    ...new Set(attributes.filter((each) => of.has(each)).map(value)),
  ];
  const [addresses, ports] = [rangeOf(address).join('-'), rangeOf(port).join('-')];
  const to = `${addresses}${ports === '' ? '' : `:${ports}`}`;
  const flags = of.has(flagsAttribute) ? of.number(flagsAttribute) : 0;
  const names = NAT_FLAGS.flatMap(([bit, name]) => ((flags & bit) !== 0 ? [name] : []));
  return [
    verb,
    ...(to === '' ? [] : ['to', to]),
    ...(names.length === 0 ? [] : [names.join(',')]),
  ].join(' ');
}

/** By NFT_OBJECT_ number: name, and whether the object may end the rule. */
const OBJECTS: Readonly<Record<number, readonly [string, 'action' | 'condition']>> = {
  1: ['counter name', 'action'],
  2: ['quota name', 'condition'],
  3: ['ct helper set', 'action'],
  4: ['limit name', 'condition'],
  5: ['ct count name', 'condition'],
  6: ['tunnel name', 'action'],
  7: ['ct timeout set', 'action'],
  8: ['meta secmark set', 'action'],
  9: ['ct expectation set', 'action'],
};

function objectStatement(of: ExpressionAttributes): Statement {
  // Without a fixed name, a map has it, and the type is not said.
  if (!of.has(1)) return condition(`object from map @${of.text(4)}`);
  const type = of.number(1);
  const [words, kind] = OBJECTS[type] ?? [`object of type ${type}`, 'unknown'];
  return { kind, words: `${words} "${of.text(2)}"` };
}

/** Index: enum nft_dynset_ops */
const SET_VERBS = ['add', 'update', 'delete'];

/** Packets change a set. With expressions of its own, such as a limit, the rule may end here. */
function dynamicSet(of: ExpressionAttributes, terms: TermsOf): Statement {
  const set = of.text(1);
  const key = terms(4, set).map(termText).join(' . ');
  const verb = SET_VERBS[of.number(3)] ?? 'change';
  const hasExpressions = of.has(7) || of.has(10);
  const words = `${verb} @${set} { ${key}${hasExpressions ? ' …' : ''} }`;
  return { kind: hasExpressions ? 'condition' : 'action', words };
}
