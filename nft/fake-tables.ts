/**
 * For tests: an nf_tables table in memory. It logs transactions. Like the kernel, it refuses missing and conflicting
 * elements, overlapping ranges, and rules that refer to missing sets or counters.
 */
import type { IpFamily } from '../api/objects.ts';
import { EEXIST, ENOENT, NetlinkError } from '../netlink/core/error.ts';
import type { NftDeclaration } from '../netlink/nftables/declaration.ts';
import { type NftSetDeclaration, setAttributes } from '../netlink/nftables/set.ts';
import { NftRefusedError } from '../netlink/nftables/transaction-builder.ts';
import {
  NFT_SET_FLAGS,
  type NftBaseChain,
  type NftChainRules,
  type NftElement,
  type NftElementChange,
  type NftOperation,
  type NftRule,
} from '../netlink/nftables/types.ts';
import { elementDataText, elementKeyText } from './element.ts';
import type { RuleTable } from './table.ts';

/** A transaction that fills more chains than this is logged as `rules of all`. */
const FEW_CHAINS = 10;
/** Names of sets and counters in the encoded expressions lookup, dynset and objref. */
const SET_OF_RULE = /(?:lookup|dynset)\0\0[\s\S]{8}([^\0]+)\0/g;
const COUNTER_OF_RULE = /objref\0\0[\s\S]{16}([^\0]+)\0/g;

/** An nf_tables table in memory. */
export class FakeTables {
  readonly family: IpFamily;
  readonly name: string;
  readonly sets = new Map<string, Map<string, NftElement>>();
  /** Number of rules by chain. */
  readonly chains = new Map<string, number>();
  /** Rules by chain, once a transaction has written them. */
  readonly rules = new Map<string, readonly NftRule[]>();
  /** Declarations of base chains, by chain. */
  readonly hooks = new Map<string, NftBaseChain>();
  /** Packets by counter. */
  readonly counters = new Map<string, bigint>();
  /** Interfaces by flowtable. */
  readonly flowtables = new Map<string, Set<string>>();
  /** Interfaces that the kernel refuses to add to a flowtable, with its errors. */
  refusedDevices: ReadonlyMap<string, number> = new Map();
  /** One line per transaction, such as `add service-ips 1, delete endpoints 2`. */
  log: string[] = [];
  /** Other tables of the family, which a transaction of this table may delete. */
  otherTables: readonly FakeTables[] = [];
  /** Called before each transaction that changes elements. */
  beforeCommit: (changes: readonly NftElementChange[]) => void = () => {};
  /** Called after each transaction that changes elements. */
  afterCommit: () => void = () => {};
  /** Called once a transaction is visible in all maps but the interval maps, then after each interval map. */
  midCommit: () => void = () => {};
  /** Remaining timeout of an element in milliseconds; undefined: as stored in the element. */
  expiresIn: (element: NftElement) => number | undefined = () => undefined;
  /** Called when a dump has visited the elements of a set; returns whether the dump must restart. */
  onDump: (set: string) => boolean = () => false;
  readonly #intervals = new Set<string>();
  /** Types of declared sets. */
  readonly #types = new Map<string, string>();

  constructor(family: IpFamily = 'IPv4', name = 'portwide') {
    this.family = family;
    this.name = name;
  }

