/**
 * Reads what a rule does from its expressions. nf_tables runs them on registers: some load values, others compare them.
 * This follows the values through the registers. See linux/netfilter/nf_tables.h for the attributes.
 */
import { readAttributes, walkAttributes } from '../core/attribute.ts';
import { MalformedMessage } from '../core/error.ts';
import { readText } from '../core/text.ts';
import { decodeAction, decodeTarget } from './decode-action.ts';
import { ExpressionAttributes } from './expression-attributes.ts';
import { ctTerm, fibTerm, type KnownHeaders, metaTerm, payloadTerms } from './packet-field.ts';
import { NFTA_EXPR_DATA, NFTA_EXPR_NAME } from './rule.ts';
import type { Comparison, SetContent, Statement, Term } from './statement.ts';
import { termText } from './statement-text.ts';
import { NFPROTO } from './types.ts';
import { kindOfType, numberOf, valueText } from './value-text.ts';

/** What the expressions of a rule refer to. */
export interface RuleContext {
  /** NFPROTO_ of the table. */
  readonly family: number;
  /** Sets of the table by name. */
  readonly sets: ReadonlyMap<string, SetContent>;
  /** Names of interfaces by index. */
  readonly links: ReadonlyMap<number, string>;
}

/** By enum nft_cmp_ops. */
const COMPARISONS: readonly Comparison[] = ['==', '!=', '<', '<=', '>', '>='];
const NFT_RANGE_NEQ = 1;
const NFT_LOOKUP_F_INV = 1;
const NFT_BITWISE_BOOL = 0;
const REGISTER_BYTES = 4;
const NETWORK_OF_ETHERTYPE: Readonly<Record<number, number>> = {
  2048: NFPROTO.ipv4,
  34525: NFPROTO.ipv6,
};
const META_MARK = 3;

/** Expressions that only load a value, with the attribute of the register. */
const OTHER_LOADS: Readonly<Record<string, number>> = {
  ...{ numgen: 1, hash: 2, rt: 1, socket: 2, osf: 1, tunnel: 2, xfrm: 1 },
};
/** Attributes of `exthdr`: a register to load, or one to write into the packet. */
const NFTA_EXTHDR_DREG = 1;
const NFTA_EXTHDR_SREG = 7;

/** @param expressions value of NFTA_RULE_EXPRESSIONS. @throws MalformedMessage */
export function decodeRule(expressions: Buffer, context: RuleContext): readonly Statement[] {
  const decoder = new Decoder(context);
  walkAttributes(expressions, 0, expressions.length, (_, start, end) => {
    const expression = readAttributes(expressions, start, end);
    const name = readText(expression.get(NFTA_EXPR_NAME) ?? Buffer.alloc(0));
    const data = expression.get(NFTA_EXPR_DATA) ?? Buffer.alloc(0);
    try {
      decoder.add(name, new ExpressionAttributes(data));
    } catch (error) {
      // An expression as another version of the kernel has it.
      if (!(error instanceof MalformedMessage)) throw error;
      decoder.statements.push({ kind: 'unknown', words: name });
    }
  });
  return decoder.statements;
}

/** What an expression does; undefined if it only loads a value. */
type Decoded = Statement | readonly Statement[] | undefined;

/** The terms of one load, which follow each other without padding. */
type Loaded = readonly Term[];

class Decoder {
  readonly statements: Statement[] = [];
  readonly #context: RuleContext;
  /** By number of 4 bytes. */
  readonly #registers = new Map<number, Loaded>();
  readonly #known: KnownHeaders;

  constructor(context: RuleContext) {
    this.#context = context;
    const { family } = context;
    this.#known = family === NFPROTO.ipv4 || family === NFPROTO.ipv6 ? { network: family } : {};
  }

