/** Words rules for people, near to the syntax of nft, as the kernel has them. */
import type { KeyRange, SetContent, SetElement, Statement, Term } from './statement.ts';
import type { NftVerdict } from './types.ts';
import {
  addressText,
  bitNames,
  hasBits,
  kindOfType,
  maskLength,
  numberOf,
  rangeText,
  valueText,
} from './value-text.ts';

/** Elements of a set that are shown. */
const MAX_ELEMENTS = 10;

/** A rule such as `tcp dport 8080 drop`. */
export function ruleText(statements: readonly Statement[]): string {
  const parts: string[] = [];
  for (let index = 0; index < statements.length; index++) {
    const statement = statements[index];
    if (statement === undefined || isImplied(statements, index)) continue;
    const next = statements[index + 1];
    const range = rangeOfBounds(statement, next);
    if (range === undefined) parts.push(statementText(statement));
    else {
      parts.push(range);
      index += 1;
    }
  }
  return parts.filter((part) => part !== '').join(' ');
}

/** nft writes a range as two comparisons. */
function rangeOfBounds(first: Statement, last: Statement | undefined): string | undefined {
  if (first.kind !== 'compare' || first.op !== '>=') return undefined;
  if (last?.kind !== 'compare' || last.op !== '<=' || last.term.name !== first.term.name)
    return undefined;
  return `${termText(first.term)} ${rangeText(first.term.kind, { first: first.value, last: last.value })}`;
}

/** Headers whose fields imply that the packet has the protocol. */
const IMPLYING: Readonly<Record<string, readonly string[]>> = {
  ...{ ipv4: ['ip', 'icmp'], ipv6: ['ip6', 'icmpv6'], ip: ['ip'], ip6: ['ip6'] },
  ...{ icmp: ['icmp'], 'ipv6-icmp': ['icmpv6'], tcp: ['tcp'], udp: ['udp'], sctp: ['sctp'] },
  ...{ dccp: ['dccp'], udplite: ['udplite'] },
};
const DEPENDENCIES: readonly string[] = ['meta nfproto', 'meta l4proto', 'meta protocol'];

/** nft compares the protocol before a field of its header, and does not show it. */
function isImplied(statements: readonly Statement[], index: number): boolean {
  const headers = dependencyOf(statements[index]);
  if (headers === undefined) return false;
  const user = statements.slice(index + 1).find((each) => dependencyOf(each) === undefined);
  return user !== undefined && headers.some((header) => usesHeader(user, header));
}

/** The headers that a comparison of the protocol stands for. */
function dependencyOf(statement: Statement | undefined): readonly string[] | undefined {
  if (statement?.kind !== 'compare' || statement.op !== '==' || statement.term.bits !== undefined)
    return undefined;
  const { term, value } = statement;
  return DEPENDENCIES.includes(term.name) ? IMPLYING[valueText(term.kind, value)] : undefined;
}

function usesHeader(statement: Statement, header: string): boolean {
  // A prefix of a log is any text.
  if ('words' in statement)
    return statement.words.includes(`${header} `) && !statement.words.startsWith('log');
  const terms =
    'terms' in statement ? statement.terms : 'term' in statement ? [statement.term] : [];
  return terms.some(({ name }) => name.startsWith(`${header} `));
}

function statementText(statement: Statement): string {
  switch (statement.kind) {
    case 'compare':
      return comparisonText(statement);
    case 'range': {
      const { term, negated } = statement;
      return `${termText(term)} ${negated ? '!= ' : ''}${rangeText(term.kind, statement)}`;
    }
    case 'lookup': {
      const { terms, set, negated } = statement;
      return `${terms.map(termText).join(' . ')} ${negated ? '!= ' : ''}${setText(set, terms)}`;
    }
    case 'verdictMap':
      return `${statement.terms.map(termText).join(' . ')} vmap ${setText(statement.set, statement.terms)}`;
    case 'verdict':
      return verdictText(statement.verdict);
    default:
      return statement.words;
  }
}

function verdictText(verdict: NftVerdict | { readonly kind: 'continue' }): string {
  return 'chain' in verdict ? `${verdict.kind} ${verdict.chain}` : verdict.kind;
}