  get tables(): RuleTable {
    const tables: RuleTable = {
      transact: async (operations) => this.#transact(operations),
      readBesides: async (read) => await read(tables),
      visitElements: async (set, visit, restart) => {
        const visitAll = () => {
          const elements = this.sets.get(set);
          if (elements === undefined) throw new NetlinkError('dump', ENOENT);
          for (const element of elements.values()) visit(this.#read(element));
        };
        visitAll();
        if (!this.onDump(set)) return;
        restart?.();
        visitAll();
      },
      findElement: async (set, key) => this.sets.get(set)?.get(key.toString('latin1')),
      tableFlags: async () => this.#ifExists(0),
      chains: async () => this.#ifExists([...this.chains.keys()]),
      chainsWithHooks: async () =>
        this.#ifExists(
          [...this.chains.keys()].map((name) => ({ name, base: this.hooks.get(name) })),
        ),
      rules: async (only) =>
        this.#ifExists(
          [...this.chains.keys()]
            .filter((chain) => only === undefined || chain === only)
            .flatMap((chain) =>
              (this.rules.get(chain) ?? []).map(({ expressions }) => ({ chain, expressions })),
            ),
        ),
      sets: async () =>
        this.#ifExists(
          [...this.sets.keys()].map((name) => ({
            name,
            flags: name.startsWith('__') ? NFT_SET_FLAGS.anonymous : 0,
            keyLength: 4,
            dataLength: undefined,
            verdicts: false,
          })),
        ),
      counters: async () =>
        this.#ifExists(
          [...this.counters].map(([name, packets]) => ({ name, packets, bytes: packets })),
        ),
      flowtables: async () =>
        this.#ifExists(
          [...this.flowtables].map(([name, devices]) => ({ name, devices: [...devices] })),
        ),
      remove: async (chains, sets, counters, flowtables) => {
        const names = [...chains, ...sets, ...counters, ...flowtables];
        if (names.length === 0) return;
        this.log.push(`remove ${names.sort().join(' ')}`);
        for (const counter of counters) this.counters.delete(counter);
        for (const flowtable of flowtables) this.flowtables.delete(flowtable);
        for (const chain of chains) this.#removeChain(chain);
        for (const set of sets) {
          if (!this.sets.delete(set)) throw new NftRefusedError(new NetlinkError('delete', ENOENT));
          this.#types.delete(set);
        }
      },
      delete: async () => {
        if (this.#ifExists(true)) this.log.push('delete table');
        this.clear();
      },
      close: async () => {},
    };
    return tables;
  }

  #removeChain(name: string): void {
    this.chains.delete(name);
    this.rules.delete(name);
    this.hooks.delete(name);
  }

  /** Refuses an object that exists with another type. */
  #declare(declared: NftDeclaration): void {
    const { name } = declared;
    switch (declared.kind) {
      case 'set': {
        const type = setType(declared);
        if ((this.#types.get(name) ?? type) !== type) throw conflict(declared);
        this.#types.set(name, type);
        if (declared.isInterval === true) this.#intervals.add(name);
        if (!this.sets.has(name)) this.sets.set(name, new Map());
        break;
      }
      case 'chain': {
        const [existing, base] = [this.hooks.get(name), declared.base];
        if (base === undefined) {
          this.chains.set(name, this.chains.get(name) ?? 0);
          break;
        }
        const place = ({ type, hook, priority }: NftBaseChain) => `${type} ${hook} ${priority}`;
        const isOther = existing !== undefined && place(existing) !== place(base);
        if (isOther || (existing === undefined && this.chains.has(name))) throw conflict(declared);
        this.chains.set(name, this.chains.get(name) ?? 0);
        this.hooks.set(name, base);
        break;
      }
      case 'counter':
        this.counters.set(name, this.counters.get(name) ?? declared.packets ?? 0n);
        break;
      case 'flowtable':
        this.flowtables.set(name, this.flowtables.get(name) ?? new Set());
    }
  }

  /** Deletes the table, as `nft flush ruleset` by another program does. */
  clear(): void {
    for (const all of [this.sets, this.chains, this.counters, this.rules, this.hooks]) all.clear();
    this.flowtables.clear();
    this.#types.clear();
    this.#intervals.clear();
  }

  /** Adds elements to a dynamic map, as rules do when they handle packets. */
  putFromPacket(map: string, ...elements: readonly NftElement[]): void {
    for (const element of elements) this.sets.get(map)?.set(elementKeyText(element), element);
  }

  #read(element: NftElement): NftElement {
    const timeoutMs = this.expiresIn(element);
    return timeoutMs === undefined ? element : { ...element, timeoutMs };
  }

  #ifExists<T>(value: T): T | undefined {
    return this.sets.size + this.chains.size > 0 ? value : undefined;
  }

  #transact(operations: readonly NftOperation[]): void {
    const changes = operations.flatMap((operation) => ('elements' in operation ? [operation] : []));
    const hasChanges = changes.some(({ elements }) => elements.length > 0);
    const texts = operationTexts(operations);
    if (texts.length === 0) return;
    if (hasChanges) this.beforeCommit(changes);
    for (const operation of operations) {
      if (operation.action !== 'declare') continue;
      if (operation.replacesTable === true) this.clear();
      for (const declared of operation.declarations) this.#declare(declared);
    }
    for (const operation of operations) {
      if (operation.action === 'attach') this.#attach(operation.flowtable, operation.devices);
    }
    for (const operation of operations) {
      if (operation.action === 'fill') this.#fill(operation.chain);
    }
    if (hasChanges) this.#change(changes);
    for (const operation of operations) {
      if (operation.action === 'remove')
        for (const chain of operation.chains) this.#removeChain(chain);
      if (operation.action === 'delete-table')
        this.otherTables.find(({ name }) => name === operation.table)?.clear();
      if (operation.action === 'detach')
        for (const device of operation.devices)
          this.flowtables.get(operation.flowtable)?.delete(device);
      if (operation.action === 'delete-flowtable') this.flowtables.delete(operation.flowtable);
    }
    this.log.push(texts.join(', '));
    if (hasChanges) this.afterCommit();
  }

  #attach(flowtable: string, devices: readonly string[]): void {
    const known = this.flowtables.get(flowtable);
    const refused = devices.find((device) => this.refusedDevices.has(device)) ?? '';
    const errno = known === undefined ? ENOENT : this.refusedDevices.get(refused);
    if (known === undefined || errno !== undefined)
      throw new NftRefusedError(new NetlinkError('transaction', errno ?? ENOENT));
    for (const device of devices) known.add(device);
  }

  /** Fills a chain. Sets and counters that its rules refer to must exist. */
  #fill({ name, rules }: NftChainRules): void {
    const all = [...rules];
    for (const { expressions } of all) {
      const text = expressions.toString('latin1');
      const missing = [
        ...[...text.matchAll(SET_OF_RULE)].filter(([, set = '']) => !this.sets.has(set)),
        ...[...text.matchAll(COUNTER_OF_RULE)].filter(([, each = '']) => !this.counters.has(each)),
      ];
      for (const [, name] of missing)
        throw new Error(`rules refer to ${name}, which does not exist`);
    }
    this.chains.set(name, all.length);
    this.rules.set(name, all);
  }

  #change(changes: readonly NftElementChange[]): void {
    const drafts = new Map([...this.sets].map(([name, elements]) => [name, new Map(elements)]));
    for (const change of changes) {
      const { action, set, elements } = change;
      if (elements.length === 0) continue;
      const draft = drafts.get(set);
      if (draft === undefined) throw rejection(ENOENT, change);
      for (const element of elements) {
        const key = elementKeyText(element);
        const existing = draft.get(key);
        if (action === 'delete') {
          if (!draft.delete(key)) throw rejection(ENOENT, change, element);
          continue;
        }
        const isOther =
          existing !== undefined && elementDataText(existing) !== elementDataText(element);
        const isNewRange = existing === undefined && this.#intervals.has(set);
        if (isOther || (isNewRange && overlaps(draft.values(), element))) {
          throw rejection(EEXIST, change, element);
        }
        const target = element.data !== undefined && 'chain' in element.data && element.data.chain;
        if (target && !this.chains.has(target)) throw rejection(ENOENT, change, element);
        draft.set(key, element);
      }
    }
    for (const isInterval of [false, true]) {
      for (const [name, elements] of drafts) {
        if (this.#intervals.has(name) !== isInterval) continue;
        this.sets.set(name, elements);
        if (isInterval) this.midCommit();
      }
      if (!isInterval) this.midCommit();
    }
  }
}