  add(name: string, of: ExpressionAttributes): void {
    this.statements.push(...[this.#decode(name, of) ?? []].flat());
  }

  #decode(name: string, of: ExpressionAttributes): Decoded {
    switch (name) {
      case 'payload':
        return this.#payload(of);
      case 'meta':
        return this.#meta(of);
      case 'ct':
        return this.#ct(of);
      case 'fib':
        return this.#load(of.register(1), [fibTerm(of.number(2), of.number(3))]);
      case 'exthdr':
        if (of.has(NFTA_EXTHDR_SREG)) return { kind: 'action', words: 'exthdr set' };
        if (!of.has(NFTA_EXTHDR_DREG)) return { kind: 'action', words: 'exthdr reset' };
        return this.#load(of.register(NFTA_EXTHDR_DREG), [other(name)]);
      case 'immediate':
        return this.#immediate(of);
      case 'bitwise':
        return this.#bitwise(of);
      case 'byteorder':
        return this.#byteorder(of);
      case 'cmp':
        return this.#compare(of);
      case 'range':
        return this.#range(of);
      case 'lookup':
        return this.#lookup(of);
      case 'target':
        return decodeTarget(of);
      default: {
        const register = OTHER_LOADS[name];
        if (register !== undefined) return this.#load(of.register(register), [other(name)]);
        const value = (attribute: number) => this.#valueText(of, attribute);
        const terms = (attribute: number, set: string) =>
          this.#terms(of.register(attribute), this.#set(set).keyLength);
        const known = this.#known;
        const isInet = this.#context.family === NFPROTO.inet;
        const statement = decodeAction(name, of, { value, terms, known, isInet });
        return statement ?? { kind: 'unknown', words: name };
      }
    }
  }

  #load(register: number, loaded: Loaded): undefined {
    this.#registers.set(register, loaded);
    return undefined;
  }

