/** A table of nf_tables in memory that tells what is done to it, and refuses what the kernel would. */

import type { IpFamily } from '../../api/objects.ts';
import { EEXIST, ENOENT, NetlinkError } from '../../netlink/core/error.ts';
import {
  NFT_SET_FLAGS,
  type NfTables,
  type NftChange,
  type NftElement,
  NftRefusedError,
  type NftSet,
} from '../../netlink/nftables/tables.ts';
import type { NftChainRules } from '../../netlink/nftables/types.ts';
import { type NftCommand, NftError } from '../../nft/command.ts';
import { dataText, keyText } from '../../nft/element.ts';
import { MAPS, type MapName } from '../../nftables/maps.ts';
import { textsOf } from './elements.ts';

export class FakeTables {
  readonly family: IpFamily;
  readonly sets = new Map<string, Map<string, NftElement>>();
  readonly chains = new Map<string, number>();
  /** Packets that counters have counted. */
  readonly counters = new Map<string, bigint>();
  /** One line for each transaction, such as `add service-ips 1, delete endpoints 2`. */
  log: string[] = [];
  /** Called before a transaction, and after it. */
  before: (changes: readonly NftChange[]) => void = () => {};
  after: () => void = () => {};
  /** Called when packets see what a transaction changed but in maps of ranges, and when in one more. */
  amid: () => void = () => {};
  /** Milliseconds that an element has left. */
  expiresIn: (element: NftElement) => number | undefined = () => undefined;
  /** Called in the middle of the dump of a set; whether that has to be made again. */
  onVisit: (set: string) => boolean = () => false;

  constructor(family: IpFamily = 'IPv4') {
    this.family = family;
  }