/** The parts of a log line for a transaction; empty if the transaction changes nothing. */
function operationTexts(operations: readonly NftOperation[]): string[] {
  const filled = operations.flatMap((operation) =>
    operation.action === 'fill' ? [operation.chain.name] : [],
  );
  const rules = filled.length > FEW_CHAINS ? 'all' : filled.join();
  return [
    ...operations.flatMap((operation) => {
      if (operation.action !== 'declare') return [];
      return [operation.replacesTable === true ? 'replace table' : 'declare'];
    }),
    ...(filled.length === 0 ? [] : [`rules of ${rules}`]),
    ...operations.flatMap((operation) => {
      if (operation.action === 'declare') return [];
      if (operation.action === 'delete-table') return [`delete table ${operation.table}`];
      if (operation.action === 'remove')
        return operation.chains.length === 0 ? [] : [`remove ${operation.chains.join(' ')}`];
      if (operation.action === 'delete-flowtable')
        return [`delete flowtable ${operation.flowtable}`];
      if ('devices' in operation)
        return operation.devices.length === 0
          ? []
          : [`${operation.action} ${operation.devices.join(' ')}`];
      if (operation.action === 'fill' || operation.elements.length === 0) return [];
      return [`${operation.action} ${operation.set} ${operation.elements.length}`];
    }),
  ];
}

function overlaps(existing: Iterable<NftElement>, element: NftElement): boolean {
  const isIn = (key: Buffer, { key: low, keyEnd: high = low }: NftElement) =>
    [...key.keys()]
      .filter((at) => at % 4 === 0)
      .every((at) => {
        const word = key.readUInt32BE(at);
        return low.readUInt32BE(at) <= word && word <= high.readUInt32BE(at);
      });
  const { key, keyEnd = key } = element;
  return [...existing].some((other) => isIn(key, other) || isIn(keyEnd, other));
}

function rejection(errno: number, change: NftElementChange, element?: NftElement): NftRefusedError {
  return new NftRefusedError(new NetlinkError('transaction', errno), { change, element });
}

/** What the kernel compares if a declared set exists (nft_set_is_same). */
function setType(declared: NftSetDeclaration): string {
  const { flags, key, data, fieldLengths } = setAttributes(declared);
  return JSON.stringify([
    flags,
    key.datatype,
    key.length,
    data?.datatype,
    data?.length,
    fieldLengths,
  ]);
}

function conflict({ kind, name }: NftDeclaration): NftRefusedError {
  return new NftRefusedError(new NetlinkError('transaction', EEXIST), {
    object: `${kind} ${name}`,
  });
}