  /** What a register has; a rule of a later kernel may use registers that are not known here. */
  #loaded(register: number): Loaded {
    return this.#registers.get(register) ?? [other('value')];
  }

  #payload(of: ExpressionAttributes): Decoded {
    const terms = payloadTerms(of.number(2), of.number(3), of.number(4), this.#known);
    if (!of.has(5)) return this.#load(of.register(1), terms);
    const [field = other('payload')] = terms;
    return { kind: 'action', words: `${field.name} set ${this.#valueText(of, 5, field)}` };
  }

  #meta(of: ExpressionAttributes): Decoded {
    const key = of.number(2);
    const term = metaTerm(key);
    if (!of.has(3)) return this.#load(of.register(1), [term]);
    const words = `${term.name} set ${this.#valueText(of, 3, term)}`;
    return { kind: key === META_MARK ? 'setMark' : 'action', words };
  }

  #ct(of: ExpressionAttributes): Decoded {
    const key = of.number(2);
    if (!of.has(4)) {
      const direction = of.has(3) ? of.number(3) : undefined;
      return this.#load(of.register(1), [ctTerm(key, direction)]);
    }
    const term = ctTerm(key, undefined);
    return { kind: 'action', words: `${term.name} set ${this.#valueText(of, 4, term)}` };
  }

  #immediate(of: ExpressionAttributes): Decoded {
    const verdict = of.verdict(2);
    if (verdict === undefined) {
      const constant = of.data(2);
      const term: Term = { name: '', kind: 'bytes', length: constant.length, constant };
      return this.#load(of.register(1), [term]);
    }
    return 'words' in verdict
      ? { kind: 'unknown', words: verdict.words }
      : { kind: 'verdict', verdict };
  }

  #bitwise(of: ExpressionAttributes): Decoded {
    const [term, ...more] = this.#loaded(of.register(1));
    const isMask = of.has(6) ? of.number(6) === NFT_BITWISE_BOOL : true;
    const isPlain = more.length === 0 && term?.bits === undefined && term?.constant === undefined;
    const masked =
      term !== undefined && isMask && isPlain
        ? { ...term, bits: { mask: of.data(4), xor: of.data(5) } }
        : other('bitwise');
    return this.#load(of.register(2), [masked]);
  }

  /** The value is the same; its bytes are reversed where orders differ. */
  #byteorder(of: ExpressionAttributes): Decoded {
    const [term, ...more] = this.#loaded(of.register(1));
    const isNumber =
      more.length === 0 &&
      term?.bits === undefined &&
      (term?.kind === 'host' || term?.kind === 'mark');
    const swapped: Loaded =
      term && isNumber ? [{ ...term, kind: 'network' }] : [other('byteorder')];
    return this.#load(of.register(2), swapped);
  }

  #compare(of: ExpressionAttributes): Decoded {
    const loaded = this.#loaded(of.register(1));
    const op = COMPARISONS[of.number(2)] ?? '==';
    const value = of.data(3);
    const [only] = loaded;
    if (loaded.length === 1 && only !== undefined) {
      this.#learn(only, op, value);
      return { kind: 'compare', ...this.#named(only, value), op };
    }
    const length = loaded.reduce((sum, term) => sum + term.length, 0);
    if (op !== '==' || length !== value.length) {
      const words = loaded.map(({ name }) => name).join(' . ');
      return { kind: 'compare', term: other(words), op, value };
    }
    let at = 0;
    return loaded.map((term) => {
      const part = value.subarray(at, at + term.length);
      at += term.length;
      this.#learn(term, op, part);
      return { kind: 'compare', term, op, value: part };
    });
  }

  /** An index of an interface as its name. */
  #named(term: Term, value: Buffer): { readonly term: Term; readonly value: Buffer } {
    const name =
      term.kind === 'index' ? this.#context.links.get(numberOf('index', value)) : undefined;
    if (name === undefined) return { term, value };
    return { term: { ...term, kind: 'name' }, value: Buffer.from(`${name}\0`) };
  }

  #learn({ kind, name, bits }: Term, op: Comparison, value: Buffer): void {
    if (op !== '==' || bits !== undefined || name.startsWith('ct ') || value.length > 2) return;
    const number = numberOf(kind, value);
    if (kind === 'protocol') this.#known.transport = number;
    else if (kind === 'family') this.#known.network = number;
    else if (kind === 'ethertype') this.#known.network ??= NETWORK_OF_ETHERTYPE[number];
  }

  #range(of: ExpressionAttributes): Decoded {
    const loaded = this.#loaded(of.register(1));
    const [only = other('value')] = loaded;
    const term = loaded.length === 1 ? only : other('value');
    const negated = of.number(2) === NFT_RANGE_NEQ;
    return { kind: 'range', term, negated, first: of.data(3), last: of.data(4) };
  }

  #lookup(of: ExpressionAttributes): Decoded {
    const set = this.#set(of.text(1));
    const terms = this.#terms(of.register(2), set.keyLength);
    if (!of.has(3)) {
      const negated = of.has(5) && (of.number(5) & NFT_LOOKUP_F_INV) !== 0;
      return { kind: 'lookup', terms, set, negated };
    }
    const register = of.register(3);
    if (register < 0) return { kind: 'verdictMap', terms, set };
    const name = terms.map(termText).join(' . ');
    const kind = kindOfType(set.dataType);
    return this.#load(register, [{ name, kind, length: 0, map: set }]);
  }

  #set(name: string): SetContent {
    return this.#context.sets.get(name) ?? { name, keyLength: 0 };
  }

  /** The terms of a key, which may be a concatenation. @param length 0 if it is not known. */
  #terms(register: number, length: number): readonly Term[] {
    const terms: Term[] = [];
    let at = register;
    do {
      const loaded = this.#loaded(at);
      const [term] = loaded;
      terms.push(loaded.length === 1 && term !== undefined ? term : other('value'));
      const bytes = loaded.reduce((sum, each) => sum + each.length, 0);
      at += Math.max(1, Math.ceil(bytes / REGISTER_BYTES));
    } while ((at - register) * REGISTER_BYTES < length);
    return terms;
  }

  /** A value that is written to a field. */
  #valueText(of: ExpressionAttributes, attribute: number, to?: Pick<Term, 'kind'>): string {
    const [term = other('value')] = this.#loaded(of.register(attribute));
    if (term.constant === undefined) return termText(term);
    const length = term.constant.length;
    const guessed = length === 4 || length === 16 ? 'address' : 'port';
    return valueText(to?.kind ?? guessed, term.constant);
  }
}

/** A value whose meaning is not known, by the name of its expression. */
function other(name: string): Term {
  return { name, kind: 'bytes', length: REGISTER_BYTES };
}