  get tables(): NfTables {
    const used: Pick<
      NfTables,
      | 'change'
      | 'visitElements'
      | 'chains'
      | 'sets'
      | 'counters'
      | 'replaceRules'
      | 'remove'
      | 'close'
    > = {
      change: async (changes) => this.#change(changes),
      visitElements: async (set, visit, restart) => {
        const elements = this.sets.get(set);
        if (elements === undefined) throw new NetlinkError('dump', ENOENT);
        for (const element of elements.values()) visit(this.#read(element));
        if (!this.onVisit(set)) return;
        restart?.();
        for (const element of this.sets.get(set)?.values() ?? []) {
          visit(this.#read(element));
        }
      },
      close: async () => {},
      chains: async () => (this.#isThere() ? [...this.chains.keys()] : undefined),
      sets: async () => (this.#isThere() ? [...this.sets.keys()].map(setNamed) : undefined),
      counters: async () =>
        this.#isThere()
          ? [...this.counters].map(([name, packets]) => ({ name, packets, bytes: packets }))
          : undefined,
      replaceRules: async (chains) => this.#replaceRules(chains),
      remove: async (chains, sets, counters) => {
        const names = [...chains, ...sets, ...counters];
        if (names.length === 0) return;
        this.log.push(`remove ${names.sort().join(' ')}`);
        for (const counter of counters) this.counters.delete(counter);
        for (const chain of chains) this.chains.delete(chain);
        for (const set of sets) {
          if (!this.sets.delete(set)) throw new NftRefusedError(new NetlinkError('delete', ENOENT));
        }
      },
    };
    // The backend uses nothing else of it.
    return used as NfTables;
  }

  /** Runs declarations; a set `other` makes it refuse, as one of another kind does. */
  get nft(): NftCommand {
    return {
      check: async () => {},
      run: async (script) => {
        if (script.includes('delete table')) {
          this.log.push('replace table');
          // As nft 1.0.6 does with IPv6.
          if (script.includes(' update @')) throw new NftError('Assertion failed', undefined);
          this.sets.clear();
          this.chains.clear();
          this.counters.clear();
        } else this.log.push('declare');
        if (this.sets.has('other version')) throw new NftError('File exists', undefined);
        for (const [, kind, name = ''] of script.matchAll(
          /^ {2}(map|set|counter|chain) (\S+) \{/gm,
        )) {
          if (kind === 'counter') this.counters.set(name, this.counters.get(name) ?? 0n);
          else if (kind === 'chain') this.chains.set(name, this.chains.get(name) ?? 0);
          else this.sets.set(name, this.sets.get(name) ?? new Map());
        }
      },
    };
  }

  /** What a map holds, as nft writes it. */
  texts(map: MapName): readonly string[] {
    const elements = [...(this.sets.get(map)?.values() ?? [])].map((element) => ({
      map,
      ...element,
    }));
    return textsOf(elements, this.family)[map] ?? [];
  }

  put(map: string, ...elements: readonly NftElement[]): void {
    for (const element of elements) this.sets.get(map)?.set(keyText(element), element);
  }

  #read(element: NftElement): NftElement {
    const timeoutMs = this.expiresIn(element);
    return timeoutMs === undefined ? element : { ...element, timeoutMs };
  }

  #isThere(): boolean {
    return this.sets.size + this.chains.size > 0;
  }

  #replaceRules(chains: readonly NftChainRules[]): void {
    if (chains.length === 0) return;
    this.log.push(
      chains.length > 10 ? 'rules of all' : `rules of ${chains.map((c) => c.name).join()}`,
    );
    for (const { name, rules } of chains) {
      const all = [...rules];
      for (const { expressions } of all) this.#checkNames(expressions);
      this.chains.set(name, all.length);
    }
  }

  /** What rules look up or count in has to be there. */
  #checkNames(rule: Buffer): void {
    const text = rule.toString('latin1');
    for (const [name] of text.matchAll(/localhost-nodeport-rejected-\w+(?=\0)/g)) {
      if (!this.counters.has(name)) throw new Error(`rules name ${name}, which is not there`);
    }
    for (const [name] of text.matchAll(/affinity(-ips-\d+)?(?=\0)/g)) {
      if (!this.sets.has(name)) throw new Error(`rules name ${name}, which is not there`);
    }
  }

  #change(changes: readonly NftChange[]): void {
    const line = changes
      .filter(({ elements }) => elements.length > 0)
      .map(({ action, set, elements }) => `${action} ${set} ${elements.length}`);
    if (line.length === 0) return;
    this.before(changes);
    const drafts = new Map([...this.sets].map(([name, elements]) => [name, new Map(elements)]));
    for (const { action, set, elements } of changes) {
      const draft = drafts.get(set);
      if (draft === undefined) throw refused(ENOENT, { action, set, elements });
      for (const element of elements) {
        const [key, there] = [keyText(element), draft.get(keyText(element))];
        if (action === 'delete' && !draft.delete(key)) {
          throw refused(ENOENT, { action, set, elements }, element);
        }
        if (action === 'delete') continue;
        const isOther = there !== undefined && dataText(there) !== dataText(element);
        if (isOther || (there === undefined && overlaps(set, draft.values(), element))) {
          throw refused(EEXIST, { action, set, elements }, element);
        }
        const target = element.data !== undefined && 'chain' in element.data && element.data.chain;
        if (target && !this.chains.has(target))
          throw refused(ENOENT, { action, set, elements }, element);
        draft.set(key, element);
      }
    }
    const isLate = (name: string) => MAPS[name as MapName]?.isInterval === true;
    for (const late of [false, true]) {
      for (const [name, elements] of drafts) {
        if (isLate(name) !== late) continue;
        this.sets.set(name, elements);
        if (late) this.amid();
      }
      if (!late) this.amid();
    }
    this.log.push(line.join(', '));
    this.after();
  }
}

function overlaps(set: string, there: Iterable<NftElement>, element: NftElement): boolean {
  if (MAPS[set as MapName]?.isInterval !== true) return false;
  const isIn = (key: Buffer, { key: low, keyEnd: high = low }: NftElement) =>
    [...key.keys()]
      .filter((at) => at % 4 === 0)
      .every((at) => {
        const word = key.readUInt32BE(at);
        return low.readUInt32BE(at) <= word && word <= high.readUInt32BE(at);
      });
  const { key, keyEnd = key } = element;
  return [...there].some((other) => isIn(key, other) || isIn(keyEnd, other));
}

function refused(errno: number, change: NftChange, element?: NftElement): NftRefusedError {
  return new NftRefusedError(new NetlinkError('transaction', errno), { change, element });
}

function setNamed(name: string): NftSet {
  const flags = name.startsWith('__') ? NFT_SET_FLAGS.anonymous : 0;
  return { name, flags, keyLength: 4, dataLength: undefined, verdicts: false };
}