/** A field, with the bits that count. */
export function termText({ name, kind, bits, map, constant }: Term): string {
  if (constant !== undefined) return valueText('bytes', constant);
  if (map !== undefined) return `${name} map ${mapText(map)}`;
  if (bits === undefined) return name;
  const [mask, xor] = [bits.mask, bits.xor];
  if (xor.every((byte) => byte === 0)) return `${name} & ${bitsText(kind, mask)}`;
  const isSetting = mask.every((byte, index) => byte === (~(xor[index] ?? 0) & 0xff));
  if (isSetting) return `${name} | ${bitsText(kind, xor)}`;
  const isReplacing = mask.every((byte, index) => (byte & (xor[index] ?? 0)) === 0);
  return `${name} & ${bitsText(kind, mask)} ${isReplacing ? '|' : '^'} ${bitsText(kind, xor)}`;
}

function bitsText(kind: Term['kind'], mask: Buffer): string {
  if (!hasBits(kind)) return valueText(kind === 'address' ? 'bytes' : kind, mask);
  const names = bitNames(kind, mask);
  return names.length > 1 ? `(${names.join(' | ')})` : (names[0] ?? '0x0');
}

function comparisonText({ term, op, value }: Extract<Statement, { kind: 'compare' }>): string {
  const { kind, name, bits } = term;
  const isNot = op === '!=';
  const isZero = value.every((byte) => byte === 0);
  const hasXor = bits?.xor.some((byte) => byte !== 0) === true;
  if (bits !== undefined && !hasXor && (isNot || op === '==')) {
    if (hasBits(kind) && isZero) return `${name} ${isNot ? '' : '! '}${valueText(kind, bits.mask)}`;
    const length = kind === 'address' ? maskLength(bits.mask) : undefined;
    if (length !== undefined)
      return `${name} ${isNot ? '!= ' : ''}${valueText(kind, value)}/${length}`;
  }
  if (kind === 'present') return `${name} ${presenceText(value, isNot)}`;
  const size = addressSize(term);
  if (kind === 'address' && value.length < size)
    return `${name} ${isNot ? '!= ' : ''}${addressText(value, size)}/${value.length * 8}`;
  const verb = op === '==' && bits === undefined ? '' : `${op} `;
  return `${termText(term)} ${verb}${valueText(kind, value)}`;
}

function presenceText(value: Buffer, isNot: boolean): string {
  return (numberOf('present', value) === 0) === isNot ? 'exists' : 'missing';
}

/** Bytes of the whole address of a field. */
export function addressSize({ name }: Pick<Term, 'name'>): number {
  return name.includes('ip6 ') ? 16 : 4;
}

/** An anonymous set as its elements, another one by its name. */
function setText({ name, elements }: SetContent, terms: readonly Term[]): string {
  if (elements === undefined) return `@${name}`;
  return elementsText(elements, (keys) => keyText(keys, terms));
}

/** A map with the data of its elements; how its keys read is not known. */
function mapText({ name, elements, dataType }: SetContent): string {
  if (elements === undefined) return `@${name}`;
  const kind = kindOfType(dataType);
  const values = elements
    .slice(0, MAX_ELEMENTS)
    .map(({ data }) => (Buffer.isBuffer(data) ? valueText(kind, data) : ''));
  return `{ … : ${[...new Set(values)].join(', ')} }`;
}

function elementsText(elements: readonly SetElement[], textOf: (keys: KeyRange) => string): string {
  const texts = elements.slice(0, MAX_ELEMENTS).map(({ keys, data }) => {
    const key = keys === undefined ? '*' : textOf(keys);
    if (data === undefined || Buffer.isBuffer(data)) return key;
    return `${key} : ${verdictText(data)}`;
  });
  const more = elements.length > MAX_ELEMENTS ? [`… (${elements.length} elements)`] : [];
  return `{ ${[...texts, ...more].join(', ')} }`;
}

function keyText({ first, last }: KeyRange, terms: readonly Term[]): string {
  let at = 0;
  const texts = terms.map(({ kind, length }) => {
    const end = terms.length === 1 ? first.length : at + length;
    const range = { first: first.subarray(at, end), last: last.subarray(at, end) };
    at += Math.ceil(length / 4) * 4;
    return rangeText(kind, range);
  });
  return texts.join(' . ');
}
